// Collects outgoing packets into trains (GSO): packets to one flow, back to back and of equal size,
// that leave in one system call. One per reactor, on its thread; no allocation after construction.
//
//   TxSlot slot = batch.reserve(flow, packet_bytes(row, length));
//   write headers, payload and pad to slot.bytes;
//   batch.commit(slot);          // appends the ICRC
//   ... batch.flush();           // at the end of the loop iteration
//
// Packets to one Flow object leave in the order of their reserve() calls; packets to different
// flows may overtake each other. A Flow must live until the next flush().
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "rdma/soft/link.h"

namespace nvmeof::rdma::soft {

struct TxSlot {
  uint8_t* bytes = nullptr;  // where the packet is written: BTH .. ICRC
  uint32_t length = 0;       // including the ICRC
  uint16_t ip_id = 0;        // position in its train
  const Flow* flow = nullptr;
};

enum class TxShape : uint8_t {
  Train,  // join the flow's open train, or begin one
  Alike,  // join it when its packets are of the same size, else begin one
  Plain,  // a datagram of its own
};

struct TxCounters {
  uint64_t packets = 0, trains = 0, bytes = 0;
  uint64_t early_flushes = 0;  // the staging area was full before flush() was called
};

class TxBatch {
 public:
  explicit TxBatch(Link& link);
  ~TxBatch();
  TxBatch(const TxBatch&) = delete;
  TxBatch& operator=(const TxBatch&) = delete;

  // One slot at a time: commit before the next reserve. `udp_payload_bytes` at most 65507.
  TxSlot reserve(const Flow& flow, uint32_t udp_payload_bytes, TxShape shape = TxShape::Train);
  void commit(const TxSlot& slot);
  // Everything committed leaves, trains in the order in which they were begun.
  void flush();
  bool empty() const { return trains_.empty(); }
  const TxCounters& counters() const { return counters_; }
  // Between flushes.
  void set_link(Link& link) { link_ = &link; }

 private:
  // One flow with a train that may still grow.
  struct Lane {
    const Flow* flow = nullptr;
    int32_t train = -1;       // index in trains_, -1: none open
    uint8_t* next = nullptr;  // free part of its chunk of the staging area
    uint8_t* end = nullptr;
    uint64_t used = 0;  // for picking the lane that rested longest
  };
  Lane& lane_of(const Flow& flow);
  bool give_chunk(Lane& lane);
  TxSlot begin_train(Lane* lane, const Flow& flow, uint32_t udp_payload_bytes, TxShape shape);

  static constexpr unsigned kLanes = 8, kChunks = 32, kTrainsMax = 1024;
  static constexpr uint32_t kChunkBytes = 128 << 10;

  Link* link_;
  uint8_t* staging_;  // kChunks * kChunkBytes
  unsigned chunks_used_ = 0;
  Lane lanes_[kLanes];
  uint64_t clock_ = 0;
  std::vector<Train> trains_;  // capacity kTrainsMax, in order of their first packet
  bool reserved_ = false;
  TxCounters counters_;
};

}  // namespace nvmeof::rdma::soft
