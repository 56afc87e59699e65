// Objects of the loopback provider: device with connection management, completion and receive
// queues, queue pairs' posting side, domains, regions, windows. Runs on the test's only thread.
#include <arpa/inet.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support/loopback_objects.h"

namespace nvmeof::test {

using namespace rdma;

namespace {

[[noreturn]] void misuse(const char* what) {
  std::fprintf(stderr, "loopback provider misused: %s\n", what);
  std::abort();
}

sockaddr_storage parse_address(const std::string& text) {
  sockaddr_storage storage{};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  v4->sin_family = AF_INET;
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) != 1) misuse("address is not IPv4 text");
  return storage;
}

std::string format_address(const sockaddr_storage& storage) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, text, sizeof text);
  return text;
}

LoopbackReceive copy_receive(const ReceiveWorkRequest& request) {
  LoopbackReceive receive{request.wr_id, request.num_sge, {}};
  std::memcpy(receive.sges, request.sg_list, sizeof(Sge) * request.num_sge);
  return receive;
}

}  // namespace

// ---- completion queue, receive queue

void LoopbackCompletionQueue::push(const WorkCompletion& completion, uint32_t retired) {
  if (entries_.size() >= depth_) misuse("completion queue overflow");
  entries_.push_back({completion, retired});
}

int LoopbackCompletionQueue::poll(std::span<WorkCompletion> out) {
  if (fabric_->progress_on_poll) fabric_->progress();
  int count = 0;
  while (static_cast<size_t>(count) < out.size() && !entries_.empty()) {
    const Entry& entry = entries_.front();
    const auto qp = fabric_->queue_pairs_.find(entry.completion.qp_num);
    if (qp != fabric_->queue_pairs_.end()) qp->second->in_use_ -= entry.retired;
    out[static_cast<size_t>(count++)] = entry.completion;
    entries_.pop_front();
  }
  return count;
}

Result<void> LoopbackReceives::post_receive(std::span<const ReceiveWorkRequest> requests) {
  for (const ReceiveWorkRequest& request : requests) {
    if (request.num_sge > max_sge_) return Error{EINVAL, "too many receive SGEs"};
    if (waiting.size() >= max_wr_) return Error{ENOMEM, "the receive queue is full"};
    waiting.push_back(copy_receive(request));
  }
  return {};
}

// ---- memory

Result<std::unique_ptr<MemoryRegion>> LoopbackDomain::register_memory(void* address, size_t length,
                                                                      uint8_t access) {
  return std::unique_ptr<MemoryRegion>(std::make_unique<LoopbackRegion>(
      fabric_, LoopbackKey{this, reinterpret_cast<uint64_t>(address), length, access, 0}));
}

Result<std::unique_ptr<MemoryWindow>> LoopbackDomain::allocate_window() {
  return std::unique_ptr<MemoryWindow>(std::make_unique<LoopbackWindow>(fabric_));
}

LoopbackRegion::LoopbackRegion(LoopbackFabric* fabric, const LoopbackKey& key) : fabric_(fabric) {
  LoopbackKey local = key;
  local.access = key.access & (kLocalWrite | kWindowBind);
  lkey_ = fabric->new_key(local);
  if (key.access & (kRemoteRead | kRemoteWrite)) rkey_ = fabric->new_key(key);
}

LoopbackRegion::~LoopbackRegion() {
  fabric_->keys_.erase(lkey_);
  if (rkey_) fabric_->keys_.erase(rkey_);
}

LoopbackWindow::~LoopbackWindow() {
  if (bound) fabric_->keys_.erase(bound);
}

uint32_t LoopbackWindow::next_rkey() {
  return fabric_->next_key_++;
}

// ---- queue pair

LoopbackQueuePair::LoopbackQueuePair(LoopbackFabric* fabric, LoopbackDevice* device,
                                     const QueuePairOptions& options, uint32_t number)
    : fabric_(fabric),
      device_(device),
      options_(options),
      number_(number),
      own_receives_(options.max_receive_wr, options.max_receive_sge) {
  fabric_->queue_pairs_[number_] = this;
}

LoopbackQueuePair::~LoopbackQueuePair() {
  // A window's key dies with its queue pair.
  std::erase_if(fabric_->keys_,
                [this](const auto& entry) { return entry.second.window_qp == number_; });
  fabric_->queue_pairs_.erase(number_);
}

Result<void> LoopbackQueuePair::check(const SendWorkRequest& request) const {
  const Capabilities& c = device_->capabilities();
  uint32_t limit = std::min(options_.max_send_sge, c.max_sge);
  if (request.opcode == Opcode::RdmaRead) limit = std::min(limit, c.max_read_sge);
  if (request.num_sge > limit) return Error{EINVAL, "more SGEs than the device takes"};
  if (request.opcode == Opcode::SendWithInvalidate && !c.send_with_invalidate)
    return Error{EINVAL, "the device cannot invalidate"};
  if (request.opcode > Opcode::LocalInvalidate) return Error{EINVAL, "the device has no atomics"};
  if (request.flags & kInline) {
    if (request.opcode == Opcode::SendWithInvalidate && !c.inline_with_invalidate)
      return Error{EINVAL, "no inline data with an invalidation"};
    uint64_t length = 0;
    for (unsigned i = 0; i < request.num_sge; i++) length += request.sg_list[i].length;
    if (length > c.max_inline) return Error{EINVAL, "more inline data than the device takes"};
  }
  return {};
}

Result<void> LoopbackQueuePair::post_send(std::span<const SendWorkRequest> requests) {
  fabric_->post_send_calls++;
  if (state_ != State::Rts && state_ != State::Err)
    return Error{EINVAL, "the queue pair is not connected"};
  for (const SendWorkRequest& request : requests) {
    if (const auto checked = check(request); !checked) return checked.error();
    if (in_use_ >= options_.max_send_wr) return Error{ENOMEM, "the send queue is full"};
    in_use_++;
    sends_.push_back({request, {}, {}});
    Send& send = sends_.back();
    if (request.num_sge) std::memcpy(send.sges, request.sg_list, sizeof(Sge) * request.num_sge);
    if (request.flags & kInline) {
      size_t at = 0;
      for (unsigned i = 0; i < request.num_sge; i++) {
        std::memcpy(send.inline_data + at, reinterpret_cast<const void*>(send.sges[i].address),
                    send.sges[i].length);
        send.sges[i].address = reinterpret_cast<uint64_t>(send.inline_data + at);
        at += send.sges[i].length;
      }
    }
  }
  return {};
}

Result<void> LoopbackQueuePair::post_receive(std::span<const ReceiveWorkRequest> requests) {
  if (options_.srq) return Error{EINVAL, "the queue pair has a shared receive queue"};
  const auto posted = own_receives_.post_receive(requests);
  if (state_ == State::Err) {
    for (const LoopbackReceive& receive : own_receives_.waiting)
      complete_receive(receive, Status::FlushError, Opcode::Send, 0, 0, 0);
    own_receives_.waiting.clear();
  }
  return posted;
}

bool LoopbackQueuePair::probe() {
  fabric_->probes++;
  return true;
}

void LoopbackQueuePair::to_error() {
  if (state_ == State::Err) return;
  state_ = State::Err;
  for (const LoopbackReceive& receive : own_receives_.waiting)
    complete_receive(receive, Status::FlushError, Opcode::Send, 0, 0, 0);
  own_receives_.waiting.clear();
}

WorkCompletion LoopbackQueuePair::completion(uint64_t wr_id, Status status, bool receive) const {
  WorkCompletion wc{};
  wc.wr_id = wr_id;
  wc.status = status;
  wc.receive = receive;
  wc.qp_num = number_;
  wc.qp_context = options_.context;
  return wc;
}

void LoopbackQueuePair::complete_send(Status status) {
  const SendWorkRequest request = sends_.front().request;
  sends_.pop_front();
  unretired_++;
  if (status == Status::Success && !(request.flags & kSignaled)) return;
  WorkCompletion wc = completion(request.wr_id, status, false);
  wc.opcode = request.opcode;
  unacknowledged_.push_back({wc, unretired_});
  unretired_ = 0;
  if (!acknowledgements_held_ || status != Status::Success) release_acknowledgements(status);
}

// Only success can become something else.
void LoopbackQueuePair::release_acknowledgements(Status status) {
  for (Unacknowledged& waiting : unacknowledged_) {
    if (waiting.completion.status == Status::Success) waiting.completion.status = status;
    static_cast<LoopbackCompletionQueue*>(options_.send_cq)
        ->push(waiting.completion, waiting.retires);
  }
  unacknowledged_.clear();
}

void LoopbackQueuePair::complete_receive(const LoopbackReceive& receive, Status status,
                                         Opcode opcode, uint32_t length, uint8_t flags,
                                         uint32_t imm_or_rkey) {
  WorkCompletion wc = completion(receive.wr_id, status, true);
  wc.opcode = opcode;
  wc.byte_length = length;
  wc.flags = flags;
  wc.imm_or_rkey = imm_or_rkey;
  static_cast<LoopbackCompletionQueue*>(options_.receive_cq)->push(wc, 0);
}

// ---- device

LoopbackDevice::LoopbackDevice(LoopbackFabric* fabric, std::string address, const Capabilities& c)
    : fabric_(fabric), address_(std::move(address)), capabilities_(c) {
  if (fabric_->devices_.count(address_)) misuse("address opened twice");
  fabric_->devices_[address_] = this;
}

LoopbackDevice::~LoopbackDevice() {
  fabric_->devices_.erase(address_);
  std::erase_if(fabric_->sides_, [this](const auto& entry) { return entry.second.device == this; });
}

sockaddr_storage LoopbackDevice::address() const {
  return parse_address(address_);
}

Result<std::unique_ptr<ProtectionDomain>> LoopbackDevice::allocate_pd() {
  return std::unique_ptr<ProtectionDomain>(std::make_unique<LoopbackDomain>(fabric_));
}

Result<std::unique_ptr<CompletionQueue>> LoopbackDevice::create_cq(uint32_t depth) {
  return std::unique_ptr<CompletionQueue>(
      std::make_unique<LoopbackCompletionQueue>(fabric_, depth));
}

Result<std::unique_ptr<SharedReceiveQueue>> LoopbackDevice::create_srq(ProtectionDomain* pd,
                                                                       uint32_t max_wr,
                                                                       uint32_t max_sge) {
  if (!capabilities_.srq || !pd) return Error{EOPNOTSUPP, "no shared receive queues"};
  return std::unique_ptr<SharedReceiveQueue>(std::make_unique<LoopbackReceives>(max_wr, max_sge));
}

Result<std::unique_ptr<QueuePair>> LoopbackDevice::create_qp(const QueuePairOptions& options) {
  if (!options.pd || !options.send_cq || !options.receive_cq || options.max_send_wr == 0)
    return Error{EINVAL, "queue pair options are incomplete"};
  if (options.max_send_sge > capabilities_.max_sge)
    return Error{EINVAL, "more SGEs than the device takes"};
  return std::unique_ptr<QueuePair>(
      std::make_unique<LoopbackQueuePair>(fabric_, this, options, fabric_->next_qp_++));
}

Result<uint32_t> LoopbackDevice::listen(uint16_t port, ConnectionHandler* handler) {
  for (const auto& [id, listener] : listeners_)
    if (listener.port == port) return Error{EADDRINUSE, "the port has a listener"};
  listeners_[next_listener_] = {port, handler};
  return next_listener_++;
}

void LoopbackDevice::unlisten(uint32_t listener) {
  listeners_.erase(listener);
}

Result<ConnectionId> LoopbackDevice::connect(const sockaddr_storage& peer, uint16_t port,
                                             QueuePair* qp, const ConnectionParameters& parameters,
                                             ConnectionHandler* handler) {
  auto* own = static_cast<LoopbackQueuePair*>(qp);
  if (own->state_ != State::Reset) return Error{EINVAL, "the queue pair is in use"};
  LoopbackFabric* fabric = fabric_;
  const ConnectionId id = fabric->next_connection_++;
  fabric->sides_[id] = {this, handler, own->number_, 0, true, false, false};
  own->connection_ = id;
  own->state_ = State::Init;
  const std::vector<uint8_t> data(parameters.private_data.begin(), parameters.private_data.end());
  const std::string address = format_address(peer);
  const uint8_t resources = parameters.responder_resources, depth = parameters.initiator_depth;
  fabric->events_.push_back([=] {
    const auto fail = [&](ConnectFailure failure, uint16_t reason, const char* message) {
      if (!fabric->side(id)) return;  // abandoned
      fabric->sides_.erase(id);
      handler->on_connect_failed(id, {failure, reason, {}, message});
    };
    if (!fabric->side(id)) return;
    const auto device = fabric->devices_.find(address);
    if (device == fabric->devices_.end())
      return fail(ConnectFailure::Unreachable, 0, "nobody answers at this address");
    for (const auto& [listener, entry] : device->second->listeners_) {
      if (entry.port != port) continue;
      const ConnectionId passive = fabric->next_connection_++;
      fabric->sides_[passive] = {device->second, entry.handler, 0, id, false, false, false};
      fabric->side(id)->peer = passive;
      ConnectRequest request{};
      request.id = passive;
      request.listener = listener;
      request.peer = fabric->side(id)->device->address();
      request.local = device->second->address();
      request.peer_port = 1024;
      request.responder_resources = resources;
      request.initiator_depth = depth;
      request.private_data = data;
      return entry.handler->on_connect_request(request);
    }
    fail(ConnectFailure::Rejected, 8, "nobody listens on this port");
  });
  return id;
}

Result<void> LoopbackDevice::accept(ConnectionId id, QueuePair* qp,
                                    const ConnectionParameters& parameters) {
  LoopbackFabric* fabric = fabric_;
  auto* own = static_cast<LoopbackQueuePair*>(qp);
  LoopbackFabric::Side* passive = fabric->side(id);
  LoopbackFabric::Side* active = passive ? fabric->side(passive->peer) : nullptr;
  if (!active) return Error{ENOTCONN, "the connection request is gone"};
  const auto other = fabric->queue_pairs_.find(active->qp);
  if (other == fabric->queue_pairs_.end()) return Error{ENOTCONN, "the peer is gone"};
  passive->qp = own->number_;
  own->connection_ = id;
  own->state_ = State::Rts;
  own->peer_ = other->first;
  other->second->peer_ = own->number_;
  const ConnectionId active_id = passive->peer;
  const std::vector<uint8_t> data(parameters.private_data.begin(), parameters.private_data.end());
  const uint8_t resources = parameters.responder_resources, depth = parameters.initiator_depth;
  fabric->events_.push_back([=] {
    LoopbackFabric::Side* s = fabric->side(active_id);
    if (!s) return;
    const auto pair = fabric->queue_pairs_.find(s->qp);
    if (pair == fabric->queue_pairs_.end() || pair->second->state_ == State::Err) return;
    pair->second->state_ = State::Rts;
    s->established = true;
    if (!fabric->lose_rtu) fabric->events_.push_back([=] { fabric->establish(id); });
    s->handler->on_connect_response(active_id, {resources, depth, data});
  });
  return {};
}

void LoopbackDevice::reject(ConnectionId id, uint16_t reason,
                            std::span<const uint8_t> private_data) {
  LoopbackFabric* fabric = fabric_;
  LoopbackFabric::Side* passive = fabric->side(id);
  if (!passive) return;
  const ConnectionId active_id = passive->peer;
  fabric->sides_.erase(id);
  const std::vector<uint8_t> data(private_data.begin(), private_data.end());
  fabric->events_.push_back([=] {
    LoopbackFabric::Side* s = fabric->side(active_id);
    if (!s) return;
    ConnectionHandler* handler = s->handler;
    fabric->sides_.erase(active_id);
    handler->on_connect_failed(active_id,
                               {ConnectFailure::Rejected, reason, data, "rejected by the peer"});
  });
}

void LoopbackDevice::disconnect(ConnectionId id) {
  LoopbackFabric::Side* s = fabric_->side(id);
  if (!s) return;
  if (const auto qp = fabric_->queue_pairs_.find(s->qp); qp != fabric_->queue_pairs_.end())
    qp->second->to_error();
  fabric_->end_connection(id, "disconnected");
}

void LoopbackDevice::abandon(ConnectionId id) {
  fabric_->sides_.erase(id);
}

std::vector<CounterValue> LoopbackDevice::counters() const {
  return {{"loopback.queuePairs", fabric_->live_queue_pairs()}};
}

}  // namespace nvmeof::test
