// A reliable queue pair on libibverbs. Two halves: QueuePair, on the owning reactor's thread, keeps
// the work requests that are outstanding; QueuePairHandle, shared with the thread of connection
// management, is the ibv_qp with its state, and outlives the other half where it must.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "rdma/provider.h"
#include "rdma/verbs/completion_queue.h"
#include "rdma/verbs/library.h"
#include "rdma/verbs/memory.h"

namespace nvmeof::rdma::verbs {

// Any thread. The mutex is held for the length of one verb, and only where a queue pair changes
// state or goes; never on the data path.
class QueuePairHandle {
 public:
  QueuePairHandle(const Library& library, ibv_qp* qp)
      : library_(library), number_(qp->qp_num), qp_(qp) {}

  uint32_t number() const { return number_; }
  State state() const { return state_.load(std::memory_order_acquire); }
  // Moves the queue pair on; ENOTCONN when it is in ERR already, or destroyed.
  Result<void> modify(ibv_qp_attr* attributes, int mask, State to);
  // The state changed without our doing: iWARP connects, or the device reports a failure.
  void note(State to);
  void to_error();
  void destroy();

 private:
  const Library& library_;
  const uint32_t number_;
  std::mutex mutex_;
  ibv_qp* qp_;  // null: destroyed
  std::atomic<State> state_{State::Reset};
};

// Told once, at the first completion with an error that is no flush.
class QueuePairFailure {
 public:
  virtual ~QueuePairFailure() = default;
  virtual void on_queue_pair_failed(uint32_t number, Status status) = 0;
};

struct QueuePairTraits {
  uint32_t max_inline = 0;
  bool inline_with_invalidate = true;
  bool register_read_sinks = false;  // iWARP
  bool signal_writes = false;        // iWARP
  bool immediates = true;            // not on iWARP
};

class QueuePair final : public rdma::QueuePair {
 public:
  static Result<std::unique_ptr<QueuePair>> create(const Library& library,
                                                   const QueuePairOptions& options,
                                                   const QueuePairTraits& traits,
                                                   QueuePairFailure& failure, ObjectCounts& counts);
  ~QueuePair() override;

  uint32_t number() const override { return handle_->number(); }
  // RESET until accept() or connect(), although receives may be posted: the ibv_qp is in INIT.
  State state() const override { return handle_->state(); }
  Result<void> post_send(std::span<const SendWorkRequest> requests) override;
  Result<void> post_receive(std::span<const ReceiveWorkRequest> requests) override;
  void to_error() override { handle_->to_error(); }
  uint32_t outstanding_sends() const override { return static_cast<uint32_t>(head_ - tail_); }

  const std::shared_ptr<QueuePairHandle>& handle() const { return handle_; }
  bool has_srq() const { return qp_->srq != nullptr; }
  ibv_qp* qp() const { return qp_; }
  // Of the completion queue: translates; false when it belongs to nothing outstanding.
  bool complete(const ibv_wc& wc, WorkCompletion* out);

 private:
  // A work request that is outstanding, at its sequence number modulo the size of the ring.
  struct Sent {
    uint64_t wr_id = 0;
    Opcode opcode = Opcode::Send;
    ibv_mr* sink = nullptr;  // iWARP: where the READ's data goes; ends with it
    ibv_sge sink_sge{};
    bool silent = false;  // signaled for our sake alone
  };

  QueuePair(const Library& library, ibv_qp* qp, const QueuePairOptions& options,
            const QueuePairTraits& traits, QueuePairFailure& failure, ObjectCounts& counts);
  Result<void> fill(const SendWorkRequest& request, Sent* sent, ibv_send_wr* wr);
  Result<void> fill_read(const SendWorkRequest& request, Sent* sent, ibv_send_wr* wr);
  // With a completion, which nobody hears of unless it was asked for.
  static void signal(const SendWorkRequest& request, Sent* sent, ibv_send_wr* wr);
  Result<void> post(ibv_send_wr* first, size_t count);
  void retire(uint64_t sequence);
  void end_sink(Sent* read);
  Sent& sent(uint64_t sequence) { return ring_[sequence & (ring_.size() - 1)]; }

  const Library& library_;
  ibv_qp* qp_;
  const std::shared_ptr<QueuePairHandle> handle_;
  CompletionQueue* const send_cq_;
  CompletionQueue* const receive_cq_;
  void* const context_;
  const uint32_t max_send_wr_;
  const uint32_t max_sge_;
  const QueuePairTraits traits_;
  QueuePairFailure& failure_;
  ObjectCounts& counts_;
  bool told_ = false;
  // Sequence numbers: next to be posted, oldest outstanding, the next after all that completed.
  uint64_t head_ = 0, tail_ = 0, completed_ = 0;
  std::vector<Sent> ring_;
};

}  // namespace nvmeof::rdma::verbs
