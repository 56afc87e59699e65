// Buddy allocator: blocks of 4 KiB << order, split on demand, joined with their buddy when freed.
// Free lists are last-in first-out: the buffer used last is the one still in the cache.
#include "nvmf/buffer_pool.h"

#include <bit>
#include <cassert>

namespace nvmeof::nvmf {

BufferPool::BufferPool(uint8_t* base, size_t length, size_t largest)
    : base_(base),
      orders_(static_cast<unsigned>(std::countr_zero(largest / kSmallest)) + 1),
      pages_(length / kSmallest),
      heads_(orders_, kNone) {
  assert(std::has_single_bit(largest) && largest >= kSmallest && length % largest == 0);
  const uint32_t step = 1u << (orders_ - 1);
  for (uint32_t page = static_cast<uint32_t>(pages_.size()); page >= step;) {
    page -= step;
    push(page, orders_ - 1);
  }
}

uint8_t* BufferPool::allocate(size_t bytes) {
  assert(bytes > 0 && bytes <= largest());
  const size_t smallest_blocks = (bytes + kSmallest - 1) / kSmallest;
  const unsigned wanted = static_cast<unsigned>(std::bit_width(smallest_blocks - 1));
  unsigned order = wanted;
  while (order < orders_ && heads_[order] == kNone) order++;
  if (order >= orders_) return nullptr;
  const uint32_t page = heads_[order];
  unlink(page);
  while (order > wanted) {
    order--;
    push(page + (1u << order), order);
  }
  pages_[page].order = static_cast<uint8_t>(wanted);
  pages_[page].live = true;
  used_ += kSmallest << wanted;
  live_++;
  return base_ + size_t{page} * kSmallest;
}

void BufferPool::release(uint8_t* buffer) {
  uint32_t page = static_cast<uint32_t>(static_cast<size_t>(buffer - base_) / kSmallest);
  assert(pages_[page].live);
  pages_[page].live = false;
  unsigned order = pages_[page].order;
  used_ -= kSmallest << order;
  live_--;
  while (order + 1 < orders_) {
    const uint32_t buddy = page ^ (1u << order);
    if (!pages_[buddy].free || pages_[buddy].order != order) break;
    unlink(buddy);
    page &= ~(1u << order);
    order++;
  }
  push(page, order);
}

void BufferPool::push(uint32_t page, unsigned order) {
  Page& entry = pages_[page];
  entry.order = static_cast<uint8_t>(order);
  entry.free = true;
  entry.previous = kNone;
  entry.next = heads_[order];
  if (entry.next != kNone) pages_[entry.next].previous = page;
  heads_[order] = page;
}

void BufferPool::unlink(uint32_t page) {
  Page& entry = pages_[page];
  entry.free = false;
  if (entry.previous == kNone)
    heads_[entry.order] = entry.next;
  else
    pages_[entry.previous].next = entry.next;
  if (entry.next != kNone) pages_[entry.next].previous = entry.previous;
}

}  // namespace nvmeof::nvmf
