// Set-up of the target engine, its polling round, and the lives of its queues from accept to the
// one QueueClosed event.
#include "nvmf/target_engine.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "nvmf/target_impl.h"

namespace nvmeof::nvmf {

namespace {

void format_address(const sockaddr_storage& from, char (&out)[64]) {
  out[0] = '\0';
  if (from.ss_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&from)->sin_addr, out, sizeof out);
  else if (from.ss_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&from)->sin6_addr, out, sizeof out);
}

std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

Result<std::unique_ptr<TargetEngine>> TargetEngine::create(rdma::Device* device,
                                                           reactor::Reactor* reactor,
                                                           EventSink* sink,
                                                           const TargetLimits& limits) {
  auto engine = std::make_unique<TargetEngineImpl>(device, reactor, sink, limits);
  if (auto ready = engine->set_up(); !ready) return ready.error();
  return std::unique_ptr<TargetEngine>(std::move(engine));
}

TargetEngineImpl::TargetEngineImpl(rdma::Device* device, reactor::Reactor* reactor, EventSink* sink,
                                   const TargetLimits& limits)
    : device_(device),
      reactor_(reactor),
      sink_(sink),
      limits_(limits),
      tables_(
          [this](Namespace& entry) {
            if (reactor_ && entry.channel) reactor_->remove(entry.channel.get());
          },
          [this](NamespaceTable* table) {
            for (auto& [id, queue] : by_id_)
              if (queue->table == table) {
                queue->table = nullptr;
                queue->view = &kOpenView;
              }
          }),
      flusher_(this) {}

Result<void> TargetEngineImpl::set_up() {
  const uint32_t completions = std::min(kCompletionsMax, device_->capabilities().max_cq_entries);
  if (completions <= limits_.shared_receives)
    return Error{EINVAL, "target limits: sharedReceives must be below " +
                             std::to_string(completions) + ", what a completion queue holds"};
  send_budget_ = completions - limits_.shared_receives;
  auto pd = device_->allocate_pd();
  if (!pd) return pd.error();
  pd_ = std::move(*pd);
  auto memory = TargetMemory::create(pd_.get(), limits_, send_budget_);
  if (!memory) return memory.error();
  memory_ = std::move(*memory);
  auto cq = device_->create_cq(completions);
  if (!cq) return cq.error();
  cq_ = std::move(*cq);
  if (device_->capabilities().srq) {
    auto srq = device_->create_srq(pd_.get(), limits_.shared_receives, 1);
    if (!srq) return srq.error();
    srq_ = std::move(*srq);
  } else {
    receive_owners_.resize(limits_.shared_receives);
  }
  data_.reset(new WaitingPool{
      BufferPool(memory_->data_base(), memory_->data_length(), memory_->data_largest()), {}});
  control_.reset(new WaitingPool{
      BufferPool(memory_->control_base(), memory_->control_length(), memory_->control_length()),
      {}});
  TargetCounters::set(counters_.buffer_bytes, memory_->data_length() + memory_->control_length());
  free_responses_.reserve(send_budget_);
  for (uint32_t i = send_budget_; i-- > 0;) free_responses_.push_back(i);
  to_repost_.reserve(limits_.shared_receives);
  arrivals_.reserve(limits_.shared_receives);
  for (uint32_t i = limits_.shared_receives; i-- > 0;) to_repost_.push_back(i);
  idle_receives_ = limits_.shared_receives;
  flush_receives();
  if (reactor_) {
    reactor_->add(this, reactor::Stage::Process);
    reactor_->add(&flusher_, reactor::Stage::Block);
  }
  return {};
}

// The owner has closed every queue and table before; what is left here is let go without events.
TargetEngineImpl::~TargetEngineImpl() {
  if (reactor_) {
    reactor_->remove(this);
    reactor_->remove(&flusher_);
  }
  for (auto& [id, queue] : by_connection_) device_->abandon(id);
  for (Place& place : places_)
    if (place.queue) place.queue->qp.reset();
}

int TargetEngineImpl::poll(reactor::TimeNs now) {
  now_ = now;
  rdma::WorkCompletion completions[kPollBatch];
  int work = 0, count = 0;
  // All that has arrived, so that no queue's capsules wait behind another's here.
  for (unsigned batch = 0; batch < kPollBatches; batch++) {
    count = cq_->poll(completions);
    for (int i = 0; i < count; i++) on_completion(completions[i]);
    work += count;
    if (static_cast<unsigned>(count) < kPollBatch) break;
  }
  work += serve_queues();
  launch_arrivals();
  work += flush();
  if (!ending_.empty()) {
    check_deadlines();
    work += reap(static_cast<unsigned>(count) < kPollBatch);
  }
  if (tables_.pending()) {
    tables_.cancel_overdue(now);
    work += tables_.settle();
    tables_changed();
  }
  flush_receives();
  refresh_live_counters();
  return work;
}

reactor::TimeNs TargetEngineImpl::next_deadline() const {
  reactor::TimeNs deadline = tables_.next_deadline();
  for (const TargetQueue* queue : ending_) deadline = std::min(deadline, queue->deadline);
  return deadline;
}

bool TargetEngineImpl::arm() {
  if (!dirty_.empty() || receives_wait() || tables_.can_settle()) return false;
  if (!sparse_.empty() || !busy_.empty()) return false;
  if (buffers_freed_ && !(data_->waiting.empty() && control_->waiting.empty())) return false;
  for (const TargetQueue* queue : ending_)
    if (queue->state == QueueState::Gone && (queue->qp || queue->live == 0)) return false;
  return cq_->arm();
}

// ---- connections

void TargetEngineImpl::on_connect_request(const rdma::ConnectRequest& request) {
  EventAddresses addresses{};
  format_address(request.peer, addresses.peer);
  format_address(request.local, addresses.local);
  addresses.peer_port = request.peer_port;
  addresses.responder_resources = request.responder_resources;
  addresses.initiator_depth = request.initiator_depth;
  sink_->push(EventKind::ConnectRequest, request.listener, 0, 0, request.id, request.private_data,
              {reinterpret_cast<const uint8_t*>(&addresses), sizeof addresses});
}

void TargetEngineImpl::on_connect_response(rdma::ConnectionId, const rdma::ConnectResponse&) {
  // Of the active side only; a target never connects.
}

void TargetEngineImpl::on_connect_failed(rdma::ConnectionId id, const rdma::ConnectFailed& failed) {
  if (TargetQueue* queue = queue_by_connection(id)) gone(queue, failed.message);
}

void TargetEngineImpl::on_established(rdma::ConnectionId id) {
  if (TargetQueue* queue = queue_by_connection(id)) establish(queue);
}

void TargetEngineImpl::on_disconnected(rdma::ConnectionId id, const std::string& reason) {
  if (TargetQueue* queue = queue_by_connection(id)) gone(queue, reason);
}

Result<void> TargetEngineImpl::accept(uint32_t id, rdma::ConnectionId connection,
                                      const AcceptOptions& options) {
  if (options.depth < kDepthMin || options.depth > kDepthMax)
    return Error{EINVAL, "queue depth " + std::to_string(options.depth) + " is not within " +
                             std::to_string(kDepthMin) + ".." + std::to_string(kDepthMax)};
  if (options.in_capsule_bytes > limits_.in_capsule_bytes)
    return Error{EINVAL, "in-capsule data of " + std::to_string(options.in_capsule_bytes) +
                             " bytes: the receive buffers hold " +
                             std::to_string(limits_.in_capsule_bytes)};
  if (by_id_.count(id)) return Error{EEXIST, "queue " + std::to_string(id) + " exists"};
  const uint32_t entries = std::min(2 * options.depth, kSendEntriesMax);
  if (entries > send_budget_ - send_entries_used_)
    return Error{ENOMEM, "this reactor has no send queue entries left for another queue"};
  if (promises_receives() && options.depth > limits_.shared_receives - promised_receives_)
    return Error{ENOMEM, "this reactor has no receives left for another queue of this depth"};

  size_t index = 0;
  while (index < places_.size() && places_[index].queue) index++;
  if (index == places_.size()) places_.emplace_back();
  auto queue = std::make_unique<TargetQueue>();
  queue->engine = this;
  queue->id = id;
  queue->index = static_cast<uint32_t>(index);
  queue->generation = ++places_[index].generation;
  queue->connection = connection;
  queue->in_capsule_bytes = options.in_capsule_bytes;
  queue->responder_resources = options.parameters.responder_resources;
  queue->initiator_depth = options.parameters.initiator_depth;
  queue->allocate(options.depth, entries);

  rdma::QueuePairOptions qp;
  qp.pd = pd_.get();
  qp.send_cq = qp.receive_cq = cq_.get();
  qp.srq = srq_.get();
  qp.max_send_wr = entries;
  qp.max_receive_wr = srq_ ? 0 : options.depth;
  qp.max_send_sge = 1;
  qp.context = queue->context();
  auto created = device_->create_qp(qp);
  if (!created) return created.error();
  queue->qp = std::move(*created);
  TargetQueue* raw = queue.get();
  if (!reserve_receives(raw)) {
    raw->qp.reset();
    return_receives(raw);
    return Error{ENOMEM, "the queue pair takes no receives"};
  }
  by_id_[id] = raw;
  by_connection_[connection] = raw;
  places_[index].queue = std::move(queue);
  send_entries_used_ += entries;
  if (auto accepted = device_->accept(connection, raw->qp.get(), options.parameters); !accepted) {
    const Error error = accepted.error();
    by_id_.erase(id);
    by_connection_.erase(connection);
    send_entries_used_ -= entries;
    raw->qp.reset();
    return_receives(raw);
    places_[index].queue.reset();
    return error;
  }
  return {};
}

// By the provider's event or by the first capsule, whichever comes first.
void TargetEngineImpl::establish(TargetQueue* queue) {
  if (queue->state != QueueState::Accepting) return;
  queue->advance(QueueState::Live);
  queue->packet_bytes = queue->qp->packet_bytes();
  sink_->push(EventKind::QueueEstablished, queue->id, 0,
              queue->responder_resources | static_cast<uint32_t>(queue->initiator_depth) << 8, 0,
              {}, {});
}

void TargetEngineImpl::close(uint32_t id) {
  TargetQueue* queue = queue_by_id(id);
  if (!queue || !queue->alive()) return;
  if (queue->state == QueueState::Accepting) return kill(queue, "closed by the target");
  queue->advance(QueueState::Closing);
  queue->reason = "closed by the target";
  queue->deadline = time() + kClosingPatience;
  ending_.push_back(queue);
  mark_dirty(queue);  // capsules that wait for a slot are dropped there
}

// The target ends it: a protocol error of the host, a failed work request, or the end of close().
void TargetEngineImpl::kill(TargetQueue* queue, std::string reason) {
  if (!queue->answers()) return;
  if (queue->state == QueueState::Closing) {
    reason = queue->reason;
  } else {
    ending_.push_back(queue);
  }
  queue->advance(QueueState::Dying);
  queue->reason = std::move(reason);
  queue->deadline = time() + kDyingPatience;
  queue->qp->to_error();
  drop_commands(queue, false);
  device_->disconnect(queue->connection);
}

// The provider has nothing more to say about the connection.
void TargetEngineImpl::gone(TargetQueue* queue, const std::string& reason) {
  if (queue->state == QueueState::Gone) return;
  if (queue->alive()) ending_.push_back(queue);
  if (queue->reason.empty()) queue->reason = reason;
  by_connection_.erase(queue->connection);
  queue->advance(QueueState::Gone);
  queue->deadline = reactor::kNever;
  drop_commands(queue, false);
}

// Ends the commands that nothing can touch any more. A posted work request may, until it is
// flushed or its queue pair is destroyed; a backing may, until its request is done.
void TargetEngineImpl::drop_commands(TargetQueue* queue, bool work_requests_ended) {
  while (queue->waiting_count > 0) repost(queue->pop_waiting().receive);
  forget_service(queue);
  for (uint32_t i = 0; i < queue->slot_count && queue->live > 0; i++) {
    Command* command = &queue->slots[i];
    const bool posted = command->state == CommandState::Sending ||
                        (command->state == CommandState::Fetching && command->posted);
    if (command->state == CommandState::Free || command->state == CommandState::Parsed ||
        command->state == CommandState::Executing)
      continue;  // Parsed: launch_arrivals() lets go of it
    if (!posted || work_requests_ended) release(command);
  }
}

void TargetEngineImpl::check_deadlines() {
  for (size_t i = 0; i < ending_.size(); i++) {
    TargetQueue* queue = ending_[i];
    if (queue->state == QueueState::Closing) {
      bool busy = false;
      for (uint32_t slot = 0; slot < queue->slot_count && !busy; slot++) {
        const CommandState state = queue->slots[slot].state;
        busy = state != CommandState::Free && state != CommandState::Control;
      }
      if (!busy || now_ >= queue->deadline) kill(queue, queue->reason);
    } else if (queue->state == QueueState::Dying && now_ >= queue->deadline) {
      device_->abandon(queue->connection);
      gone(queue, queue->reason);
    }
  }
}

// Destroys queue pairs whose connection is gone, once the completion queue is dry: what it holds
// of them has been looked at. Then nothing but a backing can hold a command.
int TargetEngineImpl::reap(bool cq_dry) {
  int ended = 0;
  for (size_t i = 0; i < ending_.size();) {
    TargetQueue* queue = ending_[i];
    report_quiet(queue);
    if (queue->state == QueueState::Gone && queue->qp && cq_dry) {
      queue->qp.reset();
      drop_commands(queue, true);
    }
    if (queue->state != QueueState::Gone || queue->qp || queue->live > 0) {
      i++;
      continue;
    }
    ending_.erase(ending_.begin() + static_cast<std::ptrdiff_t>(i));
    finish_queue(queue);
    ended++;
  }
  return ended;
}

// Once it dies no command begins any more; a host that fails over need not wait for the connection
// to end too.
void TargetEngineImpl::report_quiet(TargetQueue* queue) {
  if (queue->quiet || queue->touching > 0 || queue->state < QueueState::Dying) return;
  queue->quiet = true;
  sink_->push(EventKind::QueueQuiet, queue->id, 0, 0, 0, {}, {});
}

void TargetEngineImpl::finish_queue(TargetQueue* queue) {
  const uint32_t id = queue->id;
  const std::string reason = std::move(queue->reason);
  std::erase(dirty_, queue);
  return_receives(queue);
  by_id_.erase(id);
  send_entries_used_ -= queue->send_entries;
  places_[queue->index].queue.reset();
  refresh_live_counters();  // before the event: who hears it may look
  sink_->push(EventKind::QueueClosed, id, 0, 0, 0, {}, as_bytes(reason));
}

TargetQueue* TargetEngineImpl::queue_of(void* context) const {
  const uint64_t value = reinterpret_cast<uint64_t>(context);
  const uint32_t index = static_cast<uint32_t>(value);
  if (index >= places_.size() || places_[index].generation != value >> 32) return nullptr;
  return places_[index].queue.get();
}

TargetQueue* TargetEngineImpl::queue_by_id(uint32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

TargetQueue* TargetEngineImpl::queue_by_connection(rdma::ConnectionId id) const {
  const auto found = by_connection_.find(id);
  return found == by_connection_.end() ? nullptr : found->second;
}

}  // namespace nvmeof::nvmf
