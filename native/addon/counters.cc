// One flat map of counters, gathered from the devices, the engines, the reactors and the
// registries.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "addon/attach_entry.h"
#include "addon/instance.h"
#include "rdma/counter_totals.h"

namespace nvmeof::addon {

namespace {

using Counters = rdma::CounterTotals;

// One value for each name, over devices and reactors.
void add(Counters& all, const std::vector<rdma::CounterValue>& some, const char* prefix) {
  for (const rdma::CounterValue& counter : some) {
    std::string name = counter.name;
    if (!name.starts_with(prefix) && !name.starts_with("live.")) name.insert(0, prefix);
    rdma::add_counter(all, name, counter);
  }
}

// Gauges of the provider that must return to where they were when everything is closed.
constexpr std::pair<const char*, const char*> kLive[] = {
    {"queue_pairs", "live.queuePairs"},
    {"connections", "live.cmConnections"},
    {"memory.protection_domains", "live.protectionDomains"},
    {"memory.regions", "live.memoryRegions"},
    {"memory.windows", "live.windows"},
    {"memory.bound_windows", "live.boundWindows"},
};
constexpr const char* kProviders[] = {"soft.", "verbs."};

// Of a target engine, what is shown of each reactor by itself.
constexpr std::string_view kOfReactor[] = {"target.bufferWaits", "target.buffer_bytes",
                                           "live.targetBuffers", "live.targetBufferBytes"};

std::string reactor_prefix(size_t index) {
  return "reactor." + std::to_string(index) + ".";
}

void add_of_reactor(Counters& all, size_t index, const std::vector<rdma::CounterValue>& some) {
  const std::string prefix = reactor_prefix(index);
  for (const rdma::CounterValue& counter : some)
    rdma::add_counter(all, prefix + counter.name, counter);
}

void add_target(Counters& all, size_t reactor, const nvmf::TargetEngine& target) {
  std::vector<rdma::CounterValue> values = target.counters();
  add(all, values, "target.");
  std::erase_if(values, [](const rdma::CounterValue& counter) {
    return std::ranges::find(kOfReactor, counter.name) == std::end(kOfReactor);
  });
  add_of_reactor(all, reactor, values);
}

void add_devices(Counters& all, Instance& instance) {
  for (const auto& [id, device] : instance.devices.all()) {
    add(all, device->device->counters(), "");
    for (size_t reactor = 0; reactor < device->on.size(); reactor++) {
      const auto& on = device->on[reactor];
      add_of_reactor(all, reactor, device->device->counters_of(static_cast<unsigned>(reactor)));
      if (auto* target = on->target_if_made()) add_target(all, reactor, *target);
      if (auto* host = on->host_if_made()) add(all, host->counters(), "host.");
      all["live.regions"] += on->commands()->live_regions();
    }
  }
}

void add_multipath(Counters& all, const Runtime& runtime) {
  for (const auto& side : runtime.sides)
    add(all, side->multipath->engine()->counters(), "multipath.");
}

void add_attachments(Counters& all, Instance& instance) {
  const auto read = [](const std::atomic<uint64_t>& counter) {
    return static_cast<double>(counter.load(std::memory_order_relaxed));
  };
  all["live.attachments"] = static_cast<double>(instance.attachments.size());
  all["live.nbdConnections"] = 0;
  all["live.clients"] = 0;
  for (const auto& [id, entry] : instance.attachments.all()) {
    all["nbd.accepted"] += read(entry->nbd.accepted);
    all["nbd.hungUp"] += read(entry->nbd.hung_up);
    all["nbd.requests"] += read(entry->nbd.requests);
    all["live.nbdConnections"] += read(entry->nbd.live_connections);
    all["clients.accepted"] += read(entry->clients.accepted);
    all["clients.sentAway"] += read(entry->clients.sent_away);
    all["clients.requests"] += read(entry->clients.requests);
    all["live.clients"] += read(entry->clients.live);
  }
}

void add_reactors(Counters& all, const Runtime& runtime) {
  for (const auto& side : runtime.sides) {
    const reactor::Counters& counters = side->reactor->counters();
    const std::string prefix = reactor_prefix(side->reactor->index());
    const auto read = [](const std::atomic<uint64_t>& counter) {
      return static_cast<double>(counter.load(std::memory_order_relaxed));
    };
    all[prefix + "iterations"] = read(counters.iterations);
    all[prefix + "idleIterations"] = read(counters.idle_iterations);
    all[prefix + "sleeps"] = read(counters.sleeps);
    all[prefix + "tasks"] = read(counters.tasks);
    all[prefix + "busyNs"] = read(counters.busy_ns);
    all[prefix + "idleNs"] = read(counters.idle_ns);
    all[prefix + "ioUringCalls"] = read(counters.io_uring_calls);
    all[prefix + "ioUringSubmissions"] = read(counters.io_uring_submissions);
  }
}

}  // namespace

Napi::Value counters(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  Counters all;
  all["live.devices"] = static_cast<double>(instance.devices.size());
  all["live.listeners"] = static_cast<double>(instance.listeners.size());
  all["live.connections"] = static_cast<double>(instance.connections.size());
  all["live.queues"] = static_cast<double>(instance.queues.size());
  all["live.backings"] = static_cast<double>(instance.backings.size());
  all["live.tables"] = static_cast<double>(instance.tables.size());
  all["live.leases"] = static_cast<double>(instance.leases.size());
  all["live.operations"] = static_cast<double>(instance.operations.size());
  all["live.buffers"] = static_cast<double>(instance.buffers.size());
  all["live.commands"] =
      static_cast<double>(instance.commands.size() - instance.free_commands.size());
  all["live.regions"] = 0;
  add_attachments(all, instance);
  if (instance.runtime && instance.runtime->running) {
    add_devices(all, instance);
    add_multipath(all, *instance.runtime);
    add_reactors(all, *instance.runtime);
  }
  for (const auto& [name, live] : kLive) {
    double& total = all[live];
    for (const char* provider : kProviders) {
      const auto found = all.find(std::string(provider) + name);
      if (found != all.end()) total += found->second;
    }
  }
  Napi::Object result = Napi::Object::New(env);
  for (const auto& [name, value] : all) result.Set(name, Napi::Number::New(env, value));
  return result;
}

}  // namespace nvmeof::addon
