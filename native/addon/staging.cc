// Staging memory; see staging.h.
#include "addon/staging.h"

#include <cerrno>

namespace nvmeof::addon {

Result<StagingSlot> Staging::take(size_t length) {
  uint8_t size_class = 0;
  while (size_class < kSizes.size() && kSizes[size_class] < length) size_class++;
  if (size_class == kSizes.size()) {
    return Error{EMSGSIZE,
                 "a command's data has at most " + std::to_string(kLengthMax) + " bytes; split it"};
  }
  auto& free = free_[size_class];
  if (free.empty()) {
    if ((chunks_.size() + 1) * kChunk > kTotalMax) {
      return Error{ENOBUFS,
                   "256 MiB of command data are in flight on one reactor; wait for "
                   "completions or use allocateBuffer"};
    }
    auto arena = rdma::Arena::map(kChunk);
    if (!arena) return arena.error();
    auto chunk = std::make_unique<Buffer>();
    chunk->arena = std::move(*arena);
    chunk->on.resize(reactors_);
    for (size_t offset = 0; offset < kChunk; offset += kSizes[size_class]) {
      free.push_back({chunk.get(), offset, size_class});
    }
    chunks_.push_back(std::move(chunk));
  }
  const StagingSlot slot = free.back();
  free.pop_back();
  return slot;
}

}  // namespace nvmeof::addon
