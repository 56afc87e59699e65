// A connection of a verbs device as the thread of connection management knows it: its states with
// their legal moves, and how rdma_cm's events and codes read in the interface's words. Pure.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "rdma/verbs/library.h"
#include "rdma/verbs/queue_pair.h"

namespace nvmeof::rdma::verbs {

//   active:   Resolving -> Routing -> Connecting -> Established
//   passive:  Requested -> Accepting -> Established
//   both:     -> Disconnecting -> Gone, or straight to Gone
enum class ConnectionState : uint8_t {
  Resolving,   // which device and neighbour: ARP, neighbour discovery
  Routing,     // path of InfiniBand, or the GIDs of RoCE
  Connecting,  // REQ is out
  Requested,   // handed up, waits for accept or reject
  Accepting,   // REP is out
  Established,
  Disconnecting,  // DREQ is out
  Gone,
};
inline constexpr unsigned kConnectionStates = 8;
const char* to_string(ConnectionState state);
bool may_move(ConnectionState from, ConnectionState to);

constexpr unsigned bit(ConnectionState state) {
  return 1u << static_cast<unsigned>(state);
}

struct Connection {
  ConnectionId id = 0;
  rdma_cm_id* cm = nullptr;
  ConnectionState state = ConnectionState::Resolving;
  std::shared_ptr<QueuePairHandle> qp;  // null while Requested
  bool srq = false;
  unsigned shard = 0;  // of the queue pair
  uint32_t listener = 0;
  uint64_t deadline = ~0ull;
  ConnectionParameters parameters;
  std::vector<uint8_t> private_data;  // what parameters.private_data points at
  std::string why;                    // Disconnecting: the reason to tell
};

rdma_conn_param parameters_of(const Connection& connection, const Capabilities& capabilities);

// A failed connect in the interface's words. `status` as in rdma_cm's event.
ConnectFailed failure_of(rdma_cm_event_type event, int status,
                         std::span<const uint8_t> private_data, bool iwarp);

}  // namespace nvmeof::rdma::verbs
