// Which ANA groups of a subsystem may be used through which of its ports (Base 2.1 section 8.1.1).
// A queue points at the view of its port; what stands there for a namespace's group is the answer
// to every command on it, or success: then the command runs. Which state gives which answer is the
// control plane's affair. Reactor's thread.
#pragma once
#include <array>
#include <cstdint>

#include "nvmf/status.h"
#include "nvmf/target_engine.h"

namespace nvmeof::nvmf {

// One port's view of one table. Exists while a group is refused there.
struct AccessView {
  uint32_t port = 0;
  std::array<uint16_t, kAnaGroups + 1> refusal{};  // by group; status::kSuccess: may be used

  bool refuses() const {
    for (const uint16_t status : refusal)
      if (status != status::kSuccess) return true;
    return false;
  }
};

// Of ports where nothing is refused.
inline constexpr AccessView kOpenView{};

// A change of a view that has not ended. One that refuses ends when the commands it found in a
// backing have left it, and behind earlier ones of its group and port: those count the commands
// that they found, once.
struct AccessChange {
  AccessRule rule;
  uint32_t executing = 0;
  ChangeDone done;
  void* context;
};

}  // namespace nvmeof::nvmf
