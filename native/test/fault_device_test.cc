// Faults in live devices: they are off unless a device was opened for them, change while data
// moves, cost nothing of the data, and end a connection when the transport says so.
#include <cstring>

#include "support/soft_node.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test;

namespace {

constexpr uint16_t kPort = 4420;
constexpr uint64_t kMs = 1'000'000;

DeviceOptions with_faults(const sockaddr_storage& address) {
  DeviceOptions options = Node::at(address);
  options.fault_injection = true;
  return options;
}

struct Rig {
  Node target, host;
  Pair pair;
  explicit Rig(const sockaddr_storage& target_address = next_loopback(),
               const sockaddr_storage& host_address = next_loopback())
      : target(with_faults(target_address)), host(with_faults(host_address)) {
    CHECK(target.device && host.device);
    target.listen(kPort);
    pair = connect_pair(host, 0, target, kPort);
    CHECK(pair.passive != nullptr);
  }
};

void set(Node& node, const FaultRule& rule) {
  FaultRules rules;
  rules.rules.push_back(rule);
  const auto done = node.device->set_faults(rules);
  if (!done) fail(__FILE__, __LINE__, done.error().message);
}
void clear(Node& node) {
  CHECK(static_cast<bool>(node.device->set_faults({})));
}

size_t sends_done(Endpoint& endpoint) {
  size_t count = 0;
  run_on(*endpoint.reactor, [&] { count = endpoint.sends.size(); });
  return count;
}

// Writes one half of the host's memory to the target and reads it back into the other.
void move_and_compare(Pair pair, uint32_t seed, size_t length = 400'000) {
  Endpoint &a = *pair.active, &b = *pair.passive;
  constexpr size_t kHalf = 1 << 19;
  for (uint8_t& byte : a.memory) byte = static_cast<uint8_t>((seed = seed * 1664525 + 1) >> 24);
  std::memset(b.memory.data(), 0, b.memory.size());
  const uint64_t remote = reinterpret_cast<uint64_t>(b.memory.data());
  const size_t before = sends_done(a);
  for (const bool back : {false, true}) {
    run_on(*a.reactor, [&] {
      for (size_t at = 0; at < length; at += 16'384) {
        const size_t bytes = std::min<size_t>(16'384, length - at);
        CHECK(static_cast<bool>(a.post(back ? Opcode::RdmaRead : Opcode::RdmaWrite, at,
                                       (back ? kHalf : 0) + at, bytes, remote + at,
                                       b.region->rkey())));
      }
    });
    const size_t wanted = before + (back ? 2 : 1) * ((length + 16'383) / 16'384);
    REQUIRE(eventually([&] { return sends_done(a) == wanted; }, 30'000));
  }
  run_on(*a.reactor, [&] {
    for (const WorkCompletion& done : a.sends) CHECK(done.status == Status::Success);
  });
  CHECK(std::memcmp(a.memory.data(), b.memory.data(), length) == 0);
  CHECK(std::memcmp(a.memory.data(), a.memory.data() + kHalf, length) == 0);
}

}  // namespace

TEST(a_device_that_was_not_opened_for_faults_refuses_them) {
  Node node(Node::at(next_loopback()));
  REQUIRE(node.device != nullptr);
  const auto refused = node.device->set_faults({});
  CHECK(!refused && refused.error().code == EPERM);
  CHECK(refused.error().message.find("faultInjection") != std::string::npos);
  for (const CounterValue& value : node.device->counters())
    CHECK(std::strncmp(value.name, "soft.fault.", 11) != 0);
}

TEST(wrong_rules_change_nothing) {
  Node node(with_faults(next_loopback()));
  REQUIRE(node.device != nullptr);
  FaultRules rules;
  rules.rules.resize(1);
  rules.rules[0].drop = 3;
  auto refused = node.device->set_faults(rules);
  CHECK(!refused && refused.error().code == EINVAL);
  rules.rules[0].drop = 0;
  rules.rules[0].peer = ipv6_loopback();
  refused = node.device->set_faults(rules);
  CHECK(!refused && refused.error().code == EAFNOSUPPORT);
}

TEST(a_black_hole_of_one_direction_is_noticed_in_the_transports_time) {
  for (const bool in : {true, false}) {
    Rig rig;
    REQUIRE(rig.pair.passive != nullptr);
    FaultRule hole;
    hole.in = in;
    hole.out = !in;
    hole.drop = 1;
    const reactor::TimeNs start = reactor::monotonic_now();
    set(rig.host, hole);
    rig.host.on(0, [&] {
      CHECK(static_cast<bool>(rig.pair.active->post(
          Opcode::RdmaWrite, 1, 0, 64, reinterpret_cast<uint64_t>(rig.pair.passive->memory.data()),
          rig.pair.passive->region->rkey())));
    });
    REQUIRE(eventually([&] { return sends_done(*rig.pair.active) == 1; }));
    const uint64_t took = (reactor::monotonic_now() - start) / kMs;
    // 21 times 67 ms (docs/architecture.md, Reliability).
    CHECK(took >= 1'300 && took < 2'800);
    rig.host.on(0, [&] { CHECK(rig.pair.active->sends[0].status == Status::RetryExceeded); });
    CHECK(eventually(
        [&] { return rig.host.has(ConnectionEvent::Disconnected, rig.pair.active->id); }));
    const std::string reason =
        rig.host.event(ConnectionEvent::Disconnected, rig.pair.active->id).text;
    CHECK(reason.find("retr") != std::string::npos);
    CHECK(rig.host.counter(in ? "soft.fault.in_dropped" : "soft.fault.out_dropped") >= 8);
    CHECK_EQ(rig.host.counter(in ? "soft.fault.out_dropped" : "soft.fault.in_dropped"), 0u);
    clear(rig.host);
  }
}

TEST(a_black_hole_that_ends_in_time_is_survived) {
  Rig rig;
  REQUIRE(rig.pair.passive != nullptr);
  FaultRule hole;
  hole.drop = 1;
  set(rig.target, hole);
  rig.host.on(0, [&] { CHECK(static_cast<bool>(rig.pair.active->post(Opcode::Send, 1, 0, 64))); });
  CHECK(eventually([&] { return rig.target.counter("soft.fault.in_dropped") >= 2; }));
  rig.target.on(0, [&] { CHECK(static_cast<bool>(rig.pair.passive->post_receive(1, 0, 64))); });
  clear(rig.target);
  REQUIRE(eventually([&] { return sends_done(*rig.pair.active) == 1; }));
  rig.host.on(0, [&] { CHECK(rig.pair.active->sends[0].status == Status::Success); });
}

TEST(another_peer_is_not_touched) {
  Rig rig;
  Node other(with_faults(next_loopback()));
  REQUIRE(rig.pair.passive != nullptr && other.device != nullptr);
  FaultRule hole;
  hole.drop = 1;
  hole.peer = rig.host.device->address();
  set(rig.target, hole);
  const Pair pair = connect_pair(other, 0, rig.target, kPort);
  REQUIRE(pair.passive != nullptr);
  move_and_compare(pair, 5);
}

TEST(data_is_right_under_every_fault) {
  struct Case {
    const char* name;
    FaultRule rule;
    const char* counter;
  };
  std::vector<Case> cases(5);
  cases[0] = {"loss", {}, "soft.fault.out_dropped"};
  cases[0].rule.drop = 0.01;
  cases[1] = {"duplicates", {}, "soft.fault.out_duplicated"};
  cases[1].rule.duplicate = 0.2;
  cases[2] = {"reordering", {}, "soft.fault.out_reordered"};
  cases[2].rule.reorder = 0.02;
  cases[2].rule.reorder_ns = kMs / 2;
  cases[3] = {"delay", {}, "soft.fault.out_delayed"};
  cases[3].rule.delay_ns = 5 * kMs;
  cases[3].rule.jitter_ns = kMs;
  cases[4] = {"everything", {}, "soft.fault.in_dropped"};
  cases[4].rule = {.drop = 0.01, .duplicate = 0.05, .reorder = 0.01, .delay_ns = kMs};
  Rig rig;
  REQUIRE(rig.pair.passive != nullptr);
  uint32_t seed = 1;
  for (const Case& c : cases) {
    set(rig.host, c.rule);
    set(rig.target, c.rule);
    const int failed = failures();
    move_and_compare(rig.pair, seed++);
    CHECK(rig.host.counter(c.counter) > 0);
    if (failures() != failed) fail(__FILE__, __LINE__, c.name);
    clear(rig.host);
    clear(rig.target);
  }
  CHECK_EQ(rig.host.counter("soft.rx.bad_icrc") + rig.target.counter("soft.rx.bad_icrc"), 0u);
  // Delayed and split packets have the identification that their ICRC covers: nothing was derived.
  CHECK_EQ(rig.host.counter("soft.rx.icrc_recovered"), 0u);
}

TEST(delay_keeps_order_so_nothing_is_sent_again) {
  Rig rig;
  REQUIRE(rig.pair.passive != nullptr);
  FaultRule delay;
  delay.delay_ns = 2 * kMs;
  delay.jitter_ns = 2 * kMs;
  set(rig.host, delay);
  move_and_compare(rig.pair, 9, 100'000);
  CHECK(eventually([&] { return rig.target.counter("soft.rx.packets") > 20; }));
  CHECK_EQ(rig.target.counter("soft.responder.sequence_errors"), 0u);
  CHECK_EQ(rig.host.counter("soft.requester.implied_naks"), 0u);
}

TEST(rules_change_while_data_moves) {
  Node target(with_faults(next_loopback()), 2), host(with_faults(next_loopback()), 2);
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  target.accept_on = 1;
  const Pair pair = connect_pair(host, 1, target, kPort);
  REQUIRE(pair.passive != nullptr);
  Endpoint &a = *pair.active, &b = *pair.passive;
  const uint64_t remote = reinterpret_cast<uint64_t>(b.memory.data());
  FaultRule rule{.drop = 0.02, .duplicate = 0.1, .reorder = 0.02, .delay_ns = kMs / 2};
  for (unsigned round = 0; round < 60; round++) {
    run_on(*a.reactor, [&] {
      CHECK(
          static_cast<bool>(a.post(Opcode::RdmaWrite, round, 0, 60'000, remote, b.region->rkey())));
    });
    Node& node = round % 3 == 0 ? target : host;
    rule.delay_ns = round % 4 == 0 ? 0 : kMs / 2;
    if (round % 5 == 4) {
      clear(node);
    } else {
      set(node, rule);
    }
  }
  clear(host);
  clear(target);
  REQUIRE(eventually([&] { return sends_done(a) == 60; }, 30'000));
  run_on(*a.reactor, [&] {
    for (unsigned i = 0; i < 60; i++) {
      CHECK(a.sends[i].status == Status::Success);
      CHECK_EQ(a.sends[i].wr_id, i);
    }
  });
}

TEST(a_device_closes_with_packets_that_wait) {
  Rig rig;
  REQUIRE(rig.pair.passive != nullptr);
  FaultRule delay;
  delay.delay_ns = 30'000 * kMs;
  set(rig.host, delay);
  rig.host.on(0, [&] { CHECK(static_cast<bool>(rig.pair.active->post(Opcode::Send, 1, 0, 64))); });
  CHECK(eventually([&] { return rig.host.counter("soft.fault.out_delayed") >= 1; }));
  rig.host.close();
  CHECK(rig.host.device == nullptr);
}

TEST(ipv6_too) {
  CHECK(in_network_namespace(65536,
                             [] {
                               Node node(with_faults(ipv6_loopback()));
                               REQUIRE(node.device != nullptr);
                               node.listen(kPort);
                               const Pair pair = connect_pair(node, 0, node, kPort);
                               REQUIRE(pair.passive != nullptr);
                               FaultRule rule{.drop = 0.01, .duplicate = 0.05, .reorder = 0.01};
                               rule.peer = ipv6_loopback();
                               set(node, rule);
                               move_and_compare(pair, 3);
                               CHECK(node.counter("soft.fault.in_dropped") > 0);
                               CHECK_EQ(node.counter("soft.rx.bad_icrc"), 0u);
                             }) ||
        getuid() != 0);
}

TEST_MAIN
