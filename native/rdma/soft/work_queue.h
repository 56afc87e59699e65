// The rings in which work requests wait: entries, scatter/gather lists and inline data are
// allocated once, when the queue is made. Owned by one queue pair (or shared receive queue), on its
// reactor's thread. Indices run up for ever and are masked on access.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rdma/provider.h"

namespace nvmeof::rdma::soft {

// The work requests that an answer of their own completes.
inline bool is_atomic(Opcode opcode) {
  return opcode == Opcode::AtomicFetchAdd || opcode == Opcode::AtomicCompareSwap;
}
inline bool is_answered(Opcode opcode) {
  return opcode == Opcode::RdmaRead || is_atomic(opcode);
}

inline constexpr uint32_t kAtomicBytes = 8;

// A posted send. `first` and `last` are the sequences of its packets (of a READ: of its responses),
// set when its turn comes; a local operation has none, and then last is first - 1.
struct SendEntry {
  uint64_t wr_id;
  uint64_t first;
  uint64_t last;
  uint64_t remote_address;  // bind: the window's address
  uint64_t length;          // of the message; bind: of the window
  union {
    struct {
      MemoryWindow* window;
      MemoryRegion* region;
    } bind;
    AtomicWork atomic;
    DatagramWork datagram;
    const reactor::Lease* lease;
  };
  uint32_t rkey;
  uint32_t imm_or_rkey;
  Opcode opcode;
  uint8_t flags;  // SendFlags
  uint8_t num_sge;
  uint8_t access;  // bind only
  bool started;    // its sequences are set
  bool executed;   // a local operation that was carried out: not again after a go-back
  bool internal;   // a probe: no completion
  Status error;    // why it cannot be sent; reported when everything before it is complete
};

class SendQueue {
 public:
  SendQueue(uint32_t depth, uint32_t max_sge, uint32_t max_inline)
      : depth_(depth),
        max_sge_(max_sge),
        max_inline_(max_inline),
        mask_(std::bit_ceil(depth + 1) - 1),  // one entry more: the probe never waits for room
        entries_(mask_ + 1),
        sges_(static_cast<size_t>(mask_ + 1) * max_sge),
        inline_(static_cast<size_t>(mask_ + 1) * max_inline) {}

  uint32_t head = 0;    // the oldest that is not complete
  uint32_t cursor = 0;  // the one whose packets leave now
  uint32_t tail = 0;    // where the next is posted

  uint32_t count() const { return tail - head; }
  // Of the user's requests: he does not know of the probe, which has an entry beyond `depth`.
  // Posted to an empty queue, it is the oldest while it is there.
  bool full() const {
    if (count() < depth_) return false;
    const bool probing = count() != 0 && entries_[head & mask_].internal;
    return count() >= depth_ + probing;
  }
  uint32_t max_sge() const { return max_sge_; }
  uint32_t max_inline() const { return max_inline_; }
  SendEntry& at(uint32_t index) { return entries_[index & mask_]; }
  Sge* sges(uint32_t index) { return &sges_[static_cast<size_t>(index & mask_) * max_sge_]; }
  uint8_t* inline_data(uint32_t index) {
    return inline_.data() + static_cast<size_t>(index & mask_) * max_inline_;
  }
  void clear() { head = cursor = tail = 0; }

 private:
  uint32_t depth_, max_sge_, max_inline_, mask_;
  std::vector<SendEntry> entries_;
  std::vector<Sge> sges_;
  std::vector<uint8_t> inline_;
};

// Which receive a message takes. Of a queue pair's own, the one that was posted first. Of shared
// ones, any: others take some as well, so nobody can count on an order; the one that was posted
// last is the one whose buffer is still in the cache.
enum class ReceiveOrder : uint8_t { First, Last };

class ReceiveRing {
 public:
  ReceiveRing(uint32_t depth, uint32_t max_sge, ReceiveOrder order = ReceiveOrder::First)
      : depth_(depth),
        max_sge_(max_sge),
        order_(order),
        mask_(std::bit_ceil(depth < 1 ? 1 : depth) - 1),
        entries_(mask_ + 1),
        sges_(static_cast<size_t>(mask_ + 1) * max_sge) {}

  uint32_t count() const { return tail_ - head_; }
  uint32_t room() const { return depth_ - count(); }
  uint32_t max_sge() const { return max_sge_; }

  // The caller has checked room() and num_sge.
  void push(const ReceiveWorkRequest& request) {
    Entry& entry = entries_[tail_ & mask_];
    entry = {request.wr_id, request.num_sge};
    if (request.num_sge != 0)
      std::memcpy(&sges_[static_cast<size_t>(tail_ & mask_) * max_sge_], request.sg_list,
                  request.num_sge * sizeof(Sge));
    tail_++;
  }
  // Copies one out: a slot may be posted again while its message still arrives.
  bool pop(uint64_t& wr_id, uint8_t& num_sge, Sge* sges) {
    if (head_ == tail_) return false;
    const uint32_t index = (order_ == ReceiveOrder::First ? head_++ : --tail_) & mask_;
    wr_id = entries_[index].wr_id;
    num_sge = entries_[index].num_sge;
    if (num_sge != 0)
      std::memcpy(sges, &sges_[static_cast<size_t>(index) * max_sge_], num_sge * sizeof(Sge));
    return true;
  }
  void clear() { head_ = tail_ = 0; }

 private:
  struct Entry {
    uint64_t wr_id;
    uint8_t num_sge;
  };
  uint32_t depth_, max_sge_;
  ReceiveOrder order_;
  uint32_t mask_;
  uint32_t head_ = 0, tail_ = 0;
  std::vector<Entry> entries_;
  std::vector<Sge> sges_;
};

}  // namespace nvmeof::rdma::soft
