// Connection management of one device: a pure state machine between the CM datagrams of QP1, local
// calls, timers and the queue pairs it asks to be moved. Runs on the device's first reactor only.
// It knows no sockets, no clock and no queue pair objects: time comes with every call, datagrams
// leave through Actions, queue pairs are named by number.
//
// Calls back only at the end of its own calls, in order, so every call is allowed from inside any
// callback. Spans in callbacks are valid during the callback.
//
// Active:   connect() -> REQ .. REP -> Actions::activate -> activated() -> RTU, on_connected
// Passive:  REQ -> on_request -> accept() -> Actions::activate -> activated() -> REP .. RTU or
//           data_arrived() -> on_established
// Both:     disconnect(), peer's DREQ or queue_pair_failed() -> Actions::to_error, on_disconnected
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rdma/connection_id.h"
#include "rdma/provider.h"
#include "rdma/soft/cm/mad.h"
#include "rdma/soft/link.h"

namespace nvmeof::rdma::soft::cm {

using rdma::new_connection_id;

// What a queue pair needs to go RESET -> INIT -> RTR -> RTS.
struct QueuePairPath {
  sockaddr_storage peer{};  // address of the peer, port 0
  uint32_t local_qpn = 0, remote_qpn = 0;
  uint32_t send_psn = 0, receive_psn = 0;
  uint32_t path_mtu = 0;       // bytes: the smaller of both sides
  uint8_t max_reads = 0;       // outbound READs at a time (max_rd_atomic)
  uint8_t max_dest_reads = 0;  // inbound READs at a time (max_dest_rd_atomic)
  uint8_t local_ack_timeout = 14;
  uint8_t retry_count = 7, rnr_retry = 7;
  uint32_t flow_label = 0;  // the same in both directions
  uint8_t traffic_class = 0;
};

class Actions {
 public:
  virtual ~Actions() = default;
  // From our QP1 to the peer's QP1, UDP port 4791. May be lost.
  virtual void send_mad(const sockaddr_storage& peer, std::span<const uint8_t, kMadBytes> mad) = 0;
  // Move the queue pair through INIT, RTR and RTS, then call Agent::activated(id). Not answering is
  // safe: the connection times out.
  virtual void activate(ConnectionId id, const QueuePairPath& path) = 0;
  // The connection is over: move the queue pair to ERR. Its number may be gone already.
  virtual void to_error(ConnectionId id, uint32_t qpn) = 0;
};

struct IncomingRequest {
  ConnectionId id = 0;
  uint32_t listener = 0;
  sockaddr_storage peer{}, local{};  // peer's port is that of its RDMA-CM header
  uint16_t peer_port = 0;
  uint8_t responder_resources = 0;  // outbound READs that the peer serves
  uint8_t initiator_depth = 0;      // inbound READs that the peer wants
  std::span<const uint8_t> private_data;
};

// The words of rdma::ConnectionHandler, for all connections of the device.
class Events {
 public:
  virtual ~Events() = default;
  virtual void on_request(const IncomingRequest& request) = 0;
  virtual void on_connected(ConnectionId id, const ConnectResponse& response) = 0;  // active
  // Active: the end of a connect(). Passive: an accepted connection that was never established.
  virtual void on_failed(ConnectionId id, const ConnectFailed& failed) = 0;
  virtual void on_established(ConnectionId id) = 0;  // passive
  virtual void on_disconnected(ConnectionId id, const std::string& reason) = 0;
};

struct AgentOptions {
  sockaddr_storage address{};  // of the device
  uint32_t path_mtu = 1024;    // bytes, of the device
  uint8_t local_ack_timeout = 14;
  uint8_t max_responder_resources = 16, max_initiator_depth = 16;
  TimeNs connect_timeout = 5'000'000'000;  // of the whole exchange, either side
  TimeNs first_retry = 50'000'000;         // then doubling
  TimeNs retry_max = 1'600'000'000;
  TimeNs disconnect_timeout = 1'500'000'000;  // a DREQ without answer
  TimeNs time_wait =
      4'000'000'000;              // how long late duplicates of a finished exchange are recognised
  uint32_t half_open_max = 1024;  // requests that are not established yet
  uint32_t finished_max = 4096;   // remembered for time_wait
};

struct ConnectArguments {
  sockaddr_storage peer{};
  uint16_t port = 0;
  uint32_t qpn = 0;          // local queue pair
  uint32_t receive_psn = 0;  // the first PSN it takes: the peer is told to begin with it
  bool srq = false;
  ConnectionParameters parameters;
};

struct AcceptArguments {
  uint32_t qpn = 0;
  uint32_t receive_psn = 0;
  bool srq = false;
  ConnectionParameters parameters;
};

// A datagram that arrived on QP1 with the right Q_Key and a good ICRC.
struct MadArrival {
  const sockaddr_storage* source = nullptr;
  const sockaddr_storage* destination = nullptr;
  uint32_t source_qpn = 0;
  std::span<const uint8_t> payload;
};

struct AgentCounters {
  uint64_t mads_received, mads_malformed, mads_ignored, mads_sent, retries;
  uint64_t requests_received, requests_refused, duplicates, stale, rejects_sent, rejects_received;
  uint64_t connected, disconnected, failed;
};

class Agent {
 public:
  // `seed`: of comm ids, transaction ids, source ports and the CA GUID; random in a real process.
  Agent(const AgentOptions& options, Actions& actions, Events& events, uint64_t seed);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // ---- From the network and the clock
  void receive(const MadArrival& arrival, TimeNs now);
  void expire(TimeNs now);
  TimeNs next_deadline() const;  // kNever: nothing to wait for
  // ICMP port unreachable for a datagram to the peer's QP1: pending connects to it fail at once.
  void peer_unreachable(const sockaddr_storage& peer, TimeNs now);
  // EMSGSIZE from our own kernel for a datagram to the peer.
  void datagram_too_large(const sockaddr_storage& peer, TimeNs now);
  // A packet to QP1 from the peer had a wrong ICRC: explains a connect that times out.
  void bad_icrc_seen(const sockaddr_storage& peer);

  // ---- Local calls
  // Returns the listener; EADDRINUSE when the port has one.
  Result<uint32_t> listen(uint16_t port);
  void unlisten(uint32_t listener);  // requests not answered yet are rejected
  // `id` from new_connection_id(). EINVAL: bad parameters; nothing follows then.
  Result<void> connect(ConnectionId id, const ConnectArguments& arguments, TimeNs now);
  // ENOTCONN: the request is gone (the peer gave up, or took too long); nothing follows then.
  Result<void> accept(ConnectionId id, const AcceptArguments& arguments, TimeNs now);
  void reject(ConnectionId id, uint16_t reason, std::span<const uint8_t> private_data, TimeNs now);
  void disconnect(ConnectionId id, TimeNs now);
  void abandon(ConnectionId id, TimeNs now);  // tells the peer once; no event follows

  // ---- From queue pairs
  void activated(ConnectionId id, bool succeeded, TimeNs now);
  void data_arrived(ConnectionId id,
                    TimeNs now);  // first request on the queue pair: as good as RTU
  void queue_pair_failed(ConnectionId id, const std::string& reason, TimeNs now);

  const AgentCounters& counters() const;
  size_t connections() const;  // alive: neither finished nor only remembered
  size_t half_open() const;
  size_t remembered() const;
  uint64_t ca_guid() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nvmeof::rdma::soft::cm
