#include "rdma/verbs/memory.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>

#include "rdma/verbs/text.h"

namespace nvmeof::rdma::verbs {

int verbs_access(uint8_t access) {
  constexpr struct {
    uint8_t ours;
    int theirs;
  } kRights[] = {{kLocalWrite, IBV_ACCESS_LOCAL_WRITE},
                 {kRemoteWrite, IBV_ACCESS_REMOTE_WRITE},
                 {kRemoteRead, IBV_ACCESS_REMOTE_READ},
                 {kRemoteAtomic, IBV_ACCESS_REMOTE_ATOMIC},
                 {kWindowBind, IBV_ACCESS_MW_BIND}};
  int flags = 0;
  for (const auto& right : kRights) {
    if ((access & right.ours) != 0) flags |= right.theirs;
  }
  return flags;
}

Error registration_error(int code, size_t length) {
  const std::string what = "Registering " + std::to_string(length) + " bytes of memory failed";
  rlimit limit{};
  if (code == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    return Error{code, what + ": registered memory is locked, and RLIMIT_MEMLOCK allows " +
                           std::to_string(limit.rlim_cur) +
                           " bytes in all. Raise it: ulimit -l unlimited, for good a line \"* - "
                           "memlock unlimited\" in /etc/security/limits.conf, for a service "
                           "LimitMEMLOCK=infinity."};
  return Error{code, what + reason_of(code) + "."};
}

DomainHandle::DomainHandle(const Library& its_library, ibv_pd* its_pd, ObjectCounts& its_counts)
    : library(its_library), pd(its_pd), counts(its_counts) {
  counts.domains.fetch_add(1, std::memory_order_relaxed);
}

DomainHandle::~DomainHandle() {
  library.dealloc_pd(pd);
  counts.domains.fetch_sub(1, std::memory_order_relaxed);
}

MemoryRegion::MemoryRegion(std::shared_ptr<DomainHandle> domain, ibv_mr* mr)
    : domain_(std::move(domain)), mr_(mr) {
  domain_->counts.regions.fetch_add(1, std::memory_order_relaxed);
}

MemoryRegion::~MemoryRegion() {
  ObjectCounts& counts = domain_->counts;
  if (domain_->library.dereg_mr(mr_) != 0)
    counts.failed_deregistrations.fetch_add(1, std::memory_order_relaxed);
  counts.regions.fetch_sub(1, std::memory_order_relaxed);
}

MemoryWindow::MemoryWindow(std::shared_ptr<DomainHandle> domain, ibv_mw* mw)
    : domain_(std::move(domain)), mw_(mw) {
  domain_->counts.windows.fetch_add(1, std::memory_order_relaxed);
}

MemoryWindow::~MemoryWindow() {
  ibv_dealloc_mw(mw_);
  domain_->counts.windows.fetch_sub(1, std::memory_order_relaxed);
}

Result<std::unique_ptr<rdma::MemoryRegion>> ProtectionDomain::register_memory(void* address,
                                                                              size_t length,
                                                                              uint8_t access) {
  ibv_mr* const mr = domain_->library.reg_mr(pd(), address, length, verbs_access(access));
  if (mr == nullptr) return registration_error(errno, length);
  return std::unique_ptr<rdma::MemoryRegion>(std::make_unique<MemoryRegion>(domain_, mr));
}

Result<std::unique_ptr<rdma::MemoryWindow>> ProtectionDomain::allocate_window() {
  ibv_mw* const mw = ibv_alloc_mw(pd(), IBV_MW_TYPE_2);
  if (mw == nullptr)
    return Error{errno, "The device has no further memory window" + reason_of(errno) + "."};
  return std::unique_ptr<rdma::MemoryWindow>(std::make_unique<MemoryWindow>(domain_, mw));
}

}  // namespace nvmeof::rdma::verbs
