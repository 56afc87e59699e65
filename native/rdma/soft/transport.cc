// Dispatch of arriving packets, the transmit round, numbers of queue pairs. Reactor's thread.
#include "rdma/soft/transport.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "rdma/soft/flow.h"

namespace nvmeof::rdma::soft {

namespace {

constexpr size_t kReleasedKept = 256;  // numbers that rest before they may come again
constexpr uint32_t kReadChunkMax = 256 << 10;
constexpr size_t kNumbersMax = 1u << 16;  // a quarter of what the random bits can name

uint32_t hash(uint32_t number) {
  return number * 0x9e3779b1u;
}

}  // namespace

Transport::Transport(unsigned reactor_index, Link& link, KeyTable& keys,
                     const TransportConfig& config, uint64_t seed, TransportEvents& events)
    : reactor_index_(reactor_index),
      keys_(keys),
      config_(config),
      events_(events),
      batch_(link),
      rng_(seed),
      by_number_(64),
      released_(kReleasedKept),
      running_(&QueuePair::run_),
      waiting_(&QueuePair::window_),
      telling_(&QueuePair::events_) {
  config_.max_reads = std::max<uint8_t>(config_.max_reads, 1);
  ud_psn_ = random24();
}

Transport::~Transport() {
  assert(queue_pairs_ == 0);
}

// splitmix64: the caller's seed decides whether it can be guessed.
uint64_t Transport::random() {
  uint64_t z = rng_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

uint32_t Transport::random24() {
  return static_cast<uint32_t>(random() >> 40);
}

// ---- Queue pairs and their numbers

Result<std::unique_ptr<QueuePair>> Transport::create_qp(const QueuePairOptions& options) {
  constexpr uint32_t kDepthMax = 1u << 20, kSgeMax = 64;
  if (options.pd == nullptr || options.send_cq == nullptr || options.receive_cq == nullptr)
    return Error{EINVAL, "create_qp: protection domain and completion queues are needed"};
  if (options.max_send_wr > kDepthMax || options.max_receive_wr > kDepthMax ||
      options.max_send_sge > kSgeMax || options.max_receive_sge > kSgeMax)
    return Error{EINVAL, "create_qp: more work requests or SGEs than the device takes"};
  if (queue_pairs_ >= kNumbersMax)
    return Error{ENOMEM, "create_qp: no more queue pairs on this reactor"};
  std::unique_ptr<QueuePair> qp(new QueuePair(*this, new_number(), options));
  insert(*qp);
  timers_.reserve(queue_pairs_);
  return qp;
}

QueuePair* Transport::find(uint32_t number) const {
  const size_t mask = by_number_.size() - 1;
  for (size_t i = hash(number) & mask; by_number_[i].qp != nullptr; i = (i + 1) & mask)
    if (by_number_[i].number == number) return by_number_[i].qp;
  return nullptr;
}

uint32_t Transport::new_number() {
  for (;;) {
    const uint32_t number = reactor_index_ << kQpnReactorShift |
                            (static_cast<uint32_t>(random() >> 32) & kQpnRandomMask);
    // 0 and 1 are the management queue pairs, all ones is multicast.
    if (number <= kQpnGsi || number == kMask24 || find(number) != nullptr) continue;
    if (std::find(released_.begin(), released_.end(), number) == released_.end()) return number;
  }
}

void Transport::insert(QueuePair& qp) {
  if ((queue_pairs_ + 1) * 2 > by_number_.size()) {
    std::vector<Slot> old(by_number_.size() * 2);
    old.swap(by_number_);
    for (const Slot& slot : old)
      if (slot.qp != nullptr) place(slot);
  }
  place({qp.number(), &qp});
  queue_pairs_++;
}

void Transport::place(const Slot& slot) {
  const size_t mask = by_number_.size() - 1;
  size_t i = hash(slot.number) & mask;
  while (by_number_[i].qp != nullptr) i = (i + 1) & mask;
  by_number_[i] = slot;
}

void Transport::remove(QueuePair& qp) {
  forget(qp);
  const size_t mask = by_number_.size() - 1;
  size_t hole = hash(qp.number()) & mask;
  while (by_number_[hole].qp != &qp) hole = (hole + 1) & mask;
  // Whoever was pushed past the hole moves up, so that look-up may stop at the first free slot.
  for (size_t i = (hole + 1) & mask; by_number_[i].qp != nullptr; i = (i + 1) & mask) {
    const size_t home = hash(by_number_[i].number) & mask;
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    by_number_[hole] = by_number_[i];
    hole = i;
  }
  by_number_[hole] = Slot{};
  queue_pairs_--;
  released_[released_next_++ % kReleasedKept] = qp.number();
}

void Transport::forget(QueuePair& qp) {
  running_.remove(qp);
  waiting_.remove(qp);
  telling_.remove(qp);
  timers_.remove(qp);
  qp.tell_error_ = qp.tell_established_ = false;
}

// ---- Receiving

void Transport::receive(const Arrival& arrival, TimeNs now, uint16_t expected_id) {
  if (expected_id == 0) begin_message();
  counters_.rx_packets++;
  counters_.rx_bytes += arrival.length;
  if (arrival.length < kBthBytes + kIcrcBytes) {
    counters_.malformed++;
    return;
  }
  const uint32_t number = peek_dest_qpn(arrival.bytes);
  if (reactor_of(number) != reactor_index_) {
    counters_.foreign++;
    events_.on_foreign(reactor_of(number), arrival);
    return;
  }
  Packet packet;
  if (parse({arrival.bytes, arrival.length}, packet) != PacketFault::None) {
    counters_.malformed++;
    return;
  }
  QueuePair* const qp = number == kQpnGsi ? nullptr : find(number);
  if (number != kQpnGsi) {
    if (qp == nullptr || qp->flow_ == nullptr) {
      if (!hears_anyone(qp)) return;
    } else if (!same_address(*arrival.source, qp->flow_->remote) ||
               !same_address(*arrival.destination, qp->flow_->local)) {
      // The peer's port means nothing; its address must be the queue pair's.
      counters_.wrong_address++;
      return;
    }
  }
  const IcrcVerdict verdict = icrc_.check(arrival, expected_id);
  if (!verdict.good) {
    counters_.bad_icrc++;
    return;
  }
  if (verdict.recovered) counters_.icrc_recovered++;
  if (packet.row->has(kCongestion)) {
    counters_.congestion_ignored++;
  } else if (qp == nullptr) {
    receive_ud(packet, arrival, now);
  } else if (!packet.row->has(qp->service_)) {
    counters_.wrong_service++;
  } else if (qp->type_ == QpType::Ud) {
    deliver_datagram(*qp, packet, arrival);
  } else {
    deliver(*qp, packet, now);
  }
}

// A queue pair without a peer: right for datagrams, else it is none or not ready.
bool Transport::hears_anyone(const QueuePair* qp) {
  if (qp != nullptr && qp->type_ == QpType::Ud) return true;
  (qp == nullptr ? counters_.unknown_qp : counters_.wrong_state)++;
  return false;
}

void Transport::deliver(QueuePair& qp, const Packet& packet, TimeNs now) {
  const State state = qp.state_;
  const bool sends = state == State::Rts || state == State::Sqd;
  const bool receives = sends || state == State::Rtr || state == State::Sqe;
  if (packet.row->has(kRequest) ? !receives : !sends) {
    counters_.wrong_state++;
    return;
  }
  qp.counters_.rx_packets++;
  if (packet.row->has(kAcknowledge)) {
    qp.requester_.on_acknowledge(packet, now);
  } else if (packet.row->has(kReadResponse)) {
    qp.requester_.on_read_response(packet, now);
  } else if (packet.row->has(kRequest)) {
    if (!qp.established_) {
      qp.established_ = qp.tell_established_ = true;
      tell(qp);
    }
    if (qp.reliable())
      qp.responder_.on_request(packet);
    else
      qp.responder_.on_unreliable(packet);
  } else {
    qp.requester_.on_atomic_acknowledge(packet, now);
  }
}

void Transport::deliver_datagram(QueuePair& qp, const Packet& packet, const Arrival& arrival) {
  const State state = qp.state_;
  if (state == State::Reset || state == State::Init || state == State::Err)
    counters_.wrong_state++;
  else if (packet.deth.qkey != qp.qkey_)
    counters_.bad_qkey++;
  else
    qp.responder_.on_datagram(packet, arrival);
}

void Transport::receive_ud(const Packet& packet, const Arrival& arrival, TimeNs now) {
  if (!packet.row->has(kDatagram)) {
    counters_.wrong_service++;
    return;
  }
  if (packet.deth.qkey != kQKeyGsi) {
    counters_.bad_qkey++;
    return;
  }
  counters_.rx_ud++;
  events_.on_ud({arrival.source,
                 arrival.destination,
                 packet.deth.source_qpn,
                 {packet.payload, packet.payload_length},
                 arrival.traffic_class},
                now);
}

void Transport::report_unreachable(uint32_t destination_qpn, uint32_t psn,
                                   const sockaddr_storage& address) {
  for (const Slot& slot : by_number_) {
    QueuePair* const qp = slot.qp;
    if (qp == nullptr || qp->destination_qpn_ != destination_qpn || qp->flow_ == nullptr) continue;
    if (qp->state_ != State::Rts && qp->state_ != State::Sqd) continue;
    if (!same_address(address, qp->flow_->remote) || !qp->requester_.is_outstanding(psn)) continue;
    counters_.unreachable++;
    qp->enter_error("the peer's UDP port 4791 is unreachable: its process is gone",
                    Status::RetryExceeded, Status::FlushError);
    return;
  }
  counters_.unreachable_ignored++;
}

// ---- Sending

void Transport::send_ud(const Flow& flow, std::span<const uint8_t> payload) {
  const OpcodeRow& row = row_of(PacketOpcode::UdSendOnly);
  const auto length = static_cast<uint32_t>(payload.size());
  const TxSlot slot = batch_.reserve(flow, packet_bytes(row, length), TxShape::Plain);
  const auto pad = static_cast<uint8_t>(pad_bytes(length));
  write_bth(slot.bytes, row, {kQpnGsi, ud_psn_, pad, false, false});
  write_deth(slot.bytes + row.deth, kQKeyGsi, kQpnGsi);
  std::memcpy(slot.bytes + row.header_bytes, payload.data(), length);
  std::memset(slot.bytes + row.header_bytes + length, 0, pad);
  batch_.commit(slot);
  ud_psn_ = psn_add(ud_psn_, 1);
  counters_.tx_ud++;
  counters_.tx_packets++;
}

uint32_t Transport::transmit(TimeNs now) {
  deliver_events();
  expire(now);
  // Queue pairs that wait for room in the receive window try again, first come first served.
  if (window_freed_)
    while (QueuePair* const qp = waiting_.pop()) running_.push(*qp);
  window_freed_ = false;

  uint32_t packets = 0;
  QueuePair* replies = nullptr;
  QueuePair** replies_end = &replies;
  while (packets < config_.transmit_packets) {
    QueuePair* const qp = running_.pop();
    if (qp == nullptr) break;
    const uint32_t budget = std::min(config_.burst_packets, config_.transmit_packets - packets);
    // Neither half starves the other.
    const uint32_t answers = qp->responder_.run(batch_, budget / 2 + 1);
    const uint32_t sends = qp->requester_.run(batch_, budget > answers ? budget - answers : 1, now);
    packets += answers + sends;
    qp->counters_.tx_packets += answers + sends;
    if (answers + sends >= budget || answers > budget / 2) running_.push(*qp);
    if (qp->responder_.owes_reply() && !qp->replying_) {
      qp->replying_ = true;
      *replies_end = qp;
      replies_end = &qp->reply_next_;
    }
  }
  // Acknowledgements leave last: data that is ready is what the peer waits for.
  for (QueuePair* qp = replies; qp != nullptr;) {
    QueuePair* const next = qp->reply_next_;
    qp->reply_next_ = nullptr;
    qp->replying_ = false;
    if (qp->responder_.owes_reply()) {
      // At the tail of one small packet it would delay that packet: a train is taken apart before
      // its receiver sees the first of it.
      qp->responder_.emit_reply(batch_, packets <= 2 ? TxShape::Plain : TxShape::Train);
      packets++;
      qp->counters_.tx_packets++;
    }
    qp = next;
  }
  batch_.flush();
  counters_.tx_packets += packets;
  return packets;
}

void Transport::expire(TimeNs now) {
  while (QueuePair* const qp = timers_.pop_due(now)) {
    const TimeNs deadline = qp->requester_.deadline();
    if (deadline <= now)
      qp->requester_.on_timer(now);
    else if (deadline != reactor::kNever)
      timers_.set(*qp, deadline);
  }
}

void Transport::deliver_events() {
  while (QueuePair* const qp = telling_.pop()) {
    const bool established = qp->tell_established_, error = qp->tell_error_;
    qp->tell_established_ = qp->tell_error_ = false;
    if (established && error) {  // one at a time: the first handler may destroy it
      qp->tell_error_ = true;
      telling_.push(*qp);
    }
    if (established)
      events_.on_established(*qp);
    else if (error)
      events_.on_error(*qp, qp->error_reason_);
  }
}

// ---- For queue pairs

bool Transport::take_read_window(QueuePair& qp, uint32_t bytes) {
  // One READ always may, whatever its size.
  if (read_bytes_ != 0 && read_bytes_ + uint64_t{bytes} > config_.receive_window_bytes) {
    waiting_.push(qp);
    return false;
  }
  read_bytes_ += bytes;
  return true;
}

void Transport::give_read_window(uint32_t bytes) {
  assert(bytes <= read_bytes_);
  read_bytes_ -= bytes;
  if (bytes != 0) window_freed_ = true;
}

uint32_t Transport::read_chunk(uint32_t mtu) const {
  const uint32_t wanted = std::min(config_.receive_window_bytes / 4, kReadChunkMax);
  return std::max(wanted / mtu, 1u) * mtu;
}

}  // namespace nvmeof::rdma::soft
