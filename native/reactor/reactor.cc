// The loop: tasks, then the pollers stage by stage; when nothing was found for a while, sleep.
// Sleeping loses no wake-up: the reactor first sets `sleeping`, then looks at the task ring and
// asks every poller to arm() itself, and only then waits; a poster first publishes its task, then
// looks at `sleeping`. Both are sequentially consistent, so at least one of the two sees the other.
// A poster makes a system call only when it takes `sleeping` from true to false.
#include "reactor/reactor.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <mutex>

#include "reactor/adaptive_spin.h"
#include "reactor/sleeper.h"
#include "reactor/task_ring.h"

namespace nvmeof::reactor {

namespace {

thread_local Reactor* current_reactor = nullptr;

// Tasks run between two visits of the pollers: enough for bursts, too few to starve packets.
constexpr int kTasksPerIteration = 256;

// Of a spin: from here on whoever else wants the processor gets it, the kernel's workers that bring
// the packets among them.
constexpr TimeNs kYieldAfter = 10'000;

void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

TimeNs monotonic_now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<TimeNs>(time.tv_sec) * 1'000'000'000 + static_cast<TimeNs>(time.tv_nsec);
}

struct Reactor::Impl {
  Impl(unsigned index_, const Options& options_)
      : index(index_), options(options_), spin(options_.spin) {}

  const unsigned index;
  const Options options;
  Reactor* self = nullptr;
  pthread_t thread{};
  bool started = false;

  TaskRing ring;
  Sleeper sleeper;
  alignas(64) std::atomic<bool> sleeping{false};
  Counters counters{};

  // Below: the reactor's thread only.
  std::vector<Poller*> pollers[kStages];
  bool holes = false;  // a poller was removed while the loop walked the lists
  bool stop = false;
  TimeNs now = 0;
  TimeNs last_work = 0;
  AdaptiveSpin spin;

  void loop();
  int run_tasks();
  int run_pollers();
  void close_holes();
  void try_to_sleep();
};

int Reactor::Impl::run_tasks() {
  int done = 0;
  Task task;
  while (done < kTasksPerIteration && ring.pop(&task)) {
    task.run(task.context, task.argument);
    done++;
  }
  if (done > 0) add_relaxed(counters.tasks, static_cast<uint64_t>(done));
  return done;
}

int Reactor::Impl::run_pollers() {
  int handled = 0;
  for (auto& stage : pollers) {
    for (size_t i = 0; i < stage.size(); i++) {  // by index: a poller may add others
      if (stage[i] != nullptr) handled += stage[i]->poll(now);
    }
  }
  return handled;
}

void Reactor::Impl::close_holes() {
  for (auto& stage : pollers) std::erase(stage, nullptr);
  holes = false;
}

void Reactor::Impl::try_to_sleep() {
  sleeping.store(true, std::memory_order_seq_cst);
  bool quiet = ring.empty();
  TimeNs deadline = kNever;
  for (const auto& stage : pollers) {
    for (size_t i = 0; quiet && i < stage.size(); i++) {
      if (stage[i] == nullptr) continue;
      quiet = stage[i]->arm();
      deadline = std::min(deadline, stage[i]->next_deadline());
    }
  }
  if (quiet && deadline > now) {
    add_relaxed(counters.sleeps, 1);
    sleeper.sleep(now, deadline);
    // A sleep that a deadline ended says nothing about how soon work comes.
    const TimeNs woken = monotonic_now();
    if (woken < deadline) spin.slept(woken - now);
    last_work = woken;
    add_relaxed(counters.idle_ns, woken - now);
    now = woken;
  }
  sleeping.store(false, std::memory_order_seq_cst);
}

void Reactor::Impl::loop() {
  now = last_work = monotonic_now();
  while (!stop || !ring.empty()) {
    const int handled = run_tasks() + run_pollers();
    if (holes) close_holes();
    const TimeNs end = monotonic_now();
    const TimeNs taken = end - now;
    add_relaxed(counters.iterations, 1);
    add_relaxed(handled > 0 ? counters.busy_ns : counters.idle_ns, taken);
    now = end;
    if (handled > 0) {
      last_work = now;
      continue;
    }
    add_relaxed(counters.idle_iterations, 1);
    spin.iterated(taken);
    if (!options.poll_forever && !stop && now - last_work >= spin.value()) {
      try_to_sleep();
    } else if (now - last_work >= kYieldAfter) {
      sched_yield();
    } else {
      cpu_pause();
    }
  }
}

Result<std::unique_ptr<Reactor>> Reactor::start(unsigned index, const Options& options) {
  if (index >= kReactorsMax) {
    return Error{EINVAL, "Reactor " + std::to_string(index) + " is one too many: at most " +
                             std::to_string(kReactorsMax) + " can run."};
  }
  auto impl = std::make_unique<Impl>(index, options);
  if (auto opened = impl->sleeper.open(); !opened) return opened.error();

  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (options.core >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (options.core >= CPU_SETSIZE) {
      pthread_attr_destroy(&attributes);
      return Error{EINVAL, "Core " + std::to_string(options.core) + " does not exist."};
    }
    CPU_SET(static_cast<size_t>(options.core), &set);
    pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
  }
  std::unique_ptr<Reactor> reactor(new Reactor(std::move(impl)));
  Impl* const raw = reactor->impl_.get();
  raw->self = reactor.get();
  const auto main = [](void* argument) -> void* {
    auto* const self = static_cast<Impl*>(argument);
    current_reactor = self->self;
    prctl(PR_SET_TIMERSLACK, 1'000UL);  // deadlines to the microsecond, not to 50
    self->loop();
    return nullptr;
  };
  const int code = pthread_create(&raw->thread, &attributes, main, raw);
  pthread_attr_destroy(&attributes);
  if (code != 0) {
    const long cores = sysconf(_SC_NPROCESSORS_CONF);
    if (options.core >= cores) {
      return Error{code, "Core " + std::to_string(options.core) +
                             " does not exist: this machine has cores 0 to " +
                             std::to_string(cores - 1) + "."};
    }
    return Error{code,
                 "Reactor " + std::to_string(index) + " cannot start" +
                     (options.core >= 0 ? " on core " + std::to_string(options.core) +
                                              " (is it offline or outside this process's cpuset?)"
                                        : std::string()) +
                     ": " + std::strerror(code) + "."};
  }
  raw->started = true;
  std::string name = options.name.empty() ? "reactor/" + std::to_string(index) : options.name;
  name.resize(std::min<size_t>(name.size(), 15));
  pthread_setname_np(raw->thread, name.c_str());
  return reactor;
}

Reactor::Reactor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// Tasks posted before are still run. Whoever posts from other threads has stopped doing so.
Reactor::~Reactor() {
  if (!impl_->started) return;
  assert(!on_thread());
  run_and_wait(
      {[](void* impl, uint64_t) { static_cast<Impl*>(impl)->stop = true; }, impl_.get(), 0});
  pthread_join(impl_->thread, nullptr);
}

unsigned Reactor::index() const {
  return impl_->index;
}
int Reactor::core() const {
  return impl_->options.core;
}
const Counters& Reactor::counters() const {
  return impl_->counters;
}
Counters& Reactor::own_counters() {
  return impl_->counters;
}
bool Reactor::on_thread() const {
  return current_reactor == this;
}
Reactor* Reactor::current() {
  return current_reactor;
}
TimeNs Reactor::now() const {
  return impl_->now;
}

bool Reactor::post(Task task) {
  if (!impl_->ring.push(task)) return false;
  if (impl_->sleeping.load(std::memory_order_seq_cst) &&
      impl_->sleeping.exchange(false, std::memory_order_seq_cst)) {
    impl_->sleeper.wake();
  }
  return true;
}

void Reactor::run_and_wait(Task task) {
  assert(current_reactor == nullptr && "a reactor that waits for another can wait for ever");
  struct Waiter {
    Task task;
    std::mutex mutex;
    std::condition_variable condition;
    bool done = false;
  } waiter;
  waiter.task = task;
  const Task wrapped{[](void* context, uint64_t) {
                       auto* const self = static_cast<Waiter*>(context);
                       self->task.run(self->task.context, self->task.argument);
                       // Notified under the lock: the waiter may be gone right after.
                       const std::lock_guard<std::mutex> lock(self->mutex);
                       self->done = true;
                       self->condition.notify_one();
                     },
                     &waiter, 0};
  while (!post(wrapped)) sched_yield();
  std::unique_lock<std::mutex> lock(waiter.mutex);
  waiter.condition.wait(lock, [&] { return waiter.done; });
}

void Reactor::add(Poller* poller, Stage stage) {
  assert(on_thread());
  impl_->pollers[static_cast<unsigned>(stage)].push_back(poller);
}

void Reactor::remove(Poller* poller) {
  assert(on_thread());
  for (auto& stage : impl_->pollers) {
    for (auto& entry : stage) {
      if (entry == poller) {
        entry = nullptr;
        impl_->holes = true;
      }
    }
  }
}

void Reactor::add_fd(int fd) {
  assert(on_thread());
  [[maybe_unused]] const bool added = impl_->sleeper.add_fd(fd);
  assert(added);
}

void Reactor::remove_fd(int fd) {
  assert(on_thread());
  impl_->sleeper.remove_fd(fd);
}

}  // namespace nvmeof::reactor
