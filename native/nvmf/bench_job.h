// The state of one load generator job: bench_setup.cc makes it on the control thread, bench.cc runs
// it on the reactor's thread, bench_result.cc reads it when it is over.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "nvmf/bench.h"
#include "nvmf/bench_pattern.h"
#include "nvmf/cycle_clock.h"
#include "nvmf/latency_histogram.h"
#include "rdma/arena.h"

namespace nvmeof::nvmf {

struct BenchCommand {
  HostCommand host;
  BenchJob::State* job = nullptr;
  uint64_t start_ticks = 0;
  uint64_t unit = 0;
  bool read = false;
  bool in_flight = false;
};

struct BenchDirection {
  LatencyHistogram latency;
  uint64_t errors = 0;
};

struct BenchJob::State {
  State(CommandQueues* host_engine, reactor::Reactor* on, uint32_t queue_id,
        const BenchOptions& given)
      : engine(host_engine), reactor(on), queue(queue_id), options(given), random(given.seed) {}
  ~State();

  CommandQueues* const engine;
  reactor::Reactor* const reactor;
  const uint32_t queue;
  const BenchOptions options;
  const CycleClock& clock = CycleClock::get();

  std::unique_ptr<rdma::Arena> arena;
  std::unique_ptr<RegisteredMemory> memory;
  uint64_t part_bytes = 0;  // of the arena, for each command in flight

  uint64_t first_lba = 0, units = 0;  // this job's range, in commands' blocks
  uint32_t blocks_per_unit = 0;
  uint64_t commands_max = ~0ull;  // after the warm-up
  Random random;
  std::unique_ptr<BlockLedger> ledger;  // with verify
  std::vector<BenchCommand> commands;

  // The reactor's thread.
  uint64_t next_unit = 0;
  uint64_t issued = 0;  // after the warm-up
  uint32_t in_flight = 0;
  uint64_t measure_ticks = 0, deadline_ticks = 0, last_ticks = 0;  // deadline 0: none
  uint64_t cpu_begin_ns = 0, cpu_ns = 0;
  bool measuring = false, starting = false, stopping = false, over = false;
  std::atomic<bool> stop_asked = false;
  BenchDirection read, write;
  uint64_t verify_errors = 0, blocks_verified = 0, overdue = 0;
  std::string first_error;
  BenchJob* job = nullptr;
  BenchDone done = nullptr;
  void* context = nullptr;

  void run();
  void give_up_overdue();
  void issue(BenchCommand& command);
  void finished(BenchCommand& command, Outcome outcome, const uint8_t* cqe);
  bool more(uint64_t now);
  bool succeeded(BenchCommand& command, Outcome outcome, const uint8_t* cqe);
  void verify(const BenchCommand& command);
  void report(const std::string& error);
  void end();
  bool wants_read();
  uint64_t choose_unit();
  uint64_t runtime_ns() const;
};

}  // namespace nvmeof::nvmf
