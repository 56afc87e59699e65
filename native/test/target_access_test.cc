// Asymmetric namespace access in the target engine: what a port's view refuses, and when a change
// of it ends. Over the loopback provider; time moves only here.
#include <algorithm>

#include "support/target_rig.h"
#include "test.h"

using namespace nvmeof::test;
using namespace nvmeof::nvmf;
namespace rdma = nvmeof::rdma;
namespace wire = nvmeof::wire;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint16_t kInaccessible = again(wire::Status::kAnaInaccessible);
constexpr uint16_t kTransition = again(wire::Status::kAnaTransition);
constexpr uint16_t kPersistentLoss = again(wire::Status::kAnaPersistentLoss);

struct Flag {
  int runs = 0;
  static void set(void* context) { static_cast<Flag*>(context)->runs++; }
};

// One subsystem with namespaces 1 (group 1) and 2 (group 2), reached through ports 1 and 2.
struct TwoPorts {
  TargetRig rig;
  ScriptedBacking backing{1u << 20}, other{1u << 20};
  RawHost first, second;
  explicit TwoPorts(bool resident = false, TargetLimits limits = TargetRig::small_limits(),
                    const rdma::Capabilities& c = LoopbackFabric::full_capabilities())
      : rig(limits, c), first(&rig, 7, 32), second(&rig, 8, 32) {
    backing.is_resident = resident;
    Flag added;
    rig.engine->set_namespace(1, 1, {&backing, false, 0, 1}, Flag::set, &added);
    rig.engine->set_namespace(1, 2, {&other, false, 0, 2}, Flag::set, &added);
    rig.settle();
    CHECK_EQ(added.runs, 2);
    rig.engine->bind(first.queue, {1, 1, 1, false, 1});
    rig.engine->bind(second.queue, {1, 1, 2, false, 2});
    rig.sink.events.clear();
  }
  ~TwoPorts() { rig.check_idle(); }
  void set(uint32_t port, uint32_t group, uint16_t status, Flag& done) {
    rig.engine->set_access(1, {port, group, status}, Flag::set, &done);
  }
  void hold(bool on) { backing.hold = other.hold = on; }
};

Sqe command(uint8_t opcode, const RawHost& host, uint16_t cid, uint32_t nsid = 1,
            uint32_t blocks = 8) {
  return Sqe(opcode, cid, nsid).range(0, blocks).keyed(host.address(), blocks * 512, host.key());
}
Sqe read_of(const RawHost& host, uint16_t cid, uint32_t nsid = 1) {
  return command(io::kRead, host, cid, nsid);
}
Sqe write_of(const RawHost& host, uint16_t cid, uint32_t nsid = 1) {
  return command(io::kWrite, host, cid, nsid);
}

}  // namespace

TEST(only_the_group_and_the_port_are_refused_and_only_as_long) {
  TwoPorts t;
  for (const uint16_t status : {kInaccessible, kTransition, kPersistentLoss}) {
    Flag done;
    t.set(1, 1, status, done);
    t.rig.settle();
    CHECK_EQ(done.runs, 1);
    CHECK_EQ(t.first.ask(read_of(t.first, 1)).status, status);
    CHECK_EQ(t.first.ask(write_of(t.first, 2)).status, status);
    CHECK_EQ(t.first.ask(Sqe(io::kFlush, 3, 1)).status, status);
    CHECK_EQ(t.first.ask(Sqe(io::kWriteZeroes, 4, 1).range(0, 8)).status, status);
    CHECK_EQ(status & kDoNotRetry, 0);
    CHECK_EQ(t.first.ask(read_of(t.first, 5, 2)).status, 0);
    CHECK_EQ(t.second.ask(read_of(t.second, 6)).status, 0);
  }
  CHECK_EQ(t.backing.seen.size(), 3u);  // the second port's reads
  Flag done;
  t.set(1, 1, 0, done);
  t.rig.settle();
  CHECK_EQ(done.runs, 1);
  CHECK_EQ(t.first.ask(write_of(t.first, 7)).status, 0);
}

TEST(a_refusal_comes_before_range_and_protection_but_after_namespace_and_opcode) {
  TwoPorts t;
  Flag done;
  t.set(1, 1, kInaccessible, done);
  t.rig.settle();
  CHECK_EQ(t.first.ask(read_of(t.first, 1).range(1u << 30, 8)).status, kInaccessible);
  CHECK_EQ(t.first.ask(read_of(t.first, 2, 9)).status, status::kInvalidNamespace);
  CHECK_EQ(t.first.ask(Sqe(0x55, 3, 1)).status, status::kInvalidOpcode);
  const Event* error = t.rig.sink.last(EventKind::IoError);
  REQUIRE(error);
  CHECK_EQ(error->id, 7u);
}

TEST(the_change_ends_when_what_was_accepted_has_left_the_backing) {
  TwoPorts t;
  t.hold(true);
  for (uint16_t cid = 1; cid <= 3; cid++) t.first.send(write_of(t.first, cid));
  t.first.send(write_of(t.first, 4, 2));    // another group
  t.second.send(write_of(t.second, 5, 1));  // another port
  t.rig.settle();
  CHECK_EQ(t.backing.held(), 4u);
  Flag done;
  t.set(1, 1, kInaccessible, done);
  CHECK_EQ(t.first.ask(write_of(t.first, 6)).status, kInaccessible);
  CHECK_EQ(t.backing.held(), 4u);
  // No command is cancelled, however long it takes: the other port's are in the same channel.
  t.rig.now += 100 * kSecond;
  t.rig.settle();
  CHECK_EQ(t.backing.cancels, 0);
  t.backing.release_one();
  t.backing.release_one();
  t.rig.settle();
  CHECK_EQ(done.runs, 0);
  t.backing.release_one();
  t.rig.settle();
  CHECK_EQ(done.runs, 1);
  for (uint16_t cid = 1; cid <= 3; cid++) CHECK_EQ(t.first.answer(cid)->status, 0);
  CHECK(t.first.answer(4) == nullptr);
  CHECK(t.second.answer(5) == nullptr);
  t.hold(false);
  t.backing.release_all();
  t.other.release_all();
  t.rig.settle();
  CHECK_EQ(t.first.answer(4)->status, 0);
  CHECK_EQ(t.second.answer(5)->status, 0);
}

TEST(fetched_data_of_a_refused_write_touches_nothing) {
  TwoPorts t;
  const uint32_t target = t.first.target_qp();
  t.rig.fabric.hold(target, true);
  std::fill(t.first.memory.begin(), t.first.memory.end(), uint8_t{0xAB});
  for (uint16_t cid = 1; cid <= 12; cid++) t.first.send(write_of(t.first, cid));
  t.rig.settle();
  Flag done;
  t.set(1, 1, kInaccessible, done);
  t.rig.settle();
  CHECK_EQ(done.runs, 1);  // nothing was in the backing
  t.rig.fabric.hold(target, false);
  t.rig.settle();
  for (uint16_t cid = 1; cid <= 12; cid++) {
    REQUIRE(t.first.answer(cid));
    CHECK_EQ(t.first.answer(cid)->status, kInaccessible);
  }
  CHECK(t.backing.seen.empty());
  CHECK(std::all_of(t.backing.bytes.begin(), t.backing.bytes.end(),
                    [](uint8_t byte) { return byte == 0; }));
}

TEST(what_waits_for_a_buffer_is_answered_at_once) {
  TwoPorts t;
  t.hold(true);
  // 256 KiB each of 2 MiB.
  for (uint16_t cid = 1; cid <= 12; cid++) t.first.send(command(io::kRead, t.first, cid, 1, 512));
  t.rig.settle();
  const size_t held = t.backing.held();
  CHECK(held > 0 && held < 12);
  Flag done;
  t.set(1, 1, kTransition, done);
  t.rig.settle();
  CHECK_EQ(t.first.answers.size(), 12 - held);
  for (const Answer& answer : t.first.answers) CHECK_EQ(answer.status, kTransition);
  CHECK_EQ(done.runs, 0);
  t.backing.release_all();
  t.rig.settle();
  CHECK_EQ(done.runs, 1);
  CHECK_EQ(t.first.answers.size(), 12u);
}

TEST(a_later_change_waits_for_the_earlier_ones_commands_and_others_wait_for_nothing) {
  TwoPorts t;
  t.hold(true);
  t.first.send(write_of(t.first, 1));
  t.rig.settle();
  Flag closed, opened, closed_again, elsewhere;
  t.set(1, 1, kInaccessible, closed);
  t.set(1, 1, 0, opened);
  t.first.send(write_of(t.first, 2));  // accepted while it was open
  t.rig.settle();
  t.set(1, 1, kInaccessible, closed_again);
  t.set(2, 2, kInaccessible, elsewhere);
  t.rig.settle();
  CHECK_EQ(t.backing.held(), 2u);
  CHECK_EQ(closed.runs + closed_again.runs, 0);
  CHECK_EQ(opened.runs, 1);
  CHECK_EQ(elsewhere.runs, 1);
  t.backing.release_one();  // the first write
  t.rig.settle();
  CHECK_EQ(closed.runs, 1);
  CHECK_EQ(closed_again.runs, 0);
  t.backing.release_one();
  t.rig.settle();
  CHECK_EQ(closed_again.runs, 1);
  // The other way round: what the later one found is done first.
  t.set(1, 1, 0, opened);
  t.first.send(write_of(t.first, 4));
  t.rig.settle();
  t.set(1, 1, kTransition, closed);
  t.set(1, 1, 0, opened);
  t.first.send(write_of(t.first, 5));
  t.rig.settle();
  t.set(1, 1, kInaccessible, closed_again);
  std::swap(t.backing.waiting.front(), t.backing.waiting.back());
  t.backing.release_one();
  t.rig.settle();
  CHECK_EQ(t.first.answer(5)->status, 0);
  CHECK_EQ(closed.runs + closed_again.runs, 2);
  t.backing.release_one();
  t.rig.settle();
  CHECK_EQ(closed.runs + closed_again.runs, 4);
  CHECK_EQ(t.first.ask(read_of(t.first, 3)).status, kInaccessible);
}

TEST(a_queue_that_dies_holds_a_change_only_as_long_as_the_backing_does) {
  TwoPorts t;
  t.hold(true);
  t.first.send(write_of(t.first, 1));
  t.rig.settle();
  Flag done;
  t.set(1, 1, kInaccessible, done);
  t.first.disconnect();
  t.rig.settle();
  CHECK_EQ(done.runs, 0);
  t.backing.release_all();
  t.rig.settle();
  CHECK_EQ(done.runs, 1);
  CHECK_EQ(t.rig.engine->live_queues(), 1u);
}

TEST(a_queue_that_is_bound_later_finds_the_view_of_its_port) {
  TwoPorts t;
  Flag done;
  t.set(1, 1, kInaccessible, done);
  t.set(3, 1, kPersistentLoss, done);
  t.rig.settle();
  RawHost late(&t.rig, 9, 8), elsewhere(&t.rig, 10, 8);
  t.rig.engine->bind(late.queue, {1, 1, 3, false, 3});
  t.rig.engine->bind(elsewhere.queue, {1, 1, 4, false, 4});
  CHECK_EQ(late.ask(read_of(late, 1)).status, kPersistentLoss);
  CHECK_EQ(elsewhere.ask(read_of(elsewhere, 1)).status, 0);
  t.set(3, 1, 0, done);
  t.rig.settle();
  CHECK_EQ(late.ask(read_of(late, 2)).status, 0);
}

TEST(a_flush_of_all_does_not_claim_what_the_port_may_not_use) {
  TwoPorts t;
  Flag done;
  const Sqe flush = Sqe(io::kFlush, 1, kNsidAll);
  t.set(1, 2, kInaccessible, done);
  t.rig.settle();
  CHECK_EQ(t.first.ask(flush).status, kInaccessible);
  CHECK(t.other.seen.empty());
  CHECK_EQ(t.second.ask(flush).status, 0);
  CHECK_EQ(t.other.seen.size(), 1u);
  // The group closes while the flush is in the namespace before.
  t.set(1, 2, 0, done);
  t.hold(true);
  t.first.send(Sqe(io::kFlush, 2, kNsidAll));
  t.rig.settle();
  CHECK_EQ(t.backing.held(), 1u);
  t.set(1, 2, kTransition, done);
  t.rig.settle();
  CHECK_EQ(done.runs, 3);  // nothing of group 2 is in a backing
  t.backing.release_all();
  t.rig.settle();
  CHECK_EQ(t.first.answer(2)->status, kTransition);
  CHECK_EQ(t.other.seen.size(), 1u);
}

TEST(a_write_into_the_namespaces_memory_is_waited_for) {
  TargetLimits limits = TargetRig::small_limits();
  limits.sole_reactor = true;
  rdma::Capabilities capabilities = LoopbackFabric::full_capabilities();
  capabilities.free_registration = true;
  TwoPorts t(true, limits, capabilities);
  const uint32_t target = t.first.target_qp();
  t.rig.fabric.hold(target, true);
  std::fill(t.first.memory.begin(), t.first.memory.end(), uint8_t{0xCD});
  t.first.send(write_of(t.first, 1));
  t.rig.settle();
  Flag done;
  t.set(1, 1, kInaccessible, done);
  t.rig.settle();
  CHECK_EQ(done.runs, 0);  // its READ may still land there
  t.rig.fabric.hold(target, false);
  t.rig.settle();
  CHECK_EQ(done.runs, 1);
  CHECK_EQ(t.first.answer(1)->status, 0);
  CHECK_EQ(t.backing.bytes[0], 0xCD);
  CHECK_EQ(t.first.ask(read_of(t.first, 2)).status, kInaccessible);
}

TEST(a_namespace_that_moves_to_another_group_follows_that_groups_state) {
  TwoPorts t;
  Flag done;
  t.set(1, 2, kInaccessible, done);
  t.rig.settle();
  t.hold(true);
  t.first.send(write_of(t.first, 1));
  t.rig.settle();
  Flag moved;
  t.rig.engine->set_namespace(1, 1, {&t.backing, false, 0, 2}, Flag::set, &moved);
  CHECK_EQ(t.first.ask(read_of(t.first, 2)).status, kInaccessible);
  CHECK_EQ(moved.runs, 0);
  t.hold(false);
  t.backing.release_all();
  t.rig.settle();
  CHECK_EQ(moved.runs, 1);
  CHECK_EQ(t.second.ask(read_of(t.second, 3)).status, 0);
  for (const uint32_t group : {0u, kAnaGroups + 1}) {
    Flag refused;
    t.rig.engine->set_namespace(1, 3, {&t.other, false, 0, group}, Flag::set, &refused);
    t.rig.settle();
    CHECK_EQ(refused.runs, 1);
    CHECK_EQ(t.second.ask(read_of(t.second, 4, 3)).status, status::kInvalidNamespace);
  }
}

TEST(a_table_is_gone_only_when_its_changes_have_ended) {
  TwoPorts t;
  t.hold(true);
  t.first.send(write_of(t.first, 1));
  t.rig.settle();
  Flag closed, destroyed;
  t.set(1, 1, kInaccessible, closed);
  t.rig.engine->destroy_table(1, Flag::set, &destroyed);
  t.rig.settle();
  CHECK_EQ(closed.runs + destroyed.runs, 0);
  t.backing.release_all();
  t.rig.settle();
  CHECK_EQ(closed.runs, 1);
  CHECK_EQ(destroyed.runs, 1);
  CHECK_EQ(t.first.ask(read_of(t.first, 2)).status, status::kInvalidNamespace);
}

TEST(flapping_under_load_ends_every_change_once_and_answers_every_command) {
  TwoPorts t;
  Flag done;
  uint64_t random = 7;
  size_t refused = 0, served = 0;
  uint16_t cid = 0;
  for (int round = 0; round < 2000; round++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    t.hold((random >> 33) % 3 == 0);
    for (RawHost* host : {&t.first, &t.second})
      host->send(round % 2 ? read_of(*host, ++cid, 1 + round % 3 % 2) : write_of(*host, ++cid));
    if ((random >> 40) % 2) t.rig.settle();
    const uint16_t status = round % 2 ? 0 : (random >> 50) % 2 ? kInaccessible : kTransition;
    t.set(1 + static_cast<uint32_t>((random >> 45) % 2), 1 + round % 4 / 2, status, done);
    if ((random >> 60) % 2) t.rig.settle();
    t.hold(false);
    t.backing.release_all();
    t.other.release_all();
    t.rig.settle();
    CHECK_EQ(done.runs, round + 1);
    for (RawHost* host : {&t.first, &t.second}) {
      CHECK_EQ(host->answers.size(), 1u);
      for (const Answer& answer : host->answers) (answer.status ? refused : served)++;
      host->answers.clear();
    }
  }
  CHECK_EQ(refused + served, 4000u);
  CHECK(refused > 400);
  CHECK(served > 400);
}

TEST_MAIN
