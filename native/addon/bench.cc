// The load generator's call: unpacks the options, and packs the figures.
#include "addon/async.h"
#include "addon/bench_run.h"
#include "addon/instance.h"

namespace nvmeof::addon {

namespace {

nvmf::BenchOptions unpack(const Argument& options) {
  nvmf::BenchOptions unpacked;
  unpacked.nsid = options["nsid"].u32(1, 0xFFFFFFFE);
  unpacked.pattern = static_cast<nvmf::BenchPattern>(
      options["pattern"].word({"read", "write", "randread", "randwrite", "rw", "randrw"}));
  unpacked.read_percent = options["readPercent"].u32(0, 100);
  unpacked.block_bytes = options["blockBytes"].u32(512, nvmf::kHostTransferMax);
  unpacked.queue_depth = options["queueDepth"].u32(1, 65535);
  unpacked.lba_bytes = options["lbaBytes"].u32(512, 4096);
  unpacked.first_lba = options["firstLba"].u64();
  unpacked.lba_count = options["lbaCount"].u64();
  unpacked.runtime_ms = options["runtimeMs"].u32();
  unpacked.command_count = options["commandCount"].u64();
  unpacked.warmup_ms = options["warmupMs"].u32();
  unpacked.command_timeout_ms = options["commandTimeoutMs"].u32();
  unpacked.verify = options["verify"].boolean();
  unpacked.buffer_arena_bytes = options["bufferArenaBytes"].size(uint64_t{1} << 40);
  unpacked.seed = options["seed"].u64();
  return unpacked;
}

Napi::Value pack(Napi::Env env, const nvmf::BenchSide& side) {
  Napi::Object result = Napi::Object::New(env);
  result.Set("commands", Napi::BigInt::New(env, side.commands));
  result.Set("bytes", Napi::BigInt::New(env, side.bytes));
  result.Set("errors", Napi::BigInt::New(env, side.errors));
  result.Set("runtimeNs", Napi::BigInt::New(env, side.runtime_ns));
  result.Set("latencyMin", Napi::BigInt::New(env, side.latency_min));
  result.Set("latencyMax", Napi::BigInt::New(env, side.latency_max));
  result.Set("latencyMean", Napi::Number::New(env, side.latency_mean));
  result.Set("latencyStddev", Napi::Number::New(env, side.latency_stddev));
  Napi::Array percentiles = Napi::Array::New(env, side.percentiles.size());
  for (uint32_t i = 0; i < side.percentiles.size(); i++) {
    Napi::Array pair = Napi::Array::New(env, 2);
    pair.Set(0u, Napi::Number::New(env, side.percentiles[i].first));
    pair.Set(1u, Napi::BigInt::New(env, side.percentiles[i].second));
    percentiles.Set(i, pair);
  }
  result.Set("percentiles", percentiles);
  return result;
}

Napi::Value pack(Napi::Env env, const nvmf::BenchResult& figures) {
  Napi::Object result = Napi::Object::New(env);
  result.Set("read", pack(env, figures.read));
  result.Set("write", pack(env, figures.write));
  result.Set("verifyErrors", Napi::BigInt::New(env, figures.verify_errors));
  result.Set("blocksVerified", Napi::BigInt::New(env, figures.blocks_verified));
  result.Set("overdue", Napi::BigInt::New(env, figures.overdue));
  result.Set("firstError", figures.first_error);
  Napi::Array seconds = Napi::Array::New(env, figures.reactor_cpu_seconds.size());
  for (uint32_t i = 0; i < figures.reactor_cpu_seconds.size(); i++) {
    seconds.Set(i, Napi::Number::New(env, figures.reactor_cpu_seconds[i]));
  }
  result.Set("reactorCpuSeconds", seconds);
  return result;
}

}  // namespace

Napi::Value bench(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const Argument options = arguments.at(0, "options");
  const nvmf::BenchOptions unpacked = unpack(options);
  auto run =
      std::make_shared<BenchRun>(connected_queues(instance, "bench", options["queues"]), unpacked);
  instance.benches.insert(run);
  return Async::run(
      env, [run] { return run->execute(); },
      [run](Napi::Env done) { return pack(done, run->result()); },
      [run](Napi::Env done) { Instance::of(done).benches.erase(run); });
}

}  // namespace nvmeof::addon
