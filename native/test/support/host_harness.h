// What the host engine's tests share: an engine and a scripted target on one loopback fabric, a
// sink that keeps events, commands that count their ends. Everything runs on one reactor's thread.
#pragma once
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nvmf/host_engine.h"
#include "nvmf/nvme.h"
#include "reactor/reactor.h"
#include "support/scripted_target.h"
#include "test.h"

namespace nvmeof::test {

inline reactor::Reactor* test_reactor() {
  static std::unique_ptr<reactor::Reactor> only = [] {
    reactor::Options options;
    options.poll_forever = true;  // the loopback fabric moves only when somebody polls
    options.name = "test";
    auto started = reactor::Reactor::start(0, options);
    if (!started) std::abort();
    return std::move(*started);
  }();
  return only.get();
}

template <typename Body>
void on_reactor(Body body) {
  test_reactor()->run_and_wait(body);
}

struct SunkEvent {
  nvmf::EventKind kind;
  uint32_t id, code;
  std::string first, second;
  uint64_t value;
};

class KeepingSink : public nvmf::EventSink {
 public:
  void push(nvmf::EventKind kind, uint32_t id, uint32_t, uint32_t code, uint64_t value,
            std::span<const uint8_t> first, std::span<const uint8_t> second) override {
    events.push_back(
        {kind, id, code, {first.begin(), first.end()}, {second.begin(), second.end()}, value});
  }
  int count(nvmf::EventKind kind, uint32_t id) const {
    int found = 0;
    for (const SunkEvent& event : events) found += event.kind == kind && event.id == id;
    return found;
  }
  const SunkEvent* last(nvmf::EventKind kind) const {
    for (auto it = events.rbegin(); it != events.rend(); ++it) {
      if (it->kind == kind) return &*it;
    }
    return nullptr;
  }
  std::vector<SunkEvent> events;
};

struct TestCommand {
  nvmf::HostCommand host;
  int ends = 0;
  nvmf::Outcome outcome{};
  std::array<uint8_t, 16> cqe{};
  std::vector<TestCommand*>* order = nullptr;  // appended to at the end
  void (*then)(TestCommand* command) = nullptr;
  void* context = nullptr;
};

// All that a device can have, and a limit to what reads in flight may bring.
inline rdma::Capabilities with_receive_window(uint32_t bytes) {
  rdma::Capabilities capabilities = LoopbackFabric::full_capabilities();
  capabilities.receive_window_bytes = bytes;
  return capabilities;
}

class HostHarness {
 public:
  static constexpr size_t kMemory = 4u << 20;

  explicit HostHarness(rdma::Capabilities capabilities = LoopbackFabric::full_capabilities())
      : target(&fabric, "10.0.0.1"), device(fabric.open("10.0.0.2", capabilities)) {
    bare_keys = fabric.live_keys();
    auto created = nvmf::HostEngine::create(device.get(), reactor::Reactor::current(), &sink);
    if (!created) std::abort();
    engine = std::move(*created);
    bytes.resize(kMemory);
    for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(i * 7 + (i >> 12));
    if (capabilities.memory_windows)
      region = std::move(*engine->register_memory(0, bytes.data(), kMemory));
    unregistered = {bytes.data(), kMemory, nullptr};
    engine_keys = fabric.live_keys();
  }

  Result<void> start_connect(uint32_t queue, uint32_t depth, uint32_t in_capsule = 4096,
                             uint32_t timeout_ms = 1000, uint16_t port = ScriptedTarget::kPort) {
    nvmf::HostQueueOptions options{};
    options.depth = depth;
    options.in_capsule_bytes = in_capsule;
    options.timeout_ms = timeout_ms;
    options.probes = probes;
    options.parameters.responder_resources = 16;
    options.parameters.private_data = request_data;
    return engine->connect(queue, target.device()->address(), port, options);
  }
  bool connect(uint32_t queue, uint32_t depth, uint32_t in_capsule = 4096) {
    if (!start_connect(queue, depth, in_capsule)) return false;
    run();
    return sink.count(nvmf::EventKind::QueueEstablished, queue) == 1;
  }

  // Without memory windows each queue has a registration of its own, made when it is first needed.
  const nvmf::HostMemory* memory_of(uint32_t queue) {
    if (region) return region.get();
    if (const auto found = regions.find(queue); found != regions.end()) return found->second.get();
    auto registered = engine->register_memory(queue, bytes.data(), kMemory);
    if (!registered) return &unregistered;
    return (regions[queue] = std::move(*registered)).get();
  }

  // Lets everything happen that can.
  void run(int rounds = 4) {
    for (int i = 0; i < rounds; i++) {
      target.progress();
      engine->poll(now);
    }
    target.progress();
  }

  TestCommand& command(nvmf::Direction direction = nvmf::Direction::None, uint64_t offset = 0,
                       uint32_t length = 0) {
    commands.emplace_back();
    TestCommand& made = commands.back();
    std::memset(made.host.sqe, 0, sizeof made.host.sqe);
    made.host.sqe[0] = direction == nvmf::Direction::ToHost ? 0x02 : 0x01;
    made.host.direction = direction;
    made.host.memory = memory_of(0);
    made.host.offset = offset;
    made.host.length = length;
    made.host.tag = commands.size();
    made.host.context = &made;
    made.host.done = [](nvmf::HostCommand* host, nvmf::Outcome outcome, const uint8_t cqe[16]) {
      auto* ended = static_cast<TestCommand*>(host->context);
      ended->ends++;
      ended->outcome = outcome;
      std::memcpy(ended->cqe.data(), cqe, 16);
      if (ended->order != nullptr) ended->order->push_back(ended);
      if (ended->then != nullptr) ended->then(ended);
    };
    return made;
  }
  TestCommand& submit(uint32_t queue, nvmf::Direction direction = nvmf::Direction::None,
                      uint64_t offset = 0, uint32_t length = 0) {
    TestCommand& made = command(direction, offset, length);
    made.host.memory = memory_of(queue);
    engine->submit(queue, &made.host);
    return made;
  }

  uint64_t counter(const std::string& name) const {
    for (const rdma::CounterValue& value : engine->counters()) {
      if (name == value.name) return value.value;
    }
    fail(__FILE__, __LINE__, "no counter " + name);
    return 0;
  }
  // Every command ended once, and nothing of any queue is left.
  void check_nothing_left() {
    for (const TestCommand& each : commands) CHECK_EQ(each.ends, 1);
    for (const char* name :
         {"live.host.queues", "live.host.slots", "live.host.windows", "live.host.receiveBytes"}) {
      CHECK_EQ(counter(name), 0u);
    }
    CHECK_EQ(engine->live_queues(), 0u);
    std::map<uint32_t, int> ends;
    for (const SunkEvent& event : sink.events) {
      ends[event.id] += event.kind == nvmf::EventKind::QueueClosed ||
                        event.kind == nvmf::EventKind::ConnectFailed;
    }
    for (const auto& [id, count] : ends) CHECK_EQ(count, 1);
    target.connections.clear();
    regions.clear();
    CHECK_EQ(fabric.live_queue_pairs(), size_t{0});
    CHECK_EQ(fabric.live_keys(), engine_keys);
  }

  LoopbackFabric fabric;
  ScriptedTarget target;
  std::unique_ptr<LoopbackDevice> device;
  KeepingSink sink;
  std::unique_ptr<nvmf::HostEngine> engine;
  std::vector<uint8_t> bytes;
  std::unique_ptr<nvmf::RegisteredMemory> region;
  std::map<uint32_t, std::unique_ptr<nvmf::RegisteredMemory>> regions;  // by queue
  nvmf::HostMemory unregistered;
  std::vector<uint8_t> request_data = std::vector<uint8_t>(32, 0x5A);
  std::deque<TestCommand> commands;
  reactor::TimeNs now = 1;
  bool probes = false;  // of queues that connect from now on
  size_t bare_keys = 0, engine_keys = 0;

  ~HostHarness() {
    region.reset();
    regions.clear();
    engine.reset();
  }
};

// The host's queue pair of a connection.
inline uint32_t host_qp(const HostHarness& harness, uint32_t connection) {
  return harness.fabric.peer_of(harness.target.connections[connection]->qp->number());
}

}  // namespace nvmeof::test
