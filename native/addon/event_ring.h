// Events of one reactor on their way to JavaScript: a ring of bytes with one writer (the reactor)
// and one reader (the JavaScript thread). What does not fit waits in a list on the reactor's side,
// so that nothing is ever dropped and the reactor never waits; the list is bounded by the number of
// queues and commands. native/events.ts has the layout of the records.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "nvmf/event_sink.h"

namespace nvmeof::addon {

class Wake;

struct RecordHeader {
  uint32_t size;  // of the whole record, a multiple of 8
  uint16_t kind;
  uint16_t first;   // bytes of the first part
  uint32_t second;  // bytes of the second part
  uint32_t id;
  uint32_t tag;
  uint32_t code;
  uint64_t value;
};
static_assert(sizeof(RecordHeader) == 32);

// Kinds that only the addon sees: they never reach JavaScript.
inline constexpr uint16_t kPadding = 0;              // up to the end of the ring
inline constexpr uint16_t kBufferReleased = 0x8000;  // id buffer: this reactor let go of it

constexpr size_t record_size(size_t first, size_t second) {
  return (sizeof(RecordHeader) + first + second + 7) / 8 * 8;
}
// The buffer that JavaScript drains into holds at least one record of the largest kind
// (DRAIN_BYTES in native/runtime.ts).
inline constexpr size_t kRecordMax = record_size(nvmf::kEventFirstMax, nvmf::kEventSecondMax);
inline constexpr size_t kRingBytes = 4u << 20;
static_assert(2 * kRecordMax <= kRingBytes);  // a record fits wherever the padding begins

class EventRing final : public nvmf::EventSink {
 public:
  explicit EventRing(Wake* wake);

  // The reactor's thread.
  void push(nvmf::EventKind kind, uint32_t id, uint32_t tag, uint32_t code, uint64_t value,
            std::span<const uint8_t> first, std::span<const uint8_t> second) override;
  void push_record(uint16_t kind, uint32_t id, uint32_t tag, uint32_t code, uint64_t value,
                   std::span<const uint8_t> first, std::span<const uint8_t> second);
  // Moves what waits into the ring, as far as it fits.
  void flush_overflow();

  // The JavaScript thread. The next record, or an empty span; pop() frees it.
  std::span<const uint8_t> peek();
  void pop();
  // Asks once for a flush after there is room again: true when the caller shall have
  // flush_overflow() run.
  bool wants_flush();

 private:
  uint8_t* claim(size_t size);

  Wake* wake_;
  std::unique_ptr<uint8_t[]> bytes_;
  alignas(64) std::atomic<uint64_t> tail_{0};  // written by the reactor
  alignas(64) std::atomic<uint64_t> head_{0};  // written by the JavaScript thread
  std::atomic<bool> overflowing_{false};
  std::atomic<bool> flush_asked_{false};
  std::deque<std::vector<uint8_t>> overflow_;  // the reactor's
};

}  // namespace nvmeof::addon
