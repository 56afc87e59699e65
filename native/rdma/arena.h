// Anonymous memory to register: zeroed, aligned to a huge page from the size of one on, in huge
// pages when there are some. First those that the administrator set aside (vm.nr_hugepages), all of
// them backed before they are handed out; else transparent ones, which are a wish. On machines with
// several NUMA nodes, on that of the core that will use it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "reactor/result.h"

namespace nvmeof::rdma {

class Arena {
 public:
  // At least `bytes` of it (> 0). ENOMEM when there is no memory for them. `core`: the reactor's;
  // its node is preferred, another taken when it is full. -1: the node of who touches a page first.
  static Result<std::unique_ptr<Arena>> map(size_t bytes, int core = -1);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint8_t* base() const { return base_; }
  size_t bytes() const { return bytes_; }  // as asked for

 private:
  Arena(uint8_t* base, size_t bytes, void* mapped, size_t mapped_bytes)
      : base_(base), bytes_(bytes), mapped_(mapped), mapped_bytes_(mapped_bytes) {}

  uint8_t* const base_;
  const size_t bytes_;
  void* const mapped_;
  const size_t mapped_bytes_;
};

// The NUMA node of a core; -1 when the system names none.
int node_of_core(int core);

}  // namespace nvmeof::rdma
