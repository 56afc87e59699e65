// The host engine: finds the queue for each call, completion and connection event, and runs what is
// due in each loop iteration. What a queue does itself stands in host_queue.cc. On the reactor's
// thread, except counters().
#include "nvmf/host_engine.h"

#include <algorithm>
#include <cerrno>
#include <unordered_map>

#include "nvmf/host_queue.h"

namespace nvmeof::nvmf {

namespace {

constexpr uint32_t kCqDepthMin = 4096;
constexpr size_t kPollBatch = 32;
constexpr int kPollBatchesMax = 8;  // of one completion queue in one loop iteration
constexpr unsigned kIndexBits = 16;

// Completion queues are shared by as many queues as each can hold all work of.
struct CqShare {
  std::unique_ptr<rdma::CompletionQueue> cq;
  uint32_t depth;
  uint32_t used;
};

class Registered final : public RegisteredMemory {
 public:
  Registered(uint8_t* at, size_t bytes, std::unique_ptr<rdma::MemoryRegion> made)
      : RegisteredMemory({at, bytes, made.get()}), held_(std::move(made)) {}

 private:
  const std::unique_ptr<rdma::MemoryRegion> held_;
};

class HostEngineImpl final : public HostEngine {
 public:
  HostEngineImpl(rdma::Device* device, reactor::Reactor* reactor, EventSink* sink,
                 std::unique_ptr<rdma::ProtectionDomain> pd)
      : reactor_(reactor), pd_(std::move(pd)) {
    shared_.device = device;
    shared_.pd = pd_.get();
    shared_.sink = sink;
    shared_.memory_windows = device->capabilities().memory_windows;
    shared_.remote_invalidate = device->capabilities().send_with_invalidate;
    shared_.receive_window = device->capabilities().receive_window_bytes;
    reactor_->add(this, reactor::Stage::Process);
  }

  ~HostEngineImpl() override {
    reactor_->remove(this);
    for (size_t i = 0; i < queues_.size(); i++) {
      if (!queues_[i]) continue;
      queues_[i]->abandon();
      queues_[i]->finish_close();
    }
    shared_.dirty.clear();
    queues_.clear();
  }

  Result<void> connect(uint32_t queue, const sockaddr_storage& peer, uint16_t port,
                       const HostQueueOptions& options) override;
  void submit(uint32_t queue, HostCommand* command) override;
  void cancel(uint32_t queue, uint64_t tag) override {
    HostQueue* found = find(queue);
    if (found == nullptr) return;
    timed_ = true;
    found->cancel(tag, reactor_->now());
  }
  void close(uint32_t queue) override;
  Result<std::unique_ptr<RegisteredMemory>> register_memory(uint32_t queue, uint8_t* base,
                                                            size_t length) override;
  uint32_t live_queues() const override { return static_cast<uint32_t>(by_id_.size()); }
  std::vector<rdma::CounterValue> counters() const override;

  int poll(reactor::TimeNs now) override;
  reactor::TimeNs next_deadline() const override;
  bool arm() override;

  void on_connect_request(const rdma::ConnectRequest&) override {}
  void on_connect_response(rdma::ConnectionId id, const rdma::ConnectResponse& response) override {
    if (HostQueue* queue = find_connection(id)) queue->on_connected(response);
  }
  void on_connect_failed(rdma::ConnectionId id, const rdma::ConnectFailed& failed) override {
    if (HostQueue* queue = find_connection(id)) queue->on_connect_failed(failed);
  }
  void on_established(rdma::ConnectionId) override {}
  void on_disconnected(rdma::ConnectionId id, const std::string& reason) override {
    if (HostQueue* queue = find_connection(id)) queue->on_disconnected(reason);
  }

 private:
  HostQueue* find(uint32_t id);
  // With memory windows one serves all queues. Null: no such queue.
  rdma::ProtectionDomain* protection_domain(uint32_t queue) {
    if (shared_.memory_windows) return pd_.get();
    HostQueue* found = find(queue);
    return found != nullptr ? found->protection_domain() : nullptr;
  }
  HostQueue* find_connection(rdma::ConnectionId id);
  Result<CqShare*> share_of(uint32_t completions);
  uint64_t new_handle();
  int poll_completions();
  int serve_starved();
  void dispatch(const rdma::WorkCompletion& completion);
  void expire(reactor::TimeNs now);
  void probe_silent(reactor::TimeNs now);
  void finish_closing();
  void destroy(HostQueue* queue);

  reactor::Reactor* const reactor_;
  std::unique_ptr<rdma::ProtectionDomain> pd_;  // outlives the queues
  std::vector<CqShare> cqs_;
  HostShared shared_;
  // By the index in a queue's handle; what stands above the index tells its users apart, so that a
  // completion left over from a destroyed queue finds nobody.
  std::vector<std::unique_ptr<HostQueue>> queues_;
  uint64_t handles_ = 0;
  std::unordered_map<uint32_t, HostQueue*> by_id_;
  std::unordered_map<rdma::ConnectionId, HostQueue*> by_connection_;
  std::vector<HostQueue*> flushing_;
  HostQueue* last_ = nullptr;  // that find() found
  bool timed_ = false;         // queues may have deadlines
  // Commands were submitted: their queues are looked at. kNever: none of those that probe waits.
  reactor::TimeNs next_probe_ = reactor::kNever;
};

}  // namespace

Result<std::unique_ptr<HostEngine>> HostEngine::create(rdma::Device* device,
                                                       reactor::Reactor* reactor, EventSink* sink) {
  auto pd = device->allocate_pd();
  if (!pd) return pd.error();
  return std::unique_ptr<HostEngine>(new HostEngineImpl(device, reactor, sink, std::move(*pd)));
}

namespace {

HostQueue* HostEngineImpl::find(uint32_t id) {
  if (last_ != nullptr && last_->id() == id) return last_;
  const auto found = by_id_.find(id);
  return last_ = found != by_id_.end() ? found->second : nullptr;
}

HostQueue* HostEngineImpl::find_connection(rdma::ConnectionId id) {
  const auto found = by_connection_.find(id);
  return found != by_connection_.end() ? found->second : nullptr;
}

Result<CqShare*> HostEngineImpl::share_of(uint32_t completions) {
  for (CqShare& share : cqs_) {
    if (completions <= share.depth - share.used) return &share;
  }
  const uint32_t depth = std::max(kCqDepthMin, completions);
  auto cq = shared_.device->create_cq(depth);
  if (!cq) return cq.error();
  cqs_.push_back({std::move(*cq), depth, 0});
  return &cqs_.back();
}

uint64_t HostEngineImpl::new_handle() {
  size_t index = 0;
  while (index < queues_.size() && queues_[index]) index++;
  if (index == queues_.size()) queues_.emplace_back();
  return ++handles_ << kIndexBits | index;
}

Result<void> HostEngineImpl::connect(uint32_t id, const sockaddr_storage& peer, uint16_t port,
                                     const HostQueueOptions& options) {
  if (options.depth < 2 || options.depth > 65536) {
    return Error{EINVAL, "queue depth " + std::to_string(options.depth) + " is not 2 to 65536"};
  }
  if (options.in_capsule_bytes > kHostTransferMax) {
    return Error{EINVAL, "in-capsule data of " + std::to_string(options.in_capsule_bytes) +
                             " bytes is beyond the largest transfer"};
  }
  if (by_id_.contains(id)) return Error{EEXIST, "queue " + std::to_string(id) + " exists"};
  if (by_id_.size() >= (1u << kIndexBits)) return Error{EMFILE, "too many queues on one reactor"};
  const uint32_t completions = HostQueue::completions_max(options.depth);
  auto share = share_of(completions);
  if (!share) return share.error();
  const uint64_t handle = new_handle();
  auto queue = HostQueue::create(&shared_, id, handle, (*share)->cq.get(), options);
  if (!queue) return queue.error();
  if (auto connected = (*queue)->connect(peer, port, options.parameters, this); !connected) {
    return connected.error();
  }
  HostQueue* made = queue->get();
  if (options.timeout_ms != 0) {
    made->deadline = reactor_->now() + uint64_t{options.timeout_ms} * 1'000'000;
  }
  (*share)->used += completions;
  timed_ = true;
  by_id_[id] = made;
  by_connection_[made->connection()] = made;
  queues_[handle & ((1u << kIndexBits) - 1)] = std::move(*queue);
  // flush() and begin_close() add each queue once: no allocation when they do.
  shared_.dirty.reserve(queues_.size());
  flushing_.reserve(queues_.size());
  shared_.closing.reserve(queues_.size());
  return {};
}

void HostEngineImpl::submit(uint32_t id, HostCommand* command) {
  if (HostQueue* queue = find(id)) {
    if (next_probe_ == reactor::kNever && queue->probes())
      next_probe_ = reactor_->now() + kProbeInterval;
    queue->submit(command);
    return;
  }
  command->done(command, Outcome::NeverSent, kNoCqe.data());
}

// Rights of a region: no remote ones where memory windows give them per command.
Result<std::unique_ptr<RegisteredMemory>> HostEngineImpl::register_memory(uint32_t queue,
                                                                          uint8_t* base,
                                                                          size_t length) {
  rdma::ProtectionDomain* const pd = protection_domain(queue);
  if (pd == nullptr) return Error{ENOTCONN, "the queue is closed"};
  const uint8_t access = shared_.memory_windows
                             ? rdma::kLocalWrite | rdma::kWindowBind
                             : rdma::kLocalWrite | rdma::kRemoteRead | rdma::kRemoteWrite;
  auto region = pd->register_memory(base, length, access);
  if (!region) return region.error();
  return std::unique_ptr<RegisteredMemory>(
      std::make_unique<Registered>(base, length, std::move(*region)));
}

void HostEngineImpl::close(uint32_t id) {
  HostQueue* queue = find(id);
  if (queue == nullptr) return;
  if (queue->state() == HostQueueState::Connecting) {
    queue->fail_connect(rdma::ConnectFailure::Cancelled, "the connect was given up");
  } else {
    queue->begin_close("closed by this side");
  }
}

int HostEngineImpl::poll(reactor::TimeNs now) {
  int handled = poll_completions();
  if (timed_) expire(now);
  if (now >= next_probe_) probe_silent(now);
  if (!shared_.closing.empty()) finish_closing();
  handled += serve_starved();
  flushing_.swap(shared_.dirty);
  handled += static_cast<int>(flushing_.size());
  for (HostQueue* queue : flushing_) queue->flush();
  flushing_.clear();
  return handled;
}

void HostEngineImpl::probe_silent(reactor::TimeNs now) {
  bool awaits = false;
  for (const auto& queue : queues_) {
    if (queue && queue->probe_silent()) awaits = true;
  }
  next_probe_ = awaits ? now + kProbeInterval : reactor::kNever;
}

int HostEngineImpl::serve_starved() {
  int started = 0;
  if (!shared_.window_opens()) return started;
  while (HostQueue* const first = shared_.starved_head) {
    started += first->serve_starved();
    if (shared_.starved_head == first) break;  // goes on waiting, and all behind it
  }
  return started;
}

int HostEngineImpl::poll_completions() {
  std::array<rdma::WorkCompletion, kPollBatch> batch;
  int handled = 0;
  for (size_t i = 0; i < cqs_.size(); i++) {
    for (int round = 0; round < kPollBatchesMax; round++) {
      const int count = cqs_[i].cq->poll(batch);
      for (int k = 0; k < count; k++) dispatch(batch[static_cast<size_t>(k)]);
      handled += count;
      if (count < static_cast<int>(kPollBatch)) break;
    }
  }
  return handled;
}

void HostEngineImpl::dispatch(const rdma::WorkCompletion& completion) {
  const uint64_t handle = reinterpret_cast<uintptr_t>(completion.qp_context);
  const size_t index = handle & ((1u << kIndexBits) - 1);
  if (index >= queues_.size() || !queues_[index] || queues_[index]->handle() != handle) return;
  queues_[index]->on_completion(completion);
}

void HostEngineImpl::expire(reactor::TimeNs now) {
  timed_ = false;
  for (const auto& queue : queues_) {
    if (!queue) continue;
    if (queue->deadline <= now) queue->expire(now);
    timed_ |= queue->deadline != reactor::kNever;
  }
}

void HostEngineImpl::finish_closing() {
  // By index: `done` may close more queues.
  for (size_t i = 0; i < shared_.closing.size();) {
    HostQueue* queue = shared_.closing[i];
    if (!queue->finish_close()) {
      i++;
      continue;
    }
    shared_.closing.erase(shared_.closing.begin() + static_cast<ptrdiff_t>(i));
    destroy(queue);
  }
}

void HostEngineImpl::destroy(HostQueue* queue) {
  std::erase(shared_.dirty, queue);
  by_id_.erase(queue->id());
  by_connection_.erase(queue->connection());
  if (last_ == queue) last_ = nullptr;
  for (CqShare& share : cqs_) {
    if (share.cq.get() == queue->cq()) share.used -= HostQueue::completions_max(queue->depth());
  }
  queues_[queue->handle() & ((1u << kIndexBits) - 1)].reset();
}

reactor::TimeNs HostEngineImpl::next_deadline() const {
  reactor::TimeNs next = next_probe_;
  if (!timed_) return next;
  for (const auto& queue : queues_) {
    if (queue) next = std::min(next, queue->deadline);
  }
  return next;
}

bool HostEngineImpl::arm() {
  if (!shared_.dirty.empty()) return false;
  for (const HostQueue* queue : shared_.closing) {
    if (queue->finish_is_due()) return false;
  }
  // Each of them, also when an earlier one has work: the next arm() starts anew.
  for (CqShare& share : cqs_) {
    if (!share.cq->arm()) return false;
  }
  return true;
}

std::vector<rdma::CounterValue> HostEngineImpl::counters() const {
  const auto read = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  const auto& c = shared_.counters;
  return {
      {"host.commands", read(c.commands)},
      {"host.bytesToController", read(c.bytes_to_controller)},
      {"host.bytesToHost", read(c.bytes_to_host)},
      {"host.inCapsule", read(c.in_capsule)},
      {"host.cancelled", read(c.cancelled)},
      {"host.localInvalidates", read(c.local_invalidates)},
      {"host.protocolErrors", read(c.protocol_errors)},
      {"live.host.queues", read(c.queues)},
      {"live.host.slots", read(c.slots)},
      {"live.host.windows", read(c.windows)},
      {"live.host.receiveBytes", read(c.receive_bytes)},
  };
}

}  // namespace

}  // namespace nvmeof::nvmf
