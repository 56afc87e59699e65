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

MemoryRegion::MemoryRegion(const Library& library, ibv_mr* mr, ObjectCounts& counts)
    : library_(library), mr_(mr), counts_(counts) {
  counts_.regions.fetch_add(1, std::memory_order_relaxed);
}

MemoryRegion::~MemoryRegion() {
  if (library_.dereg_mr(mr_) != 0)
    counts_.failed_deregistrations.fetch_add(1, std::memory_order_relaxed);
  counts_.regions.fetch_sub(1, std::memory_order_relaxed);
}

MemoryWindow::MemoryWindow(ibv_mw* mw, ObjectCounts& counts) : mw_(mw), counts_(counts) {
  counts_.windows.fetch_add(1, std::memory_order_relaxed);
}

MemoryWindow::~MemoryWindow() {
  ibv_dealloc_mw(mw_);
  counts_.windows.fetch_sub(1, std::memory_order_relaxed);
}

ProtectionDomain::ProtectionDomain(const Library& library, ibv_pd* pd, ObjectCounts& counts)
    : library_(library), pd_(pd), counts_(counts) {
  counts_.domains.fetch_add(1, std::memory_order_relaxed);
}

ProtectionDomain::~ProtectionDomain() {
  library_.dealloc_pd(pd_);
  counts_.domains.fetch_sub(1, std::memory_order_relaxed);
}

Result<std::unique_ptr<rdma::MemoryRegion>> ProtectionDomain::register_memory(void* address,
                                                                              size_t length,
                                                                              uint8_t access) {
  ibv_mr* const mr = library_.reg_mr(pd_, address, length, verbs_access(access));
  if (mr == nullptr) return registration_error(errno, length);
  return std::unique_ptr<rdma::MemoryRegion>(std::make_unique<MemoryRegion>(library_, mr, counts_));
}

Result<std::unique_ptr<rdma::MemoryWindow>> ProtectionDomain::allocate_window() {
  ibv_mw* const mw = ibv_alloc_mw(pd_, IBV_MW_TYPE_2);
  if (mw == nullptr)
    return Error{errno, "The device has no further memory window" + reason_of(errno) + "."};
  return std::unique_ptr<rdma::MemoryWindow>(std::make_unique<MemoryWindow>(mw, counts_));
}

}  // namespace nvmeof::rdma::verbs
