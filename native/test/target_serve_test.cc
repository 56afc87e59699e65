// Whose capsules become commands next, when several queues have some waiting.
#include <algorithm>

#include "support/target_rig.h"
#include "test.h"

using namespace nvmeof::test;
using namespace nvmeof::nvmf;

namespace {

TargetLimits many_receives() {
  TargetLimits limits = TargetRig::small_limits();
  limits.shared_receives = 512;
  return limits;
}

// Three hosts with an I/O queue each on one namespace. Each reads blocks of its own, so that the
// backing's list of requests tells whose commands ran in which order.
struct Three {
  static constexpr uint32_t kDepth = 64;
  static constexpr uint64_t kApart = 1024;  // blocks
  ScriptedBacking backing{4u << 20};
  TargetRig rig;
  RawHost a, b, c;
  explicit Three(const TargetLimits& limits = many_receives())
      : rig(limits), a(&rig, 1, kDepth), b(&rig, 2, kDepth), c(&rig, 3, kDepth) {
    rig.add_namespace(1, &backing);
    for (const RawHost* host : {&a, &b, &c}) rig.bind(*host);
  }
  ~Three() { rig.check_idle(); }

  void read(RawHost& host, uint16_t cid, uint32_t bytes = 512) {
    host.send(Sqe(io::kRead, cid, 1)
                  .range(host.queue * kApart + cid, bytes / 512)
                  .keyed(host.address(), bytes, host.key()));
  }
  void read_many(RawHost& host, uint16_t count, uint32_t bytes = 512) {
    for (uint16_t cid = 0; cid < count; cid++) read(host, cid, bytes);
  }
  // Everything sent arrives; then one round of the engine.
  void round() {
    rig.fabric.settle();
    rig.engine->poll(rig.now);
  }
  // The queues of the requests that the backing has seen.
  std::vector<uint64_t> order() const {
    std::vector<uint64_t> queues;
    for (const auto& seen : backing.seen) queues.push_back(seen.offset / 512 / kApart);
    return queues;
  }
  size_t position_of(const RawHost& host) const {
    const std::vector<uint64_t> queues = order();
    return static_cast<size_t>(std::find(queues.begin(), queues.end(), host.queue) -
                               queues.begin());
  }
};

}  // namespace

TEST(a_lone_command_does_not_wait_behind_all_of_its_neighbours) {
  Three t;
  t.read_many(t.a, 60);
  t.read_many(t.b, 60);
  t.round();  // both have begun, both have more
  const size_t before = t.backing.seen.size();
  CHECK(before < 30);
  t.read(t.c, 0);
  t.rig.settle();
  CHECK(t.position_of(t.c) <= before);  // nothing of others in between
  CHECK_EQ(t.backing.seen.size(), 121u);
  CHECK_EQ(t.c.answer(0)->status, 0);
}

TEST(a_lone_command_is_answered_before_a_neighbour_has_its_turn) {
  Three t;
  t.read_many(t.a, 60);
  t.read_many(t.b, 60);
  t.round();  // their first commands
  t.round();  // a turn of one of them
  const size_t before = t.backing.seen.size();
  t.read(t.c, 0);
  t.round();
  CHECK_EQ(t.backing.seen.size(), before + 1);
  // Who is busy has a turn in every other round nevertheless.
  t.read(t.c, 1);
  t.round();
  CHECK_EQ(t.backing.seen.size(), before + 2 + 15);
  t.rig.settle();
}

TEST(busy_queues_take_turns) {
  Three t;
  t.read_many(t.a, 60);
  t.read_many(t.b, 60);
  t.round();
  t.rig.settle();
  const std::vector<uint64_t> queues = t.order();
  REQUIRE(queues.size() == 120);
  // Nobody is ahead of the other by more than a turn of 15 and the first turn.
  int ahead = 0, most = 0;
  for (const uint64_t queue : queues) {
    ahead += queue == 1 ? 1 : -1;
    most = std::max(most, std::abs(ahead));
  }
  CHECK(most >= 4);  // trains, not single commands
  CHECK(most <= 19);
}

TEST(a_turn_is_measured_in_bytes) {
  Three t;
  t.read_many(t.a, 10, 128 * 1024);
  t.read_many(t.b, 60);
  t.round();
  t.rig.settle();
  const std::vector<uint64_t> queues = t.order();
  // While both wait, a large command has at least a turn of small ones between it and the next.
  const auto first = std::find(queues.begin(), queues.end(), 1u);
  REQUIRE(first != queues.end());
  const auto second = std::find(first + 1, queues.end(), 1u);
  const auto third = std::find(second + 1, queues.end(), 1u);
  CHECK(std::distance(second, third) > 10);
}

TEST(a_queue_alone_need_not_take_turns) {
  Three t;
  t.read_many(t.a, 30);
  t.round();
  CHECK_EQ(t.backing.seen.size(), 30u);
  t.rig.settle();
}

TEST(when_receives_run_short_everything_is_taken) {
  TargetLimits limits = many_receives();
  limits.shared_receives = 64;
  Three t(limits);
  t.read_many(t.a, 30);
  t.read_many(t.b, 30);
  t.round();
  CHECK_EQ(t.backing.seen.size(), 60u);
  t.rig.settle();
}

TEST(a_command_that_waits_can_be_aborted) {
  Three t;
  t.backing.hold = true;
  t.read_many(t.a, 60);
  t.read_many(t.b, 60);
  t.round();
  REQUIRE(t.backing.seen.size() < 60);
  CHECK(t.rig.engine->abort(2, 59));
  t.backing.hold = false;
  t.backing.release_all();
  t.rig.settle();
  REQUIRE(t.b.answer(59) != nullptr);
  CHECK_EQ(t.b.answer(59)->status, status::kAbortRequested);
  CHECK_EQ(t.b.answer(58)->status, 0);
}

TEST(a_queue_dies_while_its_capsules_wait) {
  // 0: the peer disconnects, 1: a short capsule behind them, 2: close().
  for (int how = 0; how < 3; how++) {
    Three t;
    t.read_many(t.a, 60);
    t.read_many(t.b, 60);
    t.round();
    const std::vector<uint8_t> stub(10);
    if (how == 0) t.a.disconnect();
    if (how == 1) t.a.send_bytes(stub);
    if (how == 2) t.rig.engine->close(1);
    t.rig.settle();
    t.rig.now += 1'000'000'000;
    t.rig.settle();
    CHECK_EQ(t.rig.sink.count(EventKind::QueueClosed), 1u);
    for (uint16_t cid = 0; cid < 60; cid++) CHECK(t.b.answer(cid) != nullptr);
  }
}

TEST_MAIN
