// Protection domains, regions and type-2 windows on libibverbs. Registration may come from any
// thread; it pins the pages, and fails with a message that says how to raise RLIMIT_MEMLOCK.
#pragma once
#include <atomic>
#include <memory>

#include "rdma/provider.h"
#include "rdma/verbs/library.h"

namespace nvmeof::rdma::verbs {

// Live objects of a device, for its counters.
struct ObjectCounts {
  std::atomic<uint64_t> domains{0}, regions{0}, windows{0}, queue_pairs{0}, connections{0};
  std::atomic<uint64_t> completion_errors{0}, dropped_completions{0}, failed_deregistrations{0};
};

int verbs_access(uint8_t access);
// `what`: of how many bytes.
Error registration_error(int code, size_t length);

// An ibv_pd, which goes when the last object in it has gone.
class DomainHandle {
 public:
  DomainHandle(const Library& library, ibv_pd* pd, ObjectCounts& counts);
  ~DomainHandle();
  DomainHandle(const DomainHandle&) = delete;
  DomainHandle& operator=(const DomainHandle&) = delete;

  const Library& library;
  ibv_pd* const pd;
  ObjectCounts& counts;
};

class MemoryRegion final : public rdma::MemoryRegion {
 public:
  MemoryRegion(std::shared_ptr<DomainHandle> domain, ibv_mr* mr);
  ~MemoryRegion() override;
  uint32_t lkey() const override { return mr_->lkey; }
  uint32_t rkey() const override { return mr_->rkey; }
  ibv_mr* mr() const { return mr_; }

 private:
  std::shared_ptr<DomainHandle> domain_;
  ibv_mr* mr_;
};

class MemoryWindow final : public rdma::MemoryWindow {
 public:
  MemoryWindow(std::shared_ptr<DomainHandle> domain, ibv_mw* mw);
  ~MemoryWindow() override;
  // Verbs lets us choose the lowest 8 bits only: a key repeats after 256 binds.
  uint32_t next_rkey() override { return ibv_inc_rkey(mw_->rkey); }
  ibv_mw* mw() const { return mw_; }
  // A bind that names this key was posted: the next one counts from here.
  void bound(uint32_t rkey) { mw_->rkey = rkey; }

 private:
  std::shared_ptr<DomainHandle> domain_;
  ibv_mw* mw_;
};

class ProtectionDomain final : public rdma::ProtectionDomain {
 public:
  ProtectionDomain(const Library& library, ibv_pd* pd, ObjectCounts& counts)
      : domain_(std::make_shared<DomainHandle>(library, pd, counts)) {}
  Result<std::unique_ptr<rdma::MemoryRegion>> register_memory(void* address, size_t length,
                                                              uint8_t access) override;
  Result<std::unique_ptr<rdma::MemoryWindow>> allocate_window() override;
  ibv_pd* pd() const { return domain_->pd; }

 private:
  std::shared_ptr<DomainHandle> domain_;
};

}  // namespace nvmeof::rdma::verbs
