// Events from reactors to the control plane. The engines push; the addon's ring carries them over
// the door (the record layout stands in native/events.ts); C++ tests collect them. One sink per
// reactor, called on its thread only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace nvmeof::nvmf {

enum class EventKind : uint16_t {
  ConnectRequest = 1,  // id listener, value connection; first: private data; second: EventAddresses
  QueueEstablished =
      2,  // id queue, code responder_resources | initiator_depth << 8; first: private data
  ConnectFailed =
      3,  // id queue, code ConnectFailure | reason << 16; first: private data; second: message
  QueueClosed = 4,  // id queue; second: reason text
  Capsule = 5,      // id queue, tag; first: 64-byte SQE; second: data
  Completion =
      6,  // id queue, tag, code 0 ok, 1 queue died, 2 cancelled; first: 16-byte CQE; second: data
  IoError = 7,        // id queue, code status | parameter << 16; first: 64-byte SQE
  OperationDone = 8,  // id operation, code errno, value; second: message
  QueueQuiet = 9,     // id queue: it ends, and nothing of it can change a backing any more
  // Of queues over several paths (multipath/path_queue.h):
  PathRefused = 10,  // id queue, tag path, code status (0: the path could not take a command),
                     // value incarnation
  PathOverdue = 11,  // id queue, tag path, value incarnation
};

// Bounds of one event's parts; push() refuses to go beyond them (a programmer's error).
inline constexpr size_t kEventFirstMax = 512;
inline constexpr size_t kEventSecondMax = 1u << 20;

// Who asks, in the second part of ConnectRequest. Addresses as text, NUL-terminated, so that
// TypeScript needs no sockaddr.
struct EventAddresses {
  char peer[64];
  char local[64];
  uint16_t peer_port;
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t reserved[4];
};
static_assert(sizeof(EventAddresses) == 136);

class EventSink {
 public:
  virtual ~EventSink() = default;
  // Copies both parts. Never blocks and never drops: the number of events is bounded by commands
  // and queues.
  virtual void push(EventKind kind, uint32_t id, uint32_t tag, uint32_t code, uint64_t value,
                    std::span<const uint8_t> first, std::span<const uint8_t> second) = 0;
};

}  // namespace nvmeof::nvmf
