// The objects a LoopbackDevice hands out: queues, queue pairs, domains, regions, windows. Only
// loopback_provider.cc and loopback_device.cc include it.
#pragma once
#include "support/loopback_provider.h"

namespace nvmeof::test {

inline constexpr unsigned kLoopbackSges = 16;

class LoopbackCompletionQueue : public rdma::CompletionQueue {
 public:
  LoopbackCompletionQueue(LoopbackFabric* fabric, uint32_t depth)
      : fabric_(fabric), depth_(depth) {}
  int poll(std::span<rdma::WorkCompletion> out) override;
  bool arm() override { return entries_.empty(); }
  // `retired`: send queue entries that the poll of this completion gives back.
  void push(const rdma::WorkCompletion& completion, uint32_t retired);

 private:
  struct Entry {
    rdma::WorkCompletion completion;
    uint32_t retired;
  };
  LoopbackFabric* fabric_;
  uint32_t depth_;
  std::deque<Entry> entries_;
};

struct LoopbackReceive {
  uint64_t wr_id;
  uint8_t num_sge;
  rdma::Sge sges[kLoopbackSges];
};

class LoopbackReceives : public rdma::SharedReceiveQueue {
 public:
  LoopbackReceives(uint32_t max_wr, uint32_t max_sge) : max_wr_(max_wr), max_sge_(max_sge) {}
  Result<void> post_receive(std::span<const rdma::ReceiveWorkRequest> requests) override;
  std::deque<LoopbackReceive> waiting;

 private:
  uint32_t max_wr_, max_sge_;
};

class LoopbackDomain : public rdma::ProtectionDomain {
 public:
  explicit LoopbackDomain(LoopbackFabric* fabric) : fabric_(fabric) {}
  Result<std::unique_ptr<rdma::MemoryRegion>> register_memory(void* address, size_t length,
                                                              uint8_t access) override;
  Result<std::unique_ptr<rdma::MemoryWindow>> allocate_window() override;

 private:
  LoopbackFabric* fabric_;
};

class LoopbackRegion : public rdma::MemoryRegion {
 public:
  LoopbackRegion(LoopbackFabric* fabric, const LoopbackKey& key);
  ~LoopbackRegion() override;
  uint32_t lkey() const override { return lkey_; }
  uint32_t rkey() const override { return rkey_; }

 private:
  LoopbackFabric* fabric_;
  uint32_t lkey_, rkey_ = 0;
};

class LoopbackWindow : public rdma::MemoryWindow {
 public:
  explicit LoopbackWindow(LoopbackFabric* fabric) : fabric_(fabric) {}
  ~LoopbackWindow() override;
  uint32_t next_rkey() override;
  uint32_t bound = 0;  // rkey

 private:
  LoopbackFabric* fabric_;
};

class LoopbackQueuePair : public rdma::QueuePair {
 public:
  uint32_t packet_bytes() const override { return 1024; }
  LoopbackQueuePair(LoopbackFabric* fabric, LoopbackDevice* device,
                    const rdma::QueuePairOptions& options, uint32_t number);
  ~LoopbackQueuePair() override;
  uint32_t number() const override { return number_; }
  rdma::State state() const override { return state_; }
  Result<void> post_send(std::span<const rdma::SendWorkRequest> requests) override;
  Result<void> post_receive(std::span<const rdma::ReceiveWorkRequest> requests) override;
  void to_error() override;
  uint32_t outstanding_sends() const override { return static_cast<uint32_t>(sends_.size()); }
  bool probe() override;

 private:
  friend class LoopbackFabric;
  friend class LoopbackDevice;
  friend class LoopbackCompletionQueue;
  struct Send {
    rdma::SendWorkRequest request;
    rdma::Sge sges[kLoopbackSges];
    uint8_t inline_data[256];
  };
  Result<void> check(const rdma::SendWorkRequest& request) const;
  LoopbackReceives* receives() {
    return options_.srq ? static_cast<LoopbackReceives*>(options_.srq) : &own_receives_;
  }
  rdma::WorkCompletion completion(uint64_t wr_id, rdma::Status status, bool receive) const;
  void complete_send(rdma::Status status);  // pops the front request
  void release_acknowledgements(rdma::Status status);
  void complete_receive(const LoopbackReceive& receive, rdma::Status status, rdma::Opcode opcode,
                        uint32_t length, uint8_t flags, uint32_t imm_or_rkey);

  LoopbackFabric* fabric_;
  LoopbackDevice* device_;
  rdma::QueuePairOptions options_;
  uint32_t number_;
  rdma::State state_ = rdma::State::Reset;
  std::deque<Send> sends_;
  LoopbackReceives own_receives_;
  uint32_t in_use_ = 0;     // send queue entries until the completion that retires them is polled
  uint32_t unretired_ = 0;  // unsignalled requests done since the last completion
  uint32_t peer_ = 0;
  rdma::ConnectionId connection_ = 0;
  bool held_ = false, cut_ = false;
  struct Unacknowledged {
    rdma::WorkCompletion completion;
    uint32_t retires;
  };
  std::deque<Unacknowledged> unacknowledged_;
  bool acknowledgements_held_ = false;
  std::map<rdma::Opcode, rdma::Status> faults_;
};

}  // namespace nvmeof::test
