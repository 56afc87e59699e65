// Registered buffers of JavaScript: the memory, and the calls of the door. JavaScript sees the
// memory as an external ArrayBuffer, which is detached by freeBuffer, so that nobody touches freed
// memory.
#include "addon/buffers.h"

#include <cerrno>

#include "addon/instance.h"
#include "addon/task.h"

namespace nvmeof::addon {

namespace {
constexpr size_t kBufferMax = size_t{64} << 30;
}  // namespace

void Instance::free_buffer(uint32_t id) {
  BufferEntry& entry = *buffers.find(id);
  Buffer& buffer = *entry.buffer;
  buffer.freed = true;
  if (!tearing_down) {
    const Napi::HandleScope scope(env);
    if (Napi::ArrayBuffer memory = entry.memory.Value(); !memory.IsEmpty()) memory.Detach();
    entry.memory.Reset();
  }
  for (uint32_t reactor = 0; reactor < buffer.used.size(); reactor++) {
    CommandsOnReactor* const on =
        buffer.used[reactor] ? commands_of(buffer.device, reactor) : nullptr;
    if (on == nullptr) continue;
    buffer.releases_pending++;
    post(*on->reactor(), [on, &buffer] { on->release_buffer(&buffer); });
  }
  if (buffer.releases_pending == 0) buffers.erase(id);
}

void Instance::buffer_released(uint32_t id) {
  BufferEntry* entry = buffers.find(id);
  if (entry && --entry->buffer->releases_pending == 0) buffers.erase(id);
}

Napi::Value allocate_buffer(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t device = arguments.at(0, "device").u32();
  if (device != kMultipath) instance.devices.get(env, device);
  const Argument bytes = arguments.at(1, "bytes");
  const uint64_t length = bytes.size(kBufferMax);
  if (length == 0) bytes.out_of_range("an integer from 1 to " + std::to_string(kBufferMax));

  auto buffer = std::make_unique<Buffer>();
  buffer->arena = value_or_throw(env, rdma::Arena::map(length));
  buffer->device = device;
  buffer->on.resize(instance.runtime->sides.size());
  buffer->used.resize(instance.runtime->sides.size());
  // The ArrayBuffer holds the memory too: other views of it may live a little longer than we know.
  auto* held = new std::shared_ptr<rdma::Arena>(buffer->arena);
  Napi::ArrayBuffer memory = Napi::ArrayBuffer::New(
      env, buffer->arena->base(), length,
      [](Napi::Env, void*, std::shared_ptr<rdma::Arena>* arena) { delete arena; }, held);

  const uint32_t id = instance.buffers.reserve();
  buffer->id = id;
  instance.buffers.put(id, {std::move(buffer), Napi::Weak(memory)});
  Napi::Object result = Napi::Object::New(env);
  result.Set("id", Napi::Number::New(env, id));
  result.Set("memory", memory);
  return result;
}

Napi::Value free_buffer(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  const uint32_t id = arguments.at(0, "buffer").u32();
  if (instance.buffers.get(env, id).buffer->freed) {
    throw_error(env, {ENOENT, "buffer " + std::to_string(id) + " was freed already"});
  }
  instance.free_buffer(id);
  return env.Undefined();
}

}  // namespace nvmeof::addon
