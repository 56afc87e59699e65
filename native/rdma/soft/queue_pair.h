// A queue pair of any service: state, addressing and the two halves, Requester and Responder. Made
// by Transport::create_qp, used on its reactor's thread only, destroyed before the transport.
// Neither half knows the other; both fail the queue pair through enter_error().
//
//          modify          modify         modify         modify
//   RESET --------> INIT --------> RTR --------> RTS <--------> SQD
//   UC, UD: a send that fails locally      SQE --- modify ---> RTS
//                       any state --- error, to_error(), modify ---> ERR --- modify ---> RESET
#pragma once
#include "rdma/soft/address_handle.h"
#include "rdma/soft/completion_queue.h"
#include "rdma/soft/memory.h"
#include "rdma/soft/queue_pair_state.h"
#include "rdma/soft/requester.h"
#include "rdma/soft/responder.h"
#include "rdma/soft/shared_receive.h"

namespace nvmeof::rdma::soft {

class Transport;
class QueuePairList;

class QueuePair final : public rdma::QueuePair {
 public:
  ~QueuePair() override;
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // ---- rdma::QueuePair
  uint32_t number() const override { return number_; }
  State state() const override { return state_; }
  Result<void> post_send(std::span<const SendWorkRequest> requests) override;
  Result<void> post_receive(std::span<const ReceiveWorkRequest> requests) override;
  void to_error() override;
  uint32_t outstanding_sends() const override { return requester_.count(); }
  uint32_t packet_bytes() const override { return mtu_; }
  const QueuePairCounters* counters() const override { return &counters_; }

  // ---- What the soft device adds
  // Moves to attributes.state. EINVAL for what verbs refuses: illegal moves, missing or superfluous
  // attributes, values out of range.
  Result<void> modify(const QpAttributes& attributes);
  // From RESET through INIT and RTR to RTS; takes from `attributes` what the service needs.
  Result<void> bring_up(QpAttributes attributes);
  // Keeps what the flow of its address vector belongs to, until it is destroyed.
  void keep(std::unique_ptr<AddressHandle> path) { path_ = std::move(path); }
  // Sends a zero-length RDMA WRITE that asks for an acknowledgement, to find out whether the peer
  // lives. No completion when it does; when it does not, the queue pair goes to ERR. False when it
  // is not needed (something is outstanding anyway) or not possible (not RTS).
  bool probe() override;
  void* context() const { return context_; }
  const Flow* flow() const { return flow_; }
  uint32_t destination_qpn() const { return destination_qpn_; }
  const char* error_reason() const { return error_reason_; }  // nullptr: not in ERR

  // ---- For Requester, Responder and Transport
  Transport& transport() { return transport_; }
  QpType type() const { return type_; }
  bool reliable() const { return type_ == QpType::Rc; }
  uint32_t qkey() const { return qkey_; }
  uint32_t mtu() const { return mtu_; }
  uint32_t domain() const { return domain_; }
  uint8_t access() const { return access_; }
  SharedReceiveQueue* srq() { return srq_; }
  CompletionQueue& send_cq() { return *send_cq_; }
  CompletionQueue& receive_cq() { return *receive_cq_; }
  // Flushes everything: the oldest send completes with `send_status`, the receive in progress with
  // `receive_status`, the rest with FlushError.
  void enter_error(const char* reason, Status send_status, Status receive_status);
  // A send failed before it left: ERR, or SQE on an unreliable service.
  void fail_send(Status status);
  void push(CompletionQueue& cq, WorkCompletion& completion);
  Requester& requester() { return requester_; }
  Responder& responder() { return responder_; }
  QueuePairCounters& count() { return counters_; }

 private:
  friend class Transport;
  friend class TimerHeap;
  friend class QueuePairList;
  QueuePair(Transport& transport, uint32_t number, const QueuePairOptions& options);
  void apply(const QpAttributes& attributes);

  Transport& transport_;
  uint32_t number_;
  QpType type_;
  State state_ = State::Reset;
  uint8_t access_ = 0;
  uint32_t mtu_ = 0;
  uint32_t service_;   // kReliable, kUnreliable or kDatagram: the rows of the opcode table it takes
  uint32_t qkey_ = 0;  // UD
  uint32_t destination_qpn_ = 0;
  uint32_t domain_;
  const Flow* flow_ = nullptr;
  CompletionQueue* send_cq_;
  CompletionQueue* receive_cq_;
  SharedReceiveQueue* srq_;
  void* context_;
  const char* error_reason_ = nullptr;
  std::unique_ptr<AddressHandle> path_;
  QueuePairCounters counters_;

  Requester requester_;
  Responder responder_;

  // Transport's lists
  struct Link {
    QueuePair* next = nullptr;
    QueuePair* previous = nullptr;
    bool linked = false;
  };
  Link run_;     // has work
  Link window_;  // waits for room in the receive window
  Link events_;  // has something to tell
  QueuePair* reply_next_ = nullptr;
  bool replying_ = false;
  bool established_ = false, tell_established_ = false, tell_error_ = false;
  uint32_t heap_index_ = ~0u;
  TimeNs heap_key_ = reactor::kNever;
};

}  // namespace nvmeof::rdma::soft
