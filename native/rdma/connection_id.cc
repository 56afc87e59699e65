#include "rdma/connection_id.h"

#include <atomic>

namespace nvmeof::rdma {

ConnectionId new_connection_id() {
  static std::atomic<ConnectionId> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace nvmeof::rdma
