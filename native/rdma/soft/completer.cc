// Answers in: acknowledgements, READ responses and timeouts become completions or a go-back.
// PROTOCOL 3.1. Reactor's thread. A go-back always starts at the oldest unacknowledged packet.
#include <algorithm>

#include "rdma/soft/requester.h"
#include "rdma/soft/transport.h"

namespace nvmeof::rdma::soft {

namespace {

struct NakMeaning {
  Status status;
  const char* reason;
};
constexpr NakMeaning kNakMeanings[] = {
    {Status::GeneralError, ""},  // PSN sequence error: not the end of anything
    {Status::RemoteInvalidRequest, "the peer answered: invalid request"},
    {Status::RemoteAccessError, "the peer answered: remote access error"},
    {Status::RemoteOperationError, "the peer answered: remote operational error"},
};

constexpr char kNoAnswer[] = "the peer does not answer: retries exceeded";
constexpr char kNoAnswerToLarge[] =
    "the peer does not answer: retries exceeded; the packet without an answer is a large one: if "
    "small ones arrive, a link on the way is too narrow for the path MTU, set a smaller one";
// Packets with as much data or less fit every Ethernet.
constexpr uint64_t kFitsEverywhere = 1024;

constexpr uint32_t kWindowPacketsMin = 2;
// IBTA 9.7.6.1.3 lets a timer run up to four times the timeout: a peer that is slow, not dead, is
// not flooded with repetitions, and has longer before the retries are used up. Once the timeout,
// then twice, then three times: with seven retries 21 of them, 1.41 s of the usual 67 ms.
constexpr uint8_t kBackoffMax = 2;

}  // namespace

bool Requester::is_outstanding(uint32_t psn) const {
  const uint64_t sequence = expand(psn, una_);
  return sequence >= una_ && sequence < high_;
}

// ---- Acknowledgements

void Requester::on_acknowledge(const Packet& packet, TimeNs now) {
  TransportCounters& count = qp_.transport().count();
  const uint64_t sequence = expand(packet.psn, una_);
  if (sequence < una_ || sequence >= high_) {
    count.stale_acks++;
    return;
  }
  const uint8_t code = aeth_code(packet.aeth.syndrome);
  switch (aeth_type(packet.aeth.syndrome)) {
    case AethType::Ack:
      count.acks_received++;
      qp_.count().acks_received++;
      acknowledge_before(sequence + 1, now);
      break;
    case AethType::RnrNak:
      count.rnr_received++;
      if (acknowledge_before(sequence, now)) on_not_ready(code, now);
      break;
    case AethType::Nak:
      count.naks_received++;
      if (code >= std::size(kNakMeanings)) {
        count.unexpected_response++;
        return;
      }
      if (!acknowledge_before(sequence, now)) break;
      if (code == 0)
        on_sequence_error(now);
      else
        qp_.enter_error(kNakMeanings[code].reason, kNakMeanings[code].status, Status::FlushError);
      break;
    case AethType::Reserved:
      count.unexpected_response++;
      return;
  }
  qp_.transport().schedule(qp_);
}

// Everything before `sequence` has arrived, except READs and atomics: their answers are their only
// acknowledgement. False when one before it is not complete (its answer is lost and is asked for
// again), or when the queue pair failed.
bool Requester::acknowledge_before(uint64_t sequence, TimeNs now) {
  uint64_t reached = sequence;
  for (uint32_t i = queue_.head; i != queue_.tail; i++) {
    const SendEntry& entry = queue_.at(i);
    if (!entry.started || entry.first >= sequence) break;
    if (is_answered(entry.opcode) && entry.last >= una_) {
      reached = std::max(una_, entry.first);
      break;
    }
  }
  if (reached > una_) {
    const uint64_t packets = reached - una_;
    una_ = reached;
    nxt_ = std::max(nxt_, una_);
    progress(packets, now);
    complete_ready();
    if (qp_.state() == State::Err) return false;
  }
  if (reached == sequence) return true;
  on_implied_nak(now);
  return false;
}

// Pops what is complete, in order. The cursor never stays behind.
void Requester::complete_ready() {
  while (queue_.head != queue_.tail) {
    const SendEntry& entry = queue_.at(queue_.head);
    if (entry.error != Status::Success) {
      qp_.fail_send(entry.error);
      return;
    }
    const bool local = entry.started && entry.last < entry.first;
    if (!entry.started || (local ? !entry.executed : entry.last >= una_)) break;
    const SendEntry done = entry;
    if (queue_.cursor == queue_.head) queue_.cursor++;
    queue_.head++;
    if (!done.internal && (done.flags & kSignaled) != 0) complete(done, Status::Success);
    if (qp_.state() == State::Err) return;
  }
}

void Requester::complete(const SendEntry& entry, Status status) {
  WorkCompletion completion{};
  completion.wr_id = entry.wr_id;
  completion.status = status;
  completion.opcode = entry.opcode;
  completion.byte_length = static_cast<uint32_t>(entry.length);
  qp_.push(qp_.send_cq(), completion);
}

void Requester::progress(uint64_t packets, TimeNs now) {
  retries_left_ = retry_count_;
  rnr_left_ = rnr_retry_;
  backoff_ = 0;
  restart_ack_timer(now);
  const uint32_t most = qp_.transport().config().send_window_bytes_max / qp_.mtu();
  window_credit_ += static_cast<uint32_t>(packets);
  if (slow_start_) {
    window_ += window_credit_;
    window_credit_ = 0;
  } else if (window_credit_ >= window_) {
    window_credit_ -= window_;
    window_++;
  }
  window_ = std::min(window_, std::max(most, kWindowPacketsMin));
}

void Requester::restart_ack_timer(TimeNs now) {
  if (una_ == high_ || timeout_ == 0) {
    ack_deadline_ = reactor::kNever;
    return;
  }
  ack_deadline_ = now + ack_timeout();
  qp_.transport().set_timer(qp_);
}

// ---- READ responses and the answers to atomics

// Finds the place of an answer, and takes it as the acknowledgement of everything before. False
// when it is stale, or when something before it is missing.
bool Requester::take_answer(const Packet& packet, uint64_t& sequence, TimeNs now) {
  sequence = expand(packet.psn, una_);
  if (sequence < una_ || sequence >= high_) {
    qp_.transport().count().stale_acks++;
    return false;
  }
  if (sequence == una_ || acknowledge_before(sequence, now)) return true;
  qp_.transport().schedule(qp_);
  return false;
}

void Requester::answered(uint64_t sequence, TimeNs now) {
  una_ = sequence + 1;
  nxt_ = std::max(nxt_, una_);
  progress(1, now);
  complete_ready();
  qp_.transport().schedule(qp_);
}

void Requester::on_atomic_acknowledge(const Packet& packet, TimeNs now) {
  uint64_t sequence;
  if (!take_answer(packet, sequence, now)) return;
  const SendEntry& entry = queue_.at(queue_.head);
  if (!is_atomic(entry.opcode) || sequence != entry.first) {
    qp_.transport().count().unexpected_response++;
    qp_.enter_error("the answer to an atomic operation that is none", Status::BadResponseError,
                    Status::FlushError);
    return;
  }
  const uint64_t original = packet.atomic_original;  // in the order of our own bytes from here on
  uint8_t bytes[kAtomicBytes];
  std::memcpy(bytes, &original, sizeof bytes);
  if (!scatter(queue_.head, 0, bytes, sizeof bytes)) {
    qp_.enter_error("the buffer of an atomic operation is not registered",
                    Status::LocalProtectionError, Status::FlushError);
    return;
  }
  if (sequence < nxt_) {  // else it answers a request from before a go-back
    read_packets_--;
    reads_--;
  }
  answered(sequence, now);
}

void Requester::on_read_response(const Packet& packet, TimeNs now) {
  uint64_t sequence;
  if (!take_answer(packet, sequence, now)) return;
  const SendEntry& entry = queue_.at(queue_.head);
  const auto bad = [&](const char* reason) {
    qp_.transport().count().unexpected_response++;
    qp_.enter_error(reason, Status::BadResponseError, Status::FlushError);
  };
  if (entry.opcode != Opcode::RdmaRead || sequence < entry.first || sequence > entry.last)
    return bad("READ response to a request that is none");
  const uint64_t offset = (sequence - entry.first) * qp_.mtu();
  const uint64_t bytes = std::min<uint64_t>(qp_.mtu(), entry.length - offset);
  const bool ends = sequence + 1 == chunk_end(entry, sequence);
  // Whether it says first or middle does not matter: a repeated answer may begin with either.
  if (packet.payload_length != bytes) return bad("READ response of the wrong length");
  if (packet.row->has(kEnds) != ends) return bad("READ response out of its order");
  if (entry.lease != nullptr && entry.lease->over(qp_.transport().message_time())) {
    qp_.enter_error("the data of an RDMA READ came when nobody waited for them any more",
                    Status::LocalAccessError, Status::FlushError);
    return;
  }
  if (!scatter(queue_.head, offset, packet.payload, packet.payload_length)) {
    qp_.enter_error("the buffer of an RDMA READ is not registered", Status::LocalProtectionError,
                    Status::FlushError);
    return;
  }
  if (sequence < nxt_) {  // else it answers a request from before a go-back
    read_bytes_ -= static_cast<uint32_t>(bytes);
    read_packets_--;
    qp_.transport().give_read_window(static_cast<uint32_t>(bytes));
    if (ends) reads_--;
  }
  answered(sequence, now);
}

void Requester::release_reads() {
  qp_.transport().give_read_window(read_bytes_);
  read_bytes_ = 0;
  read_packets_ = 0;
  reads_ = 0;
}

// ---- Loss

struct Requester::Cause {
  uint64_t QueuePairCounters::*of_queue_pair;
  uint64_t TransportCounters::*of_transport;
};
constexpr Requester::Cause Requester::kByTimeout{&QueuePairCounters::retransmits_timeout,
                                                 &TransportCounters::retransmits_timeout};
constexpr Requester::Cause Requester::kByNak{&QueuePairCounters::retransmits_nak,
                                             &TransportCounters::retransmits_nak};
constexpr Requester::Cause Requester::kByImplied{&QueuePairCounters::retransmits_implied,
                                                 &TransportCounters::retransmits_implied};
constexpr Requester::Cause Requester::kByNotReady{&QueuePairCounters::retransmits_not_ready,
                                                  &TransportCounters::retransmits_not_ready};

void Requester::go_back(const Cause& cause, TimeNs now) {
  release_reads();
  recovery_end_ = high_;
  nxt_ = una_;
  asked_ack_ = una_ - 1;
  queue_.cursor = queue_.head;
  qp_.transport().count().retransmits++;
  qp_.transport().count().*cause.of_transport += 1;
  qp_.count().*cause.of_queue_pair += 1;
  restart_ack_timer(now);
  qp_.transport().schedule(qp_);
}

// Whether the oldest packet without an answer, or the answer that a READ waits for, is larger than
// what every link takes.
bool Requester::oldest_is_large() const {
  const SendEntry& entry = queue_.at(queue_.head);
  const uint64_t rest = entry.length - (una_ - entry.first) * qp_.mtu();
  return std::min<uint64_t>(rest, qp_.mtu()) > kFitsEverywhere;
}

bool Requester::use_retry() {
  if (qp_.transport().config().unlimited_retries) return true;
  if (retries_left_ == 0) {
    qp_.transport().count().retry_exceeded++;
    qp_.enter_error(oldest_is_large() ? kNoAnswerToLarge : kNoAnswer, Status::RetryExceeded,
                    Status::FlushError);
    return false;
  }
  retries_left_--;
  return true;
}

void Requester::shrink_window() {
  window_ = std::max(window_ / 2, kWindowPacketsMin);
  window_credit_ = 0;
  slow_start_ = false;
}

// NAK: the peer misses `una_`. A second one for the same packet, while the answer to the first is
// still leaving, is an echo.
void Requester::on_sequence_error(TimeNs now) {
  if (rnr_until_ != reactor::kNever) return;
  if (recovery_of_ == una_ && nxt_ < recovery_end_) return;
  if (!use_retry()) return;
  shrink_window();
  go_back(kByNak, now);
  recovery_of_ = una_;
}

// An answer to a later request came, but not all that answers the READ or atomic at `una_`. Once
// per packet: what is lost again then costs a timeout, because old answers may still be on their
// way.
void Requester::on_implied_nak(TimeNs now) {
  if (implied_of_ == una_ || rnr_until_ != reactor::kNever) return;
  qp_.transport().count().implied_naks++;
  if (!use_retry()) return;
  shrink_window();
  go_back(kByImplied, now);
  implied_of_ = una_;
}

void Requester::on_not_ready(uint8_t code, TimeNs now) {
  if (rnr_until_ != reactor::kNever) return;
  if (rnr_retry_ != 7) {
    if (rnr_left_ == 0) {
      qp_.enter_error("the peer has no receive posted: RNR retries exceeded",
                      Status::RnrRetryExceeded, Status::FlushError);
      return;
    }
    rnr_left_--;
  }
  go_back(kByNotReady, now);
  ack_deadline_ = reactor::kNever;
  rnr_until_ = now + rnr_timer_ns(code);
  qp_.transport().set_timer(qp_);
}

void Requester::on_timer(TimeNs now) {
  if (rnr_until_ <= now) {
    rnr_until_ = reactor::kNever;
    qp_.transport().schedule(qp_);
  }
  if (ack_deadline_ <= now) {
    ack_deadline_ = reactor::kNever;
    if (nxt_ == una_) {
      // Nothing left since the last go-back (a READ waits for room): the peer has nothing to
      // answer.
      restart_ack_timer(now);
    } else if (outstanding()) {
      qp_.transport().count().timeouts++;
      if (!use_retry()) return;
      shrink_window();
      if (backoff_ < kBackoffMax) backoff_++;
      go_back(kByTimeout, now);
      recovery_of_ = implied_of_ = 0;
    }
  }
  if (deadline() != reactor::kNever) qp_.transport().set_timer(qp_);
}

void Requester::flush(Status status) {
  release_reads();
  ack_deadline_ = rnr_until_ = reactor::kNever;
  una_ = nxt_ = high_;
  while (queue_.head != queue_.tail) {
    const SendEntry entry = queue_.at(queue_.head++);
    if (!entry.internal) complete(entry, status);
    status = Status::FlushError;
  }
  queue_.cursor = queue_.head;
}

}  // namespace nvmeof::rdma::soft
