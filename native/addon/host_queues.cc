// The initiator's side of connections: queues, commands by value and by registered buffer. Also
// closeQueue, which serves either side.
#include <algorithm>

#include "addon/address.h"
#include "addon/instance.h"
#include "addon/task.h"

namespace nvmeof::addon {

namespace {

constexpr size_t kRequestDataMax = 56;  // of a CM REQ, consumer's part
constexpr size_t kSqeBytes = 64;
constexpr size_t kQueuesMax = 1024;  // of one call

const Queue& host_queue(Instance& instance, const Arguments& arguments, uint32_t id) {
  const Queue* queue = instance.queue_or_gone(arguments.env(), id);
  if (!queue) {
    throw_error(arguments.env(), {ENOTCONN, "queue " + std::to_string(id) + " is closed"});
  }
  if (!queue->host) {
    throw_error(arguments.env(), {EINVAL, std::string(arguments.function()) + ": queue " +
                                              std::to_string(id) + " belongs to a target"});
  }
  return *queue;
}

nvmf::Direction direction_of(const Arguments& arguments) {
  return static_cast<nvmf::Direction>(
      arguments.at(2, "direction").word({"none", "toController", "toHost"}));
}

SubmittedEntry& take_command(Instance& instance) {
  if (instance.free_commands.empty()) {
    const auto index = static_cast<uint32_t>(instance.commands.size());
    instance.commands.emplace_back().command = std::make_unique<SubmittedCommand>();
    instance.commands.back().command->index = index;
    instance.free_commands.push_back(index);
  }
  SubmittedEntry& entry = instance.commands[instance.free_commands.back()];
  instance.free_commands.pop_back();
  return entry;
}

Napi::Value send(Instance& instance, const Queue& queue, uint32_t id, SubmittedCommand& command) {
  command.queue = id;
  command.tag = instance.next_tag;
  command.command.tag = command.tag;
  instance.next_tag = instance.next_tag == UINT32_MAX ? 1 : instance.next_tag + 1;
  instance.submissions.add(instance.commands_of(queue.device, queue.reactor), &command);
  return Napi::Number::New(instance.env, command.tag);
}

}  // namespace

std::vector<ConnectedQueue> connected_queues(Instance& instance, const char* function,
                                             const Argument& ids) {
  const Napi::Env env = instance.env;
  std::vector<ConnectedQueue> queues;
  for (const uint32_t id : ids.u32_list(kQueuesMax)) {
    const Queue& queue = instance.queues.get(env, id);
    if (queue.device == kMultipath) {
      ReactorSide& side = instance.side(queue.reactor);
      queues.push_back({id, kMultipath, side.multipath->engine(), side.reactor.get()});
      continue;
    }
    DeviceOnReactor* on = instance.on(queue);
    nvmf::HostEngine* engine = on->host_if_made();
    if (!queue.host || !engine) {
      throw_error(env, {ENOTCONN, std::string(function) + ": queue " + std::to_string(id) +
                                      " is not a connected queue of an initiator"});
    }
    queues.push_back({id, queue.device, engine, on->reactor()});
  }
  return queues;
}

Napi::Value connect(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t device_id = arguments.at(0, "device").u32();
  const Device& device = *instance.devices.get(env, device_id);
  const Argument options = arguments.at(1, "options");
  const auto reactors = static_cast<uint32_t>(instance.runtime->sides.size());
  const uint32_t reactor = options["reactor"].u32(0, reactors - 1);
  const auto port = static_cast<uint16_t>(options["port"].u32(1, 65535));
  const sockaddr_storage peer = value_or_throw(env, parse_address(options["address"].text(), port));
  if (peer.ss_family != device.device->address().ss_family) {
    throw_error(env, {EAFNOSUPPORT, options["address"].text() + " and the device's address " +
                                        format_address(device.device->address()) +
                                        " are of different families"});
  }
  nvmf::HostQueueOptions unpacked{};
  unpacked.depth = options["depth"].u32(2, 65536);
  unpacked.in_capsule_bytes = options["inCapsuleBytes"].u32(0, 1u << 20);
  unpacked.parameters.responder_resources =
      static_cast<uint8_t>(options["responderResources"].u32(0, 255));
  unpacked.parameters.initiator_depth = static_cast<uint8_t>(options["initiatorDepth"].u32(0, 255));
  unpacked.timeout_ms = options["timeoutMs"].u32(1);
  unpacked.probes = options["probes"].boolean_or(false);
  std::vector<uint8_t> private_data = options["privateData"].copied_bytes(kRequestDataMax);

  const uint32_t queue = instance.queues.add({device_id, reactor, true});
  DeviceOnReactor* on = device.on[reactor].get();
  post(*on->reactor(), [on, queue, peer, port, unpacked, private_data = std::move(private_data)] {
    on->connect(queue, peer, port, unpacked, private_data);
  });
  return Napi::Number::New(env, queue);
}

Napi::Value submit(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t id = arguments.at(0, "queue").u32();
  const std::span<const uint8_t> sqe = arguments.at(1, "sqe").bytes(kSqeBytes, kSqeBytes);
  const nvmf::Direction direction = direction_of(arguments);
  const Argument data = arguments.at(3, "data");
  const bool by_length = data.value().IsNumber();
  const size_t length = by_length ? data.size(Staging::kLengthMax) : data.bytes().size();
  if (by_length && direction == nvmf::Direction::ToController) data.refuse("a Uint8Array");
  if (direction == nvmf::Direction::None && length != 0) {
    data.out_of_range("0 or empty for a command without data");
  }
  const Queue& queue = host_queue(instance, arguments, id);

  StagingSlot slot;
  std::shared_ptr<Staging> staging;
  if (length != 0) {
    staging = instance.staging_of(queue);
    slot = value_or_throw(env, staging->take(length));
    if (direction == nvmf::Direction::ToController) {
      std::ranges::copy(data.bytes(), slot.bytes());
    } else {
      std::fill_n(slot.bytes(), length, uint8_t{0});  // no answer shows what was here before
    }
  }
  SubmittedEntry& entry = take_command(instance);
  entry.staging = std::move(staging);
  entry.slot = slot;
  SubmittedCommand& command = *entry.command;
  command.command = {};
  std::ranges::copy(sqe, command.command.sqe);
  command.command.direction = length == 0 ? nvmf::Direction::None : direction;
  command.command.offset = slot.offset;
  command.command.length = static_cast<uint32_t>(length);
  command.buffer = slot.buffer;
  command.answer_by_event = length != 0 && direction == nvmf::Direction::ToHost;
  return send(instance, queue, id, command);
}

Napi::Value submit_buffer(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t id = arguments.at(0, "queue").u32();
  const std::span<const uint8_t> sqe = arguments.at(1, "sqe").bytes(kSqeBytes, kSqeBytes);
  const nvmf::Direction direction = direction_of(arguments);
  const uint32_t buffer_id = arguments.at(3, "buffer").u32();
  Buffer& buffer = *instance.buffers.get(env, buffer_id).buffer;
  const uint64_t bytes = buffer.arena->bytes();
  const uint64_t offset = arguments.at(4, "offset").size(bytes);
  const uint64_t length =
      arguments.at(5, "length").size(std::min<uint64_t>(bytes - offset, nvmf::kHostTransferMax));
  const Queue& queue = host_queue(instance, arguments, id);
  if (buffer.freed || buffer.device != queue.device) {
    throw_error(env, {EINVAL, "buffer " + std::to_string(buffer_id) +
                                  (buffer.freed ? " was freed" : " is of another device")});
  }
  SubmittedCommand& command = *take_command(instance).command;
  command.command = {};
  std::ranges::copy(sqe, command.command.sqe);
  command.command.direction = length == 0 ? nvmf::Direction::None : direction;
  command.command.offset = offset;
  command.command.length = direction == nvmf::Direction::None ? 0 : static_cast<uint32_t>(length);
  command.buffer = command.command.length == 0 ? nullptr : &buffer;
  command.answer_by_event = false;
  if (command.buffer) buffer.used[queue.reactor] = true;
  return send(instance, queue, id, command);
}

// Every call but a submission has it done before.
Napi::Value flush(const Arguments& arguments) {
  return arguments.env().Undefined();
}

Napi::Value cancel(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  const uint32_t id = arguments.at(0, "queue").u32();
  const uint32_t tag = arguments.at(1, "tag").u32();
  const Queue* queue = instance.queue_or_gone(env, id);
  if (!queue) return env.Undefined();
  CommandsOnReactor* on = instance.commands_of(queue->device, queue->reactor);
  post(*on->reactor(), [on, id, tag] { on->cancel(id, tag); });
  return env.Undefined();
}

Napi::Value close_queue(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  const uint32_t id = arguments.at(0, "queue").u32();
  const Queue* queue = instance.queue_or_gone(env, id);
  if (!queue) return env.Undefined();
  if (queue->device == kMultipath) {
    ReactorSide& side = instance.side(queue->reactor);
    post(*side.reactor, [on = side.multipath.get(), id] { on->engine()->close(id); });
    return env.Undefined();
  }
  DeviceOnReactor* on = instance.on(*queue);
  post(*on->reactor(), [on, id] { on->close(id); });
  return env.Undefined();
}

}  // namespace nvmeof::addon
