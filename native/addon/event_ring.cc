// The ring of events; see event_ring.h.
#include "addon/event_ring.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "addon/wake.h"

namespace nvmeof::addon {

namespace {

void write_record(uint8_t* out, const RecordHeader& header, std::span<const uint8_t> first,
                  std::span<const uint8_t> second) {
  uint8_t* const end = out + header.size;
  std::memcpy(out, &header, sizeof header);
  out += sizeof header;
  if (!first.empty()) std::memcpy(out, first.data(), first.size());
  out += first.size();
  if (!second.empty()) std::memcpy(out, second.data(), second.size());
  out += second.size();
  std::memset(out, 0, static_cast<size_t>(end - out));
}

}  // namespace

EventRing::EventRing(Wake* wake)
    : wake_(wake), bytes_(std::make_unique_for_overwrite<uint8_t[]>(kRingBytes)) {}

void EventRing::push(nvmf::EventKind kind, uint32_t id, uint32_t tag, uint32_t code, uint64_t value,
                     std::span<const uint8_t> first, std::span<const uint8_t> second) {
  push_record(static_cast<uint16_t>(kind), id, tag, code, value, first, second);
}

void EventRing::push_record(uint16_t kind, uint32_t id, uint32_t tag, uint32_t code, uint64_t value,
                            std::span<const uint8_t> first, std::span<const uint8_t> second) {
  if (first.size() > nvmf::kEventFirstMax || second.size() > nvmf::kEventSecondMax) {
    std::fprintf(stderr, "nvmeof: event %u with parts of %zu and %zu bytes\n", kind, first.size(),
                 second.size());
    std::abort();
  }
  RecordHeader header{};
  header.size = static_cast<uint32_t>(record_size(first.size(), second.size()));
  header.kind = kind;
  header.first = static_cast<uint16_t>(first.size());
  header.second = static_cast<uint32_t>(second.size());
  header.id = id;
  header.tag = tag;
  header.code = code;
  header.value = value;
  uint8_t* out = overflow_.empty() ? claim(header.size) : nullptr;
  if (out) {
    write_record(out, header, first, second);
    tail_.store(tail_.load(std::memory_order_relaxed) + header.size, std::memory_order_release);
  } else {
    write_record(overflow_.emplace_back(header.size).data(), header, first, second);
    overflowing_.store(true);
  }
  wake_->notify();
}

// Room for `size` bytes in one piece at the tail, or nullptr. Publishes the padding in front of it.
uint8_t* EventRing::claim(size_t size) {
  const uint64_t tail = tail_.load(std::memory_order_relaxed);
  const uint64_t used = tail - head_.load(std::memory_order_acquire);
  const size_t position = tail % kRingBytes;
  const size_t to_end = kRingBytes - position;
  const size_t padding = to_end < size ? to_end : 0;
  if (kRingBytes - used < padding + size) return nullptr;
  if (padding == 0) return bytes_.get() + position;
  // Only size and kind: 8 bytes always fit, since all sizes are multiples of 8.
  const uint32_t words[2] = {static_cast<uint32_t>(padding), kPadding};
  std::memcpy(bytes_.get() + position, words, sizeof words);
  tail_.store(tail + padding, std::memory_order_release);
  return bytes_.get();
}

void EventRing::flush_overflow() {
  flush_asked_.store(false);
  bool moved = false;
  while (!overflow_.empty()) {
    const std::vector<uint8_t>& record = overflow_.front();
    uint8_t* out = claim(record.size());
    if (!out) break;
    std::memcpy(out, record.data(), record.size());
    tail_.store(tail_.load(std::memory_order_relaxed) + record.size(), std::memory_order_release);
    overflow_.pop_front();
    moved = true;
  }
  if (overflow_.empty()) overflowing_.store(false);
  if (moved) wake_->notify();
}

std::span<const uint8_t> EventRing::peek() {
  for (;;) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return {};
    const uint8_t* record = bytes_.get() + head % kRingBytes;
    uint32_t words[2];
    std::memcpy(words, record, sizeof words);
    if ((words[1] & 0xFFFF) != kPadding) return {record, words[0]};
    head_.store(head + words[0], std::memory_order_release);
  }
}

void EventRing::pop() {
  const std::span<const uint8_t> record = peek();
  head_.store(head_.load(std::memory_order_relaxed) + record.size(), std::memory_order_release);
}

bool EventRing::wants_flush() {
  return overflowing_.load() && !flush_asked_.exchange(true);
}

}  // namespace nvmeof::addon
