// The reactor on real threads: order of stages, tasks from many threads, sleeping without losing a
// wake-up or using the processor, deadlines, removal from within, errors at start.
#include "reactor/reactor.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "reactor/task_ring.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::reactor;

namespace {

template <typename F>
void run_on(Reactor& reactor, F&& function) {
  using Plain = std::remove_reference_t<F>;
  reactor.run_and_wait({[](void* context, uint64_t) { (*static_cast<Plain*>(context))(); },
                        const_cast<void*>(static_cast<const void*>(&function)), 0});
}

uint64_t thread_cpu_ns(Reactor& reactor) {
  uint64_t result = 0;
  run_on(reactor, [&] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    result =
        static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  });
  return result;
}

// Waits until the condition holds, five seconds at most.
template <typename F>
bool eventually(F&& condition) {
  const TimeNs end = monotonic_now() + 5'000'000'000;
  while (!condition()) {
    if (monotonic_now() > end) return false;
    usleep(200);
  }
  return true;
}

std::unique_ptr<Reactor> start(Options options = {}) {
  auto result = Reactor::start(0, options);
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::abort();
  }
  return std::move(*result);
}

struct Recorder : Poller {
  char letter = 0;
  std::string* log = nullptr;
  int poll(TimeNs) override {
    if (log->size() < 8) log->push_back(letter);
    return 0;
  }
};

}  // namespace

TEST(task_ring_is_bounded_and_in_order) {
  TaskRing ring;
  Task task{[](void*, uint64_t) {}, nullptr, 0};
  for (unsigned round = 0; round < 3; round++) {
    CHECK(ring.empty());
    for (uint64_t i = 0; i < TaskRing::kCapacity; i++) {
      task.argument = i;
      CHECK(ring.push(task));
    }
    CHECK(!ring.push(task));
    for (uint64_t i = 0; i < TaskRing::kCapacity; i++) {
      Task out;
      REQUIRE(ring.pop(&out));
      CHECK_EQ(out.argument, i);
    }
    Task out;
    CHECK(!ring.pop(&out));
  }
}

TEST(pollers_run_in_the_order_of_stages) {
  auto reactor = start();
  std::string log;
  Recorder a, b, c, d;
  a.letter = 'R', b.letter = 'P', c.letter = 'B', d.letter = 'T';
  a.log = b.log = c.log = d.log = &log;
  run_on(*reactor, [&] {
    CHECK(reactor->on_thread());
    CHECK(Reactor::current() == reactor.get());
    reactor->add(&d, Stage::Transmit);
    reactor->add(&b, Stage::Process);
    reactor->add(&a, Stage::Receive);
    reactor->add(&c, Stage::Block);
  });
  CHECK(!reactor->on_thread());
  CHECK(Reactor::current() == nullptr);
  CHECK(eventually([&] {
    size_t size = 0;
    run_on(*reactor, [&] { size = log.size(); });
    return size == 8;
  }));
  run_on(*reactor, [&] {
    for (Recorder* poller : {&a, &b, &c, &d}) reactor->remove(poller);
  });
  CHECK(log == "RPBTRPBT");
}

TEST(tasks_of_many_threads_all_run_and_keep_the_order_of_their_thread) {
  auto reactor = start();
  constexpr uint64_t kThreads = 4, kTasks = 20'000;
  struct Lane {
    uint64_t next = 0;
    bool ordered = true;
  } lanes[kThreads];
  std::vector<std::thread> threads;
  for (auto& lane : lanes) {
    threads.emplace_back([&reactor, &lane] {
      for (uint64_t i = 0; i < kTasks; i++) {
        const Task task{[](void* context, uint64_t argument) {
                          auto* const self = static_cast<Lane*>(context);
                          self->ordered = self->ordered && self->next == argument;
                          self->next++;
                        },
                        &lane, i};
        while (!reactor->post(task)) std::this_thread::yield();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  run_on(*reactor, [&] {
    for (const Lane& lane : lanes) {
      CHECK_EQ(lane.next, kTasks);
      CHECK(lane.ordered);
    }
  });
}

TEST(a_full_ring_refuses) {
  auto reactor = start();
  std::atomic<bool> blocked{false}, release{false};
  struct Gate {
    std::atomic<bool>*blocked, *release;
  } gate{&blocked, &release};
  const Task hold{[](void* context, uint64_t) {
                    auto* const self = static_cast<Gate*>(context);
                    self->blocked->store(true);
                    while (!self->release->load()) std::this_thread::yield();
                  },
                  &gate, 0};
  CHECK(reactor->post(hold));
  CHECK(eventually([&] { return blocked.load(); }));
  std::atomic<uint64_t> ran{0};
  const Task count{
      [](void* context, uint64_t) { static_cast<std::atomic<uint64_t>*>(context)->fetch_add(1); },
      &ran, 0};
  uint64_t accepted = 0;
  while (reactor->post(count)) accepted++;
  CHECK_EQ(accepted, TaskRing::kCapacity);
  release.store(true);
  run_on(*reactor, [] {});
  CHECK_EQ(ran.load(), accepted);
  CHECK(eventually([&] { return reactor->counters().tasks.load() >= accepted + 2; }));
}

// Posts with pauses around the length of the spin, which adapts (adaptive_spin.h), so that the post
// meets the reactor spinning, going to sleep, and asleep. A lost wake-up would hang run_and_wait.
TEST(no_wake_up_is_lost) {
  Options options;
  options.spin = 20'000;
  auto reactor = start(options);
  uint64_t ran = 0;
  constexpr uint64_t kRounds = 3'000;
  for (uint64_t i = 0; i < kRounds; i++) {
    const TimeNs until = monotonic_now() + (i * 7'919) % 640'000;
    while (monotonic_now() < until) {
    }
    run_on(*reactor, [&] { ran++; });
  }
  CHECK_EQ(ran, kRounds);
  CHECK(reactor->counters().sleeps.load() > 10);
}

TEST(an_idle_reactor_sleeps) {
  auto reactor = start();
  CHECK(eventually([&] { return reactor->counters().sleeps.load() > 0; }));
  const uint64_t before = thread_cpu_ns(*reactor);
  const uint64_t sleeps = reactor->counters().sleeps.load();
  usleep(300'000);
  CHECK(reactor->counters().sleeps.load() <= sleeps + 3);
  const uint64_t used = thread_cpu_ns(*reactor) - before;
  CHECK(used < 5'000'000);
  CHECK(reactor->counters().idle_ns.load() > 200'000'000);
}

TEST(poll_forever_does_not_sleep) {
  Options options;
  options.poll_forever = true;
  options.spin = 0;
  auto reactor = start(options);
  CHECK(eventually([&] { return reactor->counters().idle_iterations.load() > 1'000; }));
  CHECK_EQ(reactor->counters().sleeps.load(), 0u);
}

TEST(a_readable_descriptor_ends_sleep) {
  auto reactor = start();
  struct Drain : Poller {
    int fd = -1;
    std::atomic<int> reads{0};
    int poll(TimeNs) override {
      uint64_t value;
      if (read(fd, &value, sizeof value) != sizeof value) return 0;
      reads.fetch_add(1);
      return 1;
    }
  } poller;
  poller.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  run_on(*reactor, [&] {
    reactor->add(&poller, Stage::Receive);
    reactor->add_fd(poller.fd);
  });
  for (int i = 1; i <= 20; i++) {
    usleep(2'000);
    const uint64_t one = 1;
    CHECK(write(poller.fd, &one, sizeof one) == sizeof one);
    CHECK(eventually([&] { return poller.reads.load() == i; }));
  }
  run_on(*reactor, [&] {
    reactor->remove_fd(poller.fd);
    reactor->remove(&poller);
  });
  close(poller.fd);
}

TEST(a_deadline_ends_sleep) {
  auto reactor = start();
  struct Timer : Poller {
    TimeNs due = kNever;
    std::atomic<uint64_t> fired{0};
    std::atomic<TimeNs> late{0};
    int poll(TimeNs now) override {
      if (now < due) return 0;
      late.store(now - due);
      due = kNever;
      fired.fetch_add(1);
      return 1;
    }
    TimeNs next_deadline() const override { return due; }
  } timer;
  run_on(*reactor, [&] { reactor->add(&timer, Stage::Process); });
  for (uint64_t i = 1; i <= 10; i++) {
    const TimeNs due = monotonic_now() + 3'000'000;
    run_on(*reactor, [&] { timer.due = due; });
    CHECK(eventually([&] { return timer.fired.load() == i; }));
    CHECK(monotonic_now() >= due);
  }
  run_on(*reactor, [&] { reactor->remove(&timer); });
}

TEST(arm_that_finds_work_prevents_sleep) {
  auto reactor = start();
  struct Shy : Poller {
    int armed = 0, polled_after = 0;
    bool pending = true;
    int poll(TimeNs) override {
      if (armed > 0) polled_after++;
      return 0;
    }
    bool arm() override {
      armed++;
      const bool quiet = !pending;
      if (armed == 5) pending = false;
      return quiet;
    }
  } poller;
  run_on(*reactor, [&] { reactor->add(&poller, Stage::Process); });
  CHECK(eventually([&] {
    int armed = 0;
    run_on(*reactor, [&] { armed = poller.armed; });
    return armed >= 6;
  }));
  const uint64_t sleeps = reactor->counters().sleeps.load();
  CHECK(eventually([&] {
    run_on(*reactor, [] {});
    return reactor->counters().sleeps.load() > sleeps;
  }));
  run_on(*reactor, [&] {
    reactor->remove(&poller);
    CHECK(poller.polled_after >= 5);
  });
}

TEST(pollers_may_remove_themselves_and_add_others) {
  auto reactor = start();
  struct Second : Poller {
    std::atomic<int> polls{0};
    int poll(TimeNs) override {
      polls.fetch_add(1);
      return 0;
    }
  } second;
  struct First : Poller {
    Reactor* reactor = nullptr;
    Poller* other = nullptr;
    int polls = 0;
    int poll(TimeNs) override {
      polls++;
      for (int i = 0; i < 32; i++) reactor->add(other, Stage::Receive);
      reactor->remove(other);
      reactor->add(other, Stage::Receive);
      reactor->remove(this);
      return 1;
    }
  } first;
  first.reactor = reactor.get();
  first.other = &second;
  run_on(*reactor, [&] { reactor->add(&first, Stage::Receive); });
  CHECK(eventually([&] { return second.polls.load() > 0; }));
  run_on(*reactor, [&] {
    CHECK_EQ(first.polls, 1);
    reactor->remove(&second);
  });
}

TEST(tasks_posted_before_the_end_still_run) {
  std::atomic<uint64_t> ran{0};
  {
    auto reactor = start();
    for (int i = 0; i < 1000; i++) {
      CHECK(reactor->post({[](void* context, uint64_t) {
                             static_cast<std::atomic<uint64_t>*>(context)->fetch_add(1);
                           },
                           &ran, 0}));
    }
  }
  CHECK_EQ(ran.load(), 1000u);
}

TEST(a_core_that_does_not_exist_is_refused) {
  Options options;
  options.core = 1000;
  const auto result = Reactor::start(0, options);
  REQUIRE(!result);
  CHECK(result.error().message.find("Core 1000 does not exist") != std::string::npos);
  options.core = 100'000;
  CHECK(!Reactor::start(0, options));
  CHECK(!Reactor::start(kReactorsMax, {}));
}

TEST(a_pinned_reactor_runs_on_its_core_under_its_name) {
  cpu_set_t mine;
  CHECK(sched_getaffinity(0, sizeof mine, &mine) == 0);
  size_t core = 0;
  while (!CPU_ISSET(core, &mine)) core++;
  Options options;
  options.core = static_cast<int>(core);
  options.name = "a name that is too long";
  auto reactor = start(options);
  CHECK_EQ(reactor->core(), static_cast<int>(core));
  run_on(*reactor, [&] {
    CHECK_EQ(sched_getcpu(), static_cast<int>(core));
    cpu_set_t set;
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    CHECK_EQ(CPU_COUNT(&set), 1);
  });
  char name[16];
  CHECK(eventually([&] {
    run_on(*reactor, [&] { pthread_getname_np(pthread_self(), name, sizeof name); });
    return std::string(name) == "a name that is ";
  }));
}

TEST_MAIN
