// Trains of outgoing packets; see tx_batch.h.
//
// Each flow with an open train has a lane: a chunk of the staging area in which its trains lie back
// to back. Chunks are handed out from the front again after every flush, so that a quiet reactor
// works in a few hot cache lines.
#include "rdma/soft/tx_batch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>

#include "rdma/soft/icrc.h"
#include "rdma/soft/opcode.h"

namespace nvmeof::rdma::soft {
namespace {

constexpr size_t kHugePage = 2u << 20;
constexpr uintptr_t kTrainAlignment = 64;

uint8_t* align(uint8_t* p) {
  const uintptr_t value = reinterpret_cast<uintptr_t>(p);
  return p + ((kTrainAlignment - (value & (kTrainAlignment - 1))) & (kTrainAlignment - 1));
}

}  // namespace

TxBatch::TxBatch(Link& link)
    : link_(&link),
      staging_(static_cast<uint8_t*>(std::aligned_alloc(kHugePage, kChunks * kChunkBytes))) {
  static_assert(kChunks * kChunkBytes % kHugePage == 0);
  if (staging_ == nullptr) std::abort();  // 4 MiB at start-up: nothing works without
  madvise(staging_, kChunks * kChunkBytes, MADV_HUGEPAGE);
  trains_.reserve(kTrainsMax);
}

TxBatch::~TxBatch() {
  std::free(staging_);
}

TxBatch::Lane& TxBatch::lane_of(const Flow& flow) {
  Lane* oldest = &lanes_[0];
  for (Lane& lane : lanes_) {
    if (lane.flow == &flow) return lane;
    if (lane.used < oldest->used) oldest = &lane;
  }
  *oldest = Lane{};  // its train is closed by being forgotten
  oldest->flow = &flow;
  return *oldest;
}

bool TxBatch::give_chunk(Lane& lane) {
  if (chunks_used_ == kChunks) return false;
  lane.next = staging_ + static_cast<size_t>(chunks_used_++) * kChunkBytes;
  lane.end = lane.next + kChunkBytes;
  return true;
}

TxSlot TxBatch::reserve(const Flow& flow, uint32_t udp_payload_bytes, TxShape shape) {
  assert(!reserved_ && udp_payload_bytes > kIcrcBytes && udp_payload_bytes <= UINT16_MAX);
  reserved_ = true;
  Lane* lane = &lane_of(flow);
  lane->used = ++clock_;
  if (lane->train >= 0) {
    Train& open = trains_[static_cast<size_t>(lane->train)];
    const uint32_t total = open.total_bytes + udp_payload_bytes;
    const bool alike = udp_payload_bytes == open.segment_bytes;
    const bool ends = shape == TxShape::Train && udp_payload_bytes < open.segment_bytes;
    if (shape != TxShape::Plain && (alike || ends) && open.segments < link_->segments_max() &&
        total <= link_->train_bytes_max() &&
        udp_payload_bytes <= static_cast<size_t>(lane->end - lane->next)) {
      const TxSlot slot{lane->next, udp_payload_bytes, open.segments, &flow};
      lane->next += udp_payload_bytes;
      open.total_bytes = total;
      open.segments++;
      if (udp_payload_bytes < open.segment_bytes) lane->train = -1;  // only the last may be shorter
      return slot;
    }
  }
  return begin_train(lane, flow, udp_payload_bytes, shape);
}

TxSlot TxBatch::begin_train(Lane* lane, const Flow& flow, uint32_t udp_payload_bytes,
                            TxShape shape) {
  // A train of full size should fit behind its first packet, else it begins in a fresh chunk.
  const size_t wanted = shape == TxShape::Plain
                            ? udp_payload_bytes
                            : std::min<size_t>({link_->train_bytes_max(), kChunkBytes,
                                                size_t{udp_payload_bytes} * link_->segments_max()});
  if (lane->next != nullptr) lane->next = align(lane->next);
  const bool cramped = lane->next == nullptr || lane->next >= lane->end ||
                       static_cast<size_t>(lane->end - lane->next) < wanted;
  if (trains_.size() == kTrainsMax || (cramped && !give_chunk(*lane))) {
    counters_.early_flushes++;
    flush();
    lane = &lane_of(flow);
    lane->used = ++clock_;
    give_chunk(*lane);
  }
  const TxSlot slot{lane->next, udp_payload_bytes, 0, &flow};
  lane->next += udp_payload_bytes;
  lane->train = shape == TxShape::Plain ? -1 : static_cast<int32_t>(trains_.size());
  trains_.push_back(
      {&flow, slot.bytes, udp_payload_bytes, static_cast<uint16_t>(udp_payload_bytes), 1});
  return slot;
}

void TxBatch::commit(const TxSlot& slot) {
  assert(reserved_);
  reserved_ = false;
  icrc_append(*slot.flow, slot.bytes, slot.length, slot.ip_id);
  counters_.packets++;
  counters_.bytes += slot.length;
}

void TxBatch::flush() {
  if (!trains_.empty()) {
    counters_.trains += trains_.size();
    link_->send(trains_);
    trains_.clear();
  }
  for (Lane& lane : lanes_) lane = Lane{};
  chunks_used_ = 0;
  clock_ = 0;
}

}  // namespace nvmeof::rdma::soft
