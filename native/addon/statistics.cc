// What each I/O queue of a target did so far, for tables and metrics: copied on its reactor.
#include <string>
#include <utility>
#include <vector>

#include "addon/instance.h"
#include "addon/task.h"

namespace nvmeof::addon {

namespace {

struct Copied {
  uint32_t queue, reactor;
  nvmf::QueueStatistics statistics;
  bool tells;  // the device counts by queue pair
  rdma::QueuePairCounters transport;
};

Napi::Object to_object(Napi::Env env, const rdma::QueuePairCounters& transport) {
  const std::pair<const char*, uint64_t> numbers[] = {
      {"packetsIn", transport.rx_packets},
      {"packetsOut", transport.tx_packets},
      {"acksIn", transport.acks_received},
      {"acksOut", transport.acks_sent},
      {"retransmitsTimeout", transport.retransmits_timeout},
      {"retransmitsNak", transport.retransmits_nak},
      {"retransmitsImplied", transport.retransmits_implied},
      {"retransmitsNotReady", transport.retransmits_not_ready},
  };
  Napi::Object result = Napi::Object::New(env);
  for (const auto& [name, value] : numbers)
    result.Set(name, Napi::Number::New(env, static_cast<double>(value)));
  return result;
}

Napi::Object to_object(Napi::Env env, const Copied& copied) {
  const auto& [queue, reactor, statistics, tells, transport] = copied;
  Napi::Object result = Napi::Object::New(env);
  const std::pair<const char*, uint64_t> numbers[] = {
      {"queue", queue},
      {"reactor", reactor},
      {"reads", statistics.reads},
      {"writes", statistics.writes},
      {"others", statistics.others},
      {"errors", statistics.errors},
      {"bytesRead", statistics.bytes_read},
      {"bytesWritten", statistics.bytes_written},
  };
  for (const auto& [name, value] : numbers)
    result.Set(name, Napi::Number::New(env, static_cast<double>(value)));
  Napi::Array latency = Napi::Array::New(env);
  uint32_t filled = 0;
  using Histogram = nvmf::CoarseHistogram;
  for (unsigned bucket = 0; bucket < Histogram::kBuckets; bucket++) {
    const uint64_t count = statistics.latency.count_of(bucket);
    if (count == 0) continue;
    Napi::Array pair = Napi::Array::New(env, 2);
    const uint64_t bound = Histogram::lower_bound(bucket + 1);
    pair.Set(0u, Napi::Number::New(env, static_cast<double>(bound)));
    pair.Set(1u, Napi::Number::New(env, static_cast<double>(count)));
    latency.Set(filled++, pair);
  }
  result.Set("latency", latency);
  if (tells) result.Set("transport", to_object(env, transport));
  return result;
}

}  // namespace

Napi::Value queue_statistics(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  Napi::Array result = Napi::Array::New(env);
  if (!instance.runtime || !instance.runtime->running) return result;
  std::vector<std::vector<std::pair<uint32_t, DeviceOnReactor*>>> asked(
      instance.runtime->sides.size());
  for (const auto& [id, queue] : instance.queues.all())
    if (!queue.host) asked[queue.reactor].emplace_back(id, instance.on(queue));
  uint32_t filled = 0;
  for (uint32_t reactor = 0; reactor < asked.size(); reactor++) {
    if (asked[reactor].empty()) continue;
    std::vector<Copied> copied;
    copied.reserve(asked[reactor].size());
    instance.side(reactor).reactor->run_and_wait([&] {
      for (const auto& [id, on] : asked[reactor]) {
        nvmf::TargetEngine* engine = on->target_on_thread();
        const nvmf::QueueStatistics* statistics = engine ? engine->statistics(id) : nullptr;
        if (!statistics) continue;
        const rdma::QueuePairCounters* transport = engine->transport(id);
        copied.push_back({id, reactor, *statistics, transport != nullptr,
                          transport ? *transport : rdma::QueuePairCounters{}});
      }
    });
    for (const Copied& one : copied) result.Set(filled++, to_object(env, one));
  }
  return result;
}

}  // namespace nvmeof::addon
