#include "attach/nbd/export.h"

#include <algorithm>

#include "attach/nbd/protocol.h"

namespace nvmeof::attach::nbd {

namespace {
constexpr uint32_t kPreferred = 4096;
constexpr size_t kDescriptionMax = 512;
}  // namespace

Export Export::of(const Geometry& geometry, std::string description) {
  namespace flag = transmission;
  Export made;
  made.size = geometry.lba_count * geometry.lba_bytes;
  made.block_min = geometry.lba_bytes;
  made.block_preferred = std::max(kPreferred, geometry.lba_bytes);
  made.block_max = kPayloadMax;
  // Several connections see each other's writes after a flush: all of them go to one namespace.
  made.flags = flag::kHasFlags | flag::kFlush | flag::kMultiConn;
  if (geometry.read_only) {
    made.flags |= flag::kReadOnly;
  } else {
    made.flags |= flag::kFua;
    if (geometry.can_deallocate) made.flags |= flag::kTrim;
    if (geometry.can_write_zeroes) made.flags |= flag::kWriteZeroes;
  }
  description.resize(std::min(description.size(), kDescriptionMax));
  made.description = std::move(description);
  return made;
}

}  // namespace nvmeof::attach::nbd
