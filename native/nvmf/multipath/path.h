// One path of a queue over several, and which of them the next command takes.
#pragma once
#include <array>
#include <cstdint>
#include <memory>

#include "nvmf/multipath/host_command_list.h"

namespace nvmeof::nvmf {

inline constexpr uint32_t kPathsMax = 16;

// Among the paths of the best rank there is. RoundRobin: in turns. QueueDepth: the one with the
// fewest commands of this queue. Numa: the nearest, until it fails.
enum class PathPolicy : uint8_t { RoundRobin, QueueDepth, Numa };

struct PathOptions {
  CommandQueues* engine = nullptr;  // of this reactor, or `remote`
  uint32_t queue = 0;               // of that engine
  // Lower is better: the control plane makes it of ANA states and preferences. kPathUnusable: no
  // command may go there, those that are there may still be answered.
  uint8_t rank = 0;
  uint8_t distance = 0;                             // of NUMA nodes
  uint32_t incarnation = 0;                         // rises with each association of the path
  std::shared_ptr<CommandQueues> remote = nullptr;  // leads to a queue of another reactor
};
inline constexpr uint8_t kPathUnusable = 255;

struct Path {
  PathOptions to;
  bool lost = false;          // its queue died: not until another association's is set
  bool suspended = false;     // it refused a command: not until it is set again
  bool overdue_told = false;  // of this incarnation
  HostCommandList sent;
  // What may have reached a controller that is lost now, and must not be repeated before that is
  // known to be through with it.
  HostCommandList held;
  void (*drained)(void* context) = nullptr;  // waits until nothing is sent
  void* drained_context = nullptr;

  // Of what this incarnation was sent. An earlier one's commands, which are before it, may yet come
  // back.
  const HostCommand* oldest() const {
    const HostCommand* command = sent.front();
    while (command != nullptr && command->route.incarnation != to.incarnation) {
      command = command->route.next;
    }
    return command;
  }

  bool usable() const {
    return to.engine != nullptr && !lost && !suspended && to.rank != kPathUnusable;
  }
};

using Paths = std::array<Path, kPathsMax>;

class PathChoice {
 public:
  explicit PathChoice(PathPolicy policy) : policy_(policy) {}
  void set_policy(PathPolicy policy) { policy_ = policy; }
  // After each change of what makes paths usable.
  void update(const Paths& paths);
  bool any() const { return count_ != 0; }
  // kPathsMax: none is usable.
  uint32_t next(const Paths& paths);

 private:
  PathPolicy policy_;
  std::array<uint8_t, kPathsMax> candidates_{};  // of the best rank; the nearest first
  uint32_t count_ = 0;
  uint32_t turn_ = 0;
};

}  // namespace nvmeof::nvmf
