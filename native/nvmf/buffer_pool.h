// Data buffers of one reactor: a buddy allocator over a registered range. Every buffer is
// contiguous, so a transfer is one SGE. The book-keeping stands beside the range, so that a free
// buffer's memory is not touched. Allocates only at creation. Reactor's thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace nvmeof::nvmf {

class BufferPool {
 public:
  static constexpr size_t kSmallest = 4096;

  // `length`: a multiple of `largest`; `largest`: a power of two, at least kSmallest.
  BufferPool(uint8_t* base, size_t length, size_t largest);

  // At least `bytes` bytes, aligned to their size rounded up to a power of two; nullptr when there
  // is none now. `bytes` is 1..largest().
  uint8_t* allocate(size_t bytes);
  void release(uint8_t* buffer);

  size_t largest() const { return kSmallest << (orders_ - 1); }
  size_t used() const { return used_; }  // bytes
  uint32_t live() const { return live_; }

 private:
  static constexpr uint32_t kNone = ~0u;
  struct Page {  // of the smallest size; meaningful on a block's first page
    uint32_t previous = kNone, next = kNone;
    uint8_t order = 0;
    bool free = false, live = false;
  };
  void push(uint32_t page, unsigned order);
  void unlink(uint32_t page);

  uint8_t* base_;
  unsigned orders_;
  std::vector<Page> pages_;
  std::vector<uint32_t> heads_;  // free blocks by order
  size_t used_ = 0;
  uint32_t live_ = 0;
};

}  // namespace nvmeof::nvmf
