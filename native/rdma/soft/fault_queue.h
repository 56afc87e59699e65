// Packets that wait, bounded, by the time when they are due; among equal times, in the order in
// which they came. All memory is there from the beginning.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "rdma/soft/link.h"

namespace nvmeof::rdma::soft {

struct HeldPacket {
  TimeNs due = 0;
  uint64_t order = 0;
  uint32_t length = 0;
  uint8_t* bytes = nullptr;
  // Of one that leaves: its train's flow (the addresses are used, and they outlive the queue
  // pair's)
  Flow flow{};
  // Of one that came.
  sockaddr_storage source{};
  int32_t ip_id = -1;
  uint16_t expected_id = 0;
  uint8_t traffic_class = 0;
  SeenHeader seen{};
};

class FaultQueue {
 public:
  FaultQueue(uint32_t packets, uint32_t packet_bytes)
      : packet_bytes_(packet_bytes),
        packets_(packets),
        bytes_(new uint8_t[size_t{packets} * packet_bytes]) {
    free_.reserve(packets);
    heap_.reserve(packets);
    for (uint32_t i = packets; i-- > 0;) {
      packets_[i].bytes = bytes_.get() + size_t{i} * packet_bytes;
      free_.push_back(&packets_[i]);
    }
  }

  // Room for a packet, nullptr where there is none; push() puts it into the queue.
  HeldPacket* take(uint32_t length) {
    if (free_.empty() || length > packet_bytes_) return nullptr;
    HeldPacket* const packet = free_.back();
    free_.pop_back();
    packet->length = length;
    return packet;
  }
  void push(HeldPacket* packet, TimeNs due) {
    packet->due = due;
    packet->order = next_order_++;
    heap_.push_back(packet);
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  // The next one that is due by `until`, else nullptr; give() it back.
  HeldPacket* pop(TimeNs until) {
    if (heap_.empty() || heap_.front()->due > until) return nullptr;
    std::pop_heap(heap_.begin(), heap_.end(), later);
    HeldPacket* const packet = heap_.back();
    heap_.pop_back();
    return packet;
  }
  void give(HeldPacket* packet) { free_.push_back(packet); }

  TimeNs next_due() const { return heap_.empty() ? reactor::kNever : heap_.front()->due; }
  size_t size() const { return heap_.size(); }

 private:
  static bool later(const HeldPacket* a, const HeldPacket* b) {
    return a->due != b->due ? a->due > b->due : a->order > b->order;
  }

  uint32_t packet_bytes_;
  std::vector<HeldPacket> packets_;
  std::unique_ptr<uint8_t[]> bytes_;
  std::vector<HeldPacket*> free_, heap_;
  uint64_t next_order_ = 0;
};

}  // namespace nvmeof::rdma::soft
