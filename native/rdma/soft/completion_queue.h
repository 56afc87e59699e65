// A completion queue: a ring of work completions, filled by the queue pairs and emptied by poll(),
// all on one reactor's thread. A completion that finds it full is lost for good: that is an error
// of whoever sized it, and every queue pair that meets it goes to ERR.
#pragma once
#include <bit>
#include <memory>

#include "rdma/provider.h"

namespace nvmeof::rdma::soft {

class CompletionQueue final : public rdma::CompletionQueue {
 public:
  explicit CompletionQueue(uint32_t depth)
      : depth_(depth),
        mask_(std::bit_ceil(depth < 1 ? 1 : depth) - 1),
        ring_(std::make_unique_for_overwrite<WorkCompletion[]>(size_t{mask_} + 1)) {}

  int poll(std::span<WorkCompletion> out) override {
    size_t n = 0;
    while (n < out.size() && head_ != tail_) out[n++] = ring_[head_++ & mask_];
    // An empty ring begins at its front again: of a large one only what is in use is ever touched.
    if (head_ == tail_) head_ = tail_ = 0;
    return static_cast<int>(n);
  }
  // Completions are made on the thread that polls, from packets and timers that themselves end its
  // sleep: there is nothing to arm, only something to look at.
  bool arm() override { return head_ == tail_; }

  uint32_t depth() const { return depth_; }
  uint32_t waiting() const { return tail_ - head_; }
  bool overflowed() const { return overflowed_; }

  // False when it is full; from then on it stays in error.
  bool push(const WorkCompletion& completion) {
    if (overflowed_ || tail_ - head_ >= depth_) {
      overflowed_ = true;
      return false;
    }
    ring_[tail_++ & mask_] = completion;
    return true;
  }

 private:
  uint32_t depth_, mask_;
  uint32_t head_ = 0, tail_ = 0;
  bool overflowed_ = false;
  std::unique_ptr<WorkCompletion[]> ring_;
};

}  // namespace nvmeof::rdma::soft
