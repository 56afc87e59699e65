// Start and end of the reactors, and what is known of them.
#include <pthread.h>
#include <time.h>

#include <algorithm>

#include "addon/bench_run.h"
#include "addon/instance.h"
#include "addon/task.h"

namespace nvmeof::addon {

namespace {

void on_environment_end(void* data) {
  auto* instance = static_cast<Instance*>(data);
  instance->tearing_down = true;
  instance->stop();
}

uint64_t cpu_ns(const ReactorSide& side) {
  timespec used{};
  if (clock_gettime(side.cpu_clock, &used) != 0) return 0;
  return static_cast<uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(used.tv_nsec);
}

}  // namespace

Instance::Instance(Napi::Env environment) : env(environment) {}

Instance::~Instance() {
  tearing_down = true;
  stop();
}

Instance& Instance::running(Napi::Env env) {
  Instance& instance = of(env);
  if (!instance.runtime || !instance.runtime->running) {
    throw_error(env, {ENOTCONN, "the native runtime is not started; call start first"});
  }
  return instance;
}

const Queue* Instance::queue_or_gone(Napi::Env environment, uint32_t id) {
  const Queue* queue = queues.find(id);
  if (!queue && !queues.known(id)) queues.get(environment, id);
  return queue;
}

Napi::Value start(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  if (instance.runtime && instance.runtime->running) {
    throw_error(env, {EALREADY, "the native runtime runs already; call stop first"});
  }
  const Argument options = arguments.at(0, "options");
  const Argument cores = options["cores"];
  const Napi::Array list = cores.list();
  if (list.Length() == 0 || list.Length() > reactor::kReactorsMax) {
    cores.out_of_range("a list of 1 to " + std::to_string(reactor::kReactorsMax) + " cores");
  }
  const bool poll_forever = options["pollForever"].boolean_or(false);
  const Napi::Function on_wake = options["onWake"].function();

  auto runtime = std::make_unique<Runtime>();
  for (uint32_t index = 0; index < list.Length(); index++) {
    reactor::Options each;
    each.core = Argument(list.Get(index), "start: options.cores[" + std::to_string(index) + "]")
                    .i32(-1, 4095);
    each.poll_forever = poll_forever;
    each.name = "nvmeof-" + std::to_string(index);
    auto side = std::make_unique<ReactorSide>(&runtime->wake);
    side->reactor = value_or_throw(env, reactor::Reactor::start(index, each));
    side->reactor->run_and_wait([&side] {
      pthread_getcpuclockid(pthread_self(), &side->cpu_clock);
      side->multipath = std::make_unique<MultipathOnReactor>(side->reactor.get(), &side->ring);
    });
    runtime->sides.push_back(std::move(side));
    runtime->multipath_staging.push_back(std::make_shared<Staging>(list.Length()));
  }
  runtime->wake.start(env, on_wake);
  runtime->running = true;
  // What nobody drained after the last stop().
  instance.commands.clear();
  instance.free_commands.clear();
  instance.queues.clear();
  instance.operations.clear();
  instance.buffers.clear();
  instance.runtime = std::move(runtime);
  // After the thread-safe function, so that it runs before that one's own clean-up.
  napi_add_env_cleanup_hook(env, on_environment_end, &instance);
  return env.Undefined();
}

Operation& Instance::begin_operation() {
  const uint32_t id = operations.reserve();
  auto operation = std::make_unique<Operation>();
  operation->id = id;
  Operation& made = *operations.put(id, std::move(operation));
  update_keep_alive();
  return made;
}

// A started runtime alone does not keep the process; a device, or somebody who awaits an operation,
// does.
void Instance::update_keep_alive() {
  if (!runtime || !runtime->running || tearing_down) return;
  runtime->wake.keep_alive(env, devices.size() > 0 || operations.size() > 0);
}

// Changes that nobody will confirm any more. The reactors are joined, so their rings are ours.
void Instance::end_operations() {
  static constexpr char text[] = "the native runtime was stopped";
  for (const auto& [id, operation] : operations.all()) {
    if (operation->pending.exchange(0) == 0) continue;  // its event is in a ring
    runtime->sides[0]->ring.push(nvmf::EventKind::OperationDone, id, 0, ECANCELED, 0, {},
                                 {reinterpret_cast<const uint8_t*>(text), sizeof text - 1});
  }
}

void Instance::stop() {
  if (!runtime || !runtime->running) return;
  submissions.flush();
  for (const auto& run : benches) run->stop();
  begin_multipath_end();
  while (devices.size() > 0) close_device(devices.all().begin()->first);
  finish_multipath_end();
  for (const auto& side : runtime->sides) side->reactor.reset();
  end_operations();
  tables.clear();
  leases.clear();
  backings.clear();  // one that a worker thread still resizes lives until it is done
  std::vector<uint32_t> ids;
  for (const auto& [id, entry] : buffers.all()) {
    if (!entry.buffer->freed) ids.push_back(id);
  }
  for (const uint32_t id : ids) free_buffer(id);
  connections.clear();
  runtime->wake.stop();
  runtime->running = false;
  if (!tearing_down) napi_remove_env_cleanup_hook(env, on_environment_end, this);
}

Napi::Value stop(const Arguments& arguments) {
  Instance::of(arguments.env()).stop();
  return arguments.env().Undefined();
}

Napi::Value reactors(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  std::vector<uint32_t> queues(instance.runtime->sides.size());
  for (const auto& [id, queue] : instance.queues.all()) queues[queue.reactor]++;
  Napi::Array all = Napi::Array::New(env, queues.size());
  for (uint32_t index = 0; index < queues.size(); index++) {
    const ReactorSide& side = instance.side(index);
    const reactor::Counters& counters = side.reactor->counters();
    Napi::Object info = Napi::Object::New(env);
    info.Set("index", Napi::Number::New(env, index));
    info.Set("core", Napi::Number::New(env, side.reactor->core()));
    info.Set("busyNs", Napi::BigInt::New(env, counters.busy_ns.load(std::memory_order_relaxed)));
    info.Set("idleNs", Napi::BigInt::New(env, counters.idle_ns.load(std::memory_order_relaxed)));
    info.Set("cpuNs", Napi::BigInt::New(env, cpu_ns(side)));
    info.Set("queues", Napi::Number::New(env, queues[index]));
    all.Set(index, info);
  }
  return all;
}

}  // namespace nvmeof::addon
