// Local calls into the agent: listeners, connect, accept, reject, disconnect, abandon, and what
// queue pairs and sockets report.
#include <algorithm>

#include "rdma/soft/cm/agent_impl.h"
#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft::cm {
namespace {

// What a kernel's CM sends (PROTOCOL.md 4.2), but for our own response time.
constexpr uint8_t kRemoteResponseTimeout = 20;  // 4.3 s
constexpr uint8_t kLocalResponseTimeout = 16;   // 0.27 s: the peer repeats a lost REP soon
constexpr uint8_t kMaxCmRetries = 15;
constexpr uint8_t kTargetAckDelay = 15;
constexpr uint8_t kFailoverNotSupported = 1;
constexpr uint16_t kPermissiveLid = 0xffff;
constexpr uint8_t kHopLimit = 64;
constexpr uint16_t kFirstSourcePort = 1024;
constexpr size_t kReplyBytesMax = 196;

uint32_t flow_label_of(uint16_t source_port, uint16_t port) {  // PROTOCOL.md 1
  return (uint32_t{source_port} * 31 + port) & 0xfffff;
}

}  // namespace

// ---- Listeners

Result<uint32_t> Agent::listen(uint16_t port) {
  Impl& impl = *impl_;
  if (port == 0) return Error{EINVAL, "cannot listen on port 0"};
  if (impl.listeners.contains(port))
    return Error{EADDRINUSE, "port " + std::to_string(port) + " has a listener already"};
  const uint32_t listener = impl.next_listener++;
  impl.listeners.emplace(port, listener);
  return listener;
}

void Agent::unlisten(uint32_t listener) {
  Impl& impl = *impl_;
  std::erase_if(impl.listeners, [&](const auto& entry) { return entry.second == listener; });
  std::vector<Connection*> waiting;
  for (const auto& [comm_id, c] : impl.connections)
    if (c->state == ConnectionState::RequestReceived && c->listener == listener)
      waiting.push_back(c.get());
  for (Connection* c : waiting) {
    const TimeNs now = c->deadline - impl.options.connect_timeout;  // when the request came
    impl.send_rejection(*c, reject::kInvalidServiceId, {}, now);
    impl.finish(*c, now);
  }
}

// ---- Active side

Req Agent::Impl::request_of(const Connection& c, const ConnectArguments& arguments,
                            uint16_t source_port) const {
  const ConnectionParameters& parameters = arguments.parameters;
  Req req;
  req.local_comm_id = c.local_comm_id;
  req.service_id = service_id_of_port(arguments.port);
  req.ca_guid = ca_guid;
  req.qpn = arguments.qpn;
  req.responder_resources = c.responder_resources;
  req.initiator_depth = c.initiator_depth;
  req.remote_response_timeout = kRemoteResponseTimeout;
  req.local_response_timeout = kLocalResponseTimeout;
  req.end_to_end_flow = true;
  req.starting_psn = arguments.receive_psn;
  req.retry_count = parameters.retry_count;
  req.pkey = kDefaultPKey;
  req.path_mtu = mtu_code(options.path_mtu);
  req.rnr_retry_count = parameters.rnr_retry_count;
  req.max_cm_retries = kMaxCmRetries;
  req.srq = arguments.srq;
  req.primary.local_lid = req.primary.remote_lid = kPermissiveLid;
  req.primary.local_gid = gid_of(options.address);
  req.primary.remote_gid = gid_of(c.peer);
  req.primary.flow_label = c.path.flow_label;
  req.primary.hop_limit = kHopLimit;
  req.primary.ack_timeout = options.local_ack_timeout;
  encode_ip_header({source_port, options.address, c.peer}, req.private_data);
  std::copy(parameters.private_data.begin(), parameters.private_data.end(),
            req.private_data.begin() + kIpHeaderBytes);
  return req;
}

Result<void> Agent::connect(ConnectionId id, const ConnectArguments& arguments, TimeNs now) {
  Impl& impl = *impl_;
  const Impl::Entry entry(impl);
  const sockaddr_storage peer = with_port(unmapped(arguments.peer), 0);
  const ConnectionParameters& parameters = arguments.parameters;
  if (peer.ss_family != impl.options.address.ss_family || is_unspecified(peer) ||
      is_multicast(peer))
    return Error{EINVAL, "cannot connect from " + to_string(impl.options.address) + " to " +
                             to_string(peer) + ": not a usable address of the same family"};
  if (arguments.port == 0) return Error{EINVAL, "cannot connect to port 0"};
  if (arguments.qpn <= kQpnGsi || arguments.qpn >= kMask24 || arguments.receive_psn > kMask24)
    return Error{EINVAL, "connect needs a queue pair number and a 24-bit first PSN"};
  if (parameters.private_data.size() > kConsumerBytesMax)
    return Error{EINVAL, "private data of a connect request is limited to " +
                             std::to_string(kConsumerBytesMax) + " bytes"};
  if (parameters.retry_count > 7 || parameters.rnr_retry_count > 7)
    return Error{EINVAL, "retry counts go up to 7"};
  if (impl.by_id(id) != nullptr) return Error{EINVAL, "the connection id is in use"};
  Connection& c = impl.add(id, true, peer);
  const uint16_t source_port =
      static_cast<uint16_t>(kFirstSourcePort + impl.random() % (65536 - kFirstSourcePort));
  c.port = arguments.port;
  c.transaction_id = impl.fresh_transaction_id(c);
  c.responder_resources =
      std::min(parameters.responder_resources, impl.options.max_responder_resources);
  c.initiator_depth = std::min(parameters.initiator_depth, impl.options.max_initiator_depth);
  c.path.local_qpn = arguments.qpn;
  c.path.receive_psn = arguments.receive_psn;
  c.path.path_mtu = mtu_bytes(mtu_code(impl.options.path_mtu));
  c.path.local_ack_timeout = impl.options.local_ack_timeout;
  c.path.retry_count = parameters.retry_count;
  c.path.flow_label = flow_label_of(source_port, arguments.port);
  c.deadline = now + impl.options.connect_timeout;
  impl.send(c, {c.transaction_id, 0, impl.request_of(c, arguments, source_port)}, now, true);
  return {};
}

// ---- Passive side

Rep Agent::Impl::reply_of(const Connection& c, const AcceptArguments& arguments) const {
  Rep rep;
  rep.local_comm_id = c.local_comm_id;
  rep.remote_comm_id = c.remote_comm_id;
  rep.qpn = arguments.qpn;
  rep.starting_psn = arguments.receive_psn;
  rep.responder_resources = c.path.max_dest_reads;
  rep.initiator_depth = c.path.max_reads;
  rep.target_ack_delay = kTargetAckDelay;
  rep.failover_accepted = kFailoverNotSupported;
  rep.end_to_end_flow = true;
  rep.rnr_retry_count = arguments.parameters.rnr_retry_count;
  rep.srq = arguments.srq;
  rep.ca_guid = ca_guid;
  std::copy(arguments.parameters.private_data.begin(), arguments.parameters.private_data.end(),
            rep.private_data.begin());
  return rep;
}

Result<void> Agent::accept(ConnectionId id, const AcceptArguments& arguments, TimeNs now) {
  Impl& impl = *impl_;
  const Impl::Entry entry(impl);
  const ConnectionParameters& parameters = arguments.parameters;
  if (arguments.qpn <= kQpnGsi || arguments.qpn >= kMask24 || arguments.receive_psn > kMask24)
    return Error{EINVAL, "accept needs a queue pair number and a 24-bit first PSN"};
  if (parameters.private_data.size() > kReplyBytesMax)
    return Error{EINVAL, "private data of a reply is limited to " + std::to_string(kReplyBytesMax) +
                             " bytes"};
  if (parameters.rnr_retry_count > 7) return Error{EINVAL, "retry counts go up to 7"};
  Connection* c = impl.by_id(id);
  if (c == nullptr || c->state != ConnectionState::RequestReceived)
    return Error{ENOTCONN, "the connection request is gone"};
  c->path.local_qpn = arguments.qpn;
  c->path.receive_psn = arguments.receive_psn;
  c->path.max_reads = std::min(parameters.initiator_depth, c->responder_resources);
  c->path.max_dest_reads = std::min(parameters.responder_resources, c->initiator_depth);
  c->last = encode({c->transaction_id, 0, impl.reply_of(*c, arguments)});
  impl.move(*c, ConnectionState::Activating);
  c->deadline = now + impl.options.connect_timeout;
  impl.set_timer(*c);
  impl.calls.emplace_back([&impl, id, path = c->path] { impl.actions.activate(id, path); });
  return {};
}

void Agent::reject(ConnectionId id, uint16_t reason, std::span<const uint8_t> private_data,
                   TimeNs now) {
  const Impl::Entry entry(*impl_);
  Connection* c = impl_->by_id(id);
  if (c == nullptr || c->state != ConnectionState::RequestReceived) return;
  impl_->counters.requests_refused++;
  impl_->send_rejection(*c, reason, private_data, now);
  impl_->finish(*c, now);
}

// ---- Both

void Agent::activated(ConnectionId id, bool succeeded, TimeNs now) {
  Impl& impl = *impl_;
  const Impl::Entry entry(impl);
  Connection* c = impl.by_id(id);
  if (c == nullptr || c->state != ConnectionState::Activating) return;
  if (!succeeded) {
    impl.send_rejection(*c, reject::kNoResources, {}, now);
    impl.fail(*c, ConnectFailure::NoResources, 0, {},
              "the queue pair for " + impl.peer_text(*c) + " could not be set up", now);
    return;
  }
  if (c->active) {
    Rtu rtu;
    rtu.local_comm_id = c->local_comm_id;
    rtu.remote_comm_id = c->remote_comm_id;
    impl.established(*c);
    impl.send(*c, {c->transaction_id, 0, rtu}, now, false);
    impl.calls.emplace_back([&impl, id, reads = c->path.max_reads, depth = c->path.max_dest_reads,
                             data = std::move(c->private_data)] {
      impl.events.on_connected(id, {reads, depth, data});
    });
    return;
  }
  impl.move(*c, ConnectionState::RepSent);
  c->interval = impl.options.first_retry;
  c->resend_at = now + c->interval;
  impl.set_timer(*c);
  impl.resend(*c);
}

void Agent::data_arrived(ConnectionId id, TimeNs) {
  const Impl::Entry entry(*impl_);
  Connection* c = impl_->by_id(id);
  if (c == nullptr || c->state != ConnectionState::RepSent) return;
  impl_->established(*c);
  impl_->calls.emplace_back([impl = impl_.get(), id] { impl->events.on_established(id); });
}

// Gives up what is not established yet.
void Agent::Impl::cancel(Connection& c, TimeNs now) {
  send_rejection(c, c.state == State::ReqSent ? reject::kTimeout : reject::kConsumer, {}, now);
  if (c.state == State::RequestReceived)
    finish(c, now);
  else
    fail(c, ConnectFailure::Cancelled, 0, {}, "the connection was cancelled", now);
}

void Agent::disconnect(ConnectionId id, TimeNs now) {
  const Impl::Entry entry(*impl_);
  Connection* c = impl_->by_id(id);
  if (c == nullptr || c->state == ConnectionState::DreqSent) return;
  if (c->state == ConnectionState::Established) {
    impl_->queue_pair_to_error(*c);
    impl_->send_dreq(*c, now);
  } else {
    impl_->cancel(*c, now);
  }
}

void Agent::abandon(ConnectionId id, TimeNs now) {
  const Impl::Entry entry(*impl_);
  Connection* c = impl_->by_id(id);
  if (c == nullptr) return;
  c->silent = true;
  impl_->ids.erase(id);
  if (c->state == ConnectionState::Established)
    impl_->send_dreq(*c, now);
  else if (c->state != ConnectionState::DreqSent)
    impl_->cancel(*c, now);
}

void Agent::queue_pair_failed(ConnectionId id, const std::string& reason, TimeNs now) {
  Impl& impl = *impl_;
  const Impl::Entry entry(impl);
  Connection* c = impl.by_id(id);
  if (c == nullptr) return;
  const bool established = c->state == ConnectionState::Established;
  // DreqSent: who uses it has seen the failed work request first, and hung up. Its answer, if one
  // comes at all, is nothing to wait for.
  if (established || c->state == ConnectionState::DreqSent) {
    impl.calls.emplace_back([&impl, id, reason] { impl.events.on_disconnected(id, reason); });
    c->silent = true;  // the peer is still told, as long as it answers
    impl.ids.erase(id);
    if (established) impl.send_dreq(*c, now);
  } else if (c->state == ConnectionState::RepSent || c->state == ConnectionState::Activating) {
    impl.send_rejection(*c, reject::kConsumer, {}, now);
    impl.fail(*c, ConnectFailure::NoResources, 0, {},
              "the queue pair failed before the connection was established: " + reason, now);
  }
}

void Agent::peer_unreachable(const sockaddr_storage& peer, TimeNs now) {
  Impl& impl = *impl_;
  const Impl::Entry entry(impl);
  std::vector<Connection*> hit;
  for (const auto& [comm_id, c] : impl.connections)
    if (same_address(c->peer, peer)) hit.push_back(c.get());
  for (Connection* c : hit) {
    if (c->state == ConnectionState::DreqSent)
      impl.disconnected(*c, "disconnected; the peer is gone", now);
    else if (c->state == ConnectionState::ReqSent || c->state == ConnectionState::RepSent)
      impl.fail(*c, ConnectFailure::PortUnreachable, 0, {},
                "no process on " + to_string(c->peer) + " holds UDP port 4791", now);
  }
}

void Agent::datagram_too_large(const sockaddr_storage& peer, TimeNs now) {
  Impl& impl = *impl_;
  const Impl::Entry entry(impl);
  std::vector<Connection*> hit;
  for (const auto& [comm_id, c] : impl.connections)
    if (c->state == ConnectionState::ReqSent && same_address(c->peer, peer)) hit.push_back(c.get());
  for (Connection* c : hit)
    impl.fail(
        *c, ConnectFailure::MtuTooLarge, 0, {},
        "the path to " + to_string(c->peer) + " does not take our datagrams: its MTU is too small",
        now);
}

void Agent::bad_icrc_seen(const sockaddr_storage& peer) {
  for (const auto& [comm_id, c] : impl_->connections)
    if (c->state == ConnectionState::ReqSent && same_address(c->peer, peer)) c->bad_icrc = true;
}

}  // namespace nvmeof::rdma::soft::cm
