// Commands of a host and the queues that take them: the I/O queues of controllers (host_engine.h),
// and those that lead over several paths (multipath/). Everything of one reactor, on its thread.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "nvmf/nvme.h"
#include "reactor/reactor.h"
#include "reactor/result.h"

namespace nvmeof::rdma {
class MemoryRegion;
}

namespace nvmeof::nvmf {

enum class Direction : uint8_t { None, ToController, ToHost };

// How a command ended. QueueDied: the controller may have got it, and may still work on it.
// NeverSent: it did not get it.
enum class Outcome : uint8_t { Ok, QueueDied, Cancelled, NeverSent };

// The length of a keyed SGL descriptor has 24 bits. The caller splits; a longer command is a
// programming error and stops the process.
inline constexpr uint32_t kHostTransferMax = (1u << 24) - 1;

// Memory that commands may name.
struct HostMemory {
  uint8_t* base = nullptr;
  size_t length = 0;
  rdma::MemoryRegion* region = nullptr;
};

// The same, registered for one queue until this goes: on the reactor's thread, and not while
// commands that name it are in flight.
class RegisteredMemory : public HostMemory {
 public:
  virtual ~RegisteredMemory() = default;

 protected:
  explicit RegisteredMemory(const HostMemory& memory) : HostMemory(memory) {}
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
};

// Several may use one queue at a time. JavaScript's tags have 32 bits; those of native users have
// this bit.
inline constexpr uint64_t kNativeTag = 1ull << 63;

struct HostCommand;
// `cqe` is valid during the call only and zero unless Ok. May submit again from inside; when the
// queue has died a new command for it ends at once, inside submit().
inline constexpr std::array<uint8_t, kCqeBytes> kNoCqe{};
using HostDone = void (*)(HostCommand* command, Outcome outcome, const uint8_t cqe[16]);

// What a queue over several paths keeps with a command (multipath/path_queue.h): the caller's
// fields, which it replaces on the way, its place in the list that it is in, and its last path.
struct Route {
  HostDone done = nullptr;
  void* context = nullptr;
  const HostMemory* memory = nullptr;
  HostCommand* previous = nullptr;
  HostCommand* next = nullptr;
  reactor::TimeNs at = 0;  // sent; waiting for another attempt: due
  uint32_t incarnation = 0;
  uint8_t path = 0;
  uint8_t retries = 0;
  bool given_up = false;
};

// Owned by the caller until `done`.
struct HostCommand {
  uint8_t sqe[64];  // opcode, NSID, CDWs; CID, PSDT and SGL are filled in by the engine
  Direction direction = Direction::None;
  const HostMemory* memory = nullptr;
  uint64_t offset = 0;  // in memory
  uint32_t length = 0;
  HostDone done = nullptr;
  void* context = nullptr;
  uint64_t tag = 0;             // for cancel(): unique among the users of a queue, see kNativeTag
  HostCommand* next = nullptr;  // engine's: waiting for a free slot
  uint32_t slot = 0;            // engine's
  Route route;                  // the multipath queue's
};

class CommandQueues {
 public:
  virtual ~CommandQueues() = default;
  // A command on an unknown or dead queue ends at once.
  virtual void submit(uint32_t queue, HostCommand* command) = 0;
  // Gives commands with this tag up; `done` follows with Cancelled when nothing reaches the
  // caller's memory any more.
  virtual void cancel(uint32_t queue, uint64_t tag) = 0;
  // ENOTCONN: there is no such queue any more. Without memory windows the queue's controller is
  // shown the whole region, so each queue has its own registrations, which end with the queue.
  virtual Result<std::unique_ptr<RegisteredMemory>> register_memory(uint32_t queue, uint8_t* base,
                                                                    size_t length) = 0;
};

}  // namespace nvmeof::nvmf
