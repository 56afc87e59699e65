// Memory that commands name: mapped by the JavaScript thread, registered by each reactor on its
// first use there, unmapped when JavaScript has let go and no reactor holds it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "nvmf/command_queues.h"
#include "rdma/arena.h"

namespace nvmeof::addon {

struct Buffer {
  // Touched by its reactor alone.
  struct OnReactor {
    // By queue; all at 0 where one registration serves every queue.
    std::map<uint32_t, std::unique_ptr<nvmf::RegisteredMemory>> registrations;
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
