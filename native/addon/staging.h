// Registered memory for commands whose data JavaScript passes by value: slots of a few sizes out of
// chunks, for one device on one reactor. JavaScript thread only; the reactor registers the chunks.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "addon/buffers.h"
#include "reactor/result.h"

namespace nvmeof::addon {

struct StagingSlot {
  Buffer* buffer = nullptr;
  uint64_t offset = 0;
  uint8_t size_class = 0;
  uint8_t* bytes() const { return buffer->arena->base() + offset; }
};

class Staging {
 public:
  static constexpr size_t kLengthMax = 1u << 20;
  static constexpr size_t kTotalMax = 256u << 20;

  explicit Staging(size_t reactors) : reactors_(reactors) {}
  // ENOBUFS when all of kTotalMax is in flight, EMSGSIZE beyond kLengthMax.
  Result<StagingSlot> take(size_t length);
  void give_back(const StagingSlot& slot) { free_[slot.size_class].push_back(slot); }

 private:
  static constexpr size_t kChunk = 2u << 20;
  static constexpr std::array<size_t, 5> kSizes = {4096, 16384, 65536, 262144, kLengthMax};

  size_t reactors_;
  std::array<std::vector<StagingSlot>, kSizes.size()> free_;
  std::vector<std::unique_ptr<Buffer>> chunks_;
};

}  // namespace nvmeof::addon
