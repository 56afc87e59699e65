// Events on their way out: copies whole records for JavaScript and does the bookkeeping that
// belongs to each.
#include <cstring>

#include "addon/instance.h"
#include "addon/task.h"

namespace nvmeof::addon {

bool Instance::note_event(RecordHeader& header) {
  switch (header.kind) {
    case static_cast<uint16_t>(nvmf::EventKind::ConnectRequest): {
      const Listener* listener = listeners.find(header.id);
      if (!listener) return false;  // unlisten came first; the request ends by its own timeout
      connections[header.value] = listener->device;
      return true;
    }
    case static_cast<uint16_t>(nvmf::EventKind::QueueClosed):
    case static_cast<uint16_t>(nvmf::EventKind::ConnectFailed):
      queues.erase(header.id);
      return true;
    case static_cast<uint16_t>(nvmf::EventKind::Completion): {
      SubmittedEntry& entry = commands[header.value];
      if (entry.staging) entry.staging->give_back(entry.slot);
      entry.staging.reset();
      free_commands.push_back(static_cast<uint32_t>(header.value));
      header.value = 0;
      return true;
    }
    case static_cast<uint16_t>(nvmf::EventKind::OperationDone):
      operation_done(header.id);
      return true;
    case kBufferReleased:
      buffer_released(header.id);
      return false;
    default:
      return true;
  }
}

namespace {

// Copies what fits; returns the bytes written. `full` is set when a record had to stay.
size_t drain_ring(Instance& instance, EventRing& ring, std::span<uint8_t> into, bool& full) {
  size_t written = 0;
  for (;;) {
    const std::span<const uint8_t> record = ring.peek();
    if (record.empty()) return written;
    if (record.size() > into.size() - written) {
      full = true;
      return written;
    }
    RecordHeader header;
    std::memcpy(&header, record.data(), sizeof header);
    if (instance.note_event(header)) {
      std::memcpy(into.data() + written, record.data(), record.size());
      std::memcpy(into.data() + written, &header, sizeof header);
      written += record.size();
    }
    ring.pop();
  }
}

}  // namespace

Napi::Value drain(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::of(env);
  const std::span<uint8_t> into = arguments.at(0, "into").bytes(kRecordMax);
  if (!instance.runtime) return Napi::Number::New(env, 0);
  Runtime& runtime = *instance.runtime;
  size_t written = 0;
  bool full = false;
  // Another reactor is first each time, so that none starves the others.
  for (size_t i = 0; i < runtime.sides.size() && !full; i++) {
    ReactorSide& side = *runtime.sides[runtime.drain_next];
    written += drain_ring(instance, side.ring, into.subspan(written), full);
    if (side.ring.wants_flush()) {
      if (side.reactor) {
        post(*side.reactor, [ring = &side.ring] { ring->flush_overflow(); });
      } else {
        side.ring.flush_overflow();
        written += drain_ring(instance, side.ring, into.subspan(written), full);
      }
    }
    if (!full) runtime.drain_next = (runtime.drain_next + 1) % runtime.sides.size();
  }
  instance.update_keep_alive();
  return Napi::Number::New(env, static_cast<double>(written));
}

}  // namespace nvmeof::addon
