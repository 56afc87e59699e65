// The load generator: keeps queueDepth commands in flight on one connected I/O queue, on that
// queue's own reactor, and measures each of them. Several queues are several jobs whose results are
// merged.
//
//   // Control thread, one job per queue; touches its whole buffer arena, so it may take a while.
//   BenchOptions options{...};
//   options.job_index = i, options.job_count = n;         // share the range of blocks and the seed
//   auto job = BenchJob::create(engine, reactor, queue_id, options);
//   job.value()->start([](BenchJob* job, void* context) { /* reactor's thread: hand over */ },
//   ctx);
//   // ... when every job's `done` has run, on the control thread:
//   std::vector<const BenchJob*> jobs = ...;
//   BenchResult result = bench_merge(jobs);               // then destroy the jobs
//
// A job ends by itself: after its time or count, or when its queue dies; stop() ends it sooner. In
// each case the commands in flight are waited for, so a controller that never answers is got rid of
// by closing the queue. Latencies are those of commands that end after the warm-up.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nvmf/command_queues.h"
#include "reactor/reactor.h"
#include "reactor/result.h"

namespace nvmeof::nvmf {

enum class BenchPattern : uint8_t { Read, Write, RandRead, RandWrite, Rw, RandRw };

// As BenchOptions in native/index.ts.
struct BenchOptions {
  uint32_t nsid = 1;
  BenchPattern pattern = BenchPattern::RandRead;
  uint32_t read_percent = 50;
  uint32_t block_bytes = 4096;
  uint32_t queue_depth = 1;
  uint32_t lba_bytes = 512;
  uint64_t first_lba = 0;
  uint64_t lba_count = 0;
  uint64_t runtime_ms = 0;     // 0: stop by command_count
  uint64_t command_count = 0;  // of all jobs together; 0: stop by runtime_ms
  uint64_t warmup_ms = 0;
  uint64_t command_timeout_ms = 0;  // for give_up_overdue(); 0: commands may take for ever
  bool verify = false;
  uint64_t buffer_arena_bytes = 256u << 20;  // of all jobs together
  uint64_t seed = 1;
  // This job among those of one run. Jobs that write sequentially or verify get a part of the range
  // each, so that none sees another's blocks change.
  uint32_t job_index = 0;
  uint32_t job_count = 1;
};

struct BenchSide {
  uint64_t commands = 0, bytes = 0, errors = 0, runtime_ns = 0;
  uint64_t latency_min = 0, latency_max = 0;
  double latency_mean = 0, latency_stddev = 0;
  std::vector<std::pair<double, uint64_t>> percentiles;
};

struct BenchResult {
  BenchSide read, write;
  uint64_t verify_errors = 0;
  uint64_t blocks_verified = 0;             // logical blocks whose content was compared
  uint64_t overdue = 0;                     // commands given up, among the errors
  std::string first_error;                  // empty when none
  std::vector<double> reactor_cpu_seconds;  // by rising reactor index, those used only
};

class BenchJob;
using BenchDone = void (*)(BenchJob* job, void* context);  // once, on the reactor's thread

class BenchJob {
 public:
  // Any thread but a reactor's: checks the options, maps, fills and registers the buffers.
  static Result<std::unique_ptr<BenchJob>> create(CommandQueues* engine, reactor::Reactor* reactor,
                                                  uint32_t queue, const BenchOptions& options);
  ~BenchJob();  // not between start() and `done`

  // Any thread. False when the reactor's ring of tasks is full: nothing was started.
  bool start(BenchDone done, void* context);
  // Any thread: no new commands from now on.
  void stop();
  // Any thread but a reactor's, not after `done`: gives up what has not been answered in time. A
  // job of which that happens issues nothing more.
  void give_up_overdue();

  struct State;
  const State& state() const { return *state_; }

 private:
  explicit BenchJob(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// After `done` of each of them.
BenchResult bench_merge(std::span<const BenchJob* const> jobs);

}  // namespace nvmeof::nvmf
