// The sending half of a queue pair: turns posted sends into packets (requester.cc) and
// acknowledgements, READ responses and timeouts into completions or retransmission (completer.cc).
// PROTOCOL 3.1. Pure: packets go to a TxBatch, time comes with the call.
//
// No packet is kept. A retransmission is built again from work request and PSN, so the data of an
// RDMA WRITE or SEND are read from memory at the time of each transmission: they must not change
// until the completion (unless inline).
//
// READs of any size become READ REQUEST packets of at most chunk_packets() each; PSNs run on
// through the chunks, so that the peer sees plain READs one after the other. A chunk never moves: a
// retry asks for the rest of it, then for the following ones (a peer checks a repeated READ against
// the original's range). READs and atomics share one limit of requests outstanding.
//
// On an unreliable service nothing is answered: a request is complete when its last packet has
// left, and una == nxt == high between packets.
//
//   una        nxt            high
//    |----------|--------------|        una <= nxt <= high; nxt < high while retransmitting
//    acknowledged before una; sent before high
#pragma once
#include "rdma/soft/packet.h"
#include "rdma/soft/queue_pair_state.h"
#include "rdma/soft/sequence.h"
#include "rdma/soft/tx_batch.h"
#include "rdma/soft/work_queue.h"

namespace nvmeof::rdma::soft {

class QueuePair;

class Requester {
 public:
  Requester(QueuePair& qp, const QueuePairOptions& options);

  Result<void> post(std::span<const SendWorkRequest> requests);
  bool probe();  // false: something is outstanding anyway
  void set_attributes(const QpAttributes& attributes);
  void reset();
  uint32_t count() const { return queue_.count(); }

  // ---- requester.cc: packets out
  // Builds at most `budget` packets; returns how many. Fewer than `budget`: it is stuck until
  // something is posted, arrives or falls due.
  uint32_t run(TxBatch& batch, uint32_t budget, TimeNs now);

  // ---- completer.cc: answers in
  void on_acknowledge(const Packet& packet, TimeNs now);
  void on_read_response(const Packet& packet, TimeNs now);
  void on_atomic_acknowledge(const Packet& packet, TimeNs now);
  void on_timer(TimeNs now);
  TimeNs deadline() const { return ack_deadline_ < rnr_until_ ? ack_deadline_ : rnr_until_; }
  // Everything posted completes: the oldest with `status`, the rest with FlushError.
  void flush(Status status);
  bool outstanding() const { return una_ < high_; }
  bool is_outstanding(uint32_t psn) const;
  uint32_t send_window_packets() const { return window_; }

 private:
  enum class Step : uint8_t { Sent, Advanced, Blocked };

  Result<void> check(const SendWorkRequest& request, uint64_t& length) const;
  void append(const SendWorkRequest& request, uint64_t length);
  Step step(TxBatch& batch, TimeNs now);
  Step step_local(SendEntry& entry);
  Step step_message(SendEntry& entry, TxBatch& batch, TimeNs now);
  Step step_read(SendEntry& entry, TxBatch& batch, TimeNs now);
  Step step_atomic(SendEntry& entry, TxBatch& batch, TimeNs now);
  Step step_datagram(SendEntry& entry, TxBatch& batch, TimeNs now);
  Step no_answers_left(SendEntry& entry);
  bool one_by_one(Opcode opcode) const;
  const OpcodeRow& packet_row(Opcode opcode, bool first, bool last) const;
  bool may_start(const SendEntry& entry) const;
  bool wants_ack(const SendEntry& entry, bool last) const;
  void sent(uint64_t next, TimeNs now);
  Step fail_entry(SendEntry& entry, Status status);
  bool sources_allowed(uint32_t index, uint64_t offset, uint32_t bytes, uint8_t access) const;
  void gather(uint32_t index, uint64_t offset, uint32_t bytes, uint8_t* to) const;
  uint32_t chunk_packets() const;  // that one READ REQUEST asks for, at most
  // The sequence after the last of the READ REQUEST that `sequence` belongs to.
  uint64_t chunk_end(const SendEntry& entry, uint64_t sequence) const;
  // SEND and WRITE packets that are on their way.
  uint64_t packets_in_flight() const { return nxt_ - una_ - read_packets_; }

  bool acknowledge_before(uint64_t sequence, TimeNs now);
  bool take_answer(const Packet& packet, uint64_t& sequence, TimeNs now);
  void answered(uint64_t sequence, TimeNs now);
  void complete_ready();
  void progress(uint64_t packets, TimeNs now);
  // Why packets leave again: the counter of each, of the queue pair and of the transport.
  struct Cause;
  static const Cause kByTimeout, kByNak, kByImplied, kByNotReady;
  void go_back(const Cause& cause, TimeNs now);
  bool use_retry();
  bool oldest_is_large() const;
  void shrink_window();
  void on_sequence_error(TimeNs now);
  void on_implied_nak(TimeNs now);
  void on_not_ready(uint8_t code, TimeNs now);
  bool scatter(uint32_t index, uint64_t offset, const uint8_t* from, uint32_t bytes) const;
  void complete(const SendEntry& entry, Status status);
  void restart_ack_timer(TimeNs now);
  TimeNs ack_timeout() const { return timeout_ * (1 + backoff_); }
  void release_reads();

  QueuePair& qp_;
  mutable SendQueue queue_;
  uint64_t una_ = 0, nxt_ = 0, high_ = 0;
  uint64_t asked_ack_ = 0;     // the last sequence sent with AckReq
  uint64_t recovery_of_ = 0;   // where the last go-back for a NAK began; 0: none since a timeout
  uint64_t recovery_end_ = 0;  // it is over when everything before this was sent again
  uint64_t implied_of_ = 0;    // the same for a NAK implied by an answer that came too early
  TimeNs ack_deadline_ = reactor::kNever;
  TimeNs rnr_until_ = reactor::kNever;
  TimeNs timeout_ = 0;          // local ACK timeout; 0: none
  uint32_t window_ = 0;         // how many SEND and WRITE packets may be on their way
  uint32_t window_credit_ = 0;  // acknowledged packets towards the next step of growth
  uint64_t read_packets_ = 0;   // PSNs in [una_, nxt_) that belong to READs and atomics
  uint32_t read_bytes_ = 0;     // our part of the transport's receive window
  uint32_t reads_ = 0;          // READ REQUESTs and atomics outstanding
  uint8_t max_reads_ = 0;
  uint8_t retry_count_ = 0, retries_left_ = 0;
  uint8_t rnr_retry_ = 0, rnr_left_ = 0;
  uint8_t backoff_ = 0;     // timeouts since the last progress, at most kBackoffMax
  bool slow_start_ = true;  // no loss so far: the window doubles per round trip
};

}  // namespace nvmeof::rdma::soft
