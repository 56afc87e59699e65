// Memory that commands name: mapped by the JavaScript thread, registered by each reactor on its
// first use there, unmapped when JavaScript has let go and no reactor holds it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "nvmf/host_engine.h"
#include "rdma/arena.h"

namespace nvmeof::addon {

struct Buffer {
  struct Registration {
    nvmf::HostMemory memory{};
    std::unique_ptr<rdma::MemoryRegion> region;
  };
  // Touched by its reactor alone.
  struct OnReactor {
    std::map<uint32_t, Registration> registrations;  // by queue; all at 0 with memory windows
    uint32_t in_flight = 0;
    bool releasing = false;  // tell the JavaScript thread when nothing is in flight
  };

  uint32_t id = 0;
  std::shared_ptr<rdma::Arena> arena;
  std::vector<OnReactor> on;  // by reactor index
  // The JavaScript thread's.
  uint32_t device = 0;
  std::vector<bool> used;  // reactors that got a command with it
  uint32_t releases_pending = 0;
  bool freed = false;
};

}  // namespace nvmeof::addon
