// A queue over several paths, over fake queues: choice of paths, failover, what may be repeated and
// what must wait, retries, cancellation, memory, the end.
#include "nvmf/multipath/path_queue.h"

#include <deque>
#include <map>
#include <vector>

#include "nvmf/multipath/disposition.h"
#include "support/fake_queues.h"
#include "support/host_harness.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::nvmf;
using namespace nvmeof::test;

namespace {

constexpr reactor::TimeNs kMs = 1'000'000;
constexpr uint16_t kInaccessible = 3u << 8 | 2, kInternal = 6, kInterrupted = 0x21;
constexpr uint16_t kDnr = 1u << 14, kHostPathing = kDnr | 3u << 8 | 0x70;

struct Io {
  HostCommand host{};
  int ends = 0;
  Outcome outcome{};
  uint16_t status = 0;
};

struct Rig {
  explicit Rig(PathPolicy policy = PathPolicy::RoundRobin, reactor::TimeNs io_timeout = 0)
      : queue(7, {policy, io_timeout, {100 * kMs, 200 * kMs, 0}},
              {[](const void* at) { return *static_cast<const reactor::TimeNs*>(at); }, &now},
              &sink, &counters, &look_at),
        bytes(8192) {
    memory = queue.register_memory(bytes.data(), bytes.size());
  }
  ~Rig() {
    for (FakeQueues& each : paths)
      if (!each.sent.empty()) each.die();
    queue.begin_close();
    memory.reset();
    CHECK(queue.over());
    for (const Io& io : ios) CHECK_EQ(io.ends, 1);
    CHECK_EQ(counters.parked.load(), 0u);
    CHECK_EQ(counters.held.load(), 0u);
  }

  void up(uint32_t index, uint8_t rank = 0, uint8_t distance = 0) {
    paths[index].dead = false;
    queue.set_path(index, {&paths[index], 100 + index, rank, distance, ++incarnations[index]});
  }
  Io& io(uint8_t opcode) {
    Io& made = ios.emplace_back();
    made.host.sqe[0] = opcode;
    made.host.direction = opcode == io::kRead ? Direction::ToHost : Direction::ToController;
    made.host.memory = memory.get();
    made.host.length = 4096;
    made.host.tag = ios.size();
    made.host.context = &made;
    made.host.done = [](HostCommand* command, Outcome outcome, const uint8_t cqe[16]) {
      auto* ended = static_cast<Io*>(command->context);
      ended->ends++;
      ended->outcome = outcome;
      ended->status = static_cast<uint16_t>(load16(cqe + cqe::kStatus) >> 1);
    };
    queue.submit(&made.host);
    return made;
  }
  Io& read() { return io(io::kRead); }
  Io& write() { return io(io::kWrite); }
  void advance(reactor::TimeNs by) {
    now += by;
    if (now < look_at) return;
    look_at = reactor::kNever;
    queue.look(now);
  }

  reactor::TimeNs now = 1000 * kMs;
  reactor::TimeNs look_at = reactor::kNever;
  KeepingSink sink;
  PathQueueCounters counters{};
  PathQueue queue;
  std::array<FakeQueues, 4> paths;
  std::array<uint32_t, 4> incarnations{};
  std::vector<uint8_t> bytes;
  std::unique_ptr<RegisteredMemory> memory;
  std::deque<Io> ios;
};

}  // namespace

TEST(round_robin_takes_paths_in_turns) {
  Rig r;
  for (uint32_t i = 0; i < 3; i++) r.up(i);
  for (int i = 0; i < 30; i++) r.read();
  for (uint32_t i = 0; i < 3; i++) {
    CHECK_EQ(r.paths[i].sent.size(), 10u);
    CHECK_EQ(r.paths[i].queue_seen, 100 + i);
  }
}

TEST(queue_depth_takes_the_least_busy_path) {
  Rig r(PathPolicy::QueueDepth);
  r.up(0);
  r.up(1);
  for (int i = 0; i < 10; i++) r.read();
  CHECK(r.paths[0].sent.size() == 5 && r.paths[1].sent.size() == 5);
  for (int i = 0; i < 4; i++) r.paths[1].answer();
  for (int i = 0; i < 4; i++) r.read();
  CHECK(r.paths[0].sent.size() == 5 && r.paths[1].sent.size() == 5);
}

TEST(numa_stays_on_the_nearest_path_until_it_fails) {
  Rig r(PathPolicy::Numa);
  r.up(0, 0, 20);
  r.up(1, 0, 10);
  for (int i = 0; i < 5; i++) r.read();
  CHECK_EQ(r.paths[1].sent.size(), 5u);
  r.paths[1].die();
  CHECK_EQ(r.paths[0].sent.size(), 5u);
  r.up(1, 0, 10);
  r.read();
  CHECK_EQ(r.paths[1].sent.size(), 1u);
}

TEST(a_worse_rank_is_taken_only_when_no_better_one_is_left) {
  Rig r;
  r.up(0, 2);
  r.up(1, 1);
  r.up(2, 1);
  for (int i = 0; i < 4; i++) r.read();
  CHECK_EQ(r.paths[0].sent.size(), 0u);
  r.queue.set_path(1, {&r.paths[1], 101, kPathUnusable, 0, r.incarnations[1]});
  r.read();
  CHECK_EQ(r.paths[2].sent.size(), 3u);
  CHECK_EQ(r.paths[1].sent.size(), 2u);  // may still be answered
  r.paths[2].die();
  CHECK_EQ(r.paths[0].sent.size(), 3u);
}

TEST(reads_of_a_lost_path_move_at_once_and_writes_wait_for_the_release) {
  Rig r;
  r.up(0);
  Io& read = r.read();
  Io& write = r.write();
  r.up(1, 1);
  r.paths[0].die();
  REQUIRE(r.paths[1].sent.size() == 1);
  CHECK(r.paths[1].sent.front() == &read.host);
  CHECK_EQ(r.counters.held.load(), 1u);
  r.paths[1].answer();
  CHECK(read.ends == 1 && read.outcome == Outcome::Ok && read.status == 0);
  CHECK_EQ(write.ends, 0);
  // Other writes do not wait.
  Io& other = r.write();
  r.paths[1].answer();
  CHECK_EQ(other.ends, 1);
  r.queue.release(0, 0, true);  // an earlier incarnation
  CHECK(r.paths[1].sent.empty());
  r.queue.release(0, 1, true);
  REQUIRE(r.paths[1].sent.size() == 1);
  r.paths[1].answer();
  CHECK(write.ends == 1 && write.status == 0);
}

TEST(what_must_never_be_repeated_fails) {
  Rig r;
  r.up(0);
  Io& write = r.write();
  r.paths[0].die();
  r.up(1);
  r.queue.release(0, 1, false);
  CHECK(r.paths[1].sent.empty());
  CHECK(write.ends == 1 && write.outcome == Outcome::Ok && write.status == kHostPathing);
}

TEST(a_write_that_never_left_moves_at_once) {
  Rig r;
  r.up(0);
  r.up(1, 1);
  r.paths[0].dead = true;
  Io& write = r.write();
  REQUIRE(r.paths[1].sent.size() == 1);
  r.paths[1].answer();
  CHECK_EQ(write.ends, 1);
}

TEST(held_writes_of_two_incarnations_are_released_apart) {
  Rig r;
  r.up(0);
  Io& first = r.write();
  r.paths[0].die();
  r.up(0);
  Io& second = r.write();
  r.paths[0].die();
  r.up(1);
  r.queue.release(0, 1, true);
  REQUIRE(r.paths[1].sent.size() == 1);
  CHECK(r.paths[1].sent.front() == &first.host);
  r.queue.release(0, 2, true);
  REQUIRE(r.paths[1].sent.size() == 2);
  CHECK(r.paths[1].sent.back() == &second.host);
}

TEST(without_a_path_commands_wait_in_order) {
  Rig r;
  std::vector<Io*> all;
  for (int i = 0; i < 5; i++) all.push_back(&(i % 2 != 0 ? r.write() : r.read()));
  CHECK_EQ(r.counters.parked.load(), 5u);
  r.up(2);
  REQUIRE(r.paths[2].sent.size() == 5);
  for (size_t i = 0; i < all.size(); i++) CHECK(r.paths[2].sent[i] == &all[i]->host);
}

TEST(failing_without_a_path_ends_what_waits_and_what_comes) {
  Rig r;
  r.up(0);
  Io& held = r.write();
  r.paths[0].die();
  Io& parked = r.read();
  r.queue.set_failing(true);
  Io& later = r.read();
  for (const Io* io : {&held, &parked, &later}) {
    CHECK(io->ends == 1 && io->outcome == Outcome::Ok);
    CHECK_EQ(io->status, kHostPathing);
  }
  CHECK_EQ(r.counters.pathless.load(), 3u);
  r.up(1);
  Io& served = r.read();
  r.paths[1].answer();
  CHECK(served.ends == 1 && served.status == 0);
  r.queue.set_failing(false);
  r.paths[1].die();
  r.read();
  CHECK_EQ(r.counters.parked.load(), 1u);
}

TEST(a_refusal_suspends_the_path_and_tells_it_once) {
  Rig r;
  r.up(0);
  r.up(1, 1);
  Io& first = r.write();
  Io& second = r.read();
  r.paths[0].answer(kInaccessible);
  r.paths[0].answer(kInaccessible);
  CHECK_EQ(r.sink.count(EventKind::PathRefused, 7), 1);
  CHECK_EQ(r.sink.last(EventKind::PathRefused)->code, kInaccessible);
  CHECK_EQ(r.sink.last(EventKind::PathRefused)->value, 1u);
  CHECK_EQ(r.paths[1].sent.size(), 2u);  // the write, too: it was answered
  r.paths[1].answer();
  r.paths[1].answer();
  CHECK(first.ends == 1 && second.ends == 1);
  r.read();
  CHECK_EQ(r.paths[0].sent.size(), 0u);
  r.queue.set_path(0, {&r.paths[0], 100, 0, 0, 1});
  r.read();
  CHECK_EQ(r.paths[0].sent.size(), 1u);
}

TEST(a_refusal_of_an_earlier_association_does_not_suspend_the_present_one) {
  Rig r;
  r.up(0);
  r.read();
  HostCommand* const old = r.paths[0].sent.front();
  r.paths[0].sent.clear();
  r.up(0);
  const auto cqe = cqe_with(kInaccessible);
  old->done(old, Outcome::Ok, cqe.data());
  CHECK_EQ(r.paths[0].sent.size(), 1u);
  CHECK_EQ(r.sink.count(EventKind::PathRefused, 7), 0);
}

TEST(errors_that_may_pass_are_tried_again_after_the_delay_asked_for) {
  Rig r;
  r.up(0);
  Io& io = r.read();
  r.paths[0].answer(kInterrupted | 1u << 11);  // CRD 1: 100 ms
  CHECK(r.paths[0].sent.empty());
  r.advance(99 * kMs);
  CHECK(r.paths[0].sent.empty());
  r.advance(1 * kMs);
  REQUIRE(r.paths[0].sent.size() == 1);
  for (int i = 1; i < kRetriesMax; i++) r.paths[0].answer(kInternal);  // no delay: at once
  CHECK_EQ(io.ends, 0);
  r.paths[0].answer(kInternal);
  CHECK(io.ends == 1 && io.status == kInternal);
  CHECK_EQ(r.counters.retries.load(), uint64_t{kRetriesMax});
}

TEST(do_not_retry_is_obeyed) {
  Rig r;
  r.up(0);
  r.up(1);
  Io& io = r.read();
  FakeQueues& taken = r.paths[0].sent.empty() ? r.paths[1] : r.paths[0];
  taken.answer(kInaccessible | kDnr);
  CHECK(io.ends == 1 && io.status == (kInaccessible | kDnr));
}

TEST(commands_are_cancelled_wherever_they_are) {
  Rig r;
  r.up(0);
  Io& held = r.write();
  r.paths[0].die();
  r.queue.cancel(held.host.tag);
  CHECK(held.ends == 1 && held.outcome == Outcome::Cancelled);
  Io& parked = r.read();
  r.queue.cancel(parked.host.tag);
  CHECK(parked.ends == 1 && parked.outcome == Outcome::Cancelled);
  r.up(0);
  Io& delayed = r.read();
  r.paths[0].answer(kInterrupted | 1u << 11);
  r.queue.cancel(delayed.host.tag);
  CHECK(delayed.ends == 1 && delayed.outcome == Outcome::Cancelled);
  Io& sent = r.read();
  r.queue.cancel(sent.host.tag);
  CHECK(sent.ends == 1 && sent.outcome == Outcome::Cancelled);
  // One that the engine keeps for a while is not repeated when the queue dies meanwhile.
  r.paths[0].silent_cancel = true;
  Io& kept = r.read();
  r.queue.cancel(kept.host.tag);
  CHECK_EQ(kept.ends, 0);
  r.up(1);
  r.paths[0].die();
  CHECK(kept.ends == 1 && kept.outcome == Outcome::Cancelled);
  CHECK(r.paths[1].sent.empty());
}

TEST(an_overdue_path_is_told_once_for_each_association) {
  Rig r(PathPolicy::RoundRobin, 500 * kMs);
  r.up(0);
  r.read();
  r.advance(300 * kMs);
  r.read();
  r.advance(199 * kMs);
  CHECK_EQ(r.sink.count(EventKind::PathOverdue, 7), 0);
  r.advance(1 * kMs);
  CHECK_EQ(r.sink.count(EventKind::PathOverdue, 7), 1);
  r.advance(600 * kMs);
  CHECK_EQ(r.sink.count(EventKind::PathOverdue, 7), 1);
  r.paths[0].die();
  r.up(0);
  r.advance(500 * kMs);
  CHECK_EQ(r.sink.count(EventKind::PathOverdue, 7), 2);
  CHECK_EQ(r.sink.last(EventKind::PathOverdue)->value, 2u);
}

TEST(a_command_of_an_earlier_association_does_not_make_the_present_one_overdue) {
  Rig r(PathPolicy::RoundRobin, 500 * kMs);
  r.up(0);
  r.read();
  r.advance(400 * kMs);
  r.up(0);
  r.advance(200 * kMs);
  CHECK_EQ(r.sink.count(EventKind::PathOverdue, 7), 0);
  r.read();
  r.advance(499 * kMs);
  CHECK_EQ(r.sink.count(EventKind::PathOverdue, 7), 0);
  r.advance(1 * kMs);
  CHECK_EQ(r.sink.count(EventKind::PathOverdue, 7), 1);
  CHECK_EQ(r.sink.last(EventKind::PathOverdue)->value, 2u);
}

TEST(memory_is_registered_on_first_use_and_dropped_with_the_queue) {
  Rig r;
  r.up(0);
  CHECK_EQ(r.paths[0].memories, 0);
  r.read();
  r.read();
  CHECK_EQ(r.paths[0].memories, 1);
  r.paths[0].die();
  CHECK_EQ(r.paths[0].memories, 1);  // windows may hold it until the queue is gone
  r.queue.queue_gone(&r.paths[0], 100);
  CHECK_EQ(r.paths[0].memories, 0);
  r.up(1);
  CHECK_EQ(r.paths[1].memories, 1);
  r.memory.reset();
  CHECK_EQ(r.paths[1].memories, 0);
}

TEST(a_path_that_cannot_take_the_memory_is_left) {
  Rig r;
  r.paths[0].refuse_memory = true;
  r.up(0);
  r.up(1, 1);
  r.read();
  CHECK_EQ(r.paths[1].sent.size(), 1u);
  CHECK_EQ(r.sink.count(EventKind::PathRefused, 7), 1);
  CHECK_EQ(r.sink.last(EventKind::PathRefused)->code, 0u);
}

TEST(an_engine_that_goes_takes_its_paths_with_it) {
  Rig r;
  r.up(0);
  r.up(1, 1);
  r.queue.queue_gone(&r.paths[0], 0);
  r.read();
  CHECK_EQ(r.paths[1].sent.size(), 1u);
}

TEST(a_removed_path_tells_when_nothing_is_left_there) {
  Rig r;
  r.up(0);
  r.up(1, 1);
  int drained = 0;
  const auto count = [](void* context) { ++*static_cast<int*>(context); };
  r.read();
  r.queue.remove_path(0, count, &drained);
  CHECK_EQ(drained, 0);
  r.read();
  CHECK_EQ(r.paths[1].sent.size(), 1u);
  r.paths[0].answer();
  CHECK_EQ(drained, 1);
  r.queue.remove_path(3, count, &drained);  // nothing was ever there
  CHECK_EQ(drained, 2);
}

TEST(closing_ends_everything_once) {
  Rig r;
  r.up(0);
  Io& held = r.write();
  r.paths[0].die();
  Io& parked = r.read();
  r.up(1);
  Io& sent = r.read();
  r.paths[1].silent_cancel = true;
  Io& kept = r.write();
  r.queue.begin_close();
  CHECK(held.ends == 1 && parked.ends + sent.ends + kept.ends <= 1);
  CHECK(!r.queue.over());
  Io& late = r.read();
  CHECK(late.ends == 1 && late.outcome == Outcome::NeverSent);
  r.paths[1].die();
  CHECK(r.queue.over());
}

TEST(only_commands_that_change_no_data_repeat_freely) {
  for (const uint8_t opcode : {io::kRead, io::kFlush, io::kCompare, io::kVerify})
    CHECK(repeats_freely(opcode));
  for (const uint8_t opcode : {io::kWrite, io::kWriteZeroes, io::kDatasetManagement})
    CHECK(!repeats_freely(opcode));
  for (unsigned opcode = 0x10; opcode < 0x100; opcode++)
    CHECK(!repeats_freely(static_cast<uint8_t>(opcode)));
}

TEST_MAIN
