// The sending half of an RC queue pair: turns posted sends into packets (requester.cc) and
// acknowledgements, READ responses and timeouts into completions or retransmission (completer.cc).
// PROTOCOL 3.1. Pure: packets go to a TxBatch, time comes with the call.
//
// No packet is kept. A retransmission is built again from work request and PSN, so the data of an
// RDMA WRITE or SEND are read from memory at the time of each transmission: they must not change
// until the completion (unless inline).
//
// READs of any size become READ REQUEST packets of at most read_chunk bytes each; PSNs run on
// through the chunks, so that the peer sees plain READs one after the other. A chunk never moves: a
// retry asks for the rest of it, then for the following ones (a peer checks a repeated READ against
// the original's range).
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
  bool probe();  // false: no room, or something is outstanding anyway
  void set_attributes(const QpAttributes& attributes);
  void reset();
  uint32_t count() const { return queue_.count(); }

  // ---- requester.cc: packets out
  bool runnable() const;
  // Builds at most `budget` packets; returns how many. runnable() says whether more could leave.
  uint32_t run(TxBatch& batch, uint32_t budget, TimeNs now);

  // ---- completer.cc: answers in
  void on_acknowledge(uint32_t psn, uint8_t syndrome, TimeNs now);
  void on_read_response(const Packet& packet, TimeNs now);
  void on_timer(TimeNs now);
  TimeNs deadline() const { return ack_deadline_ < rnr_until_ ? ack_deadline_ : rnr_until_; }
  // Everything posted completes: the oldest with `status` (FlushError: like the rest).
  void flush(Status status);
  bool outstanding() const { return una_ < high_; }
  bool is_outstanding(uint32_t psn) const;
  void read_window_freed() { waits_for_read_window_ = false; }
  uint32_t send_window() const { return send_window_; }
  uint32_t retries_left() const { return retries_left_; }

 private:
  friend class QueuePair;
  enum class Step : uint8_t { Sent, Advanced, Blocked };

  Result<void> check(const SendWorkRequest& request, uint64_t& length) const;
  void append(const SendWorkRequest& request, uint64_t length);
  void assign_sequences(SendEntry& entry);
  Step step(TxBatch& batch, TimeNs now);
  Step step_local(SendEntry& entry);
  Step step_message(SendEntry& entry, TxBatch& batch, TimeNs now);
  Step step_read(SendEntry& entry, TxBatch& batch, TimeNs now);
  bool may_start(const SendEntry& entry) const;
  bool wants_ack(const SendEntry& entry, bool last, uint32_t bytes) const;
  void sent(uint64_t next, TimeNs now);
  void fail_entry(SendEntry& entry, Status status);
  TxShape shape() const;
  // Gathers message bytes [offset, offset + bytes) into `to`; false: an lkey does not allow it.
  bool gather(uint32_t index, uint64_t offset, uint32_t bytes, uint8_t* to) const;
  bool scatter(uint32_t index, uint64_t offset, const uint8_t* from, uint32_t bytes) const;

  bool acknowledge_before(uint64_t sequence, TimeNs now);
  void complete_ready();
  void progress(TimeNs now);
  void go_back(uint64_t sequence);
  bool use_retry();
  void shrink_window();
  void lost(uint64_t sequence, TimeNs now);
  SendEntry* entry_of(uint64_t sequence, uint32_t& index);
  void complete(const SendEntry& entry, Status status);
  void restart_ack_timer(TimeNs now);
  void release_reads();

  QueuePair& qp_;
  SendQueue queue_;
  uint64_t una_ = 0, nxt_ = 0, high_ = 0;
  uint64_t asked_ack_ = 0;     // the last sequence sent with AckReq
  uint64_t recovery_of_ = 0;   // the sequence that the last go-back began at
  uint64_t recovery_end_ = 0;  // it is over when everything before this was sent again
  uint64_t bytes_acked_ = 0;   // since the window last grew
  TimeNs ack_deadline_ = reactor::kNever;
  TimeNs rnr_until_ = reactor::kNever;
  TimeNs timeout_ = 0;        // 0: none
  uint32_t send_window_ = 0;  // bytes of SEND and WRITE on their way
  uint32_t read_bytes_ = 0;   // asked for and not here: our part of the transport's window
  uint32_t reads_ = 0;        // READ REQUESTs outstanding
  uint8_t max_reads_ = 0;
  uint8_t retry_count_ = 0, retries_left_ = 0;
  uint8_t rnr_retry_ = 0, rnr_left_ = 0;
  bool waits_for_read_window_ = false;
  bool recovering_ = false;
};

}  // namespace nvmeof::rdma::soft
