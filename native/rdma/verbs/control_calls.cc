// Calls of rdma::Device's users, on reactors, and what they start on the thread of connection
// management.
#include <algorithm>
#include <cassert>
#include <cerrno>
#include <string>

#include "rdma/connection_id.h"
#include "rdma/verbs/control.h"
#include "rdma/verbs/text.h"

namespace nvmeof::rdma::verbs {

namespace {

// The consumer's part of private data (InfiniBand Architecture 12.6, annex A11 takes 36 of a REQ).
constexpr size_t kRequestDataMax = 56, kReplyDataMax = 196, kRejectDataMax = 148;
constexpr int kBacklog = 1024;
constexpr uint32_t kDisconnectMs = 1500;  // for the answer to a DREQ

sockaddr* as_sockaddr(sockaddr_storage& address) {
  return reinterpret_cast<sockaddr*>(&address);
}

Error failed_call(const char* call, int code) {
  return Error{code, std::string(call) + " failed" + reason_of(code)};
}

Result<void> check(const QueuePair* qp, const ConnectionParameters& parameters, size_t data_max) {
  if (parameters.private_data.size() > data_max)
    return Error{EINVAL, "Private data is " + std::to_string(data_max) + " bytes at most here."};
  if (qp->state() == State::Reset) return {};
  return Error{EINVAL,
               std::string("The queue pair of a new connection must be in RESET; it is in ") +
                   rdma::to_string(qp->state()) + "."};
}

void take(Connection* connection, const Shard& shard, const QueuePair* qp,
          const ConnectionParameters& parameters) {
  connection->qp = qp->handle();
  connection->srq = qp->has_srq();
  connection->shard = shard.index();
  connection->parameters = parameters;
  connection->parameters.private_data = {};
  connection->private_data.assign(parameters.private_data.begin(), parameters.private_data.end());
}

}  // namespace

// ---- Listening

Result<uint32_t> Control::listen(uint16_t port, ConnectionHandler* handler) {
  const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
  rdma_cm_id* cm = nullptr;
  if (library_.create_id(channel_, &cm, nullptr, RDMA_PS_TCP) != 0)
    return failed_call("rdma_create_id", errno);
  // As SO_REUSEADDR: connections of an earlier listener may still be in time wait.
  int reuse = 1;
  library_.set_option(cm, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse, sizeof reuse);
  sockaddr_storage address = with_port(options_.address, port);
  int code = library_.bind_addr(cm, as_sockaddr(address)) == 0 ? 0 : errno;
  if (code == 0 && library_.listen(cm, kBacklog) != 0) code = errno;
  if (code != 0) {
    library_.destroy_id(cm);
    if (code == EADDRINUSE)
      return Error{EADDRINUSE, "RDMA port " + std::to_string(port) + " of " +
                                   text_of(options_.address) +
                                   " has a listener already: use another port."};
    return failed_call("rdma_listen", code);
  }
  const uint32_t id = next_listener_++;
  listeners_.push_back({id, port, cm, handler});
  return id;
}

void Control::unlisten(uint32_t listener) {
  const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
  const auto found = std::find_if(listeners_.begin(), listeners_.end(),
                                  [&](const Listener& entry) { return entry.id == listener; });
  if (found == listeners_.end()) return;
  ConnectionHandler* const handler = found->handler;
  rdma_cm_id* const cm = found->cm;
  listeners_.erase(found);
  const bool shared = std::any_of(listeners_.begin(), listeners_.end(),
                                  [&](const Listener& entry) { return entry.handler == handler; });
  if (!shared) std::erase_if(requests_, [&](const auto& entry) { return entry.second == handler; });
  post([this, cm, listener] {
    for (auto at = connections_.begin(); at != connections_.end();) {
      Connection& connection = (at++)->second;
      if (connection.state == ConnectionState::Requested && connection.listener == listener)
        forget(connection);
    }
    library_.destroy_id(cm);
  });
}

// ---- Connecting

Result<ConnectionId> Control::connect(Shard& shard, const sockaddr_storage& peer, QueuePair* qp,
                                      const ConnectionParameters& parameters,
                                      ConnectionHandler* handler) {
  if (auto ready = check(qp, parameters, kRequestDataMax); !ready) return ready.error();
  Connection connection;
  connection.id = new_connection_id();
  take(&connection, shard, qp, parameters);
  shard.add(connection.id, handler);
  const ConnectionId id = connection.id;
  post([this, connection = std::move(connection), peer] { start_connect(connection, peer); });
  return id;
}

void Control::start_connect(Connection given, const sockaddr_storage& peer) {
  Connection& connection = connections_[given.id];
  connection = std::move(given);
  counts_.connections.store(connections_.size(), std::memory_order_relaxed);
  set_deadline(connection, options_.connect_timeout_ms);
  if (!trouble_.empty()) return fail(connection, {ConnectFailure::Unreachable, 0, {}, trouble_});
  const auto no_resources = [&](const char* call) {
    fail(connection, {ConnectFailure::NoResources, 0, {}, failed_call(call, errno).message});
  };
  if (library_.create_id(channel_, &connection.cm, nullptr, RDMA_PS_TCP) != 0)
    return no_resources("rdma_create_id");
  by_cm_[connection.cm] = connection.id;
  if (options_.local_ack_timeout != 0) {
    auto timeout = static_cast<uint8_t>(options_.local_ack_timeout);
    library_.set_option(connection.cm, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
                        sizeof timeout);
  }
  sockaddr_storage from = with_port(options_.address, 0), to = peer;
  const auto patience = static_cast<int>(options_.connect_timeout_ms);
  if (library_.resolve_addr(connection.cm, as_sockaddr(from), as_sockaddr(to), patience) == 0)
    return;
  fail(connection, failure_of(RDMA_CM_EVENT_ADDR_ERROR, -errno, {}, false));
}

// ---- Answering requests

Result<void> Control::accept(Shard& shard, ConnectionId id, QueuePair* qp,
                             const ConnectionParameters& parameters) {
  if (auto ready = check(qp, parameters, kReplyDataMax); !ready) return ready.error();
  ConnectionHandler* handler = nullptr;
  {
    const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end())
      return Error{ENOTCONN,
                   "The connect request is gone: it was answered or its listener closed."};
    handler = found->second;
    requests_.erase(found);
  }
  shard.add(id, handler);
  Connection with;
  with.id = id;
  take(&with, shard, qp, parameters);
  post([this, with = std::move(with)] { start_accept(with); });
  return {};
}

void Control::start_accept(const Connection& with) {
  Connection* const connection = find(with.id);
  if (connection == nullptr || connection->state != ConnectionState::Requested) {
    // The peer gave up meanwhile.
    Shard& shard = *shards_[with.shard];
    shard.post([&shard, id = with.id] {
      if (ConnectionHandler* const handler = shard.take(id))
        handler->on_connect_failed(
            id, {ConnectFailure::Cancelled, 0, {}, "the peer gave the connection up"});
    });
    return;
  }
  connection->qp = with.qp;
  connection->srq = with.srq;
  connection->shard = with.shard;
  connection->parameters = with.parameters;
  connection->private_data = with.private_data;
  move(*connection, ConnectionState::Accepting);
  set_deadline(*connection, options_.connect_timeout_ms);
  if (auto accepted = call_accept(*connection); !accepted)
    fail(*connection, {ConnectFailure::NoResources, 0, {}, accepted.error().message});
}

Result<void> Control::call_accept(Connection& connection) {
  if (auto up = bring_up(connection, true); !up) return up.error();
  rdma_conn_param parameters = parameters_of(connection, options_.capabilities);
  if (library_.accept(connection.cm, &parameters) != 0) return failed_call("rdma_accept", errno);
  return {};
}

void Control::reject(ConnectionId id, uint16_t, std::span<const uint8_t> private_data) {
  {
    const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
    requests_.erase(id);
  }
  const size_t length = std::min(private_data.size(), kRejectDataMax);
  // rdma_cm has one reason for its users, 28 (consumer): what else we say stands in the data.
  post([this, id,
        data = std::vector<uint8_t>(private_data.begin(),
                                    private_data.begin() + static_cast<std::ptrdiff_t>(length))] {
    Connection* const connection = find(id);
    if (connection == nullptr || connection->state != ConnectionState::Requested) return;
    library_.reject(connection->cm, data.data(), static_cast<uint8_t>(data.size()));
    forget(*connection);
  });
}

// ---- Ending

void Control::disconnect(ConnectionId id) {
  post([this, id] { begin_disconnect(id); });
}

void Control::begin_disconnect(ConnectionId id) {
  Connection* const connection = find(id);
  if (connection == nullptr || connection->state == ConnectionState::Disconnecting) return;
  if (connection->state != ConnectionState::Established)
    return end(*connection, "closed before it was established");
  connection->qp->to_error();
  move(*connection, ConnectionState::Disconnecting);
  connection->why = "disconnected by this side";
  set_deadline(*connection, kDisconnectMs);
  if (library_.disconnect(connection->cm) != 0) end(*connection, connection->why);
}

void Control::abandon(Shard* shard, ConnectionId id) {
  if (shard != nullptr) shard->take(id);
  {
    const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
    requests_.erase(id);
  }
  post([this, id] {
    if (Connection* const connection = find(id)) forget(*connection);
  });
}

}  // namespace nvmeof::rdma::verbs
