// The answering half of an RC queue pair: executes requests in PSN order, places their payload
// straight into registered memory, and owes acknowledgements and READ responses, which run() emits
// in PSN order when the transport transmits. PROTOCOL 3.2. Pure.
//
// Every request is checked in this order: PSN, opcode sequence, access flags, resources, lengths,
// key. Nothing is written before all of it held for the packet.
#pragma once
#include <vector>

#include "rdma/soft/packet.h"
#include "rdma/soft/queue_pair_state.h"
#include "rdma/soft/sequence.h"
#include "rdma/soft/tx_batch.h"
#include "rdma/soft/work_queue.h"

namespace nvmeof::rdma::soft {

class QueuePair;

class Responder {
 public:
  Responder(QueuePair& qp, const QueuePairOptions& options);

  Result<void> post(std::span<const ReceiveWorkRequest> requests);
  void set_attributes(const QpAttributes& attributes);
  void reset();

  void on_request(const Packet& packet, TimeNs now);
  bool runnable() const { return active_reads_ != 0 || reply_ != Reply::None; }
  uint32_t run(TxBatch& batch, uint32_t budget, TimeNs now);
  // All receives complete with FlushError, the one in progress with `status`. READ responses still
  // owed leave only when a NAK that ends the queue pair follows them.
  void flush(Status status);

 private:
  // What is owed besides READ responses; the later replaces the earlier, a NAK replaces an ACK.
  enum class Reply : uint8_t { None, Ack, Nak };
  // The message that is being received.
  enum class Message : uint8_t { None, Send, Write };

  struct Read {
    uint64_t first, last;  // sequences of the original request
    uint64_t address;
    uint64_t next, end;  // sequences still to answer: [next, end)
    uint64_t base;       // sequence that `begin` belongs to: where this answer started
    uint64_t begin;      // address of the answer's first byte
    uint32_t length;     // of the original
    uint32_t rkey;
    uint32_t answer_length;
    uint32_t msn;
    bool answering;
  };

  void on_duplicate(const Packet& packet, uint64_t sequence);
  void execute(const Packet& packet);
  bool check_order(const OpcodeRow& row) const;
  void on_send(const Packet& packet);
  void on_write(const Packet& packet);
  void on_read(const Packet& packet);
  bool begin_receive();
  Status scatter(const Packet& packet);
  bool invalidate_for(const Packet& packet);
  void complete_receive(Status status, Opcode opcode, uint8_t flags, uint32_t imm_or_rkey,
                        uint32_t bytes);
  void accept(const Packet& packet, uint64_t packets);
  void owe_ack();
  void nak_sequence();
  void nak_not_ready();
  void fail(NakCode code, Status receive_status);
  Read* find_read(uint64_t sequence);
  bool emit_read(Read& read, TxBatch& batch);
  void emit_reply(TxBatch& batch);

  QueuePair& qp_;
  ReceiveRing queue_;  // empty with a shared receive queue
  uint64_t expected_ = 0;
  uint32_t msn_ = 0;

  Reply reply_ = Reply::None;
  uint8_t reply_syndrome_ = 0;
  uint64_t reply_sequence_ = 0;
  bool quiet_ = false;  // a NAK went out: say nothing of later packets until the missing one comes
  uint8_t rnr_timer_ = kShortRnrTimer;

  Message message_ = Message::None;
  bool have_receive_ = false;
  uint8_t receive_sges_ = 0;
  uint64_t receive_wr_id_ = 0;
  uint32_t received_ = 0;  // bytes of the message so far
  uint32_t sge_index_ = 0, sge_offset_ = 0;
  uint64_t write_address_ = 0;
  uint32_t write_rkey_ = 0;
  uint32_t write_length_ = 0;
  std::vector<Sge> receive_sge_list_;

  uint8_t max_reads_ = 0;
  uint32_t read_index_ = 0;  // where the next READ is noted
  uint32_t active_reads_ = 0;
  std::vector<Read> reads_;
};

}  // namespace nvmeof::rdma::soft
