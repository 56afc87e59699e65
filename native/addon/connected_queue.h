// A queue of an initiator, for those who use it on its reactor: the load generator, an attachment.
#pragma once
#include <cstdint>

#include "nvmf/host_engine.h"
#include "reactor/reactor.h"

namespace nvmeof::addon {

struct ConnectedQueue {
  uint32_t id;
  uint32_t device;
  nvmf::HostEngine* engine;
  reactor::Reactor* reactor;
};

}  // namespace nvmeof::addon
