// The answering half of a queue pair: executes requests in PSN order, places their payload
// straight into registered memory, and owes acknowledgements, READ responses and the answers to
// atomics, which run() emits in PSN order when the transport transmits. PROTOCOL 3.2. Pure.
//
// Every request is checked in this order: PSN, opcode sequence, access flags, resources, lengths,
// key. Nothing is written before all of it held for the packet.
//
// READ responses are built from memory when they leave, a repeated one again: a region must not
// change under a READ of the peer's (nor between it and its repetition). In ERR none leaves any
// more; all that does is the NAK that says why. An atomic is executed once, and its result is kept
// for repetitions.
//
// Unreliable services (unreliable_responder.cc) answer nothing: what cannot be placed is dropped.
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

  void on_request(const Packet& packet);                           // RC
  void on_unreliable(const Packet& packet);                        // UC
  void on_datagram(const Packet& packet, const Arrival& arrival);  // UD; the Q_Key was right
  // READ responses and answers to atomics that are owed; at most `budget` packets. Fewer: no more
  // are owed.
  uint32_t run(TxBatch& batch, uint32_t budget);
  // The acknowledgement or NAK that is owed; never before the READ responses that precede it.
  bool owes_reply() const { return reply_ != Reply::None && active_reads_ == 0; }
  void emit_reply(TxBatch& batch, TxShape shape);
  // All receives complete with FlushError, the one in progress with `status`. Nothing is owed.
  void flush(Status status);
  void flush_receives();  // those that wait; of a shared queue none

 private:
  // What is owed besides READ responses; a later one replaces an earlier one.
  enum class Reply : uint8_t { None, Ack, Nak, FatalNak };
  // The message that is being received.
  enum class Message : uint8_t { None, Send, Write };

  // A READ or atomic that was accepted: kept after it was answered, until its place is needed, so
  // that it can be answered again.
  struct Read {
    uint64_t first = 0, last = 0;  // sequences of the request's answer
    uint64_t address = 0;
    uint32_t length = 0;
    uint32_t rkey = 0;
    uint32_t msn = 0;
    uint32_t answer_length = 0;   // this answer: `answer_length` bytes at `answer_address`,
    uint64_t answer_address = 0;  // in packets [answer_first, answer_end)
    uint64_t answer_first = 0, answer_end = 0;
    uint64_t next = 0;      // the packet to send next
    uint64_t original = 0;  // atomic: what stood there before
    bool answering = false;
    bool repeated = false;
    bool valid = false;
    bool atomic = false;
  };

  void on_duplicate(const Packet& packet, uint64_t sequence);
  void on_repeated_read(const Packet& packet, uint64_t sequence);
  void on_repeated_atomic(uint64_t sequence);
  void on_send(const Packet& packet);
  void on_write(const Packet& packet);
  void on_read(const Packet& packet);
  void on_atomic(const Packet& packet);
  Read* next_place();
  void take_place(Read& read, uint32_t packets);
  void drop();
  bool right_order(const OpcodeRow& row) const;
  bool right_payload(const Packet& packet) const;
  bool take_receive();
  bool scatter(const uint8_t* from, uint32_t bytes);
  void complete_receive(Status status, const OpcodeRow* row, uint32_t imm_or_rkey,
                        uint32_t source_qp = 0);
  void accept(const Packet& packet);
  void owe(Reply reply, uint8_t syndrome, uint64_t sequence);
  void not_ready();
  void fail(NakCode code, const char* reason, Status receive_status);
  uint64_t first_owed() const;
  void answer(Read& read, uint64_t first, uint64_t address, uint32_t length, bool repeated);
  bool emit_response(Read& read, TxBatch& batch);
  void emit_atomic(Read& read, TxBatch& batch);

  QueuePair& qp_;
  ReceiveRing queue_;  // not used with a shared receive queue
  uint64_t expected_ = 0;
  // The last packet that an ACK may name. None of a READ or atomic: their answers are all that
  // acknowledges them, and there are peers (rxe) that take an ACK for the data.
  uint64_t acknowledged_ = 0;
  uint32_t msn_ = 0;

  Reply reply_ = Reply::None;
  uint8_t reply_syndrome_ = 0;
  uint64_t reply_sequence_ = 0;
  bool quiet_ =
      false;  // a NAK is out: nothing is said of later packets until the missing one comes
  uint8_t rnr_timer_ = kShortRnrTimer;

  Message message_ = Message::None;
  bool have_receive_ = false;
  uint8_t receive_sges_ = 0;
  uint64_t receive_wr_id_ = 0;
  uint32_t received_ = 0;  // bytes of the message so far
  uint32_t sge_index_ = 0, sge_offset_ = 0;
  uint64_t write_address_ = 0;  // of the next packet
  uint32_t write_rkey_ = 0;
  uint32_t write_left_ = 0;
  std::vector<Sge> receive_sge_list_;

  uint8_t max_reads_ = 0;
  uint64_t reads_accepted_ = 0;  // reads_[n % max_reads_]: in PSN order
  uint32_t active_reads_ = 0;
  std::vector<Read> reads_;
};

}  // namespace nvmeof::rdma::soft
