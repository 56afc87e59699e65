// The inside of Agent, shared by its three source files: agent.cc (tables, timers, ends of
// connections), agent_messages.cc (what the network brings), agent_calls.cc (local calls).
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <unordered_map>

#include "rdma/soft/cm/agent.h"
#include "rdma/soft/cm/connection.h"

namespace nvmeof::rdma::soft::cm {

struct Agent::Impl {
  using State = ConnectionState;

  Impl(const AgentOptions& given, Actions& its_actions, Events& its_events, uint64_t seed);

  // Calls out are queued and made when the outermost call in ends, so that no callback ever runs
  // while a connection is being handled.
  class Entry {
   public:
    explicit Entry(Impl& impl) : impl_(impl) { impl_.depth++; }
    ~Entry() {
      if (impl_.depth == 1) impl_.call_out();
      impl_.depth--;
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    Impl& impl_;
  };
  void call_out();

  // ---- Tables
  struct PeerCommId {
    Gid peer;
    uint32_t comm_id;
    auto operator<=>(const PeerCommId&) const = default;
  };
  struct PeerQueuePair {
    Gid peer;
    uint64_t guid;
    uint32_t qpn;
    auto operator<=>(const PeerQueuePair&) const = default;
  };
  Connection& add(ConnectionId id, bool active, const sockaddr_storage& peer);
  void know_peer(Connection& c, uint32_t comm_id, uint64_t guid, uint32_t qpn);
  void forget_peer(Connection& c);
  void erase(Connection& c);
  Connection* by_local(uint32_t comm_id);
  Connection* by_id(ConnectionId id);
  Connection* by_peer(const sockaddr_storage& peer, uint32_t comm_id);
  uint32_t fresh_comm_id();
  uint64_t fresh_transaction_id(const Connection& c);

  // ---- Life
  void move(Connection& c, State to);
  void set_timer(Connection& c);
  void send(Connection& c, const Mad& mad, TimeNs now, bool repeat);
  void resend(Connection& c);
  void reply(const sockaddr_storage& peer, uint64_t transaction_id, const Message& message);
  void on_timer(Connection& c, TimeNs now);
  void timed_out(Connection& c, TimeNs now);
  void finish(Connection& c, TimeNs now);
  void queue_pair_to_error(Connection& c);
  void fail(Connection& c, ConnectFailure failure, uint16_t reason,
            std::span<const uint8_t> private_data, std::string message, TimeNs now);
  void disconnected(Connection& c, const std::string& reason, TimeNs now);
  void established(Connection& c);
  void send_dreq(Connection& c, TimeNs now);
  Rej rejection(const Connection& c, uint16_t reason) const;
  void send_rejection(Connection& c, uint16_t reason, std::span<const uint8_t> private_data,
                      TimeNs now);
  std::string peer_text(const Connection& c) const;

  // ---- Messages
  struct Context {
    sockaddr_storage peer, local;  // addresses without ports
    uint64_t transaction_id;
    TimeNs now;
  };
  void receive(const MadArrival& arrival, TimeNs now);
  void on(const Req& req, const Context& in);
  void on(const Rep& rep, const Context& in);
  void on(const Rtu& rtu, const Context& in);
  void on(const Mra& mra, const Context& in);
  void on(const Rej& rej, const Context& in);
  void on(const Dreq& dreq, const Context& in);
  void on(const Drep& drep, const Context& in);
  void on(const SidrReq& request, const Context& in);
  void on(const SidrRep& reply_message, const Context& in);
  void repeated_request(Connection& c, const Context& in);
  bool ends_stale(const Req& req, const Context& in);
  void new_request(const Req& req, const IpHeader& ip, uint32_t listener, const Context& in);
  void refuse(const Req& req, const Context& in, uint16_t reason, uint8_t info_length = 0,
              const std::array<uint8_t, 72>& info = {});
  void retry_stale(Connection& c, TimeNs now);

  // ---- Local calls
  Req request_of(const Connection& c, const ConnectArguments& arguments,
                 uint16_t source_port) const;
  Rep reply_of(const Connection& c, const AcceptArguments& arguments) const;
  void cancel(Connection& c, TimeNs now);

  AgentOptions options;
  Actions& actions;
  Events& events;
  AgentCounters counters{};
  std::mt19937_64 random;
  uint64_t ca_guid;
  unsigned depth = 0;
  std::deque<std::function<void()>> calls;

  std::unordered_map<uint32_t, std::unique_ptr<Connection>> connections;  // by local comm id
  std::unordered_map<ConnectionId, Connection*> ids;
  std::map<PeerCommId, Connection*> peers;
  std::map<PeerQueuePair, Connection*> queue_pairs;  // of living connections
  std::set<std::pair<TimeNs, uint32_t>> timers;
  std::deque<uint32_t> finished;  // comm ids, oldest first; some are gone already
  size_t finished_count = 0, half_open_count = 0;
  std::map<uint16_t, uint32_t> listeners;  // port to listener
  uint32_t next_listener = 1;
};

}  // namespace nvmeof::rdma::soft::cm
