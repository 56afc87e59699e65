// Connections of a soft device: joins the CM agent (on the first reactor) with queue pairs (on
// theirs) and with the handlers above. Whatever crosses reactors goes through a mailbox for each
// shard: a control path, so it may allocate and take a mutex. Calls of users always go through the
// mailbox, so that no handler is called from inside a user's call.
#pragma once
#include <atomic>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "rdma/soft/cm/agent.h"
#include "rdma/soft/shard.h"

namespace nvmeof::rdma::soft {

class Connections final : public ShardEvents, private cm::Actions, private cm::Events {
 public:
  Connections(const cm::AgentOptions& options, unsigned shards, uint64_t seed);
  ~Connections() override;

  void set_shards(std::span<const std::unique_ptr<Shard>> shards) { shards_ = shards; }

  // ---- rdma::Device's calls; `shard` is the caller's.
  Result<uint32_t> listen(uint16_t port, ConnectionHandler* handler);
  void unlisten(uint32_t listener);
  Result<ConnectionId> connect(Shard& shard, const sockaddr_storage& peer, uint16_t port,
                               QueuePair* qp, const ConnectionParameters& parameters,
                               ConnectionHandler* handler);
  Result<void> accept(Shard& shard, ConnectionId id, QueuePair* qp,
                      const ConnectionParameters& parameters);
  void reject(ConnectionId id, uint16_t reason, std::span<const uint8_t> private_data);
  void disconnect(ConnectionId id);
  void abandon(Shard& shard, ConnectionId id);

  // From any thread: no handler hears of a connect request from here on.
  void close_listeners();
  // On shard `index`'s thread, before it is detached: forgets its connections. Shard 0 comes last
  // and tells the peers.
  void close(unsigned index);

  cm::AgentCounters agent_counters() const;  // any thread
  uint64_t live() const { return live_.load(std::memory_order_relaxed); }

  // ---- ShardEvents
  void on_datagram(const UdArrival& arrival, TimeNs now) override;
  void on_bad_datagram(const sockaddr_storage& peer) override;
  void on_peer_fault(unsigned index, const ErrorReport& report, TimeNs now) override;
  void on_qp_established(QueuePair& qp) override;
  void on_qp_error(QueuePair& qp, const char* reason) override;
  int run_timers(unsigned index, TimeNs now) override;
  TimeNs next_timer(unsigned index) const override;

 private:
  using Message = std::function<void()>;
  using OwnerMessage = std::function<void(unsigned index)>;
  // What the shard of a queue pair knows of its connection.
  struct Connection {
    QueuePair* qp = nullptr;
    ConnectionHandler* handler = nullptr;
    const Flow* flow = nullptr;  // once it is activated
  };
  struct Place {  // of a shard; `mailbox` for everyone, the rest on its thread
    std::mutex mutex;
    std::vector<Message> mailbox;
    std::atomic<bool> waiting{false};
    std::unordered_map<ConnectionId, Connection> connections;
    std::unordered_map<const QueuePair*, ConnectionId> by_queue_pair;
    TimeNs next_probe = reactor::kNever;
    sockaddr_storage too_large_peer{};  // the last to whom a packet was larger than the MTU
  };
  struct Listener {
    uint32_t id = 0;
    uint16_t port = 0;
    ConnectionHandler* handler = nullptr;
  };
  struct Request {  // handed up, not answered yet
    ConnectionHandler* handler = nullptr;
    uint32_t listener = 0;
  };

  // To the thread of shard `index`, in order.
  void post(unsigned index, Message message);
  int read_mailbox(unsigned index);
  // From the agent to the queue pair's shard: at once when that is the agent's own.
  void at_owner(ConnectionId id, OwnerMessage message);
  Connection* find(unsigned index, ConnectionId id);
  void add(Shard& shard, ConnectionId id, QueuePair* qp, ConnectionHandler* handler);
  // Takes the connection out of the tables of its shard; its handler hears nothing more.
  Connection remove(unsigned index, ConnectionId id);
  void probe(unsigned index, TimeNs now);
  Result<void> bring_up(Shard& shard, Connection& connection, const cm::QueuePairPath& path);
  TimeNs now() const { return shards_[0]->reactor().now(); }
  void publish();

  // cm::Actions and cm::Events, on shard 0
  void send_mad(const sockaddr_storage& peer, std::span<const uint8_t, cm::kMadBytes> mad) override;
  void activate(ConnectionId id, const cm::QueuePairPath& path) override;
  void to_error(ConnectionId id, uint32_t qpn) override;
  void on_request(const cm::IncomingRequest& request) override;
  void on_connected(ConnectionId id, const ConnectResponse& response) override;
  void on_failed(ConnectionId id, const ConnectFailed& failed) override;
  void on_established(ConnectionId id) override;
  void on_disconnected(ConnectionId id, const std::string& reason) override;

  std::span<const std::unique_ptr<Shard>> shards_;
  std::vector<std::unique_ptr<Place>> places_;
  cm::Agent agent_;  // shard 0's thread
  std::atomic<uint64_t> live_{0};

  // Shared tables. Recursive: a handler may listen or answer from inside on_connect_request, and
  // unlisten() waits until no call of its handler is under way.
  std::recursive_mutex tables_mutex_;
  std::vector<Listener> listeners_;
  std::unordered_map<uint32_t, uint32_t> agent_listeners_;  // agent's number -> ours, shard 0
  uint32_t next_listener_ = 1;
  std::unordered_map<ConnectionId, Request> requests_;
  std::unordered_map<ConnectionId, unsigned> owners_;  // shard of the queue pair

  static constexpr size_t kWords = sizeof(cm::AgentCounters) / sizeof(uint64_t);
  std::array<std::atomic<uint64_t>, kWords> published_{};
};

}  // namespace nvmeof::rdma::soft
