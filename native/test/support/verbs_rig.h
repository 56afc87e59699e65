// A verbs device over the fake libraries, on one reactor, with a handler that keeps what it hears.
#pragma once
#include <arpa/inet.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rdma/verbs/device.h"
#include "reactor/reactor.h"
#include "support/fake_verbs.h"
#include "support/run_on.h"
#include "test.h"

namespace nvmeof::test {

inline sockaddr_storage ip(const char* text) {
  sockaddr_storage storage{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
  } else {
    v6.sin6_family = AF_INET6;
    inet_pton(AF_INET6, text, &v6.sin6_addr);
  }
  return storage;
}

// Each event as one line: "request 1", "response 5 3", "failed rejected 28", "established",
// "disconnected why".
class KeepingHandler final : public rdma::ConnectionHandler {
 public:
  void on_connect_request(const rdma::ConnectRequest& request) override {
    last_request = request.id;
    keep("request " + std::to_string(request.responder_resources) + " " +
         std::to_string(request.initiator_depth) + " " + std::to_string(request.peer_port));
  }
  void on_connect_response(rdma::ConnectionId, const rdma::ConnectResponse& response) override {
    keep("response " + std::to_string(response.responder_resources) + " " +
         std::to_string(response.initiator_depth) + " " +
         std::to_string(response.private_data.size()));
  }
  void on_connect_failed(rdma::ConnectionId, const rdma::ConnectFailed& failed) override {
    keep("failed " + std::to_string(static_cast<int>(failed.failure)) + " " +
         std::to_string(failed.reason) + " " + std::to_string(failed.private_data.size()) + " " +
         failed.message);
  }
  void on_established(rdma::ConnectionId) override { keep("established"); }
  void on_disconnected(rdma::ConnectionId, const std::string& reason) override {
    keep("disconnected " + reason);
  }

  // Waits until `count` events have come; the last of them, or what there is after 5 seconds.
  std::string wait(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(5), [&] { return events_.size() >= count; });
    return events_.empty() ? "" : events_.back();
  }
  size_t count() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return events_.size();
  }
  rdma::ConnectionId last_request = 0;

 private:
  void keep(std::string event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
};

struct VerbsRig {
  explicit VerbsRig(const char* address = "10.9.0.1") {
    options.address = ip(address);
    auto started = reactor::Reactor::start(0, {});
    if (!started) std::abort();
    reactor = std::move(*started);
  }
  ~VerbsRig() {
    if (device) run([this] { drop(); });
    device.reset();
  }

  Result<void> open() {
    reactor::Reactor* const reactors[] = {reactor.get()};
    auto opened = rdma::verbs::Device::open(fake.library(), options, reactors);
    if (!opened) return opened.error();
    device = std::move(*opened);
    return {};
  }
  template <typename Body>
  void run(Body body) {
    run_on(*reactor, body);
  }
  // A connection of an iWARP device that open() has opened.
  bool establish_iwarp() {
    cm = connect_until("connect");
    if (cm == nullptr) return false;
    fake.push(RDMA_CM_EVENT_ESTABLISHED, cm);
    return handler.wait(1) == "response 5 3 0";
  }
  // On the reactor.
  bool make_queue_pair(uint32_t receives = 4) {
    pd = std::move(*device->allocate_pd());
    cq = std::move(*device->create_cq(64));
    rdma::QueuePairOptions wanted;
    wanted.pd = pd.get();
    wanted.send_cq = wanted.receive_cq = cq.get();
    wanted.max_send_wr = 8;
    wanted.max_receive_wr = receives;
    wanted.context = this;
    auto made = device->create_qp(wanted);
    if (!made) return false;
    qp = std::move(*made);
    return true;
  }
  void drop() {
    qp.reset();
    cq.reset();
    pd.reset();
  }
  // A queue pair that connects; the id that rdma_cm has for it.
  rdma_cm_id* start_connect() {
    run([this] {
      if (!make_queue_pair()) std::abort();
      rdma::ConnectionParameters parameters;
      parameters.responder_resources = 200;
      parameters.private_data = data;
      auto started = device->connect(ip("10.9.0.2"), 4420, qp.get(), parameters, &handler);
      if (started) connection = *started;
    });
    return fake.wait_for("resolve_addr");
  }
  rdma_cm_id* connect_until(const std::string& call) {
    rdma_cm_id* const id = start_connect();
    if (id == nullptr || call == "resolve_addr") return id;
    fake.push(RDMA_CM_EVENT_ADDR_RESOLVED, id);
    if (fake.wait_for("resolve_route") != id || call == "resolve_route") return id;
    fake.push(RDMA_CM_EVENT_ROUTE_RESOLVED, id);
    return fake.wait_for("connect");
  }
  bool establish() {
    cm = connect_until("connect");
    if (cm == nullptr) return false;
    fake.push(RDMA_CM_EVENT_CONNECT_RESPONSE, cm);
    handler.wait(1);
    return handler.count() == 1;
  }
  uint64_t counter(const std::string& name) {
    for (const rdma::CounterValue& value : device->counters()) {
      if (name == value.name) return value.value;
    }
    return ~0ull;
  }

  FakeVerbs fake;
  rdma::DeviceOptions options;
  std::unique_ptr<reactor::Reactor> reactor;
  KeepingHandler handler;
  std::unique_ptr<rdma::Device> device;
  std::unique_ptr<rdma::ProtectionDomain> pd;
  std::unique_ptr<rdma::CompletionQueue> cq;
  std::unique_ptr<rdma::QueuePair> qp;
  std::vector<uint8_t> data = std::vector<uint8_t>(32, 0x5A);
  rdma::ConnectionId connection = 0;
  rdma_cm_id* cm = nullptr;
};

}  // namespace nvmeof::test
