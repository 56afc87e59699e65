// Connection management of a verbs device over rdma_cm, on a thread of its own: what rdma_cm and
// the device report, and calls of rdma_cm that can take long, hold up no reactor. Users' calls are
// posted to that thread; handlers are told on the reactors, through their shards. Also here: the
// device's asynchronous events (port down, address gone, device lost, queue pairs in error).
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "rdma/verbs/connection.h"
#include "rdma/verbs/port.h"
#include "rdma/verbs/shard.h"

namespace nvmeof::rdma::verbs {

struct ControlOptions {
  sockaddr_storage address{};
  Port port;
  Fabric fabric = Fabric::RoceV2;
  Capabilities capabilities;
  uint32_t local_ack_timeout = 0;  // 0: the kernel's choice
  uint32_t connect_timeout_ms = 5000;
};

class Control final : public QueuePairFailure {
 public:
  // `channel` was made by the caller and set to non-blocking; it outlives this.
  Control(const Library& library, const ControlOptions& options, rdma_event_channel* channel,
          std::span<const std::unique_ptr<Shard>> shards, ObjectCounts& counts);
  ~Control() override;
  Result<void> start();
  // Ends the thread; connections are left without a word to their handlers, but their peers hear.
  void stop();

  // Device's calls, on reactors.
  Result<uint32_t> listen(uint16_t port, ConnectionHandler* handler);
  void unlisten(uint32_t listener);
  Result<ConnectionId> connect(Shard& shard, const sockaddr_storage& peer, QueuePair* qp,
                               const ConnectionParameters& parameters, ConnectionHandler* handler);
  Result<void> accept(Shard& shard, ConnectionId id, QueuePair* qp,
                      const ConnectionParameters& parameters);
  void reject(ConnectionId id, uint16_t reason, std::span<const uint8_t> private_data);
  void disconnect(ConnectionId id);
  void abandon(Shard* shard, ConnectionId id);

  // Any thread.
  void on_queue_pair_failed(uint32_t number, Status status) override;
  void on_async_event(ibv_event_type type, uint32_t qp_number);
  ibv_context* context() const { return options_.port.context; }
  uint64_t unexpected_events() const { return unexpected_.load(std::memory_order_relaxed); }

 private:
  using Call = std::function<void()>;
  struct Listener {
    uint32_t id;
    uint16_t port;
    rdma_cm_id* cm;
    ConnectionHandler* handler;
  };
  // A copy of rdma_cm's event: that one has to be given back before its id may go.
  struct Event {
    rdma_cm_event_type type;
    int status;
    rdma_cm_id* cm;
    rdma_cm_id* listener;
    uint8_t responder_resources, initiator_depth;
    std::vector<uint8_t> private_data;
  };
  struct EventRow;
  static const EventRow kEventRows[];

  void post(Call call);  // any thread
  void run();
  int wait_ms() const;
  int read_calls();
  bool read_cm_event();
  void expire();
  void dispatch(const Event& event);
  Connection* find(ConnectionId id);
  Connection* find(const rdma_cm_id* cm);
  void move(Connection& connection, ConnectionState to);
  void set_deadline(Connection& connection, uint32_t milliseconds);

  // What rdma_cm's events do, by the table in control_events.cc.
  void on_address(Connection& connection, const Event& event);
  void on_route(Connection& connection, const Event& event);
  void on_response(Connection& connection, const Event& event);
  void on_established(Connection& connection, const Event& event);
  void on_failure(Connection& connection, const Event& event);
  void on_disconnected(Connection& connection, const Event& event);
  void on_lost(Connection& connection, const Event& event);
  void on_request(const Event& event);

  void start_connect(Connection connection, const sockaddr_storage& peer);
  void start_accept(const Connection& with);
  Result<void> call_accept(Connection& connection);
  Result<void> bring_up(Connection& connection, bool passive);
  Result<void> step(Connection& connection, ibv_qp_state to, bool passive);
  void begin_disconnect(ConnectionId id);
  // Ends of a connection: its handler hears of it, and it is forgotten.
  void fail(Connection& connection, const ConnectFailed& failed);
  void end(Connection& connection, std::string reason);
  void forget(Connection& connection);
  void end_all(const std::string& reason);

  // The device's own troubles.
  void check_port();
  void queue_pair_failed(uint32_t number, const std::string& reason);

  const Library& library_;
  const ControlOptions options_;
  rdma_event_channel* const channel_;
  const std::span<const std::unique_ptr<Shard>> shards_;
  ObjectCounts& counts_;
  std::thread thread_;
  int wake_fd_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> unexpected_{0};

  std::mutex calls_mutex_;
  std::vector<Call> calls_;

  // Shared with the reactors. Recursive: a handler may answer from inside on_connect_request, and
  // unlisten() waits until no call of its handler is under way.
  std::recursive_mutex tables_mutex_;
  std::vector<Listener> listeners_;
  uint32_t next_listener_ = 1;
  std::unordered_map<ConnectionId, ConnectionHandler*> requests_;  // handed up, not answered

  // This thread's.
  std::map<ConnectionId, Connection> connections_;
  std::unordered_map<const rdma_cm_id*, ConnectionId> by_cm_;
  std::string trouble_;                // of the port or the device; empty: none
  bool removed_ = false;               // the device is gone for good
  uint64_t trouble_deadline_ = ~0ull;  // when connections end because of it
};

}  // namespace nvmeof::rdma::verbs
