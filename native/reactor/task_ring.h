// A bounded queue of tasks for one reactor: any thread pushes, the reactor's thread pops. Vyukov's
// array queue: each cell carries the sequence number at which it may be written or read next, so
// that producers meet only on the tail index and nobody ever waits. The stores that publish a task
// and the consumer's look at it are sequentially consistent, because the sleep protocol of
// reactor.cc pairs them with its sleeping flag.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "reactor/reactor.h"

namespace nvmeof::reactor {

class TaskRing {
 public:
  static constexpr size_t kCapacity = 4096;
  static_assert((kCapacity & (kCapacity - 1)) == 0, "the index is masked");

  TaskRing() : cells_(new Cell[kCapacity]) {
    for (size_t i = 0; i < kCapacity; i++) cells_[i].sequence.store(i, std::memory_order_relaxed);
  }

  // Any thread. False when full.
  bool push(const Task& task) {
    size_t position = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[position & kMask];
      const size_t sequence = cell.sequence.load(std::memory_order_acquire);
      const auto ahead = static_cast<std::ptrdiff_t>(sequence - position);
      if (ahead < 0) return false;  // the consumer has not freed this cell yet
      if (ahead > 0) {              // another producer was faster
        position = tail_.load(std::memory_order_relaxed);
        continue;
      }
      if (!tail_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) continue;
      cell.task = task;
      cell.sequence.store(position + 1, std::memory_order_seq_cst);
      return true;
    }
  }

  // The reactor's thread only.
  bool pop(Task* task) {
    Cell& cell = cells_[head_ & kMask];
    if (cell.sequence.load(std::memory_order_acquire) != head_ + 1) return false;
    *task = cell.task;
    cell.sequence.store(head_ + kCapacity, std::memory_order_release);
    head_++;
    return true;
  }
  bool empty() const {
    return cells_[head_ & kMask].sequence.load(std::memory_order_seq_cst) != head_ + 1;
  }

 private:
  static constexpr size_t kMask = kCapacity - 1;
  struct Cell {
    std::atomic<size_t> sequence;
    Task task;
  };
  std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<size_t> tail_{0};
  alignas(64) size_t head_ = 0;
};

}  // namespace nvmeof::reactor
