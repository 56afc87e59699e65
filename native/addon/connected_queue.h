// A queue of an initiator, or one over several paths, for those who use it on its reactor: the load
// generator, an attachment.
#pragma once
#include <cstdint>

#include "nvmf/command_queues.h"
#include "reactor/reactor.h"

namespace nvmeof::addon {

struct ConnectedQueue {
  uint32_t id;
  uint32_t device;
  nvmf::CommandQueues* engine;
  reactor::Reactor* reactor;
};

}  // namespace nvmeof::addon
