// Requests in: checks, placing, completions of receives. PROTOCOL 3.2. Answers leave in
// read_responder.cc. Reactor's thread. Everything here comes from an untrusted peer.
#include "rdma/soft/responder.h"

#include <algorithm>

#include "rdma/soft/copy.h"
#include "rdma/soft/transport.h"

namespace nvmeof::rdma::soft {

Responder::Responder(QueuePair& qp, const QueuePairOptions& options)
    : qp_(qp),
      queue_(options.srq != nullptr ? 0 : options.max_receive_wr,
             std::max(options.max_receive_sge, 1u)),
      receive_sge_list_(
          std::max(queue_.max_sge(), qp.srq() != nullptr ? qp.srq()->ring().max_sge() : 1)),
      reads_(qp.transport().config().max_reads) {}

void Responder::set_attributes(const QpAttributes& attributes) {
  if ((attributes.mask & kReceivePsn) != 0) {
    expected_ = first_sequence(attributes.receive_psn);
    acknowledged_ = expected_ - 1;
  }
  if ((attributes.mask & kMinRnrTimer) != 0) rnr_timer_ = attributes.min_rnr_timer;
  if ((attributes.mask & kMaxDestReads) != 0)
    max_reads_ = std::min(attributes.max_dest_reads, qp_.transport().config().max_reads);
}

void Responder::reset() {
  queue_.clear();
  expected_ = acknowledged_ = 0;
  msn_ = 0;
  reply_ = Reply::None;
  quiet_ = false;
  message_ = Message::None;
  have_receive_ = false;
  max_reads_ = 0;
  reads_accepted_ = active_reads_ = 0;
  std::fill(reads_.begin(), reads_.end(), Read{});
}

Result<void> Responder::post(std::span<const ReceiveWorkRequest> requests) {
  return post_receives(queue_, requests);
}

// ---- PSN

void Responder::on_request(const Packet& packet) {
  TransportCounters& count = qp_.transport().count();
  const uint64_t sequence = expand(packet.psn, expected_);
  if (sequence < expected_) {
    on_duplicate(packet, sequence);
    return;
  }
  if (sequence > expected_) {
    count.sequence_errors++;
    if (quiet_) return;
    quiet_ = true;
    owe(Reply::Nak, syndrome_nak(NakCode::PsnSequenceError), expected_);
    return;
  }
  const OpcodeRow& row = *packet.row;
  if (!right_order(row))
    fail(NakCode::InvalidRequest, "the peer sent an opcode out of sequence", Status::FlushError);
  else if (row.has(kSend))
    on_send(packet);
  else if (row.has(kWrite))
    on_write(packet);
  else if (row.has(kReadRequest))
    on_read(packet);
  else
    on_atomic(packet);
}

// Executed before: only the answer may have been lost.
void Responder::on_duplicate(const Packet& packet, uint64_t sequence) {
  TransportCounters& count = qp_.transport().count();
  count.duplicates++;
  if (packet.row->has(kReadRequest)) {
    on_repeated_read(packet, sequence);
  } else if (packet.row->has(kAtomicRequest)) {
    on_repeated_atomic(sequence);
  } else if (reply_ == Reply::None) {
    owe(Reply::Ack, kSyndromeAck, acknowledged_);
  }
}

bool Responder::right_order(const OpcodeRow& row) const {
  if (message_ == Message::None) return row.has(kBegins);
  return !row.has(kBegins) && row.has(message_ == Message::Send ? kSend : kWrite);
}

// First and middle carry exactly a path MTU, last at least a byte.
bool Responder::right_payload(const Packet& packet) const {
  const uint32_t mtu = qp_.mtu(), length = packet.payload_length;
  if (packet.row->has(kFirst | kMiddle)) return length == mtu;
  return length <= mtu && (packet.row->has(kOnly) || length != 0);
}

// ---- SEND

void Responder::on_send(const Packet& packet) {
  const OpcodeRow& row = *packet.row;
  if (row.has(kBegins)) {
    if (!take_receive()) return not_ready();
    received_ = 0;
  }
  if (!right_payload(packet))
    return fail(NakCode::InvalidRequest, "the peer sent a SEND of a wrong length",
                Status::LocalLengthError);
  uint64_t space = 0;
  for (unsigned i = 0; i < receive_sges_; i++) space += receive_sge_list_[i].length;
  if (packet.payload_length > space || received_ > space - packet.payload_length)
    return fail(NakCode::InvalidRequest, "the peer sent more than the receive takes",
                Status::LocalLengthError);
  if (!scatter(packet.payload, packet.payload_length))
    return fail(NakCode::RemoteOperationalError, "a receive's buffer is not registered",
                Status::LocalProtectionError);
  received_ += packet.payload_length;
  if (row.has(kEnds)) {
    if (row.has(kIeth) && qp_.transport().keys().invalidate(packet.invalidate_rkey, qp_.domain(),
                                                            qp_.number()) != KeyFault::None)
      return fail(NakCode::RemoteAccessError, "the peer invalidated a key that is none",
                  Status::RemoteInvalidRequest);
    message_ = Message::None;
    complete_receive(Status::Success, &row,
                     row.has(kIeth) ? packet.invalidate_rkey : packet.immediate);
  } else {
    message_ = Message::Send;
  }
  accept(packet);
}

bool Responder::take_receive() {
  if (have_receive_) return true;
  ReceiveRing& ring = qp_.srq() != nullptr ? qp_.srq()->ring() : queue_;
  have_receive_ = ring.pop(receive_wr_id_, receive_sges_, receive_sge_list_.data());
  sge_index_ = sge_offset_ = 0;
  return have_receive_;
}

// Places the next bytes of a SEND. The caller checked that there is room.
bool Responder::scatter(const uint8_t* from, uint32_t bytes) {
  while (bytes != 0) {
    const Sge& sge = receive_sge_list_[sge_index_];
    const uint32_t n = std::min(bytes, sge.length - sge_offset_);
    if (n != 0) {
      const Resolved to = qp_.transport().keys().resolve_local(
          sge.lkey, qp_.domain(), sge.address + sge_offset_, n, kLocalWrite);
      if (!to) return false;
      copy_payload(to.pointer, from, n);
      from += n;
      bytes -= n;
      sge_offset_ += n;
    }
    if (sge_offset_ == sge.length) {
      sge_index_++;
      sge_offset_ = 0;
    }
  }
  return true;
}

void Responder::complete_receive(Status status, const OpcodeRow* row, uint32_t imm_or_rkey,
                                 uint32_t source_qp) {
  WorkCompletion completion{};
  completion.wr_id = receive_wr_id_;
  completion.status = status;
  completion.receive = true;
  if (row != nullptr) {
    completion.opcode = row->has(kWrite)  ? Opcode::RdmaWriteWithImm
                        : row->has(kIeth) ? Opcode::SendWithInvalidate
                                          : Opcode::Send;
    completion.flags = row->has(kImmdt) ? kWithImm : row->has(kIeth) ? kWithInvalidate : 0;
    if (row->has(kDatagram)) {
      completion.flags |= kWithGrh;
      completion.source_qp = source_qp;
    }
    completion.imm_or_rkey = imm_or_rkey;
    completion.byte_length = received_;
  }
  have_receive_ = false;
  qp_.push(qp_.receive_cq(), completion);
}

// ---- RDMA WRITE

void Responder::on_write(const Packet& packet) {
  const OpcodeRow& row = *packet.row;
  if ((qp_.access() & kRemoteWrite) == 0)
    return fail(NakCode::InvalidRequest, "the peer may not write", Status::FlushError);
  // The completion of an immediate takes a receive, before anything is placed.
  if (row.has(kImmdt) && !take_receive()) return not_ready();
  const uint32_t left = row.has(kBegins) ? packet.reth.length : write_left_;
  const bool fits = row.has(kEnds) ? packet.payload_length == left : packet.payload_length < left;
  if (left > kMessageBytesMax || !fits || !right_payload(packet))
    return fail(NakCode::InvalidRequest, "the peer sent an RDMA WRITE of a wrong length",
                Status::LocalLengthError);
  const KeyTable& keys = qp_.transport().keys();
  if (row.has(kBegins)) {
    write_address_ = packet.reth.address;
    write_rkey_ = packet.reth.rkey;
    received_ = 0;
    if (row.has(kFirst) && !keys.resolve_remote(write_rkey_, qp_.domain(), qp_.number(),
                                                write_address_, left, kRemoteWrite))
      return fail(NakCode::RemoteAccessError, "the peer wrote outside of what it may",
                  Status::FlushError);
  }
  // Every packet asks anew: the key may have ended since the first.
  const Resolved to = keys.resolve_remote(write_rkey_, qp_.domain(), qp_.number(), write_address_,
                                          packet.payload_length, kRemoteWrite);
  if (!to)
    return fail(NakCode::RemoteAccessError, "the peer wrote outside of what it may",
                Status::FlushError);
  if (packet.payload_length != 0)
    copy_payload_streaming(to.pointer, packet.payload, packet.payload_length);
  write_address_ += packet.payload_length;
  write_left_ = left - packet.payload_length;
  received_ += packet.payload_length;
  message_ = row.has(kEnds) ? Message::None : Message::Write;
  if (row.has(kImmdt)) complete_receive(Status::Success, &row, packet.immediate);
  accept(packet);
}

// ---- What is owed

// One request packet (READs count in on_read) is done.
void Responder::accept(const Packet& packet) {
  if (qp_.state() == State::Err) return;  // the completion queue overflowed
  acknowledged_ = expected_++;
  quiet_ = false;
  if (reply_ == Reply::Nak) reply_ = Reply::None;  // what it misses came before it left
  if (packet.row->has(kEnds)) msn_ = (msn_ + 1) & kMask24;
  if (packet.ack_request && qp_.reliable()) owe(Reply::Ack, kSyndromeAck, acknowledged_);
}

void Responder::owe(Reply reply, uint8_t syndrome, uint64_t sequence) {
  reply_ = reply;
  reply_syndrome_ = syndrome;
  reply_sequence_ = sequence;
  qp_.transport().schedule(qp_);
}

void Responder::not_ready() {
  if (!qp_.reliable()) return drop();
  quiet_ = true;
  owe(Reply::Nak, syndrome_rnr(rnr_timer_), expected_);
}

// The last word of this queue pair is a NAK. READ responses that are still owed never leave:
// whoever has polled the flushed completions may do with the memory what he likes. The NAK then
// stands for the first of them, or the peer would take it for a sign of loss and ask again.
void Responder::fail(NakCode code, const char* reason, Status receive_status) {
  if (!qp_.reliable()) {
    // What the peer did wrong costs its message; what is wrong here, the queue pair.
    if (code != NakCode::RemoteOperationalError) return drop();
    return qp_.enter_error(reason, Status::FlushError, receive_status);
  }
  const uint64_t sequence = first_owed();
  qp_.transport().count().remote_errors++;
  qp_.enter_error(reason, Status::FlushError, receive_status);
  owe(Reply::FatalNak, syndrome_nak(code), sequence);
}

// The sequence of the READ response that leaves next; without any, that of the next request.
uint64_t Responder::first_owed() const {
  uint64_t first = expected_;
  for (const Read& read : reads_)
    if (read.answering) first = std::min(first, read.next);
  return first;
}

void Responder::flush(Status status) {
  reply_ = Reply::None;
  active_reads_ = 0;
  for (Read& read : reads_) read.answering = false;
  message_ = Message::None;
  received_ = 0;
  if (have_receive_) complete_receive(status, nullptr, 0);
  flush_receives();
}

void Responder::flush_receives() {
  if (qp_.srq() != nullptr) return;
  received_ = 0;
  while (queue_.pop(receive_wr_id_, receive_sges_, receive_sge_list_.data()))
    complete_receive(Status::FlushError, nullptr, 0);
}

}  // namespace nvmeof::rdma::soft
