// One command in the target: its slot, its states and what it holds. Reactor's thread.
//
//   Free → Parsed → Waiting → Fetching → Executing → Ready → Sending → Free
//                               or → Control → (Waiting) → Ready
//   Fetching → (Waiting) → Fetching, once: the namespace shrank under data fetched into it
//
// Parsed: accepted in this round, started at its end. Waiting: for a data buffer. Fetching: RDMA
// READ of the host's data, queued or posted. Executing: in the backing. Control: with the control
// plane. Ready: answer waits for send credits. Sending: WRITE and response are posted. Whatever a
// buffer or slot waits for can still touch it, so it is given back only on the way to Free.
#pragma once
#include <cstdint>
#include <memory>

#include "block/backing.h"
#include "nvmf/buffer_pool.h"
#include "nvmf/capsule.h"
#include "nvmf/namespace_table.h"
#include "rdma/provider.h"

namespace nvmeof::nvmf {

struct IoRow;
struct TargetQueue;

enum class CommandState : uint8_t {
  Free,
  Parsed,
  Waiting,
  Fetching,
  Executing,
  Control,
  Ready,
  Sending
};
inline constexpr unsigned kCommandStates = 8;
const char* to_string(CommandState state);

struct Command;
struct CommandList {
  Command* head = nullptr;
  Command* tail = nullptr;
  bool empty() const { return head == nullptr; }
  void push_back(Command* command);
  Command* pop_front();
  void unlink(Command* command);
};
// A pool and the commands that wait for a buffer of it, in order.
struct WaitingPool {
  BufferPool pool;
  CommandList waiting;
};

inline constexpr uint32_t kNoIndex = ~0u;

struct Command {
  TargetQueue* queue = nullptr;
  uint32_t slot = 0;
  uint16_t sequence = 0;  // grows with each use: tells a late tag apart
  CommandState state = CommandState::Free;
  bool posted = false;       // Fetching: the READ is posted; else it waits for credits
  bool aborted = false;      // ends with Command Abort Requested as soon as nothing touches it
  bool touching = false;     // counted in its queue's `touching`
  bool in_submit = false;    // inside Channel::submit()
  bool done_inside = false;  // ... and it completed there
  Command* previous = nullptr;
  Command* next = nullptr;
  CommandList* list = nullptr;  // the one that links it

  uint8_t sqe[kSqeBytes] = {};
  const IoRow* row = nullptr;  // null: the control plane executes it
  DataBlock block;
  Transfer transfer = Transfer::None;
  uint32_t data_length = 0;  // bytes between host and payload

  // I/O commands: bytes of the namespace.
  Namespace* entry = nullptr;
  uint64_t offset = 0, length = 0;
  uint64_t cursor = 0;  // steps of commands that need several requests
  bool fua = false, may_deallocate = false;
  block::Request request{};
  iovec iov{};
  int error = 0;  // of the request that ended last
  // A read that is sent from the namespace's memory, or a write that is fetched into it: holds
  // `entry` to the end.
  bool in_place = false;
  uint64_t shrinks = 0;             // of the backing, when the fetch into it began
  uint64_t arrived = 0;             // in the round of this time, ns
  AccessChange* held_up = nullptr;  // waits until the command has left the backing

  // Memory.
  uint32_t receive = kNoIndex;  // receive buffer held for its in-capsule data
  WaitingPool* from = nullptr;  // pool of `buffer`
  uint8_t* buffer = nullptr;
  uint32_t buffer_bytes = 0;          // asked for
  uint8_t* payload = nullptr;         // the host's data, in `buffer` or in the receive buffer
  std::unique_ptr<uint8_t[]> parked;  // the control plane's data while no buffer is free

  // The answer.
  uint64_t result = 0;
  uint16_t status = 0;
  uint16_t parameter = kNoParameter;
  uint32_t response = kNoIndex;  // of the response ring, while Sending
  uint8_t credits = 0;           // send queue entries held
  bool answered_above = false;   // by the control plane, through complete()

  uint16_t cid() const { return load16(sqe + sqe::kCid); }
  // Its data come from the host's memory, by RDMA READ.
  bool fetches() const {
    return from_host(transfer) && data_length > 0 && block.kind == DataBlock::Kind::Keyed;
  }
  uint32_t tag() const { return slot | uint32_t{sequence} << 16; }
  // What the port it came in at lets be done with its namespace now.
  uint16_t refusal() const;
  void leave_backing() {
    if (held_up == nullptr) return;
    held_up->executing--;
    held_up = nullptr;
  }
  void reset();  // as new, with the next sequence number
};

// The one function that changes a state; an illegal move is a programmer's error and aborts.
void move(Command* command, CommandState to);

}  // namespace nvmeof::nvmf
