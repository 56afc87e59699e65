// What stands behind the id of an attached namespace. Shared with the worker thread that detaches
// it.
#pragma once
#include <cstdint>
#include <memory>

#include "attach/attachment.h"

namespace nvmeof::addon {

struct AttachEntry {
  uint32_t device = 0;
  attach::nbd::NbdCounters nbd{};
  attach::ClientCounters clients;
  std::unique_ptr<attach::Attachment> attachment;  // before the counters go
};

}  // namespace nvmeof::addon
