// One connection as the agent sees it: its state, the table of legal moves, and what it must
// remember.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "rdma/soft/cm/agent.h"

namespace nvmeof::rdma::soft::cm {

enum class ConnectionState : uint8_t {
  ReqSent,          // active: waiting for REP
  RequestReceived,  // passive: waiting for accept() or reject()
  Activating,       // either: waiting for the queue pair to reach RTS
  RepSent,          // passive: waiting for RTU or data
  Established,
  DreqSent,  // waiting for DREP
  Finished,  // only remembered, so that late duplicates start nothing
};
inline constexpr unsigned kConnectionStates = 7;
const char* to_string(ConnectionState state);
bool may_move(ConnectionState from, ConnectionState to);

struct Connection {
  ConnectionId id = 0;
  bool active = false;
  bool silent = false;    // abandoned: no events, no actions on the queue pair
  bool rejected = false;  // Finished by a REJ of ours, which a duplicate REQ gets again
  bool bad_icrc = false;
  ConnectionState state = ConnectionState::ReqSent;
  uint32_t local_comm_id = 0, remote_comm_id = 0;
  uint64_t transaction_id = 0;  // of the REQ, and of everything that answers it
  uint64_t peer_guid = 0;
  sockaddr_storage peer{};
  uint16_t port = 0;      // active: the peer's
  uint32_t listener = 0;  // passive
  QueuePairPath path;
  // Active: what the peer may ask of us. Passive: what the REQ offered and asked.
  uint8_t responder_resources = 0, initiator_depth = 0;
  std::vector<uint8_t> private_data;  // of the REP, until the queue pair is active

  MadBytes last{};  // what the timer or a duplicate makes us repeat
  TimeNs resend_at = reactor::kNever;
  TimeNs interval = 0;
  TimeNs deadline = reactor::kNever;
  TimeNs due = reactor::kNever;  // its place in the agent's timers
  unsigned stale_retries = 0;

  bool half_open() const {
    return !active && (state == ConnectionState::RequestReceived ||
                       state == ConnectionState::Activating || state == ConnectionState::RepSent);
  }
  bool has_queue_pair() const {  // a queue pair of ours that has left RESET stands behind it
    return state == ConnectionState::Activating || state == ConnectionState::RepSent ||
           state == ConnectionState::Established;
  }
};

}  // namespace nvmeof::rdma::soft::cm
