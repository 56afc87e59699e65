// The initiator's half of NVMe over RDMA on one reactor: queues of one device, from submission to
// completion. Fills CID and SGL of each command, exposes exactly its bytes under a key that dies
// with it, and reports each command exactly once. Knows nothing of sockets, libibverbs or Node.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "nvmf/event_sink.h"
#include "rdma/provider.h"
#include "reactor/reactor.h"

namespace nvmeof::nvmf {

enum class Direction : uint8_t { None, ToController, ToHost };

enum class Outcome : uint8_t { Ok, QueueDied, Cancelled };

// How long a command that was given up keeps its key. A controller that is only slow still uses it,
// and a key that ended under an RDMA operation costs the queue; so its answer is waited for. A
// controller that is silent for longer than this may lose the queue over it.
inline constexpr reactor::TimeNs kCancelGrace = 2'000'000'000;

// The length of a keyed SGL descriptor has 24 bits. The caller splits; a longer command is a
// programming error and stops the process.
inline constexpr uint32_t kHostTransferMax = (1u << 24) - 1;

struct HostQueueOptions {
  uint32_t depth;             // submission queue entries; commands in flight at most depth - 1
  uint32_t in_capsule_bytes;  // data the target takes in the capsule of this queue
  rdma::ConnectionParameters parameters;
  uint32_t timeout_ms;
};

// Memory that commands may name: allocated page-aligned by the engine's owner, registered once per
// device.
struct HostMemory {
  uint8_t* base;
  size_t length;
  rdma::MemoryRegion* region;
};

// Several may use one queue at a time. JavaScript's tags have 32 bits; those of native users have
// this bit.
inline constexpr uint64_t kNativeTag = 1ull << 63;

struct HostCommand;
// `cqe` is valid during the call only and zero unless Ok. May submit again from inside; after
// QueueDied a new command for the same queue ends at once, inside submit().
using HostDone = void (*)(HostCommand* command, Outcome outcome, const uint8_t cqe[16]);

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
};

class HostEngine : public reactor::Poller, public rdma::ConnectionHandler {
 public:
  static Result<std::unique_ptr<HostEngine>> create(rdma::Device* device, reactor::Reactor* reactor,
                                                    EventSink* sink);

  // All on the reactor's thread. Events go to the sink: of each queue either ConnectFailed alone,
  // or QueueEstablished and later QueueClosed. close() of a queue that still connects gives
  // ConnectFailed (Cancelled).
  virtual Result<void> connect(uint32_t queue, const sockaddr_storage& peer, uint16_t port,
                               const HostQueueOptions& options) = 0;
  // Queues beyond the depth wait in order. A command on an unknown or dead queue ends with
  // QueueDied at once.
  virtual void submit(uint32_t queue, HostCommand* command) = 0;
  // Gives commands with this tag up; `done` follows with Cancelled when nothing reaches the
  // caller's memory any more. That is at once for commands that exposed none. Another keeps its key
  // until the controller answers, but no longer than kCancelGrace; then the key is ended, and if
  // the controller uses it after that, even by invalidating it, the queue dies. Where keys cannot
  // die alone (no memory windows), it is when the controller answers or the queue closes.
  virtual void cancel(uint32_t queue, uint64_t tag) = 0;
  virtual void close(uint32_t queue) = 0;
  // For register_memory of what a queue's commands name. With memory windows one domain serves all
  // queues; without them a region's key is shown to the queue's controller, so each queue has its
  // own, which lives as long as the queue. Null: no such queue.
  virtual rdma::ProtectionDomain* protection_domain(uint32_t queue) = 0;
  // Access rights for such a region: no remote ones where memory windows give them per command.
  virtual uint8_t region_access() const = 0;  // any thread

  virtual uint32_t live_queues() const = 0;
  virtual std::vector<rdma::CounterValue> counters() const = 0;  // any thread
};

}  // namespace nvmeof::nvmf
