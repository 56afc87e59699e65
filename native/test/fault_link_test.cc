// Faults packet by packet: what rules say happens to the packets they fit and to no others, the
// same again with the same seed, in trains whose ICRCs still fit, and never beyond the queue.
#include "rdma/soft/fault_link.h"

#include <map>
#include <string>

#include "loopback.h"
#include "rdma/soft/icrc.h"
#include "rdma/soft/packet.h"
#include "support/link_end.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test;

namespace {

constexpr TimeNs kMs = 1'000'000;
constexpr uint32_t kPacket = 400;

sockaddr_storage peer(uint8_t host) {
  return with_port(ipv4(0x0a000000u | host), kUdpPort);
}
sockaddr_storage peer6(uint8_t host) {
  sockaddr_storage address = ipv6_loopback();
  reinterpret_cast<sockaddr_in6&>(address).sin6_addr.s6_addr[8] = host;
  return with_port(address, kUdpPort);
}

// What leaves below and what comes out above, as PSNs in their order, with its time.
struct Rig final : Link, LinkEvents {
  struct Seen {
    uint32_t psn;
    TimeNs at;
  };
  TimeNs now = 1'000 * kMs;
  sockaddr_storage address = peer(1);
  uint16_t gso = 64;
  std::vector<Seen> sent, taken;
  std::vector<ErrorReport> reports;
  unsigned calls = 0, trains = 0;
  FaultCounters in{}, out{};
  IcrcReceiver icrc;
  std::unique_ptr<FaultLink> faults;

  void set(const FaultRules& rules, unsigned index = 0) {
    CHECK(static_cast<bool>(check(rules)));
    faults = std::make_unique<FaultLink>(
        rules, FaultLink::Place{*this, *this, now, address, in, out, 4200, index});
  }
  void set(const FaultRule& rule, uint64_t seed = 1) {
    FaultRules rules;
    rules.seed = seed;
    rules.rules.push_back(rule);
    set(rules);
  }

  // Link, below
  void send(std::span<const Train> all) override {
    calls++;
    for (const Train& train : all) {
      trains++;
      CHECK(train.segments >= 1 && train.segments <= gso);
      CHECK(train.total_bytes > uint32_t{train.segment_bytes} * (train.segments - 1u));
      for (uint16_t i = 0; i < train.segments; i++) {
        const uint32_t at = uint32_t{i} * train.segment_bytes;
        const uint32_t length = std::min<uint32_t>(train.segment_bytes, train.total_bytes - at);
        const uint8_t* const bytes = train.bytes + at;
        const bool v6 = train.flow->remote.ss_family == AF_INET6;
        const Arrival arrival{
            &train.flow->local, &train.flow->remote, bytes, length, v6 ? -1 : i, 0};
        CHECK(icrc.check(arrival).good);
        sent.push_back({get24(bytes + 9), now});
      }
    }
  }
  uint16_t segments_max() const override { return gso; }
  uint32_t train_bytes_max() const override { return 65'507; }
  // LinkEvents, above
  void on_packet(const Arrival& arrival, uint16_t expected_id) override {
    CHECK(icrc.check(arrival, expected_id).good);
    CHECK(same_address(*arrival.destination, address));
    taken.push_back({get24(arrival.bytes + 9), now});
  }
  void on_fault(const ErrorReport& report) override { reports.push_back(report); }

  // `count` packets in one train, PSNs from `psn`.
  void leave(const sockaddr_storage& to, uint32_t psn, unsigned count, uint32_t last = kPacket) {
    const Flow flow =
        make_flow(with_port(to.ss_family == AF_INET6 ? peer6(1) : address, 0xc001), to);
    const TrainBuffer train(flow, count, kPacket, last, 0x42, psn);
    faults->send({&train.train, 1});
  }
  void arrive(const sockaddr_storage& from, uint32_t psn, unsigned count) {
    const Flow flow = make_flow(from, with_port(address, kUdpPort));
    const TrainBuffer train(flow, count, kPacket, kPacket, 0x42, psn);
    for (uint16_t i = 0; i < count; i++) {
      const Arrival arrival{&flow.local, &address, train.bytes.data() + uint32_t{i} * kPacket,
                            kPacket,     -1,       0};
      faults->on_packet(arrival, i);
    }
  }
  void pass(TimeNs by) {
    now += by;
    faults->deliver();
    faults->transmit();
  }
};

std::vector<uint32_t> psns(const std::vector<Rig::Seen>& seen) {
  std::vector<uint32_t> all;
  for (const auto& one : seen) all.push_back(one.psn);
  return all;
}
std::vector<uint32_t> counted(uint32_t from, uint32_t count) {
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < count; i++) all.push_back(from + i);
  return all;
}

FaultRule dropping(double probability) {
  FaultRule rule;
  rule.drop = probability;
  return rule;
}

}  // namespace

TEST(wrong_rules_name_their_field) {
  const auto refused = [](const FaultRules& rules, const std::string& field) {
    const auto result = check(rules);
    return !result && result.error().code == EINVAL && result.error().message.starts_with(field);
  };
  struct Wrong {
    const char* field;
    void (*spoil)(FaultRules& rules, FaultRule& second);
  };
  constexpr Wrong kWrong[] = {
      {"rules[1].drop ", [](FaultRules&, FaultRule& rule) { rule.drop = 1.01; }},
      {"rules[1].drop ", [](FaultRules&, FaultRule& rule) { rule.drop = -0.1; }},
      {"rules[1].drop ", [](FaultRules&, FaultRule& rule) { rule.drop = __builtin_nan(""); }},
      {"rules[1].duplicate ", [](FaultRules&, FaultRule& rule) { rule.duplicate = 2; }},
      {"rules[1].reorder ", [](FaultRules&, FaultRule& rule) { rule.reorder = 2; }},
      {"rules[1].delayMs ", [](FaultRules&, FaultRule& rule) { rule.delay_ns = ~0ull; }},
      {"rules[1].jitterMs ",
       [](FaultRules&, FaultRule& rule) { rule.jitter_ns = kFaultDelayMaxNs + 1; }},
      {"rules[1].reorderMs ",
       [](FaultRules&, FaultRule& rule) { rule.reorder_ns = kFaultDelayMaxNs + 1; }},
      {"rules[1].reorderMs ",
       [](FaultRules&, FaultRule& rule) { rule.reorder = 0.5, rule.reorder_ns = 0; }},
      {"rules[1].direction ", [](FaultRules&, FaultRule& rule) { rule.in = rule.out = false; }},
      {"rules[1].peer ", [](FaultRules&, FaultRule& rule) { rule.peer.ss_family = AF_UNIX; }},
      {"rules ", [](FaultRules& rules, FaultRule&) { rules.rules.resize(kFaultRulesMax + 1); }},
      {"queuePackets ", [](FaultRules& rules, FaultRule&) { rules.queue_packets = 0; }},
      {"queuePackets ",
       [](FaultRules& rules, FaultRule&) { rules.queue_packets = kFaultQueueMax + 1; }},
  };
  for (const Wrong& wrong : kWrong) {
    FaultRules rules;
    rules.rules.resize(2);
    CHECK(static_cast<bool>(check(rules)));
    wrong.spoil(rules, rules.rules[1]);
    if (!refused(rules, wrong.field)) fail(__FILE__, __LINE__, wrong.field);
  }
}

TEST(a_train_that_nothing_happens_to_leaves_as_it_is) {
  Rig rig;
  FaultRule other = dropping(1);
  other.peer = peer(9);
  rig.set(other);
  rig.leave(peer(2), 100, 40, 64);
  CHECK(psns(rig.sent) == counted(100, 40));
  CHECK_EQ(rig.trains, 1u);
  rig.leave(peer(9), 200, 40);
  CHECK_EQ(rig.sent.size(), size_t{40});
  CHECK_EQ(rig.out.dropped.load(), 40u);
}

TEST(loss_is_as_often_as_asked_for_and_the_same_with_the_same_seed) {
  const auto survivors = [](uint64_t seed, unsigned train, unsigned index = 0) {
    Rig rig;
    FaultRules rules;
    rules.seed = seed;
    rules.rules.push_back(dropping(0.1));
    rig.set(rules, index);
    for (uint32_t psn = 0; psn < 6'400; psn += train) rig.leave(peer(2), psn, train);
    CHECK_EQ(rig.out.dropped.load() + rig.sent.size(), uint64_t{6'400});
    CHECK_EQ(rig.in.dropped.load(), 0u);
    CHECK(rig.out.dropped.load() > 540 && rig.out.dropped.load() < 740);
    return psns(rig.sent);
  };
  const auto first = survivors(7, 64);
  CHECK(survivors(7, 64) == first);
  // However they are gathered into trains.
  CHECK(survivors(7, 1) == first);
  CHECK(survivors(8, 64) != first);
  CHECK(survivors(7, 64, 1) != first);
}

TEST(what_is_left_of_a_train_leaves_as_trains) {
  Rig rig;
  rig.set(dropping(0.02), 3);
  for (uint32_t psn = 0; psn < 64 * 50; psn += 64) rig.leave(peer(2), psn, 64, 100);
  CHECK(rig.out.dropped.load() > 20);
  CHECK(rig.trains <= 100);
}

TEST(directions_and_peers_have_rules_of_their_own) {
  Rig rig;
  FaultRules rules;
  rules.rules.resize(3);
  rules.rules[0].peer = peer(2);  // nothing happens to this one
  rules.rules[1].out = false;
  rules.rules[1].peer = peer(3);
  rules.rules[1].drop = 1;
  rules.rules[2].in = false;
  rules.rules[2].drop = 1;
  rig.set(rules);
  struct Case {
    uint8_t host;
    bool in, out;  // gets through
  };
  for (const Case& c : {Case{2, true, true}, {3, false, false}, {4, true, false}}) {
    rig.sent.clear();
    rig.taken.clear();
    rig.leave(peer(c.host), 1, 3);
    rig.arrive(peer(c.host), 1, 3);
    CHECK_EQ(rig.sent.size(), c.out ? size_t{3} : size_t{0});
    CHECK_EQ(rig.taken.size(), c.in ? size_t{3} : size_t{0});
  }
  CHECK_EQ(rig.in.dropped.load(), 3u);
  CHECK_EQ(rig.out.dropped.load(), 6u);
}

TEST(an_ipv6_peer_and_a_mapped_ipv4_peer_are_found) {
  Rig rig;
  FaultRules rules;
  rules.rules.resize(2);
  rules.rules[0].peer = peer6(2);
  rules.rules[0].drop = 1;
  // As a person may write it: ::ffff:10.0.0.5
  auto& mapped = reinterpret_cast<sockaddr_in6&>(rules.rules[1].peer);
  mapped.sin6_family = AF_INET6;
  const Gid gid = gid_of(peer(5));
  std::memcpy(&mapped.sin6_addr, gid.data(), gid.size());
  rules.rules[1].drop = 1;
  rig.set(rules);
  rig.leave(peer6(2), 1, 2);
  rig.leave(peer(5), 1, 2);
  CHECK(rig.sent.empty());
  rig.leave(peer6(3), 1, 2);
  rig.leave(peer(6), 1, 2);
  CHECK_EQ(rig.sent.size(), size_t{4});
}

TEST(delay_keeps_the_order_and_the_time) {
  for (const bool v6 : {false, true}) {
    Rig rig;
    FaultRule rule;
    rule.delay_ns = 5 * kMs;
    rule.jitter_ns = 3 * kMs;
    rig.set(rule);
    const sockaddr_storage from = v6 ? peer6(2) : peer(2);
    const TimeNs begin = rig.now;
    for (uint32_t psn = 0; psn < 200; psn += 10) {
      rig.leave(from, psn, 10);
      if (!v6) rig.arrive(from, psn, 10);
      rig.pass(kMs / 4);
    }
    // The first of each direction waits for the delay at least.
    CHECK_EQ(rig.out.delayed.load(), 200u);
    while (rig.faults->held() > 0) {
      const TimeNs next = rig.faults->next_deadline();
      REQUIRE(next > rig.now && next <= rig.now + 8 * kMs);
      rig.pass(next - rig.now);
    }
    CHECK(rig.faults->next_deadline() == reactor::kNever);
    CHECK(psns(rig.sent) == counted(0, 200));
    if (!v6) CHECK(psns(rig.taken) == counted(0, 200));
    for (const auto& one : rig.sent) {
      const TimeNs left = begin + one.psn / 10 * (kMs / 4);
      CHECK(one.at >= left + 5 * kMs);
      // Its own jitter, or that of one before it.
      CHECK(one.at <= left + 8 * kMs);
    }
  }
}

TEST(a_full_queue_drops_and_counts) {
  Rig rig;
  FaultRules rules;
  rules.queue_packets = 8;
  rules.rules.resize(1);
  rules.rules[0].delay_ns = kMs;
  rig.set(rules);
  rig.leave(peer(2), 0, 20);
  CHECK_EQ(rig.out.delayed.load(), 8u);
  CHECK_EQ(rig.out.overflowed.load(), 12u);
  rig.pass(kMs);
  CHECK(psns(rig.sent) == counted(0, 8));
  // There is room again.
  rig.leave(peer(2), 50, 8);
  rig.pass(kMs);
  CHECK_EQ(rig.sent.size(), size_t{16});
  CHECK_EQ(rig.out.overflowed.load(), 12u);
}

TEST(duplicates_come_right_behind) {
  Rig rig;
  FaultRule rule;
  rule.duplicate = 1;
  rig.set(rule);
  rig.leave(peer(2), 5, 2, 100);
  rig.arrive(peer(2), 9, 2);
  CHECK((psns(rig.sent) == std::vector<uint32_t>{5, 5, 6, 6}));
  CHECK((psns(rig.taken) == std::vector<uint32_t>{9, 9, 10, 10}));
  CHECK_EQ(rig.out.duplicated.load(), 2u);
  rule.delay_ns = kMs;
  rig.set(rule);
  rig.sent.clear();
  rig.leave(peer(2), 5, 2);
  CHECK(rig.sent.empty());
  rig.pass(kMs);
  CHECK((psns(rig.sent) == std::vector<uint32_t>{5, 5, 6, 6}));
}

TEST(packets_that_are_reordered_are_passed_and_none_is_lost) {
  Rig rig;
  FaultRule rule;
  rule.reorder = 0.2;
  rule.reorder_ns = 2 * kMs;
  rig.set(rule);
  for (uint32_t psn = 0; psn < 1'000; psn += 10) {
    rig.leave(peer(2), psn, 10);
    rig.arrive(peer(2), psn, 10);
    rig.pass(kMs);
  }
  rig.pass(2 * kMs);
  for (auto* const seen : {&rig.sent, &rig.taken}) {
    auto all = psns(*seen);
    CHECK(all != counted(0, 1'000));
    std::sort(all.begin(), all.end());
    CHECK(all == counted(0, 1'000));
  }
  CHECK(rig.out.reordered.load() > 140 && rig.out.reordered.load() < 260);
}

TEST(what_waits_goes_on_in_order_when_the_rules_change) {
  Rig rig;
  FaultRule rule;
  rule.delay_ns = 1'000 * kMs;
  rig.set(rule);
  rig.leave(peer(2), 0, 70);
  rig.arrive(peer(2), 0, 70);
  CHECK_EQ(rig.faults->held(), size_t{140});
  CHECK_EQ(rig.faults->deliver_all() + rig.faults->transmit_all(), 140);
  CHECK(psns(rig.sent) == counted(0, 70));
  CHECK(psns(rig.taken) == counted(0, 70));
  CHECK_EQ(rig.faults->held(), size_t{0});
}

TEST(a_black_hole_swallows_icmp_too) {
  Rig rig;
  FaultRule rule = dropping(1);
  rule.peer = peer(2);
  rig.set(rule);
  for (const uint8_t host : {uint8_t{2}, uint8_t{3}}) {
    for (const SendFault fault : {SendFault::PortUnreachable, SendFault::MtuTooLarge}) {
      ErrorReport report;
      report.fault = fault;
      report.peer = peer(host);
      rig.faults->on_fault(report);
    }
  }
  REQUIRE(rig.reports.size() == 3);
  CHECK(rig.reports[0].fault == SendFault::MtuTooLarge);
}

TEST_MAIN
