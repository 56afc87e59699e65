// Joins the jobs of a run into one result. On the control thread.
#include <algorithm>
#include <map>

#include "nvmf/bench_job.h"

namespace nvmeof::nvmf {

namespace {

constexpr double kPercentiles[] = {1,  5,  10, 20, 30,   40,   50,    60,   70,
                                   80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99};

BenchSide side_of(const LatencyHistogram& latency, uint64_t errors, uint64_t block_bytes,
                  uint64_t runtime_ns) {
  BenchSide side;
  side.commands = latency.count();
  side.bytes = latency.count() * block_bytes;
  side.errors = errors;
  side.runtime_ns = runtime_ns;
  side.latency_min = latency.min();
  side.latency_max = latency.max();
  side.latency_mean = latency.mean();
  side.latency_stddev = latency.stddev();
  for (const double percent : kPercentiles) {
    side.percentiles.emplace_back(percent, latency.percentile(percent));
  }
  return side;
}

}  // namespace

BenchResult bench_merge(std::span<const BenchJob* const> jobs) {
  BenchResult result;
  auto read = std::make_unique<BenchDirection>(), write = std::make_unique<BenchDirection>();
  uint64_t runtime_ns = 0, block_bytes = 0;
  // Jobs on one reactor saw the same thread: its time counts once.
  std::map<unsigned, uint64_t> cpu_ns;
  for (const BenchJob* job : jobs) {
    const BenchJob::State& state = job->state();
    read->latency.merge(state.read.latency);
    write->latency.merge(state.write.latency);
    read->errors += state.read.errors;
    write->errors += state.write.errors;
    runtime_ns = std::max(runtime_ns, state.runtime_ns());
    block_bytes = state.options.block_bytes;
    result.verify_errors += state.verify_errors;
    result.blocks_verified += state.blocks_verified;
    result.overdue += state.overdue;
    if (result.first_error.empty()) result.first_error = state.first_error;
    uint64_t& used = cpu_ns[state.reactor->index()];
    used = std::max(used, state.cpu_ns);
  }
  result.read = side_of(read->latency, read->errors, block_bytes, runtime_ns);
  result.write = side_of(write->latency, write->errors, block_bytes, runtime_ns);
  for (const auto& [reactor, ns] : cpu_ns) {
    result.reactor_cpu_seconds.push_back(static_cast<double>(ns) / 1e9);
  }
  return result;
}

}  // namespace nvmeof::nvmf
