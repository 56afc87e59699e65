// A shared receive queue: receives that any queue pair of its reactor takes when a message for it
// begins. In ERR a queue pair gives back nothing but the receive it was filling.
#pragma once
#include "rdma/provider.h"
#include "rdma/soft/work_queue.h"

namespace nvmeof::rdma::soft {

class SharedReceiveQueue final : public rdma::SharedReceiveQueue {
 public:
  SharedReceiveQueue(ProtectionDomain* pd, uint32_t max_wr, uint32_t max_sge)
      : pd_(pd), ring_(max_wr, max_sge, ReceiveOrder::Last) {}

  Result<void> post_receive(std::span<const ReceiveWorkRequest> requests) override;

  ReceiveRing& ring() { return ring_; }
  ProtectionDomain* pd() const { return pd_; }

 private:
  ProtectionDomain* pd_;
  ReceiveRing ring_;
};

// Checks and appends; ENOMEM when full, EINVAL when malformed. The message says how many were
// accepted.
Result<void> post_receives(ReceiveRing& ring, std::span<const ReceiveWorkRequest> requests);

}  // namespace nvmeof::rdma::soft
