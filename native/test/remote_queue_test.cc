// Paths whose queue is on another reactor, over fake queues there: commands go over and come back,
// in both directions at once; memory, cancellation, what has ended meanwhile, the end.
#include "nvmf/multipath/remote_queue.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "nvmf/multipath/multipath_engine.h"
#include "support/fake_queues.h"
#include "support/host_harness.h"
#include "support/run_on.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::nvmf;
using namespace nvmeof::test;

namespace {

constexpr uint32_t kPaths = 7, kReal = 100;  // ids of queues
constexpr uint16_t kHostPathing = 3u << 8 | 0x70;

// Answers each command at once, or keeps them for the test.
class Engine final : public CommandQueues {
 public:
  void submit(uint32_t queue, HostCommand* command) override {
    queues.submit(queue, command);
    if (answers) queues.answer();
  }
  void cancel(uint32_t queue, uint64_t tag) override { queues.cancel(queue, tag); }
  Result<std::unique_ptr<RegisteredMemory>> register_memory(uint32_t queue, uint8_t* base,
                                                            size_t length) override {
    registered++;
    return queues.register_memory(queue, base, length);
  }
  FakeQueues queues;
  bool answers = true;
  int registered = 0;
};

// A reactor with its queues over paths, and an engine of its own that others may use.
struct Side {
  explicit Side(unsigned index)
      : reactor(std::move(*reactor::Reactor::start(index, {-1, false, 20'000, "side"}))) {
    on([&] {
      multipath = std::make_unique<MultipathEngine>(reactor.get(), &sink);
      multipath->engine_made(&engine);
      multipath->open(kPaths, {});
    });
    box = multipath->box();
  }
  ~Side() { end(); }
  void end() {
    on([&] { multipath.reset(); });
  }
  void hold_answers() {
    on([&] { engine.answers = false; });
  }
  template <typename Work>
  void on(Work&& work) {
    run_on(*reactor, work);
  }

  KeepingSink sink;
  Engine engine;
  std::unique_ptr<MultipathEngine> multipath;
  std::shared_ptr<ErrandBox> box;
  std::unique_ptr<reactor::Reactor> reactor;
};

class Load;

struct Io {
  HostCommand host{};
  Load* load = nullptr;
  int ends = 0;
  Outcome outcome{};
  uint16_t status = 0;
  bool at_home = false;
};

// Commands on one side, that any thread may wait for.
class Load {
 public:
  explicit Load(Side& side) : side_(side), bytes_(8192) {
    side.on([&] {
      auto made = side.multipath->register_memory(kPaths, bytes_.data(), bytes_.size());
      if (made) memory_ = std::move(*made);
    });
  }
  ~Load() { drop_memory(); }
  void drop_memory() {
    side_.on([&] { memory_.reset(); });
  }

  Io& submit(uint8_t opcode, uint64_t tag = 1) {
    Io& made = ios_.emplace_back();  // others stay where they are
    made.load = this;
    made.host.sqe[0] = opcode;
    made.host.direction = opcode == io::kFlush  ? Direction::None
                          : opcode == io::kRead ? Direction::ToHost
                                                : Direction::ToController;
    made.host.memory = memory_.get();
    made.host.offset = 4096;
    made.host.length = opcode == io::kFlush ? 0 : 512;
    made.host.tag = tag;
    made.host.context = &made;
    made.host.done = [](HostCommand* command, Outcome outcome, const uint8_t cqe[16]) {
      Io& io = *static_cast<Io*>(command->context);
      io.load->ended(io, outcome, cqe);
    };
    side_.on([&] { side_.multipath->submit(kPaths, &made.host); });
    return made;
  }
  void wait(size_t ends) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return ends_ >= ends; }));
  }
  size_t ends() {
    const std::lock_guard lock(mutex_);
    return ends_;
  }

 private:
  void ended(Io& io, Outcome outcome, const uint8_t* cqe) {
    const std::lock_guard lock(mutex_);
    io.ends++;
    io.outcome = outcome;
    io.status = static_cast<uint16_t>(load16(cqe + cqe::kStatus) >> 1);
    io.at_home = reactor::Reactor::current() == side_.reactor.get();
    ends_++;
    changed_.notify_all();
  }

  Side& side_;
  std::vector<uint8_t> bytes_;
  std::unique_ptr<RegisteredMemory> memory_;
  std::deque<Io> ios_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t ends_ = 0;
};

// Path `index` of the one side is queue `real` of the other.
void lead(Side& from, Side& to, uint32_t index = 0, uint32_t real = kReal) {
  from.on([&] {
    PathOptions path;
    path.queue = real;
    path.incarnation = real;
    path.remote = from.multipath->remote(real, {&to.engine, to.box});
    path.engine = path.remote.get();
    from.multipath->find(kPaths)->set_path(index, path);
  });
}

// What came into the boxes until now has been done.
void settle(Side& a, Side& b) {
  for (int turn = 0; turn < 2; turn++) {
    for (Side* side : {&a, &b}) side->on([&] { side->multipath->run_errands(); });
  }
}

TEST(a_command_goes_over_and_ends_at_home) {
  Side home(0), away(1);
  lead(home, away);
  Load load(home);
  const Io& read = load.submit(io::kRead);
  load.wait(1);
  CHECK_EQ(read.ends, 1);
  CHECK(read.outcome == Outcome::Ok && read.at_home);
  CHECK_EQ(read.status, 0);
  CHECK_EQ(away.engine.queues.queue_seen, kReal);
  const Io& flush = load.submit(io::kFlush);
  load.wait(2);
  CHECK(flush.outcome == Outcome::Ok && flush.at_home);
}

TEST(the_status_is_the_controllers) {
  Side home(0), away(1);
  away.hold_answers();
  lead(home, away);
  Load load(home);
  const Io& write = load.submit(io::kWrite);
  settle(home, away);
  away.on([&] {
    REQUIRE(away.engine.queues.sent.size() == 1);
    const HostCommand& there = *away.engine.queues.sent.front();
    CHECK_EQ(there.sqe[0], io::kWrite);
    CHECK_EQ(there.offset, 4096u);
    CHECK_EQ(there.length, 512u);
    CHECK(there.memory->length == 8192);
    away.engine.queues.answer(1u << 14 | 0x80);
  });
  load.wait(1);
  CHECK_EQ(write.status, 1u << 14 | 0x80);
}

TEST(reactors_that_use_each_other_lose_nothing) {
  Side a(0), b(1);
  lead(a, b);
  lead(b, a, 0, kReal + 1);
  Load of_a(a), of_b(b);
  constexpr size_t kRounds = 2000;
  for (size_t round = 0; round < kRounds; round++) {
    of_a.submit(io::kWrite, round);
    of_b.submit(io::kRead, round);
  }
  of_a.wait(kRounds);
  of_b.wait(kRounds);
  CHECK_EQ(of_a.ends(), kRounds);
  CHECK_EQ(of_b.ends(), kRounds);
  CHECK_EQ(b.engine.registered, 1);
  CHECK_EQ(a.engine.registered, 1);
}

TEST(memory_is_registered_once_and_forgotten_with_its_owner) {
  Side home(0), away(1);
  lead(home, away);
  Load load(home);
  load.submit(io::kRead);
  load.submit(io::kWrite);
  load.wait(2);
  away.on([&] { CHECK_EQ(away.engine.queues.memories, 1); });
  lead(home, away);  // once more, as when its rank changes
  load.submit(io::kWrite);
  load.wait(3);
  away.on([&] { CHECK_EQ(away.engine.registered, 1); });
  load.drop_memory();
  settle(home, away);
  away.on([&] { CHECK_EQ(away.engine.queues.memories, 0); });
}

TEST(memory_in_use_stays_until_its_command_ends) {
  Side home(0), away(1);
  away.hold_answers();
  lead(home, away);
  Load load(home);
  load.submit(io::kWrite);
  settle(home, away);
  load.drop_memory();
  settle(home, away);
  away.on([&] {
    CHECK_EQ(away.engine.queues.memories, 1);
    away.engine.queues.answer();
    CHECK_EQ(away.engine.queues.memories, 0);
  });
  load.wait(1);
}

TEST(memory_that_is_refused_there_costs_the_path_not_the_command) {
  Side home(0), away(1);
  away.on([&] { away.engine.queues.refuse_memory = true; });
  lead(home, away);
  Load load(home);
  const Io& read = load.submit(io::kRead);
  settle(home, away);
  CHECK_EQ(load.ends(), 0u);
  home.on([&] {
    REQUIRE(home.sink.events.size() == 1);
    CHECK(home.sink.events[0].kind == EventKind::PathRefused);
    CHECK_EQ(home.sink.events[0].code, kHostPathing);
  });
  away.on([&] { away.engine.queues.refuse_memory = false; });
  lead(home, away);
  load.wait(1);
  CHECK(read.outcome == Outcome::Ok && read.status == 0);
}

TEST(cancelled_there_is_cancelled_here) {
  Side home(0), away(1);
  away.hold_answers();
  lead(home, away);
  Load load(home);
  const Io& given_up = load.submit(io::kRead, 5);
  const Io& kept = load.submit(io::kRead, 6);
  home.on([&] { home.multipath->cancel(kPaths, 5); });
  load.wait(1);
  CHECK(given_up.outcome == Outcome::Cancelled);
  CHECK_EQ(kept.ends, 0);
  away.on([&] { away.engine.queues.answer(); });
  load.wait(2);
  CHECK(kept.outcome == Outcome::Ok);
}

TEST(a_queue_that_dies_there_sends_reads_on_and_holds_writes) {
  Side home(0), away(1);
  away.hold_answers();
  lead(home, away);
  Load load(home);
  const Io& read = load.submit(io::kRead, 1);
  const Io& write = load.submit(io::kWrite, 2);
  settle(home, away);
  away.on([&] {
    away.engine.queues.die();
    away.multipath->queue_gone(&away.engine, kReal);
    CHECK_EQ(away.engine.queues.memories, 0);
    away.engine.queues.dead = false;
    away.engine.answers = true;
  });
  settle(home, away);
  CHECK_EQ(load.ends(), 0u);
  lead(home, away, 0, kReal + 1);
  load.wait(1);
  CHECK(read.outcome == Outcome::Ok);
  CHECK_EQ(write.ends, 0);
  home.on([&] { home.multipath->find(kPaths)->release(0, kReal, true); });
  load.wait(2);
  CHECK(write.outcome == Outcome::Ok);
  CHECK_EQ(away.engine.queues.queue_seen, kReal + 1);
}

TEST(an_engine_that_has_ended_is_not_asked) {
  Side home(0), away(1);
  lead(home, away);
  Load load(home);
  load.submit(io::kRead);
  load.wait(1);
  away.on([&] {
    away.multipath->queue_gone(&away.engine, 0);
    CHECK_EQ(away.engine.queues.memories, 0);
  });
  const Io& read = load.submit(io::kRead);
  home.on([&] { home.multipath->cancel(kPaths, 77); });
  settle(home, away);
  CHECK_EQ(load.ends(), 1u);
  away.on([&] { away.multipath->engine_made(&away.engine); });
  lead(home, away, 0, kReal + 1);
  load.wait(2);
  CHECK(read.outcome == Outcome::Ok);
}

TEST(a_closed_queue_waits_for_what_is_elsewhere) {
  Side home(0), away(1);
  away.on([&] {
    away.engine.answers = false;
    away.engine.queues.silent_cancel = true;
  });
  lead(home, away);
  Load load(home);
  const Io& write = load.submit(io::kWrite);
  home.on([&] { home.multipath->close(kPaths); });
  settle(home, away);
  home.on([&] { CHECK(home.multipath->find(kPaths) != nullptr); });
  away.on([&] { away.engine.queues.answer(); });
  load.wait(1);
  CHECK(write.outcome == Outcome::Ok);
}

TEST(sides_may_end_in_either_order_with_errands_on_their_way) {
  for (const bool home_first : {true, false}) {
    Side home(0), away(1);
    lead(home, away);
    Load load(home);
    for (int i = 0; i < 50; i++) load.submit(io::kRead);
    load.wait(50);
    (home_first ? home : away).end();
  }
}

}  // namespace

TEST_MAIN
