// Queues over several paths: made and ended by JavaScript, which says what paths they have.
#include <array>
#include <memory>

#include "addon/attach_entry.h"
#include "addon/bench_run.h"
#include "addon/instance.h"
#include "addon/task.h"

namespace nvmeof::addon {

namespace {

constexpr reactor::TimeNs kMs = 1'000'000;

nvmf::PathQueueOptions unpack(const Argument& from) {
  nvmf::PathQueueOptions options;
  options.policy =
      static_cast<nvmf::PathPolicy>(from["policy"].word({"round-robin", "queue-depth", "numa"}));
  options.io_timeout = kMs * from["ioTimeoutMs"].u32();
  const std::vector<uint32_t> delays = from["retryDelaysMs"].u32_list(options.retry_delays.size());
  for (size_t i = 0; i < delays.size(); i++) options.retry_delays[i] = kMs * delays[i];
  return options;
}

// The queue of the first argument; null when it has been closed.
const Queue* path_queue(Instance& instance, const Arguments& arguments) {
  const uint32_t id = arguments.at(0, "queue").u32();
  const Queue* queue = instance.queue_or_gone(arguments.env(), id);
  if (queue != nullptr && queue->device != kMultipath) {
    throw_error(arguments.env(),
                {EINVAL, std::string(arguments.function()) + ": queue " + std::to_string(id) +
                             " is not one over several paths"});
  }
  return queue;
}

// Runs `work` with the queue on its reactor, unless it is closed by then.
template <typename Work>
void on_queue(Instance& instance, const Queue& queue, uint32_t id, Work work) {
  ReactorSide& side = instance.side(queue.reactor);
  post(*side.reactor, [multipath = side.multipath.get(), id, work = std::move(work)] {
    if (nvmf::PathQueue* found = multipath->engine()->find(id)) work(*found);
  });
}

}  // namespace

CommandsOnReactor* Instance::commands_of(uint32_t device, uint32_t reactor) {
  if (device == kMultipath) {
    MultipathOnReactor* const multipath = side(reactor).multipath.get();
    return multipath != nullptr ? multipath->commands() : nullptr;
  }
  const auto* found = devices.find(device);
  return found != nullptr ? (*found)->on[reactor]->commands() : nullptr;
}

const std::shared_ptr<Staging>& Instance::staging_of(const Queue& queue) {
  return queue.device == kMultipath ? runtime->multipath_staging[queue.reactor]
                                    : (*devices.find(queue.device))->staging[queue.reactor];
}

// Takes the servers and queues away; what is in flight ends with the devices.
void Instance::begin_multipath_end() {
  for (const auto& [id, entry] : attachments.all()) {
    if (entry->device == kMultipath) entry->attachment->begin_stop();
  }
  for (const auto& [id, queue] : queues.all()) {
    if (queue.device != kMultipath) continue;
    ReactorSide& on = side(queue.reactor);
    post(*on.reactor, [on = on.multipath.get(), id = id] { on->engine()->close(id); });
  }
}

void Instance::finish_multipath_end() {
  for (const auto& run : benches) {
    if (run->uses(kMultipath)) run->wait();
  }
  for (const auto& [id, entry] : attachments.all()) entry->attachment->finish();
  attachments.clear();
  // What one reactor borrowed of another: the first time the lender says that it has no engine any
  // more, the second time the borrower hears it.
  for (int turn = 0; turn < 2; turn++) {
    for (const auto& side : runtime->sides) {
      nvmf::MultipathEngine* const engine = side->multipath->engine();
      side->reactor->run_and_wait([engine] { engine->run_errands(); });
    }
  }
  for (const auto& side : runtime->sides) side->end_multipath();
  queues.clear();
}

Napi::Value open_path_queue(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const auto reactors = static_cast<uint32_t>(instance.runtime->sides.size());
  const uint32_t reactor = arguments.at(0, "reactor").u32(0, reactors - 1);
  const nvmf::PathQueueOptions options = unpack(arguments.at(1, "options"));
  const uint32_t id = instance.queues.add({kMultipath, reactor, true});
  ReactorSide& side = instance.side(reactor);
  post(*side.reactor,
       [multipath = side.multipath.get(), id, options] { multipath->engine()->open(id, options); });
  instance.update_keep_alive();
  return Napi::Number::New(env, id);
}

Napi::Value configure_path_queue(const Arguments& arguments) {
  Instance& instance = Instance::running(arguments.env());
  const nvmf::PathQueueOptions options = unpack(arguments.at(1, "options"));
  const uint32_t id = arguments.at(0, "queue").u32();
  if (const Queue* queue = path_queue(instance, arguments)) {
    on_queue(instance, *queue, id,
             [options](nvmf::PathQueue& found) { found.set_options(options); });
  }
  return arguments.env().Undefined();
}

Napi::Value set_path(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t id = arguments.at(0, "queue").u32();
  const uint32_t index = arguments.at(1, "path").u32(0, nvmf::kPathsMax - 1);
  const Argument options = arguments.at(2, "options");
  nvmf::PathOptions to;
  to.queue = options["queue"].u32();
  to.rank = static_cast<uint8_t>(options["rank"].u32(0, nvmf::kPathUnusable));
  to.distance = static_cast<uint8_t>(options["distance"].u32(0, 255));
  to.incarnation = options["incarnation"].u32();
  const Queue* queue = path_queue(instance, arguments);
  const Queue* real = instance.queue_or_gone(env, to.queue);
  if (queue == nullptr || real == nullptr) return env.Undefined();
  if (real->device == kMultipath || !real->host) {
    options["queue"].refuse("an I/O queue of an initiator");
  }
  nvmf::HostEngine* const engine = instance.on(*real)->host_if_made();
  if (engine == nullptr) return env.Undefined();
  const nvmf::QueuePlace at{engine, instance.side(real->reactor).multipath->engine()->box()};
  const bool here = real->reactor == queue->reactor;
  nvmf::MultipathEngine* const multipath = instance.side(queue->reactor).multipath->engine();
  on_queue(instance, *queue, id, [multipath, index, to, at, here](nvmf::PathQueue& found) {
    nvmf::PathOptions path = to;
    if (!here) path.remote = multipath->remote(to.queue, at);
    path.engine = here ? at.engine : path.remote.get();
    found.set_path(index, path);
  });
  return env.Undefined();
}

Napi::Value remove_path(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t id = arguments.at(0, "queue").u32();
  const uint32_t index = arguments.at(1, "path").u32(0, nvmf::kPathsMax - 1);
  const Queue* queue = path_queue(instance, arguments);
  Operation& operation = instance.begin_operation();
  operation.pending = 1;
  ReactorSide& side = instance.side(queue != nullptr ? queue->reactor : 0);
  struct Draining {
    Operation* operation;
    EventRing* ring;
    static void over(void* context) {
      const std::unique_ptr<Draining> draining(static_cast<Draining*>(context));
      draining->operation->confirm(*draining->ring);
    }
  };
  auto* draining = new Draining{&operation, &side.ring};
  post(*side.reactor, [multipath = side.multipath.get(), id, index, draining] {
    nvmf::PathQueue* const found = multipath->engine()->find(id);
    if (found != nullptr) {
      found->remove_path(index, Draining::over, draining);
    } else {
      Draining::over(draining);
    }
  });
  return Napi::Number::New(env, operation.id);
}

Napi::Value release_path(const Arguments& arguments) {
  Instance& instance = Instance::running(arguments.env());
  const uint32_t id = arguments.at(0, "queue").u32();
  const uint32_t index = arguments.at(1, "path").u32(0, nvmf::kPathsMax - 1);
  const uint32_t incarnation = arguments.at(2, "incarnation").u32();
  const bool repeat = arguments.at(3, "repeat").boolean();
  if (const Queue* queue = path_queue(instance, arguments)) {
    on_queue(instance, *queue, id, [index, incarnation, repeat](nvmf::PathQueue& found) {
      found.release(index, incarnation, repeat);
    });
  }
  return arguments.env().Undefined();
}

Napi::Value set_failing(const Arguments& arguments) {
  Instance& instance = Instance::running(arguments.env());
  const uint32_t id = arguments.at(0, "queue").u32();
  const bool failing = arguments.at(1, "failing").boolean();
  if (const Queue* queue = path_queue(instance, arguments)) {
    on_queue(instance, *queue, id,
             [failing](nvmf::PathQueue& found) { found.set_failing(failing); });
  }
  return arguments.env().Undefined();
}

}  // namespace nvmeof::addon
