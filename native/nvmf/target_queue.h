// One queue of the target engine: its connection, slots and lists. Data; the engine acts on it.
// Reactor's thread.
//
//   Accepting → Live → Closing → Dying → Gone
//
// Closing: no new commands, those in flight may still be answered for a short while. Dying: the
// connection ends; the work requests flush. Gone: the provider has forgotten the connection, the
// queue pair may be destroyed; what remains are commands in a backing.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "nvmf/queue_statistics.h"
#include "nvmf/target_command.h"

namespace nvmeof::nvmf {

class TargetEngineImpl;

enum class QueueState : uint8_t { Accepting, Live, Closing, Dying, Gone };
const char* to_string(QueueState state);

struct WaitingCapsule {
  uint32_t receive;
  uint32_t length;
  uint64_t arrived;  // ns
};

struct TargetQueue {
  TargetEngineImpl* engine = nullptr;
  uint32_t id = 0;
  uint32_t index = 0;       // in the engine's array of queues
  uint32_t generation = 0;  // of that place: late completions of a dead queue find nothing
  rdma::ConnectionId connection = 0;
  std::unique_ptr<rdma::QueuePair> qp;
  QueueState state = QueueState::Accepting;
  std::string reason;                   // why it ended
  uint64_t deadline = reactor::kNever;  // Closing, Dying: when patience ends
  uint8_t responder_resources = 0, initiator_depth = 0;
  uint32_t packet_bytes = 0;  // payload of one packet, once it is established; 0: not known

  uint32_t depth = 0;
  uint32_t in_capsule_bytes = 0;
  bool bound = false, flow_control_disabled = false;
  NamespaceTable* table = nullptr;
  const AccessView* view = &kOpenView;  // of the table, by the port it came in at
  uint32_t port = 0;
  uint16_t qid = 0, cntlid = 0;
  uint16_t sqhd = 0;
  std::shared_ptr<reactor::Lease> lease;  // of its controller; null: there is none

  // Twice the depth: a slot is busy until the response is acknowledged, and the host may send its
  // next command before that.
  std::unique_ptr<Command[]> slots;
  uint32_t slot_count = 0;
  uint32_t live = 0;         // slots not free
  uint32_t touching = 0;     // commands that a backing has, or that are fetched into one
  bool quiet = false;        // reported: it ends, and has none of these any more
  uint32_t outstanding = 0;  // commands received and not answered: what the depth limits
  CommandList free;
  // Capsules that are no commands yet: a ring of depth entries.
  std::vector<WaitingCapsule> waiting;
  uint32_t waiting_head = 0, waiting_count = 0;
  bool awaits_service = false;  // linked in one of the engine's two service lists
  TargetQueue* service_next = nullptr;

  // Only where the device has no shared receive queues: the receives that are this queue's alone.
  std::vector<uint32_t> receives;
  std::vector<uint32_t> reposts;  // of them, to be posted
  uint32_t posted_receives = 0;   // of them, in the queue pair

  CommandList ready;  // answers to be posted
  CommandList fetch;  // READs to be posted
  uint32_t send_entries = 0;
  uint32_t credits = 0;  // send queue entries not in use
  bool dirty = false;    // linked in the engine's list of queues to flush
  QueueStatistics statistics;

  bool alive() const { return state == QueueState::Accepting || state == QueueState::Live; }
  bool answers() const { return alive() || state == QueueState::Closing; }
  bool executes(const uint8_t* sqe) const {
    return bound && qid != 0 && sqe[sqe::kOpcode] != kOpcodeFabrics;
  }
  uint32_t outstanding_limit() const { return flow_control_disabled ? depth : depth - 1; }
  void* context() const { return reinterpret_cast<void*>(uint64_t{generation} << 32 | index); }
  void push_waiting(const WaitingCapsule& capsule);
  WaitingCapsule pop_waiting();  // the oldest; there is one
  void advance(QueueState to);   // the one function that changes `state`

  // Everything per queue that is sized by its depth.
  void allocate(uint32_t entries, uint32_t send_queue_entries);
};

inline uint16_t Command::refusal() const {
  return queue->view->refusal[entry->ana_group];
}

// What a queue may have before it is another's turn: commands, and bytes of their data. The command
// that reaches the limit of bytes is the last.
struct ServiceTurn {
  uint32_t commands;
  uint64_t bytes;
};
inline constexpr uint64_t kNoLimit = ~uint64_t{0};
inline constexpr ServiceTurn kWholeTurn{~0u, kNoLimit};

// Queues whose capsules wait, linked through service_next.
struct ServiceList {
  TargetQueue* head = nullptr;
  TargetQueue* tail = nullptr;
  bool empty() const { return head == nullptr; }
  void push_back(TargetQueue* queue);
  TargetQueue* pop_front();
  void remove(TargetQueue* queue);
};

}  // namespace nvmeof::nvmf
