// The target's side of connections: listeners, answers to connection requests, bound queues, and
// the answers to commands that went up to JavaScript.
#include <limits>

#include "addon/instance.h"
#include "addon/task.h"

namespace nvmeof::addon {

namespace {

constexpr size_t kPrivateDataMax = 196;  // of a CM REP
constexpr size_t kRejectDataMax = 148;   // of a CM REJ
constexpr uint32_t kDepthMax = 65536;    // a 16-bit SQSIZE, 0's based
constexpr uint64_t kMillisecond = 1'000'000;

// The device of a request, which is answered by this call.
uint32_t take_connection(Instance& instance, Napi::Env env, uint64_t connection) {
  const auto found = instance.connections.find(connection);
  if (found == instance.connections.end()) {
    throw_error(env, {ENOENT, "there is no connection request " + std::to_string(connection) +
                                  " that waits for an answer"});
  }
  const uint32_t device = found->second;
  instance.connections.erase(found);
  return device;
}

// Calls `work(engine)` on the queue's reactor. The queue may be gone, there or here: no error,
// since its last event is on the way or was drained.
template <typename Work>
void with_target(Instance& instance, const Arguments& arguments, uint32_t id, Work work) {
  const Queue* queue = instance.queue_or_gone(arguments.env(), id);
  if (!queue) return;
  if (queue->host) {
    throw_error(arguments.env(), {EINVAL, std::string(arguments.function()) + ": queue " +
                                              std::to_string(id) + " belongs to an initiator"});
  }
  DeviceOnReactor* on = instance.on(*queue);
  post(*on->reactor(), [on, work = std::move(work)]() mutable {
    if (nvmf::TargetEngine* engine = on->target_on_thread()) work(*engine);
  });
}

}  // namespace

Napi::Value listen(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t device_id = arguments.at(0, "device").u32();
  const auto port = static_cast<uint16_t>(arguments.at(1, "port").u32(1, 65535));
  Device& device = *instance.devices.get(env, device_id);
  const uint32_t listener = instance.listeners.reserve();
  Result<uint32_t> outcome = Error{};
  instance.side(0).reactor->run_and_wait([&] {
    DeviceOnReactor& on = *device.on[0];
    const Result<nvmf::TargetEngine*> engine = on.target();
    if (!engine) {
      outcome = engine.error();
      return;
    }
    outcome = device.device->listen(port, &device.router);
    if (outcome) on.name_listener(*outcome, listener);
  });
  instance.listeners.put(listener, {device_id, value_or_throw(env, std::move(outcome))});
  return Napi::Number::New(env, listener);
}

Napi::Value unlisten(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t id = arguments.at(0, "listener").u32();
  const Listener listener = instance.listeners.get(env, id);
  instance.listeners.erase(id);
  Device& device = **instance.devices.find(listener.device);
  post(*instance.side(0).reactor, [&device, theirs = listener.device_listener] {
    device.device->unlisten(theirs);
    device.on[0]->forget_listener(theirs);
  });
  return env.Undefined();
}

Napi::Value accept(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint64_t connection = arguments.at(0, "connection").u64();
  const Argument options = arguments.at(1, "options");
  const auto reactors = static_cast<uint32_t>(instance.runtime->sides.size());
  const uint32_t reactor = options["reactor"].u32(0, reactors - 1);
  nvmf::AcceptOptions unpacked{};
  unpacked.depth = options["depth"].u32(2, kDepthMax);
  unpacked.in_capsule_bytes = options["inCapsuleBytes"].u32(0, 1u << 20);
  unpacked.parameters.responder_resources =
      static_cast<uint8_t>(options["responderResources"].u32(0, 255));
  unpacked.parameters.initiator_depth = static_cast<uint8_t>(options["initiatorDepth"].u32(0, 255));
  std::vector<uint8_t> private_data = options["privateData"].copied_bytes(kPrivateDataMax);

  const uint32_t device = take_connection(instance, env, connection);
  const uint32_t queue = instance.queues.add({device, reactor, false});
  DeviceOnReactor* on = (*instance.devices.find(device))->on[reactor].get();
  post(*on->reactor(), [on, queue, connection, unpacked, private_data = std::move(private_data)] {
    on->accept(queue, connection, unpacked, private_data);
  });
  return Napi::Number::New(env, queue);
}

Napi::Value reject(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint64_t connection = arguments.at(0, "connection").u64();
  const auto reason = static_cast<uint16_t>(arguments.at(1, "reason").u32(0, 65535));
  std::vector<uint8_t> private_data = arguments.at(2, "privateData").copied_bytes(kRejectDataMax);
  const uint32_t device = take_connection(instance, env, connection);
  post(*instance.side(0).reactor, [device = (*instance.devices.find(device))->device.get(),
                                   connection, reason, private_data = std::move(private_data)] {
    device->reject(connection, reason, private_data);
  });
  return env.Undefined();
}

Napi::Value bind_queue(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t queue = arguments.at(0, "queue").u32();
  const Argument options = arguments.at(1, "options");
  nvmf::BindOptions unpacked{};
  unpacked.table = options["table"].u32();
  unpacked.qid = static_cast<uint16_t>(options["qid"].u32(0, 65535));
  unpacked.flow_control_disabled = options["flowControlDisabled"].boolean();
  unpacked.cntlid = static_cast<uint16_t>(options["cntlid"].u32(0, 65535));
  unpacked.port = options["port"].u32();
  instance.tables.get(env, unpacked.table);
  unpacked.lease = instance.leases.get(env, options["lease"].u32());
  with_target(instance, arguments, queue,
              [queue, unpacked](nvmf::TargetEngine& engine) { engine.bind(queue, unpacked); });
  return env.Undefined();
}

Napi::Value open_lease(const Arguments& arguments) {
  Instance& instance = Instance::running(arguments.env());
  const uint32_t id = instance.leases.add(std::make_shared<reactor::Lease>());
  return Napi::Number::New(arguments.env(), id);
}

Napi::Value renew_lease_by(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t queue = arguments.at(0, "queue").u32();
  const auto lease = instance.leases.get(env, arguments.at(1, "lease").u32());
  with_target(instance, arguments, queue,
              [queue, lease](nvmf::TargetEngine& engine) { engine.renew_by(queue, lease); });
  return env.Undefined();
}

Napi::Value set_lease(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  reactor::Lease& lease = *Instance::of(env).leases.get(env, arguments.at(0, "lease").u32());
  const uint64_t ms = arguments.at(1, "ms").u32();
  lease.set(ms == 0 ? reactor::kNever : ms * kMillisecond, reactor::Lease::clock());
  return env.Undefined();
}

Napi::Value lease_left(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  reactor::Lease& lease = *Instance::of(env).leases.get(env, arguments.at(0, "lease").u32());
  const reactor::TimeNs left = lease.left(reactor::Lease::clock());
  const double ms = static_cast<double>(left) / kMillisecond;
  return Napi::Number::New(env,
                           left == reactor::kNever ? std::numeric_limits<double>::infinity() : ms);
}

// Queues that have it keep it.
Napi::Value close_lease(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  const uint32_t id = arguments.at(0, "lease").u32();
  instance.leases.get(env, id);
  instance.leases.erase(id);
  return env.Undefined();
}

Napi::Value complete(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  const uint32_t queue = arguments.at(0, "queue").u32();
  const uint32_t tag = arguments.at(1, "tag").u32();
  const uint64_t result = arguments.at(2, "result").u64();
  const auto status = static_cast<uint16_t>(arguments.at(3, "status").u32(0, 0x7FFF));
  const Argument data = arguments.at(4, "data");
  std::vector<uint8_t> bytes;
  if (!data.absent()) bytes = data.copied_bytes(nvmf::kEventSecondMax);
  with_target(instance, arguments, queue,
              [queue, tag, result, status, bytes = std::move(bytes)](nvmf::TargetEngine& engine) {
                engine.complete(queue, tag, result, status, bytes);
              });
  return env.Undefined();
}

Napi::Value abort_command(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t id = arguments.at(0, "queue").u32();
  const auto cid = static_cast<uint16_t>(arguments.at(1, "cid").u32(0, 65535));
  const Queue* queue = instance.queue_or_gone(env, id);
  Operation& operation = instance.begin_operation();
  operation.pending = 1;
  // A queue that is gone has nothing to abort: any reactor can say so.
  ReactorSide& side = instance.side(queue ? queue->reactor : 0);
  DeviceOnReactor* on = queue && !queue->host ? instance.on(*queue) : nullptr;
  post(*side.reactor, [&side, &operation, on, id, cid] {
    nvmf::TargetEngine* engine = on ? on->target_on_thread() : nullptr;
    const bool found = engine && engine->abort(id, cid);
    operation.pending = 0;
    side.ring.push(nvmf::EventKind::OperationDone, operation.id, 0, 0, found ? 1 : 0, {}, {});
  });
  return Napi::Number::New(env, operation.id);
}

}  // namespace nvmeof::addon
