// What the network brings to the agent. Everything here is untrusted: a message changes a
// connection only if its comm ids, its source address and the state fit; anything else is answered
// statelessly or ignored.
#include <algorithm>

#include "rdma/soft/cm/agent_impl.h"
#include "rdma/soft/cm/request_check.h"
#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft::cm {
namespace {

constexpr uint8_t kMraServiceTimeout = 20;  // 4.3 s: how long our application may think
constexpr TimeNs kServiceTimeoutMax = 70'000'000'000;
constexpr unsigned kStaleRetriesMax = 3;
constexpr uint32_t kQpnMulticast = 0xffffff;

TimeNs response_time(uint8_t code) {  // 4.096 us * 2^code
  return std::min<TimeNs>(TimeNs{4096} << (code & 0x1f), kServiceTimeoutMax);
}

std::string rejection_text(uint16_t reason) {
  return std::string(reject_reason_text(reason)) + " (reason " + std::to_string(reason) + ")";
}

}  // namespace

void Agent::Impl::receive(const MadArrival& arrival, TimeNs now) {
  counters.mads_received++;
  Mad mad;
  const sockaddr_storage peer = with_port(unmapped(*arrival.source), 0);
  if (decode(arrival.payload, mad) != MadFault::None || arrival.source_qpn != kQpnGsi ||
      peer.ss_family != options.address.ss_family || is_unspecified(peer) || is_multicast(peer)) {
    counters.mads_malformed++;
    return;
  }
  const Context context{peer, with_port(unmapped(*arrival.destination), 0), mad.transaction_id,
                        now};
  std::visit([&](const auto& message) { on(message, context); }, mad.message);
}

// ---- Requests

void Agent::Impl::refuse(const Req& req, const Context& in, uint16_t reason, uint8_t info_length,
                         const std::array<uint8_t, 72>& info) {
  counters.requests_refused++;
  counters.rejects_sent++;
  Rej rej;
  rej.remote_comm_id = req.local_comm_id;
  rej.reason = reason;
  rej.info_length = info_length;
  rej.info = info;
  reply(in.peer, in.transaction_id, rej);
}

void Agent::Impl::on(const Req& req, const Context& in) {
  counters.requests_received++;
  const RequestVerdict verdict = check_request(req, in.peer, in.local, options.path_mtu);
  if (verdict.drop) {
    counters.mads_ignored++;
    return;
  }
  if (Connection* known = by_peer(in.peer, req.local_comm_id)) {
    if (known->transaction_id == in.transaction_id && known->peer_guid == req.ca_guid) {
      repeated_request(*known, in);
      return;
    }
    // The peer uses the comm id again: what we remember of a finished exchange is in the way.
    if (known->state == State::Finished) erase(*known);
  }
  if (verdict.reason != 0) {
    refuse(req, in, verdict.reason, verdict.info_length, verdict.info);
    return;
  }
  const auto listener = listeners.find(static_cast<uint16_t>(req.service_id));
  if (listener == listeners.end()) {
    refuse(req, in, reject::kInvalidServiceId);
    return;
  }
  if (ends_stale(req, in)) {
    refuse(req, in, reject::kStaleConnection);
    return;
  }
  if (half_open_count >= options.half_open_max) {
    refuse(req, in, reject::kNoResources);
    return;
  }
  new_request(req, verdict.ip, listener->second, in);
}

void Agent::Impl::repeated_request(Connection& c, const Context& in) {
  counters.duplicates++;
  if (c.active) return;
  switch (c.state) {
    case State::RequestReceived:
    case State::Activating: {  // our application is still thinking: ask for patience
      Mra mra;
      mra.local_comm_id = c.local_comm_id;
      mra.remote_comm_id = c.remote_comm_id;
      mra.about = About::Req;
      mra.service_timeout = kMraServiceTimeout;
      reply(c.peer, in.transaction_id, mra);
      break;
    }
    case State::RepSent:
      resend(c);
      break;
    case State::Finished:
      if (c.rejected) resend(c);
      break;
    case State::ReqSent:
    case State::Established:
    case State::DreqSent:
      break;
  }
}

// The peer asks with a queue pair, or a comm id, that we think is connected: it has lost the old
// connection without telling us (IBTA 12.4.1). Ends that one; true when the request must be
// refused.
bool Agent::Impl::ends_stale(const Req& req, const Context& in) {
  Connection* old = by_peer(in.peer, req.local_comm_id);
  if (old == nullptr || old->active) {
    const auto found = queue_pairs.find({gid_of(in.peer), req.ca_guid, req.qpn});
    if (found == queue_pairs.end()) return false;
    old = found->second;
  }
  counters.stale++;
  switch (old->state) {
    case State::RequestReceived:  // the peer gave up and asks anew; nobody has accepted it yet
      finish(*old, in.now);
      erase(*old);
      return false;
    case State::ReqSent:
    case State::Activating:
    case State::RepSent:
      fail(*old, ConnectFailure::Rejected, reject::kStaleConnection, {},
           peer_text(*old) + " began another connection with the same queue pair", in.now);
      return true;
    case State::Established:
    case State::DreqSent:
      disconnected(*old, "stale: the peer began another connection with the same queue pair",
                   in.now);
      return true;
    case State::Finished:
      break;
  }
  return false;
}

void Agent::Impl::new_request(const Req& req, const IpHeader& ip, uint32_t listener,
                              const Context& in) {
  Connection& c = add(new_connection_id(), false, in.peer);
  know_peer(c, req.local_comm_id, req.ca_guid, req.qpn);
  c.transaction_id = in.transaction_id;
  c.listener = listener;
  c.path.send_psn = req.starting_psn;
  c.path.path_mtu = std::min(options.path_mtu, mtu_bytes(req.path_mtu));
  c.path.retry_count = req.retry_count;
  c.path.rnr_retry = req.rnr_retry_count;
  // Linux hosts ask for half a second or two, which is how long a lost READ request would cost.
  const uint8_t asked = req.primary.ack_timeout;
  c.path.local_ack_timeout =
      asked != 0 ? std::min(asked, options.local_ack_timeout) : options.local_ack_timeout;
  c.path.flow_label = req.primary.flow_label;
  c.path.traffic_class = req.primary.traffic_class;
  c.responder_resources = std::min(req.responder_resources, options.max_initiator_depth);
  c.initiator_depth = std::min(req.initiator_depth, options.max_responder_resources);
  c.deadline = in.now + options.connect_timeout;
  set_timer(c);
  IncomingRequest request;
  request.id = c.id;
  request.listener = listener;
  request.peer = with_port(in.peer, ip.source_port);
  request.local = with_port(in.local, static_cast<uint16_t>(req.service_id));
  request.peer_port = ip.source_port;
  request.responder_resources = c.responder_resources;
  request.initiator_depth = c.initiator_depth;
  std::vector<uint8_t> data(req.private_data.begin() + kIpHeaderBytes, req.private_data.end());
  calls.emplace_back([this, request, data = std::move(data)]() mutable {
    if (by_id(request.id) == nullptr) return;  // the peer gave up within the same datagram burst
    request.private_data = data;
    events.on_request(request);
  });
}

// ---- Answers to our requests

void Agent::Impl::on(const Rep& rep, const Context& in) {
  Connection* c = by_local(rep.remote_comm_id);
  if (c == nullptr || !c->active || c->state == State::Finished) {
    // Given up long ago; without this the peer would repeat its REP until it gives up as well.
    Rej rej;
    rej.local_comm_id = rep.remote_comm_id;
    rej.remote_comm_id = rep.local_comm_id;
    rej.about = About::Rep;
    rej.reason = reject::kInvalidCommId;
    counters.rejects_sent++;
    reply(in.peer, in.transaction_id, rej);
    return;
  }
  if (!same_address(c->peer, in.peer)) {
    counters.mads_ignored++;
    return;
  }
  if (c->state != State::ReqSent) {
    counters.duplicates++;
    // Our RTU was lost.
    if (c->state == State::Established && rep.local_comm_id == c->remote_comm_id) resend(*c);
    return;
  }
  if (rep.local_comm_id == 0 || rep.qpn <= kQpnGsi || rep.qpn == kQpnMulticast) {
    c->remote_comm_id = rep.local_comm_id;
    send_rejection(*c, reject::kUnsupported, {}, in.now);
    fail(*c, ConnectFailure::Rejected, reject::kUnsupported, {},
         peer_text(*c) + " answered with a malformed reply", in.now);
    return;
  }
  know_peer(*c, rep.local_comm_id, rep.ca_guid, rep.qpn);
  move(*c, State::Activating);
  c->resend_at = reactor::kNever;
  set_timer(*c);
  c->path.send_psn = rep.starting_psn;
  c->path.rnr_retry = rep.rnr_retry_count;
  // A peer must not promise more than we asked for; what it promises too much is not used.
  c->path.max_reads = std::min(c->initiator_depth, rep.responder_resources);
  c->path.max_dest_reads = std::min(c->responder_resources, rep.initiator_depth);
  c->private_data.assign(rep.private_data.begin(), rep.private_data.end());
  calls.emplace_back([this, id = c->id, path = c->path] { actions.activate(id, path); });
}

void Agent::Impl::on(const Mra& mra, const Context& in) {
  Connection* c = by_local(mra.remote_comm_id);
  const TimeNs wait = response_time(mra.service_timeout);
  if (c == nullptr || !same_address(c->peer, in.peer)) {
    counters.mads_ignored++;
  } else if (mra.about == About::Req && c->state == State::ReqSent) {
    c->resend_at = in.now + wait;  // the limit of the whole exchange stays
    set_timer(*c);
  } else if (mra.about == About::Rep && c->state == State::RepSent &&
             mra.local_comm_id == c->remote_comm_id) {
    c->resend_at = in.now + wait;
    c->deadline = std::max(c->deadline, in.now + wait + options.first_retry);
    set_timer(*c);
  } else {
    counters.mads_ignored++;
  }
}

// The peer says that a queue pair of ours is one it knows from before. It has ended its old
// connection now, so the same request under a new comm id is likely to pass.
void Agent::Impl::retry_stale(Connection& c, TimeNs now) {
  Mad mad;
  if (decode(c.last, mad) != MadFault::None) return;
  const auto found = connections.find(c.local_comm_id);
  std::unique_ptr<Connection> owned = std::move(found->second);
  if (c.due != reactor::kNever) timers.erase({c.due, c.local_comm_id});
  c.due = reactor::kNever;
  connections.erase(found);
  c.local_comm_id = fresh_comm_id();
  connections.emplace(c.local_comm_id, std::move(owned));
  c.transaction_id = fresh_transaction_id(c);
  Req* req = std::get_if<Req>(&mad.message);
  req->local_comm_id = c.local_comm_id;
  c.last = encode({c.transaction_id, 0, *req});
  c.stale_retries++;
  c.interval = options.first_retry;
  c.resend_at = now + c.interval;  // not at once: the peer needs a moment to clear up
  set_timer(c);
}

void Agent::Impl::on(const Rej& rej, const Context& in) {
  counters.rejects_received++;
  // A peer that rejects before it has given us a comm id names ours; one that gives up before it
  // knows ours leaves it 0.
  Connection* c =
      rej.remote_comm_id != 0 ? by_local(rej.remote_comm_id) : by_peer(in.peer, rej.local_comm_id);
  const bool fits = c != nullptr && same_address(c->peer, in.peer) &&
                    (rej.local_comm_id == 0 || c->remote_comm_id == 0 ||
                     rej.local_comm_id == c->remote_comm_id || c->state == State::ReqSent);
  if (!fits) {
    counters.mads_ignored++;
    return;
  }
  const std::string text =
      peer_text(*c) + " rejected the connection: " + rejection_text(rej.reason);
  switch (c->state) {
    case State::ReqSent:
      if (rej.reason == reject::kStaleConnection && c->stale_retries < kStaleRetriesMax)
        retry_stale(*c, in.now);
      else
        fail(*c, ConnectFailure::Rejected, rej.reason, rej.private_data, text, in.now);
      break;
    case State::Activating:
    case State::RepSent:
      fail(*c, ConnectFailure::Rejected, rej.reason, rej.private_data, text, in.now);
      break;
    case State::RequestReceived:
      finish(*c, in.now);  // accept() will find it gone
      break;
    case State::Established:
      if (rej.reason == reject::kStaleConnection)
        disconnected(*c, "the peer does not know the connection any more", in.now);
      else
        counters.mads_ignored++;  // late: the peer answered an earlier message of the exchange
      break;
    case State::DreqSent:
    case State::Finished:
      counters.mads_ignored++;
      break;
  }
}

void Agent::Impl::on(const Rtu& rtu, const Context& in) {
  Connection* c = by_local(rtu.remote_comm_id);
  if (c == nullptr || c->active || c->state != State::RepSent || !same_address(c->peer, in.peer) ||
      rtu.local_comm_id != c->remote_comm_id) {
    counters.mads_ignored++;
    return;
  }
  established(*c);
  calls.emplace_back([this, id = c->id] { events.on_established(id); });
}

// ---- The end

void Agent::Impl::on(const Dreq& dreq, const Context& in) {
  Connection* c = by_local(dreq.remote_comm_id);
  const bool known = c != nullptr && c->state != State::Finished;
  if (known && (!same_address(c->peer, in.peer) || dreq.local_comm_id != c->remote_comm_id ||
                dreq.remote_qpn != c->path.local_qpn)) {
    counters.mads_ignored++;
    return;
  }
  Drep drep;
  drep.local_comm_id = dreq.remote_comm_id;
  drep.remote_comm_id = dreq.local_comm_id;
  reply(in.peer, in.transaction_id, drep);
  if (!known) return;  // our first DREP was lost, or it was a former life of ours
  switch (c->state) {
    case State::Established:
    case State::DreqSent:
      disconnected(*c, "the peer disconnected", in.now);
      break;
    case State::Activating:
    case State::RepSent:
      fail(*c, ConnectFailure::Cancelled, 0, {},
           peer_text(*c) + " disconnected before the connection was established", in.now);
      break;
    default:
      counters.mads_ignored++;
      break;
  }
}

void Agent::Impl::on(const Drep& drep, const Context& in) {
  Connection* c = by_local(drep.remote_comm_id);
  if (c == nullptr || c->state != State::DreqSent || !same_address(c->peer, in.peer) ||
      drep.local_comm_id != c->remote_comm_id) {
    counters.mads_ignored++;
    return;
  }
  disconnected(*c, "disconnected", in.now);
}

// Unreliable datagram services: we offer none.
void Agent::Impl::on(const SidrReq& request, const Context& in) {
  SidrRep answer;
  answer.request_id = request.request_id;
  answer.status = 1;  // service id not supported
  answer.service_id = request.service_id;
  reply(in.peer, in.transaction_id, answer);
}

void Agent::Impl::on(const SidrRep&, const Context&) {
  counters.mads_ignored++;
}

}  // namespace nvmeof::rdma::soft::cm
