// One thread per core that owns everything it touches: queue pairs, completion queues, buffers,
// io_uring, timers. A reactor polls its Pollers in order, spins a little beyond the last work, then
// arms them and sleeps in ppoll. Other threads reach it only by post(). Nothing here knows RDMA,
// NVMe or Node.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "reactor/result.h"

namespace nvmeof::reactor {

using TimeNs = uint64_t;                 // CLOCK_MONOTONIC
inline constexpr TimeNs kNever = ~0ull;  // no deadline
inline constexpr unsigned kReactorsMax = 64;

TimeNs monotonic_now();

// A piece of work for a reactor, run once on its thread. `run` owns `context`.
struct Task {
  void (*run)(void* context, uint64_t argument);
  void* context;
  uint64_t argument;
};

// The order in which a loop iteration visits its pollers.
enum class Stage : uint8_t {
  Receive,   // packets and completions come in
  Process,   // engines turn them into new work (poll completion queues, parse capsules, start I/O)
  Block,     // io_uring completions and submission
  Transmit,  // everything posted above leaves in batches
};
inline constexpr unsigned kStages = 4;

class Poller {
 public:
  virtual ~Poller() = default;
  // Do what there is to do; returns how many items were handled (0 = idle).
  virtual int poll(TimeNs now) = 0;
  // The next time poll() must run although nothing arrived; kNever if none.
  virtual TimeNs next_deadline() const { return kNever; }
  // Before sleep: ask for a wake-up through a file descriptor registered with add_fd(). Returns
  // false when work came in meanwhile, so that the reactor polls again at once.
  virtual bool arm() { return true; }
};

struct Options {
  int core = -1;              // CPU to pin to; -1: not pinned
  bool poll_forever = false;  // never sleep
  TimeNs spin = 50'000;       // how long to spin after the last work before sleeping
  std::string name;           // thread name, 15 characters at most
};

struct Counters {  // written by the reactor's thread, read by anyone (relaxed)
  std::atomic<uint64_t> iterations, idle_iterations, sleeps, tasks, busy_ns, idle_ns;
  // Of its pollers that do I/O through io_uring: system calls, and what these submitted.
  std::atomic<uint64_t> io_uring_calls, io_uring_submissions;
};

// For a counter that one thread writes: no locked instruction.
inline void add_relaxed(std::atomic<uint64_t>& counter, uint64_t amount) {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

class Reactor {
 public:
  // Starts the thread. Fails when the core does not exist or may not be used.
  static Result<std::unique_ptr<Reactor>> start(unsigned index, const Options& options);
  ~Reactor();  // stops and joins

  unsigned index() const;
  int core() const;
  const Counters& counters() const;
  bool on_thread() const;

  // From any thread; wakes a sleeping reactor. False when the ring of 4096 tasks is full.
  bool post(Task task);
  // From any thread but reactors': post and wait until it has run.
  void run_and_wait(Task task);
  // The same with anything that can be called.
  template <typename Work>
  void run_and_wait(Work&& work) {
    using Plain = std::remove_reference_t<Work>;
    run_and_wait(Task{[](void* context, uint64_t) { (*static_cast<Plain*>(context))(); },
                      const_cast<void*>(static_cast<const void*>(&work)), 0});
  }

  // The rest on the reactor's thread only.
  Counters& own_counters();  // for pollers that count here
  void add(Poller* poller, Stage stage);
  void remove(Poller* poller);
  // A readable fd ends sleep. Edge-triggered is not used: the poller drains it in poll().
  void add_fd(int fd);
  void remove_fd(int fd);
  TimeNs now() const;  // of this loop iteration

  static Reactor* current();  // of the calling thread, or nullptr

 private:
  struct Impl;
  explicit Reactor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nvmeof::reactor
