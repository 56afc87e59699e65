// Packets out: builds the packets of posted sends in PSN order, also those that leave again after a
// go-back. Reactor's thread.
#include "rdma/soft/requester.h"

#include <algorithm>

#include "rdma/soft/copy.h"
#include "rdma/soft/transport.h"

namespace nvmeof::rdma::soft {

namespace {

bool is_local(Opcode opcode) {
  return opcode == Opcode::BindMemoryWindow || opcode == Opcode::LocalInvalidate;
}

// Opcode of a packet by work request and place in the message.
struct PacketNames {
  PacketOpcode first, middle, last, only;
};
constexpr PacketNames kPacketNames[] = {
    // Send, SendWithImm, SendWithInvalidate, RdmaWrite, RdmaWriteWithImm
    {PacketOpcode::SendFirst, PacketOpcode::SendMiddle, PacketOpcode::SendLast,
     PacketOpcode::SendOnly},
    {PacketOpcode::SendFirst, PacketOpcode::SendMiddle, PacketOpcode::SendLastImm,
     PacketOpcode::SendOnlyImm},
    {PacketOpcode::SendFirst, PacketOpcode::SendMiddle, PacketOpcode::SendLastInvalidate,
     PacketOpcode::SendOnlyInvalidate},
    {PacketOpcode::WriteFirst, PacketOpcode::WriteMiddle, PacketOpcode::WriteLast,
     PacketOpcode::WriteOnly},
    {PacketOpcode::WriteFirst, PacketOpcode::WriteMiddle, PacketOpcode::WriteLastImm,
     PacketOpcode::WriteOnlyImm},
};

// The top three bits of a packet's opcode.
constexpr uint8_t kServiceBits[] = {0x00, 0x20, 0x60};

}  // namespace

// An RDMA WRITE of many packets leaves as many WRITEs of one packet: the peer places the same
// bytes, and packets of one size fill whole trains, across commands as well. (Of a longer message
// only the first packet has a RETH.) With an immediate the peer is told the length of the whole; on
// UC a message arrives whole or not at all: those stay one.
bool Requester::one_by_one(Opcode opcode) const {
  return qp_.reliable() && opcode == Opcode::RdmaWrite;
}

const OpcodeRow& Requester::packet_row(Opcode opcode, bool first, bool last) const {
  const PacketNames& names = kPacketNames[static_cast<unsigned>(opcode)];
  const PacketOpcode name =
      first ? (last ? names.only : names.first) : (last ? names.last : names.middle);
  return kOpcodeTable[static_cast<uint8_t>(name) | kServiceBits[static_cast<unsigned>(qp_.type())]];
}

Requester::Requester(QueuePair& qp, const QueuePairOptions& options)
    : qp_(qp),
      queue_(options.max_send_wr, std::max(options.max_send_sge, 1u),
             qp.transport().config().max_inline) {}

void Requester::set_attributes(const QpAttributes& attributes) {
  const TransportConfig& config = qp_.transport().config();
  if ((attributes.mask & kSendPsn) != 0) {
    una_ = nxt_ = high_ = first_sequence(attributes.send_psn);
    asked_ack_ = una_ - 1;
    window_ = std::max(config.send_window_bytes / qp_.mtu(), 2u);
    slow_start_ = true;
  }
  if ((attributes.mask & kMaxReads) != 0)
    max_reads_ = std::min(attributes.max_reads, config.max_reads);
  if ((attributes.mask & kTimeout) != 0)
    timeout_ = attributes.timeout == 0 ? 0 : TimeNs{4096} << attributes.timeout;
  if ((attributes.mask & kRetryCount) != 0) retry_count_ = retries_left_ = attributes.retry_count;
  if ((attributes.mask & kRnrRetry) != 0) rnr_retry_ = rnr_left_ = attributes.rnr_retry;
}

void Requester::reset() {
  release_reads();
  queue_.clear();
  una_ = nxt_ = high_ = asked_ack_ = recovery_of_ = recovery_end_ = implied_of_ = 0;
  ack_deadline_ = rnr_until_ = reactor::kNever;
  window_credit_ = 0;
  backoff_ = 0;
}

// ---- Sending

uint32_t Requester::run(TxBatch& batch, uint32_t budget, TimeNs now) {
  uint32_t packets = 0;
  while (packets < budget) {
    const Step done = step(batch, now);
    if (done == Step::Blocked) break;
    if (done == Step::Sent) packets++;
  }
  return packets;
}

Requester::Step Requester::step(TxBatch& batch, TimeNs now) {
  if (queue_.cursor == queue_.tail || rnr_until_ != reactor::kNever) return Step::Blocked;
  SendEntry& entry = queue_.at(queue_.cursor);
  const State state = qp_.state();
  // A queue that is being drained finishes what it has begun.
  if (state != State::Rts && !(state == State::Sqd && entry.started)) return Step::Blocked;
  if (entry.error != Status::Success) return Step::Blocked;
  if (!entry.started) {
    if (!may_start(entry)) return Step::Blocked;
    entry.first = nxt_;
    entry.last = is_local(entry.opcode) ? nxt_ - 1 : nxt_ + packets_of(entry.length, qp_.mtu()) - 1;
    entry.started = true;
  }
  if (is_local(entry.opcode)) return step_local(entry);
  if (nxt_ - una_ >= kPsnWindow) return Step::Blocked;
  if (entry.opcode == Opcode::RdmaRead) return step_read(entry, batch, now);
  if (is_atomic(entry.opcode)) return step_atomic(entry, batch, now);
  if (qp_.type() == QpType::Ud) return step_datagram(entry, batch, now);
  return step_message(entry, batch, now);
}

bool Requester::may_start(const SendEntry& entry) const {
  if ((entry.flags & kFence) != 0 && reads_ != 0) return false;
  // The peer may still use the key for what was posted before.
  if (entry.opcode == Opcode::LocalInvalidate) return queue_.head == queue_.cursor;
  return true;
}

Requester::Step Requester::step_local(SendEntry& entry) {
  if (!entry.executed) {
    KeyTable& keys = qp_.transport().keys();
    if (entry.opcode == Opcode::LocalInvalidate) {
      if (keys.invalidate_own(entry.imm_or_rkey, qp_.domain(), qp_.number()) != KeyFault::None)
        return fail_entry(entry, Status::LocalQpOperationError);
    } else if (keys.bind(static_cast<SoftMemoryWindow&>(*entry.bind.window),
                         static_cast<SoftMemoryRegion&>(*entry.bind.region), qp_.domain(),
                         qp_.number(), entry.remote_address, entry.length, entry.rkey,
                         entry.access) != KeyFault::None) {
      return fail_entry(entry, Status::MemoryWindowBindError);
    }
    entry.executed = true;
  }
  queue_.cursor++;
  complete_ready();
  return Step::Advanced;
}

// Reported when everything before it is complete: completions come in order.
Requester::Step Requester::fail_entry(SendEntry& entry, Status status) {
  entry.error = status;
  complete_ready();
  return Step::Blocked;
}

// Whether this packet asks for an acknowledgement. The last of a message does, unless nobody waits
// for its completion and another packet follows at once.
bool Requester::wants_ack(const SendEntry& entry, bool last) const {
  if (!qp_.reliable()) return false;
  const TransportConfig& config = qp_.transport().config();
  if (nxt_ - asked_ack_ >= config.ack_request_packets) return true;
  if (packets_in_flight() + 1 >= window_) return true;
  if (!last) return false;
  if ((entry.flags & kSignaled) != 0 || entry.internal) return true;
  if (queue_.cursor + 1 == queue_.tail) return true;
  const SendEntry& following = queue_.at(queue_.cursor + 1);
  return is_local(following.opcode) || is_answered(following.opcode) ||
         (following.flags & kFence) != 0;
}

Requester::Step Requester::step_message(SendEntry& entry, TxBatch& batch, TimeNs now) {
  if (packets_in_flight() >= window_) return Step::Blocked;
  const uint32_t mtu = qp_.mtu();
  const bool first = nxt_ == entry.first, last = nxt_ == entry.last;
  const uint64_t offset = (nxt_ - entry.first) * mtu;
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(mtu, entry.length - offset));
  const bool alone = one_by_one(entry.opcode);
  const OpcodeRow& row = packet_row(entry.opcode, first || alone, last || alone);
  if (!sources_allowed(queue_.cursor, offset, bytes, 0))
    return fail_entry(entry, Status::LocalProtectionError);

  const bool ask = wants_ack(entry, last);
  const bool solicited =
      last && (entry.flags & kSolicited) != 0 && entry.opcode != Opcode::RdmaWrite;
  // A short packet ends the train it joins: with others behind it, it begins one for them.
  const bool followed = queue_.cursor + 1 != queue_.tail;
  const TxSlot slot = batch.reserve(*qp_.flow(), packet_bytes(row, bytes),
                                    last && followed ? TxShape::Alike : TxShape::Train);
  uint8_t* const p = slot.bytes;
  const auto pad = static_cast<uint8_t>(pad_bytes(bytes));
  write_bth(p, row, {qp_.destination_qpn(), wire_psn(nxt_), pad, solicited, ask});
  if (row.reth != 0)
    write_reth(p + row.reth, entry.remote_address + (alone ? offset : 0), entry.rkey,
               alone ? bytes : static_cast<uint32_t>(entry.length));
  if (row.immdt != 0) write_immdt(p + row.immdt, entry.imm_or_rkey);
  if (row.ieth != 0) write_ieth(p + row.ieth, entry.imm_or_rkey);
  gather(queue_.cursor, offset, bytes, p + row.header_bytes);
  std::memset(p + row.header_bytes + bytes, 0, pad);
  batch.commit(slot);

  if (ask) asked_ack_ = nxt_;
  if (last) queue_.cursor++;
  sent(nxt_ + 1, now);
  return Step::Sent;
}

// The first and the last packet of an answer carry an AETH, so that those between them are shorter
// and cannot share a train. Where the peer serves enough READs at a time to keep the way full, an
// answer has only a first and a last.
uint32_t Requester::chunk_packets() const {
  constexpr uint32_t kPair = 2, kWayBytes = 256 << 10;
  if (max_reads_ * kPair * qp_.mtu() >= kWayBytes) return kPair;
  return qp_.transport().read_chunk(qp_.mtu()) / qp_.mtu();
}

uint64_t Requester::chunk_end(const SendEntry& entry, uint64_t sequence) const {
  const uint64_t packets = chunk_packets();
  const uint64_t end = entry.first + ((sequence - entry.first) / packets + 1) * packets;
  return std::min(end, entry.last + 1);
}

// As many READs and atomics as the peer serves are outstanding.
Requester::Step Requester::no_answers_left(SendEntry& entry) {
  if (max_reads_ != 0) return Step::Blocked;
  return fail_entry(entry, Status::LocalQpOperationError);  // none were negotiated
}

Requester::Step Requester::step_read(SendEntry& entry, TxBatch& batch, TimeNs now) {
  if (reads_ >= max_reads_) return no_answers_left(entry);
  if (nxt_ == entry.first &&
      !sources_allowed(queue_.cursor, 0, static_cast<uint32_t>(entry.length), kLocalWrite))
    return fail_entry(entry, Status::LocalProtectionError);
  const uint32_t mtu = qp_.mtu();
  const uint64_t end = chunk_end(entry, nxt_);
  const uint64_t offset = (nxt_ - entry.first) * mtu;
  const auto bytes =
      static_cast<uint32_t>(std::min(entry.length, (end - entry.first) * mtu) - offset);
  if (!qp_.transport().take_read_window(qp_, bytes)) return Step::Blocked;

  const OpcodeRow& row = row_of(PacketOpcode::ReadRequest);
  const TxSlot slot = batch.reserve(*qp_.flow(), packet_bytes(row, 0));
  write_bth(slot.bytes, row, {qp_.destination_qpn(), wire_psn(nxt_), 0, false, true});
  write_reth(slot.bytes + row.reth, entry.remote_address + offset, entry.rkey, bytes);
  batch.commit(slot);

  reads_++;
  read_bytes_ += bytes;
  read_packets_ += end - nxt_;
  asked_ack_ = end - 1;
  if (end > entry.last) queue_.cursor++;
  sent(end, now);
  return Step::Sent;
}

Requester::Step Requester::step_atomic(SendEntry& entry, TxBatch& batch, TimeNs now) {
  if (reads_ >= max_reads_) return no_answers_left(entry);
  if (!sources_allowed(queue_.cursor, 0, kAtomicBytes, kLocalWrite))
    return fail_entry(entry, Status::LocalProtectionError);
  const bool adds = entry.opcode == Opcode::AtomicFetchAdd;
  const OpcodeRow& row = row_of(adds ? PacketOpcode::FetchAdd : PacketOpcode::CompareSwap);
  const TxSlot slot = batch.reserve(*qp_.flow(), packet_bytes(row, 0));
  write_bth(slot.bytes, row, {qp_.destination_qpn(), wire_psn(nxt_), 0, false, true});
  const AtomicWork& work = entry.atomic;
  write_atomic_eth(slot.bytes + row.atomic_eth, entry.remote_address, entry.rkey,
                   adds ? work.compare_add : work.swap, adds ? 0 : work.compare_add);
  batch.commit(slot);

  reads_++;
  read_packets_++;
  asked_ack_ = nxt_;
  queue_.cursor++;
  sent(nxt_ + 1, now);
  return Step::Sent;
}

// A Q_Key with its top bit set stands for the queue pair's own (IBTA 10.2.5).
Requester::Step Requester::step_datagram(SendEntry& entry, TxBatch& batch, TimeNs now) {
  const auto bytes = static_cast<uint32_t>(entry.length);
  if (!sources_allowed(queue_.cursor, 0, bytes, 0))
    return fail_entry(entry, Status::LocalProtectionError);
  const OpcodeRow& row = packet_row(entry.opcode, true, true);
  const DatagramWork& to = entry.datagram;
  const Flow& flow = *static_cast<const AddressHandle*>(to.address)->flow();
  const TxSlot slot = batch.reserve(flow, packet_bytes(row, bytes));
  uint8_t* const p = slot.bytes;
  const auto pad = static_cast<uint8_t>(pad_bytes(bytes));
  const bool solicited = (entry.flags & kSolicited) != 0;
  write_bth(p, row, {to.remote_qpn, wire_psn(nxt_), pad, solicited, false});
  write_deth(p + row.deth, to.remote_qkey >> 31 != 0 ? qp_.qkey() : to.remote_qkey, qp_.number());
  if (row.immdt != 0) write_immdt(p + row.immdt, entry.imm_or_rkey);
  gather(queue_.cursor, 0, bytes, p + row.header_bytes);
  std::memset(p + row.header_bytes + bytes, 0, pad);
  batch.commit(slot);

  queue_.cursor++;
  sent(nxt_ + 1, now);
  return Step::Sent;
}

void Requester::sent(uint64_t next, TimeNs now) {
  TransportCounters& count = qp_.transport().count();
  if (nxt_ < high_) count.retransmitted_packets++;
  nxt_ = next;
  if (nxt_ > high_) high_ = nxt_;
  if (!qp_.reliable()) {  // nobody will answer
    una_ = nxt_;
    complete_ready();
  } else if (ack_deadline_ == reactor::kNever) {
    restart_ack_timer(now);
  }
}

// ---- Data

namespace {

// Calls piece(sge, offset in it, bytes, offset in the range) for message bytes [offset, offset +
// bytes) until it returns false.
template <typename Piece>
bool for_pieces(const Sge* sges, unsigned count, uint64_t offset, uint32_t bytes, Piece piece) {
  uint32_t done = 0;
  for (unsigned i = 0; i < count && done < bytes; i++) {
    if (offset >= sges[i].length) {
      offset -= sges[i].length;
      continue;
    }
    const uint32_t n = std::min(bytes - done, sges[i].length - static_cast<uint32_t>(offset));
    if (!piece(sges[i], static_cast<uint32_t>(offset), n, done)) return false;
    done += n;
    offset = 0;
  }
  return done == bytes;
}

}  // namespace

bool Requester::sources_allowed(uint32_t index, uint64_t offset, uint32_t bytes,
                                uint8_t access) const {
  const SendEntry& entry = queue_.at(index);
  if (bytes == 0 || (entry.flags & kInline) != 0) return true;
  return for_pieces(queue_.sges(index), entry.num_sge, offset, bytes,
                    [&](const Sge& sge, uint32_t at, uint32_t n, uint32_t) {
                      return static_cast<bool>(qp_.transport().keys().resolve_local(
                          sge.lkey, qp_.domain(), sge.address + at, n, access));
                    });
}

void Requester::gather(uint32_t index, uint64_t offset, uint32_t bytes, uint8_t* to) const {
  const SendEntry& entry = queue_.at(index);
  if ((entry.flags & kInline) != 0) {
    std::memcpy(to, queue_.inline_data(index) + offset, bytes);
    return;
  }
  for_pieces(queue_.sges(index), entry.num_sge, offset, bytes,
             [&](const Sge& sge, uint32_t at, uint32_t n, uint32_t done) {
               copy_payload(to + done, reinterpret_cast<const uint8_t*>(sge.address) + at, n);
               return true;
             });
}

bool Requester::scatter(uint32_t index, uint64_t offset, const uint8_t* from,
                        uint32_t bytes) const {
  if (bytes == 0) return true;
  const KeyTable& keys = qp_.transport().keys();
  return for_pieces(queue_.sges(index), queue_.at(index).num_sge, offset, bytes,
                    [&](const Sge& sge, uint32_t at, uint32_t n, uint32_t done) {
                      const Resolved to = keys.resolve_local(sge.lkey, qp_.domain(),
                                                             sge.address + at, n, kLocalWrite);
                      if (!to) return false;
                      copy_payload(to.pointer, from + done, n);
                      return true;
                    });
}

}  // namespace nvmeof::rdma::soft
