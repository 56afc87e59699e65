// Completion and shared receive queues on libibverbs. A completion queue has a channel of its own,
// whose descriptor wakes the owning reactor from sleep. Completions name their queue pair by its
// number; the queue keeps the table. On the owning reactor's thread.
#pragma once
#include <memory>
#include <vector>

#include "rdma/provider.h"
#include "rdma/verbs/library.h"
#include "rdma/verbs/memory.h"

namespace nvmeof::rdma::verbs {

class QueuePair;

class CompletionQueue final : public rdma::CompletionQueue {
 public:
  // `vector`: of the device's completion vectors. `reactor` may be null in tests: no wake-up then.
  static Result<std::unique_ptr<CompletionQueue>> create(const Library& library,
                                                         ibv_context* context, uint32_t depth,
                                                         int vector, reactor::Reactor* reactor,
                                                         ObjectCounts& counts);
  ~CompletionQueue() override;

  int poll(std::span<WorkCompletion> out) override;
  bool arm() override;

  ibv_cq* cq() const { return cq_; }
  void attach(QueuePair* qp);
  // To be called when the ibv_qp is gone: what is left of it is dropped, whatever the driver does.
  void detach(QueuePair* qp);

 private:
  CompletionQueue(const Library& library, reactor::Reactor* reactor, ObjectCounts& counts);
  // From the device. Returns how many went into `out`; `dry` when there are no more.
  size_t take(std::span<WorkCompletion> out, bool* dry);
  // Everything that waits, into kept_.
  void keep_all();
  QueuePair* find(uint32_t number) const;
  void rehash(size_t slots);

  const Library& library_;
  reactor::Reactor* reactor_;
  ObjectCounts& counts_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  bool armed_ = false;
  unsigned unacknowledged_ = 0;  // events of the channel
  std::vector<WorkCompletion> kept_;
  size_t kept_at_ = 0;
  // Open addressing by queue pair number; a power of two, at most half full.
  std::vector<QueuePair*> table_;
  size_t attached_ = 0;
};

class SharedReceiveQueue final : public rdma::SharedReceiveQueue {
 public:
  static Result<std::unique_ptr<SharedReceiveQueue>> create(const Library& library, ibv_pd* pd,
                                                            uint32_t max_wr, uint32_t max_sge);
  ~SharedReceiveQueue() override;
  Result<void> post_receive(std::span<const ReceiveWorkRequest> requests) override;
  ibv_srq* srq() const { return srq_; }

 private:
  SharedReceiveQueue(const Library& library, ibv_srq* srq) : library_(library), srq_(srq) {}
  const Library& library_;
  ibv_srq* srq_;
};

// Posts in chains; `post` takes the first of a chain and returns 0 or an errno value.
Result<void> post_receives(std::span<const ReceiveWorkRequest> requests,
                           int (*post)(void* queue, ibv_recv_wr* first), void* queue);

}  // namespace nvmeof::rdma::verbs
