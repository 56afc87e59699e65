// RDMA READ and atomics at the responder: accepting requests, answering READs packet by packet out
// of memory, answering repeated requests again, and the acknowledgement behind. Reactor's thread.
#include <algorithm>
#include <atomic>

#include "rdma/soft/copy.h"
#include "rdma/soft/responder.h"
#include "rdma/soft/transport.h"

namespace nvmeof::rdma::soft {

void Responder::on_read(const Packet& packet) {
  const auto& reth = packet.reth;
  if ((qp_.access() & kRemoteRead) == 0 || max_reads_ == 0)
    return fail(NakCode::InvalidRequest, "the peer may not read", Status::FlushError);
  const uint32_t packets = packets_of(reth.length, qp_.mtu());
  if (reth.length > kMessageBytesMax || packets > kPsnWindow)
    return fail(NakCode::InvalidRequest, "the peer sent an RDMA READ of a wrong length",
                Status::FlushError);
  Read* const read = next_place();
  if (read == nullptr) return;
  if (!qp_.transport().keys().resolve_remote(reth.rkey, qp_.domain(), qp_.number(), reth.address,
                                             reth.length, kRemoteRead))
    return fail(NakCode::RemoteAccessError, "the peer read outside of what it may",
                Status::FlushError);
  take_place(*read, packets);
  read->address = reth.address;
  read->length = reth.length;
  read->rkey = reth.rkey;
  answer(*read, read->first, reth.address, reth.length, false);
}

void Responder::on_atomic(const Packet& packet) {
  const auto& wanted = packet.atomic;
  if ((qp_.access() & kRemoteAtomic) == 0 || max_reads_ == 0)
    return fail(NakCode::InvalidRequest, "the peer may not use atomics", Status::FlushError);
  if (wanted.address % kAtomicBytes != 0)
    return fail(NakCode::InvalidRequest, "the peer sent an atomic to an address not aligned",
                Status::FlushError);
  Read* const read = next_place();
  if (read == nullptr) return;
  const Resolved to = qp_.transport().keys().resolve_remote(
      wanted.rkey, qp_.domain(), qp_.number(), wanted.address, kAtomicBytes, kRemoteAtomic);
  if (!to)
    return fail(NakCode::RemoteAccessError, "the peer sent an atomic outside of what it may",
                Status::FlushError);
  take_place(*read, 1);
  // Atomic to other reactors and to the application's own atomic operations.
  const std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(to.pointer));
  if (packet.row->has(kCompares)) {
    read->original = wanted.compare;
    word.compare_exchange_strong(read->original, wanted.swap_or_add);
  } else {
    read->original = word.fetch_add(wanted.swap_or_add);
  }
  read->atomic = true;
  qp_.transport().count().atomics++;
  answer(*read, read->first, 0, 0, false);
}

// The place of the next READ or atomic; nullptr: the peer has more outstanding than agreed.
Responder::Read* Responder::next_place() {
  Read& read = reads_[reads_accepted_ % max_reads_];
  if (!read.answering || read.repeated) return &read;
  fail(NakCode::InvalidRequest, "the peer has more RDMA READs and atomics outstanding than agreed",
       Status::FlushError);
  return nullptr;
}

// A repetition still to be answered was an old duplicate: the peer has that request complete, or it
// could not send this one.
void Responder::take_place(Read& read, uint32_t packets) {
  if (read.answering) active_reads_--;
  reads_accepted_++;
  msn_ = (msn_ + 1) & kMask24;
  read = Read{};
  read.first = expected_;
  read.last = expected_ + packets - 1;
  read.msn = msn_;
  read.valid = true;
  expected_ += packets;
  quiet_ = false;
  reply_ = Reply::None;  // the answer acknowledges everything before it
}

// Asked again, for all of it or for a rest. It must be the rest that belongs to this PSN, so that
// nothing outside the original range is read. Anything else is dropped: it may be an old duplicate.
void Responder::on_repeated_read(const Packet& packet, uint64_t sequence) {
  TransportCounters& count = qp_.transport().count();
  for (Read& read : reads_) {
    if (!read.valid || read.atomic || sequence < read.first || sequence > read.last) continue;
    const uint64_t offset = (sequence - read.first) * qp_.mtu();
    const uint64_t rest = read.length - offset;
    if (packet.reth.rkey != read.rkey || packet.reth.address != read.address + offset ||
        packet.reth.length > rest || (packet.reth.length == 0 && read.length != 0))
      break;
    count.read_replays++;
    answer(read, sequence, packet.reth.address, packet.reth.length, true);
    return;
  }
  count.duplicates_dropped++;
}

// The result that was kept leaves again. One that is kept no longer is complete at the peer.
void Responder::on_repeated_atomic(uint64_t sequence) {
  TransportCounters& count = qp_.transport().count();
  for (Read& read : reads_) {
    if (!read.valid || !read.atomic || sequence != read.first) continue;
    count.atomic_replays++;
    answer(read, sequence, 0, 0, true);
    return;
  }
  count.duplicates_dropped++;
}

void Responder::answer(Read& read, uint64_t first, uint64_t address, uint32_t length,
                       bool repeated) {
  read.answer_first = read.next = first;
  read.answer_end = first + packets_of(length, qp_.mtu());
  read.answer_address = address;
  read.answer_length = length;
  // A first answer that is interrupted by its own repetition still fails loudly.
  read.repeated = repeated && !(read.answering && !read.repeated);
  if (!read.answering) active_reads_++;
  read.answering = true;
  qp_.transport().schedule(qp_);
}

uint32_t Responder::run(TxBatch& batch, uint32_t budget) {
  uint32_t packets = 0;
  if (active_reads_ == 0) return 0;
  // Oldest first: answers leave in PSN order.
  const uint64_t known = std::min<uint64_t>(reads_accepted_, max_reads_);
  for (uint64_t n = reads_accepted_ - known; n != reads_accepted_ && active_reads_ != 0; n++) {
    Read& read = reads_[n % max_reads_];
    while (read.answering) {
      if (packets == budget) return packets;
      if (!emit_response(read, batch)) break;
      packets++;
    }
  }
  return packets;
}

void Responder::emit_atomic(Read& read, TxBatch& batch) {
  const OpcodeRow& row = row_of(PacketOpcode::AtomicAcknowledge);
  const TxSlot slot = batch.reserve(*qp_.flow(), packet_bytes(row, 0));
  write_bth(slot.bytes, row, {qp_.destination_qpn(), wire_psn(read.first), 0, false, false});
  write_aeth(slot.bytes + row.aeth, kSyndromeAck, read.msn);
  put64(slot.bytes + row.atomic_ack_eth, read.original);
  batch.commit(slot);
  read.next++;
  read.answering = false;
  active_reads_--;
}

bool Responder::emit_response(Read& read, TxBatch& batch) {
  if (read.atomic) {
    emit_atomic(read, batch);
    return true;
  }
  const uint32_t mtu = qp_.mtu();
  const uint64_t offset = (read.next - read.answer_first) * mtu;
  const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(mtu, read.answer_length - offset));
  const Resolved from = qp_.transport().keys().resolve_remote(
      read.rkey, qp_.domain(), qp_.number(), read.answer_address + offset, bytes, kRemoteRead);
  const uint64_t sequence = read.next;
  const bool first = sequence == read.answer_first, last = sequence + 1 == read.answer_end;
  if (!from && !read.repeated) {
    fail(NakCode::RemoteAccessError, "the key of an RDMA READ ended under it", Status::FlushError);
    return false;
  }
  if (!from || last) {
    read.answering = false;
    active_reads_--;
  }
  if (!from) {  // a late duplicate of a READ whose key has done its work
    qp_.transport().count().duplicates_dropped++;
    return false;
  }

  const OpcodeRow& row =
      row_of(first ? (last ? PacketOpcode::ReadResponseOnly : PacketOpcode::ReadResponseFirst)
                   : (last ? PacketOpcode::ReadResponseLast : PacketOpcode::ReadResponseMiddle));
  const TxSlot slot = batch.reserve(*qp_.flow(), packet_bytes(row, bytes));
  const auto pad = static_cast<uint8_t>(pad_bytes(bytes));
  write_bth(slot.bytes, row, {qp_.destination_qpn(), wire_psn(sequence), pad, false, false});
  if (row.aeth != 0) write_aeth(slot.bytes + row.aeth, kSyndromeAck, read.msn);
  uint8_t* const payload = slot.bytes + row.header_bytes;
  if (bytes != 0) copy_payload(payload, from.pointer, bytes);
  std::memset(payload + bytes, 0, pad);
  batch.commit(slot);
  read.next++;
  return true;
}

void Responder::emit_reply(TxBatch& batch, TxShape shape) {
  TransportCounters& count = qp_.transport().count();
  // One acknowledgement for everything that has come in order.
  const uint64_t sequence = reply_ == Reply::Ack ? acknowledged_ : reply_sequence_;
  const AethType type = aeth_type(reply_syndrome_);
  (type == AethType::Ack      ? count.acks_sent
   : type == AethType::RnrNak ? count.rnr_sent
                              : count.naks_sent)++;
  if (type == AethType::Ack) qp_.count().acks_sent++;
  reply_ = Reply::None;
  const OpcodeRow& row = row_of(PacketOpcode::Acknowledge);
  const TxSlot slot = batch.reserve(*qp_.flow(), packet_bytes(row, 0), shape);
  write_bth(slot.bytes, row, {qp_.destination_qpn(), wire_psn(sequence), 0, false, false});
  write_aeth(slot.bytes + row.aeth, reply_syndrome_, msn_);
  batch.commit(slot);
}

}  // namespace nvmeof::rdma::soft
