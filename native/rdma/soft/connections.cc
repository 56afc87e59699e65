#include "rdma/soft/connections.h"

#include <cassert>
#include <cstring>
#include <string>

#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {

namespace {

// A peer that waits for our answers sends nothing by itself: a probe at this interval finds out
// whether it lives, unless something is outstanding anyway.
constexpr TimeNs kProbeInterval = 1'000'000'000;

// Private data that has to outlive the call that brought it.
using Bytes = std::vector<uint8_t>;
Bytes copy(std::span<const uint8_t> data) {
  return Bytes(data.begin(), data.end());
}

Result<void> check_queue_pair(const QueuePair* qp) {
  if (qp->state() == State::Reset) return {};
  return Error{EINVAL,
               std::string("The queue pair of a new connection must be in RESET; it is in ") +
                   rdma::to_string(qp->state()) + "."};
}

}  // namespace

Connections::Connections(const cm::AgentOptions& options, unsigned shards, uint64_t seed)
    : agent_(options, *this, *this, seed) {
  for (unsigned i = 0; i < shards; i++) places_.push_back(std::make_unique<Place>());
}

Connections::~Connections() = default;

// ---- Mailboxes

void Connections::post(unsigned index, Message message) {
  Place& place = *places_[index];
  bool first;
  {
    const std::lock_guard<std::mutex> lock(place.mutex);
    first = place.mailbox.empty();
    place.mailbox.push_back(std::move(message));
    place.waiting.store(true, std::memory_order_release);
  }
  if (!first) return;
  // Should the ring be full, the reactor is awake and looks at `waiting` in its next iteration.
  const auto run = [](void* context, uint64_t argument) {
    static_cast<Connections*>(context)->read_mailbox(static_cast<unsigned>(argument));
  };
  shards_[index]->reactor().post({run, this, index});
}

int Connections::read_mailbox(unsigned index) {
  Place& place = *places_[index];
  if (!place.waiting.load(std::memory_order_acquire)) return 0;
  std::vector<Message> messages;
  {
    const std::lock_guard<std::mutex> lock(place.mutex);
    messages.swap(place.mailbox);
    place.waiting.store(false, std::memory_order_relaxed);
  }
  for (const Message& message : messages) message();
  if (index == 0) publish();
  return static_cast<int>(messages.size());
}

void Connections::at_owner(ConnectionId id, OwnerMessage message) {
  unsigned owner;
  {
    const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
    const auto found = owners_.find(id);
    if (found == owners_.end()) return;  // abandoned meanwhile
    owner = found->second;
  }
  if (owner == 0) {
    message(0);
  } else {
    post(owner, [owner, message = std::move(message)] { message(owner); });
  }
}

// ---- Tables

Connections::Connection* Connections::find(unsigned index, ConnectionId id) {
  auto& connections = places_[index]->connections;
  const auto found = connections.find(id);
  return found == connections.end() ? nullptr : &found->second;
}

void Connections::add(Shard& shard, ConnectionId id, QueuePair* qp, ConnectionHandler* handler) {
  Place& place = *places_[shard.index()];
  place.connections[id] = {qp, handler, nullptr};
  place.by_queue_pair[qp] = id;
  if (place.next_probe == reactor::kNever)
    place.next_probe = shard.reactor().now() + kProbeInterval;
  live_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
  owners_[id] = shard.index();
}

Connections::Connection Connections::remove(unsigned index, ConnectionId id) {
  Place& place = *places_[index];
  const auto found = place.connections.find(id);
  if (found == place.connections.end()) return {};
  const Connection connection = found->second;
  place.connections.erase(found);
  const auto named = place.by_queue_pair.find(connection.qp);
  if (named != place.by_queue_pair.end() && named->second == id) place.by_queue_pair.erase(named);
  if (connection.flow != nullptr) shards_[index]->release_flow(connection.flow);
  live_.fetch_sub(1, std::memory_order_relaxed);
  const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
  owners_.erase(id);
  return connection;
}

// ---- Listening

Result<uint32_t> Connections::listen(uint16_t port, ConnectionHandler* handler) {
  const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
  for (const Listener& listener : listeners_) {
    if (listener.port == port)
      return Error{EADDRINUSE, "RDMA port " + std::to_string(port) +
                                   " of this address has a listener already: use another port."};
  }
  const uint32_t id = next_listener_++;
  listeners_.push_back({id, port, handler});
  post(0, [this, id, port] {
    auto listener = agent_.listen(port);
    if (listener) agent_listeners_[*listener] = id;
  });
  return id;
}

void Connections::unlisten(uint32_t listener) {
  const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
  std::erase_if(listeners_, [&](const Listener& entry) { return entry.id == listener; });
  // The agent rejects requests that were not answered; an answer to them finds nothing.
  std::erase_if(requests_, [&](const auto& entry) { return entry.second.listener == listener; });
  post(0, [this, listener] {
    for (const auto& [agents, ours] : agent_listeners_) {
      if (ours != listener) continue;
      agent_.unlisten(agents);
      agent_listeners_.erase(agents);
      return;
    }
  });
}

void Connections::on_request(const cm::IncomingRequest& request) {
  const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
  const auto ours = agent_listeners_.find(request.listener);
  const Listener* listener = nullptr;
  for (const Listener& entry : listeners_) {
    if (ours != agent_listeners_.end() && entry.id == ours->second) listener = &entry;
  }
  if (listener == nullptr) {
    agent_.reject(request.id, cm::reject::kInvalidServiceId, {}, now());
    return;
  }
  requests_[request.id] = {listener->handler, listener->id};
  ConnectRequest out{};
  out.id = request.id;
  out.listener = listener->id;
  out.peer = request.peer;
  out.local = request.local;
  out.peer_port = request.peer_port;
  out.responder_resources = request.responder_resources;
  out.initiator_depth = request.initiator_depth;
  out.private_data = request.private_data;
  listener->handler->on_connect_request(out);
}

// ---- Calls of users

Result<ConnectionId> Connections::connect(Shard& shard, const sockaddr_storage& peer, uint16_t port,
                                          QueuePair* qp, const ConnectionParameters& parameters,
                                          ConnectionHandler* handler) {
  if (auto ready = check_queue_pair(qp); !ready) return ready.error();
  if (parameters.private_data.size() > cm::kConsumerBytesMax)
    return Error{EINVAL, "Private data of a connect request is 56 bytes at most."};
  const ConnectionId id = cm::new_connection_id();
  add(shard, id, qp, handler);
  cm::ConnectArguments arguments;
  arguments.peer = unmapped(peer);
  arguments.port = port;
  arguments.qpn = qp->number();
  arguments.receive_psn = shard.transport().random24();
  arguments.srq = qp->srq() != nullptr;
  arguments.parameters = parameters;
  post(0, [this, id, arguments, data = copy(parameters.private_data)]() mutable {
    arguments.parameters.private_data = data;
    const auto started = agent_.connect(id, arguments, now());
    if (started) return;
    on_failed(id, {ConnectFailure::NoResources, 0, {}, started.error().message});
  });
  return id;
}

Result<void> Connections::accept(Shard& shard, ConnectionId id, QueuePair* qp,
                                 const ConnectionParameters& parameters) {
  if (auto ready = check_queue_pair(qp); !ready) return ready.error();
  Request request;
  {
    const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end())
      return Error{ENOTCONN,
                   "The connect request is gone: it was answered or its listener closed."};
    request = found->second;
    requests_.erase(found);
  }
  add(shard, id, qp, request.handler);
  cm::AcceptArguments arguments;
  arguments.qpn = qp->number();
  arguments.receive_psn = shard.transport().random24();
  arguments.srq = qp->srq() != nullptr;
  arguments.parameters = parameters;
  post(0, [this, id, arguments, data = copy(parameters.private_data)]() mutable {
    arguments.parameters.private_data = data;
    const auto accepted = agent_.accept(id, arguments, now());
    if (accepted) return;
    on_failed(id, {ConnectFailure::Cancelled, 0, {}, accepted.error().message});
  });
  return {};
}

void Connections::reject(ConnectionId id, uint16_t reason, std::span<const uint8_t> private_data) {
  {
    const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
    requests_.erase(id);
  }
  post(0,
       [this, id, reason, data = copy(private_data)] { agent_.reject(id, reason, data, now()); });
}

void Connections::disconnect(ConnectionId id) {
  post(0, [this, id] { agent_.disconnect(id, now()); });
}

void Connections::abandon(Shard& shard, ConnectionId id) {
  if (remove(shard.index(), id).qp == nullptr) {
    const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
    requests_.erase(id);
    const auto owner = owners_.find(id);
    if (owner != owners_.end())
      post(owner->second, [this, id, index = owner->second] { remove(index, id); });
  }
  post(0, [this, id] { agent_.abandon(id, now()); });
}

void Connections::close_listeners() {
  const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
  listeners_.clear();
  requests_.clear();
}

void Connections::close(unsigned index) {
  read_mailbox(index);
  std::vector<ConnectionId> left;
  for (const auto& [id, connection] : places_[index]->connections) left.push_back(id);
  for (const ConnectionId id : left) {
    remove(index, id);
    post(0, [this, id] { agent_.abandon(id, now()); });
  }
  read_mailbox(index);
}

// ---- From the network, clocks and queue pairs

void Connections::on_datagram(const UdArrival& arrival, TimeNs now) {
  agent_.receive({arrival.source, arrival.destination, arrival.source_qpn, arrival.payload}, now);
  publish();
}

void Connections::on_bad_datagram(const sockaddr_storage& peer) {
  agent_.bad_icrc_seen(peer);
}

void Connections::on_peer_fault(unsigned index, const ErrorReport& report, TimeNs now) {
  if (!report.has_bth) return;
  if (report.dest_qpn == kQpnGsi) {  // only the agent's shard sends these
    if (report.fault == SendFault::PortUnreachable) agent_.peer_unreachable(report.peer, now);
    if (report.fault == SendFault::MtuTooLarge) agent_.datagram_too_large(report.peer, now);
    return;
  }
  if (report.fault != SendFault::MtuTooLarge) return;
  places_[index]->too_large_peer = report.peer;
}

void Connections::on_qp_established(QueuePair& qp) {
  const unsigned index = reactor_of(qp.number());
  const auto found = places_[index]->by_queue_pair.find(&qp);
  if (found == places_[index]->by_queue_pair.end()) return;
  post(0, [this, id = found->second] { agent_.data_arrived(id, now()); });
}

void Connections::on_qp_error(QueuePair& qp, const char* reason) {
  const unsigned index = reactor_of(qp.number());
  Place& place = *places_[index];
  const auto found = place.by_queue_pair.find(&qp);
  if (found == place.by_queue_pair.end()) return;
  std::string text = reason;
  if (qp.flow() != nullptr && place.too_large_peer.ss_family != AF_UNSPEC &&
      same_address(place.too_large_peer, qp.flow()->remote)) {
    text += "; packets of the path MTU " + std::to_string(qp.mtu()) +
            " are larger than the network's MTU (EMSGSIZE): set a smaller path MTU";
  }
  post(0, [this, id = found->second, text] { agent_.queue_pair_failed(id, text, now()); });
}

int Connections::run_timers(unsigned index, TimeNs now) {
  int work = read_mailbox(index);
  Place& place = *places_[index];
  if (now >= place.next_probe) probe(index, now);
  if (index == 0 && agent_.next_deadline() <= now) {
    agent_.expire(now);
    publish();
    work++;
  }
  return work;
}

TimeNs Connections::next_timer(unsigned index) const {
  const Place& place = *places_[index];
  if (place.waiting.load(std::memory_order_acquire)) return 0;
  return index == 0 ? std::min(place.next_probe, agent_.next_deadline()) : place.next_probe;
}

void Connections::probe(unsigned index, TimeNs now) {
  Place& place = *places_[index];
  for (const auto& [id, connection] : place.connections) connection.qp->probe();
  place.next_probe = place.connections.empty() ? reactor::kNever : now + kProbeInterval;
}

// ---- What the agent wants

void Connections::send_mad(const sockaddr_storage& peer,
                           std::span<const uint8_t, cm::kMadBytes> mad) {
  Shard& shard = *shards_[0];
  const Flow* const flow = shard.acquire_flow(peer, 0);
  shard.transport().send_ud(*flow, mad);
  shard.release_flow(flow);  // it stays until the batch has left
}

void Connections::activate(ConnectionId id, const cm::QueuePairPath& path) {
  at_owner(id, [this, id, path](unsigned index) {
    Connection* const connection = find(index, id);
    if (connection == nullptr) return;
    const bool up = static_cast<bool>(bring_up(*shards_[index], *connection, path));
    post(0, [this, id, up] { agent_.activated(id, up, now()); });
  });
}

Result<void> Connections::bring_up(Shard& shard, Connection& connection,
                                   const cm::QueuePairPath& path) {
  const auto key = static_cast<uint8_t>(reactor_of(path.remote_qpn));
  if (connection.flow == nullptr) connection.flow = shard.acquire_flow(path.peer, key);
  QpAttributes attributes;
  attributes.access = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;
  attributes.flow = connection.flow;
  attributes.path_mtu = path.path_mtu;
  attributes.destination_qpn = path.remote_qpn;
  attributes.receive_psn = path.receive_psn;
  attributes.send_psn = path.send_psn;
  attributes.max_dest_reads = path.max_dest_reads;
  attributes.max_reads = path.max_reads;
  attributes.timeout = path.local_ack_timeout;
  attributes.retry_count = path.retry_count;
  attributes.rnr_retry = path.rnr_retry;
  return connection.qp->bring_up(attributes);
}

void Connections::to_error(ConnectionId id, uint32_t) {
  at_owner(id, [this, id](unsigned index) {
    Connection* const connection = find(index, id);
    if (connection != nullptr) connection->qp->to_error();
  });
}

// ---- What the agent says, passed on to handlers

void Connections::on_connected(ConnectionId id, const ConnectResponse& response) {
  at_owner(id, [this, id, response, data = copy(response.private_data)](unsigned index) {
    Connection* const connection = find(index, id);
    if (connection == nullptr) return;
    ConnectResponse out = response;
    out.private_data = data;
    connection->handler->on_connect_response(id, out);
  });
}

void Connections::on_failed(ConnectionId id, const ConnectFailed& failed) {
  at_owner(id, [this, id, failed, data = copy(failed.private_data)](unsigned index) {
    const Connection connection = remove(index, id);
    if (connection.handler == nullptr) return;
    ConnectFailed out = failed;
    out.private_data = data;
    connection.handler->on_connect_failed(id, out);
  });
}

void Connections::on_established(ConnectionId id) {
  at_owner(id, [this, id](unsigned index) {
    Connection* const connection = find(index, id);
    if (connection != nullptr) connection->handler->on_established(id);
  });
}

void Connections::on_disconnected(ConnectionId id, const std::string& reason) {
  at_owner(id, [this, id, reason](unsigned index) {
    const Connection connection = remove(index, id);
    if (connection.handler != nullptr) connection.handler->on_disconnected(id, reason);
  });
}

// ---- Counters

void Connections::publish() {
  static_assert(sizeof(cm::AgentCounters) % sizeof(uint64_t) == 0);
  uint64_t words[kWords];
  std::memcpy(words, &agent_.counters(), sizeof words);
  for (size_t i = 0; i < kWords; i++) published_[i].store(words[i], std::memory_order_relaxed);
}

cm::AgentCounters Connections::agent_counters() const {
  uint64_t words[kWords];
  for (size_t i = 0; i < kWords; i++) words[i] = published_[i].load(std::memory_order_relaxed);
  cm::AgentCounters counters;
  std::memcpy(&counters, words, sizeof counters);
  return counters;
}

}  // namespace nvmeof::rdma::soft
