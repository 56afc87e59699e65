// For tests with real devices: one address with its reactors and device, endpoints (a queue pair
// with its completion queue, memory and a poller that collects completions), and a connection
// handler that records everything and accepts or rejects as told.
#pragma once
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "loopback.h"
#include "rdma/provider.h"
#include "support/run_on.h"
#include "test.h"

namespace nvmeof::test {

template <typename F>
bool eventually(F&& condition, uint64_t milliseconds = 10'000) {
  const reactor::TimeNs end = reactor::monotonic_now() + milliseconds * 1'000'000;
  while (!condition()) {
    if (reactor::monotonic_now() > end) return false;
    usleep(200);
  }
  return true;
}

// Everything on its reactor's thread, but for the memory, which a test fills and checks while
// nothing is under way.
struct Endpoint final : reactor::Poller {
  reactor::Reactor* reactor = nullptr;
  std::vector<uint8_t> memory;
  std::unique_ptr<rdma::ProtectionDomain> pd;
  std::unique_ptr<rdma::MemoryRegion> region;
  std::unique_ptr<rdma::CompletionQueue> cq;
  std::unique_ptr<rdma::QueuePair> qp;
  std::vector<rdma::WorkCompletion> sends, receives;
  rdma::ConnectionId id = 0;

  int poll(reactor::TimeNs) override {
    rdma::WorkCompletion batch[16];
    const int count = cq->poll(batch);
    for (int i = 0; i < count; i++) (batch[i].receive ? receives : sends).push_back(batch[i]);
    return count;
  }
  bool arm() override { return cq->arm(); }
  rdma::Sge sge(size_t offset, size_t length) {
    return {reinterpret_cast<uint64_t>(memory.data() + offset), static_cast<uint32_t>(length),
            region->lkey()};
  }
  // On its thread.
  Result<void> post(rdma::Opcode opcode, uint64_t wr_id, size_t offset, size_t length,
                    uint64_t remote_address = 0, uint32_t rkey = 0) {
    const rdma::Sge local = sge(offset, length);
    rdma::SendWorkRequest request{};
    request.wr_id = wr_id;
    request.opcode = opcode;
    request.flags = rdma::kSignaled;
    request.num_sge = length == 0 ? 0 : 1;
    request.sg_list = &local;
    request.remote_address = remote_address;
    request.rkey = rkey;
    if (opcode == rdma::Opcode::SendWithInvalidate) request.imm_or_rkey = rkey;
    return qp->post_send({&request, 1});
  }
  Result<void> post_receive(uint64_t wr_id, size_t offset, size_t length) {
    const rdma::Sge local = sge(offset, length);
    const rdma::ReceiveWorkRequest request{wr_id, 1, &local};
    return qp->post_receive({&request, 1});
  }
};

struct ConnectionEvent {
  enum Kind { Request, Response, Failed, Established, Disconnected } kind;
  rdma::ConnectionId id;
  std::string text;  // message or reason
  std::vector<uint8_t> data;
  rdma::ConnectFailure failure = rdma::ConnectFailure::Unreachable;
  uint16_t reason = 0;
  unsigned thread = 0;  // index of the reactor it came on
};

class Node final : public rdma::ConnectionHandler {
 public:
  std::vector<std::unique_ptr<reactor::Reactor>> reactors;
  std::unique_ptr<rdma::Device> device;
  std::string error;  // of opening
  rdma::DeviceOptions options;

  // What to do with a request; default: accept on reactor `accept_on` with `accept_data`.
  unsigned accept_on = 0;
  size_t accept_memory = 1 << 20;
  std::vector<uint8_t> accept_data{'y', 'e', 's'};
  int reject_reason = -1;
  bool ignore_requests = false;

  explicit Node(const rdma::DeviceOptions& wanted, unsigned threads = 1) : options(wanted) {
    for (unsigned i = 0; i < threads; i++) {
      auto started = reactor::Reactor::start(i, {});
      CHECK(static_cast<bool>(started));
      reactors.push_back(std::move(*started));
    }
    open();
  }
  ~Node() override { close(); }

  static rdma::DeviceOptions at(const sockaddr_storage& address) {
    rdma::DeviceOptions result;
    result.address = address;
    return result;
  }
  void open() {
    std::vector<reactor::Reactor*> list;
    for (const auto& entry : reactors) list.push_back(entry.get());
    auto opened = rdma::open_device(options, list);
    if (opened) {
      device = std::move(*opened);
    } else {
      error = opened.error().message;
    }
  }
  void close() {
    for (auto& [pointer, endpoint] : endpoints_) destroy_later_.push_back(std::move(endpoint));
    endpoints_.clear();
    for (auto& endpoint : destroy_later_) release(*endpoint);
    destroy_later_.clear();
    device.reset();
  }

  template <typename F>
  void on(unsigned index, F&& function) {
    run_on(*reactors[index], function);
  }

  // On the reactor's thread.
  Endpoint* make_endpoint(size_t memory_bytes, uint32_t depth = 256) {
    auto endpoint = std::make_unique<Endpoint>();
    endpoint->reactor = reactor::Reactor::current();
    endpoint->memory.resize(memory_bytes);
    auto pd = device->allocate_pd();
    CHECK(static_cast<bool>(pd));
    endpoint->pd = std::move(*pd);
    auto region = endpoint->pd->register_memory(
        endpoint->memory.data(), memory_bytes,
        rdma::kLocalWrite | rdma::kRemoteRead | rdma::kRemoteWrite | rdma::kWindowBind);
    CHECK(static_cast<bool>(region));
    endpoint->region = std::move(*region);
    auto cq = device->create_cq(depth * 4);
    CHECK(static_cast<bool>(cq));
    endpoint->cq = std::move(*cq);
    rdma::QueuePairOptions qp_options;
    qp_options.pd = endpoint->pd.get();
    qp_options.send_cq = qp_options.receive_cq = endpoint->cq.get();
    qp_options.max_send_wr = qp_options.max_receive_wr = depth;
    qp_options.context = endpoint.get();
    auto qp = device->create_qp(qp_options);
    CHECK(static_cast<bool>(qp));
    endpoint->qp = std::move(*qp);
    endpoint->reactor->add(endpoint.get(), reactor::Stage::Process);
    Endpoint* const raw = endpoint.get();
    const std::lock_guard<std::mutex> lock(mutex_);
    endpoints_[raw] = std::move(endpoint);
    return raw;
  }
  // From the test's thread.
  void destroy(Endpoint* endpoint) {
    std::unique_ptr<Endpoint> owned;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      owned = std::move(endpoints_[endpoint]);
      endpoints_.erase(endpoint);
    }
    release(*owned);
  }

  rdma::ConnectionId connect(Endpoint* endpoint, const sockaddr_storage& peer, uint16_t port,
                             const std::vector<uint8_t>& data = {'h', 'i'}) {
    rdma::ConnectionId id = 0;
    run_on(*endpoint->reactor, [&] {
      rdma::ConnectionParameters parameters;
      parameters.responder_resources = parameters.initiator_depth = 16;
      parameters.private_data = data;
      const auto result = device->connect(peer, port, endpoint->qp.get(), parameters, this);
      if (!result) {
        fail(__FILE__, __LINE__, result.error().message);
        return;
      }
      id = endpoint->id = result.value();
    });
    return id;
  }
  void listen(uint16_t port) {
    on(0, [&] { CHECK(static_cast<bool>(device->listen(port, this))); });
  }

  std::vector<ConnectionEvent> events() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return events_;
  }
  bool has(ConnectionEvent::Kind kind, rdma::ConnectionId id) { return count(kind, id) > 0; }
  int count(ConnectionEvent::Kind kind, rdma::ConnectionId id) {
    int result = 0;
    for (const auto& event : events()) result += event.kind == kind && event.id == id;
    return result;
  }
  ConnectionEvent event(ConnectionEvent::Kind kind, rdma::ConnectionId id) {
    for (const auto& entry : events()) {
      if (entry.kind == kind && entry.id == id) return entry;
    }
    fail(__FILE__, __LINE__, "no such event");
    return {};
  }
  // The endpoint made for the last accepted request.
  Endpoint* accepted() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return accepted_;
  }
  uint64_t counter(const std::string& name) const {
    for (const rdma::CounterValue& value : device->counters()) {
      if (name == value.name) return value.value;
    }
    fail(__FILE__, __LINE__, "no counter " + name);
    return 0;
  }

  uint64_t counter_of(unsigned reactor, const std::string& name) const {
    for (const rdma::CounterValue& value : device->counters_of(reactor)) {
      if (name == value.name) return value.value;
    }
    fail(__FILE__, __LINE__, "no counter " + name + " of a reactor");
    return 0;
  }

  // ---- rdma::ConnectionHandler
  void on_connect_request(const rdma::ConnectRequest& request) override {
    record({ConnectionEvent::Request, request.id, "", copy(request.private_data)});
    if (ignore_requests) return;
    if (reject_reason >= 0) {
      device->reject(request.id, static_cast<uint16_t>(reject_reason), accept_data);
    } else if (accept_on == 0) {
      accept(request.id);
    } else {
      struct Hop {
        Node* node;
        rdma::ConnectionId id;
      };
      auto* const hop = new Hop{this, request.id};
      CHECK(reactors[accept_on]->post({[](void* context, uint64_t) {
                                         const std::unique_ptr<Hop> self(
                                             static_cast<Hop*>(context));
                                         self->node->accept(self->id);
                                       },
                                       hop, 0}));
    }
  }
  void on_connect_response(rdma::ConnectionId id, const rdma::ConnectResponse& response) override {
    record({ConnectionEvent::Response, id, "", copy(response.private_data)});
  }
  void on_connect_failed(rdma::ConnectionId id, const rdma::ConnectFailed& failed) override {
    record({ConnectionEvent::Failed, id, failed.message, copy(failed.private_data), failed.failure,
            failed.reason});
  }
  void on_established(rdma::ConnectionId id) override {
    record({ConnectionEvent::Established, id, "", {}});
  }
  void on_disconnected(rdma::ConnectionId id, const std::string& reason) override {
    record({ConnectionEvent::Disconnected, id, reason, {}});
  }

 private:
  static std::vector<uint8_t> copy(std::span<const uint8_t> data) {
    return {data.begin(), data.end()};
  }
  void record(ConnectionEvent event) {
    event.thread = reactor::Reactor::current()->index();
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(std::move(event));
  }
  void accept(rdma::ConnectionId id) {
    Endpoint* const endpoint = make_endpoint(accept_memory);
    endpoint->id = id;
    rdma::ConnectionParameters parameters;
    parameters.responder_resources = parameters.initiator_depth = 16;
    parameters.private_data = accept_data;
    CHECK(static_cast<bool>(device->accept(id, endpoint->qp.get(), parameters)));
    const std::lock_guard<std::mutex> lock(mutex_);
    accepted_ = endpoint;
  }
  void release(Endpoint& endpoint) {
    run_on(*endpoint.reactor, [&] {
      if (endpoint.id != 0) device->abandon(endpoint.id);
      endpoint.reactor->remove(&endpoint);
      endpoint.qp.reset();
      endpoint.cq.reset();
      endpoint.region.reset();
      endpoint.pd.reset();
    });
  }

  std::mutex mutex_;
  std::vector<ConnectionEvent> events_;
  std::map<Endpoint*, std::unique_ptr<Endpoint>> endpoints_;
  std::vector<std::unique_ptr<Endpoint>> destroy_later_;
  Endpoint* accepted_ = nullptr;
};

// A connected pair of endpoints on two nodes.
struct Pair {
  Endpoint* active = nullptr;
  Endpoint* passive = nullptr;
};
inline Pair connect_pair(Node& host, unsigned host_reactor, Node& target, uint16_t port,
                         size_t memory = 1 << 20) {
  Pair pair;
  host.on(host_reactor, [&] { pair.active = host.make_endpoint(memory); });
  const auto id = host.connect(pair.active, target.device->address(), port);
  CHECK(eventually([&] {
    return host.has(ConnectionEvent::Response, id) || host.has(ConnectionEvent::Failed, id);
  }));
  if (!host.has(ConnectionEvent::Response, id)) {
    fail(__FILE__, __LINE__, "connect failed: " + host.event(ConnectionEvent::Failed, id).text);
    return pair;
  }
  pair.passive = target.accepted();
  CHECK(eventually([&] { return target.has(ConnectionEvent::Established, pair.passive->id); }));
  return pair;
}

}  // namespace nvmeof::test
