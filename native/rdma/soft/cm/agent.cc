// Tables, timers and the ends of connections; see agent.h.
#include "rdma/soft/cm/agent.h"

#include <algorithm>
#include <atomic>
#include <cassert>

#include "rdma/soft/cm/agent_impl.h"
#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft::cm {
namespace {

constexpr const char* kStateNames[kConnectionStates] = {
    "REQ sent",    "request received", "activating", "REP sent",
    "established", "DREQ sent",        "finished"};

constexpr uint8_t bit(ConnectionState state) {
  return static_cast<uint8_t>(1u << static_cast<uint8_t>(state));
}
using enum ConnectionState;
constexpr uint8_t kMoves[kConnectionStates] = {
    /* ReqSent */ bit(Activating) | bit(Finished),
    /* RequestReceived */ bit(Activating) | bit(Finished),
    /* Activating */ bit(RepSent) | bit(Established) | bit(Finished),
    /* RepSent */ bit(Established) | bit(Finished),
    /* Established */ bit(DreqSent) | bit(Finished),
    /* DreqSent */ bit(Finished),
    /* Finished */ 0,
};

}  // namespace

const char* to_string(ConnectionState state) {
  return kStateNames[static_cast<uint8_t>(state)];
}

bool may_move(ConnectionState from, ConnectionState to) {
  return (kMoves[static_cast<uint8_t>(from)] & bit(to)) != 0;
}

// ---- Tables

Agent::Impl::Impl(const AgentOptions& given, Actions& its_actions, Events& its_events,
                  uint64_t seed)
    : options(given), actions(its_actions), events(its_events), random(seed) {
  options.address = with_port(unmapped(options.address), 0);
  // A GUID of this process alone (PROTOCOL.md 4.5): locally administered, as EUI-64 marks it.
  ca_guid = (random() & 0x00ffffffffffffffu) | 0x0200000000000000u;
}

void Agent::Impl::call_out() {
  while (!calls.empty()) {
    const std::function<void()> call = std::move(calls.front());
    calls.pop_front();
    call();
  }
}

uint32_t Agent::Impl::fresh_comm_id() {
  uint32_t comm_id;
  do comm_id = static_cast<uint32_t>(random());
  while (comm_id == 0 || connections.contains(comm_id));
  return comm_id;
}

uint64_t Agent::Impl::fresh_transaction_id(const Connection& c) {
  return (random() & ~0xffffffffull) | c.local_comm_id;
}

Connection& Agent::Impl::add(ConnectionId id, bool active, const sockaddr_storage& peer) {
  auto owned = std::make_unique<Connection>();
  Connection& c = *owned;
  c.id = id;
  c.active = active;
  c.state = active ? State::ReqSent : State::RequestReceived;
  c.peer = c.path.peer = peer;
  c.local_comm_id = fresh_comm_id();
  half_open_count += c.half_open();
  connections.emplace(c.local_comm_id, std::move(owned));
  ids.emplace(id, &c);
  return c;
}

void Agent::Impl::know_peer(Connection& c, uint32_t comm_id, uint64_t guid, uint32_t qpn) {
  c.remote_comm_id = comm_id;
  c.peer_guid = guid;
  c.path.remote_qpn = qpn;
  peers[{gid_of(c.peer), comm_id}] = &c;
  queue_pairs[{gid_of(c.peer), guid, qpn}] = &c;
}

// The peer's queue pair may belong to another connection now; the comm id stays known for
// duplicates until the connection is erased.
void Agent::Impl::forget_peer(Connection& c) {
  const auto found = queue_pairs.find({gid_of(c.peer), c.peer_guid, c.path.remote_qpn});
  if (found != queue_pairs.end() && found->second == &c) queue_pairs.erase(found);
}

void Agent::Impl::erase(Connection& c) {
  forget_peer(c);
  const auto peer = peers.find({gid_of(c.peer), c.remote_comm_id});
  if (peer != peers.end() && peer->second == &c) peers.erase(peer);
  if (c.due != reactor::kNever) timers.erase({c.due, c.local_comm_id});
  ids.erase(c.id);
  half_open_count -= c.half_open();
  finished_count -= c.state == State::Finished;
  connections.erase(c.local_comm_id);
}

Connection* Agent::Impl::by_local(uint32_t comm_id) {
  const auto found = connections.find(comm_id);
  return found == connections.end() ? nullptr : found->second.get();
}

Connection* Agent::Impl::by_id(ConnectionId id) {
  const auto found = ids.find(id);
  return found == ids.end() ? nullptr : found->second;
}

Connection* Agent::Impl::by_peer(const sockaddr_storage& peer, uint32_t comm_id) {
  const auto found = peers.find({gid_of(peer), comm_id});
  return found == peers.end() ? nullptr : found->second;
}

// ---- Sending and timers

void Agent::Impl::move(Connection& c, State to) {
  assert(may_move(c.state, to));
  half_open_count -= c.half_open();
  c.state = to;
  half_open_count += c.half_open();
}

void Agent::Impl::set_timer(Connection& c) {
  const TimeNs due = std::min(c.resend_at, c.deadline);
  if (due == c.due) return;
  if (c.due != reactor::kNever) timers.erase({c.due, c.local_comm_id});
  c.due = due;
  if (due != reactor::kNever) timers.insert({due, c.local_comm_id});
}

void Agent::Impl::send(Connection& c, const Mad& mad, TimeNs now, bool repeat) {
  c.last = encode(mad);
  c.interval = options.first_retry;
  c.resend_at = repeat ? now + c.interval : reactor::kNever;
  set_timer(c);
  resend(c);
}

void Agent::Impl::resend(Connection& c) {
  counters.mads_sent++;
  actions.send_mad(c.peer, c.last);
}

void Agent::Impl::reply(const sockaddr_storage& peer, uint64_t transaction_id,
                        const Message& message) {
  counters.mads_sent++;
  actions.send_mad(peer, encode({transaction_id, 0, message}));
}

void Agent::Impl::on_timer(Connection& c, TimeNs now) {
  if (c.deadline <= now) {
    timed_out(c, now);
    return;
  }
  counters.retries++;
  c.interval = std::min(c.interval * 2, options.retry_max);
  c.resend_at = now + c.interval;
  set_timer(c);
  resend(c);
}

void Agent::Impl::timed_out(Connection& c, TimeNs now) {
  const std::string limit = std::to_string(options.connect_timeout / 1'000'000) + " ms";
  switch (c.state) {
    case State::ReqSent:
      send_rejection(c, reject::kTimeout, {}, now);  // in case the request is still under way
      if (c.bad_icrc)
        fail(c, ConnectFailure::BadIcrc, 0, {},
             "answers of " + peer_text(c) +
                 " came with a wrong ICRC: does a NAT or firewall "
                 "between rewrite IP or UDP headers?",
             now);
      else
        fail(c, ConnectFailure::Unreachable, 0, {},
             peer_text(c) + " did not answer within " + limit, now);
      break;
    case State::RequestReceived:
      send_rejection(c, reject::kTimeout, {}, now);
      finish(c, now);
      break;
    case State::Activating:
    case State::RepSent:
      send_rejection(c, reject::kTimeout, {}, now);
      fail(c, ConnectFailure::Unreachable, 0, {},
           "the connection with " + peer_text(c) + " was not established within " + limit, now);
      break;
    case State::DreqSent:
      disconnected(c, "disconnected; the peer did not answer", now);
      break;
    case State::Established:  // has no deadline
      break;
    case State::Finished:
      erase(c);
      break;
  }
}

// ---- Ends

// Remembers the connection for a while. The oldest go when there are too many.
void Agent::Impl::finish(Connection& c, TimeNs now) {
  forget_peer(c);
  move(c, State::Finished);
  ids.erase(c.id);
  c.private_data.clear();
  c.resend_at = reactor::kNever;
  c.deadline = now + options.time_wait;
  set_timer(c);
  finished_count++;
  finished.push_back(c.local_comm_id);
  while (finished_count > options.finished_max || finished.size() > 2 * options.finished_max) {
    Connection* oldest = by_local(finished.front());
    finished.pop_front();
    if (oldest != nullptr && oldest->state == State::Finished) erase(*oldest);
  }
}

void Agent::Impl::queue_pair_to_error(Connection& c) {
  if (c.silent || !c.has_queue_pair()) return;
  calls.emplace_back([this, id = c.id, qpn = c.path.local_qpn] { actions.to_error(id, qpn); });
}

void Agent::Impl::fail(Connection& c, ConnectFailure failure, uint16_t reason,
                       std::span<const uint8_t> private_data, std::string message, TimeNs now) {
  counters.failed++;
  queue_pair_to_error(c);
  if (!c.silent) {
    calls.emplace_back([this, id = c.id, failure, reason,
                        data = std::vector<uint8_t>(private_data.begin(), private_data.end()),
                        text = std::move(message)] {
      events.on_failed(id, {failure, reason, data, text});
    });
  }
  finish(c, now);
}

void Agent::Impl::disconnected(Connection& c, const std::string& reason, TimeNs now) {
  counters.disconnected++;
  queue_pair_to_error(c);
  if (!c.silent)
    calls.emplace_back([this, id = c.id, reason] { events.on_disconnected(id, reason); });
  finish(c, now);
}

void Agent::Impl::established(Connection& c) {
  counters.connected++;
  move(c, State::Established);
  c.resend_at = c.deadline = reactor::kNever;
  set_timer(c);
}

void Agent::Impl::send_dreq(Connection& c, TimeNs now) {
  move(c, State::DreqSent);
  c.deadline = now + options.disconnect_timeout;
  Dreq dreq;
  dreq.local_comm_id = c.local_comm_id;
  dreq.remote_comm_id = c.remote_comm_id;
  dreq.remote_qpn = c.path.remote_qpn;
  send(c, {fresh_transaction_id(c), 0, dreq}, now, true);
}

Rej Agent::Impl::rejection(const Connection& c, uint16_t reason) const {
  Rej rej;
  // A peer that never got a REP or MRA of ours does not know our comm id, nor we one of a peer
  // that never answered.
  rej.local_comm_id = c.active || c.state != State::RequestReceived ? c.local_comm_id : 0;
  rej.remote_comm_id = c.remote_comm_id;
  rej.about = c.state == State::RepSent               ? About::Other
              : c.active && c.state != State::ReqSent ? About::Rep
                                                      : About::Req;
  rej.reason = reason;
  if (reason == reject::kTimeout) {  // carries the CA GUID of whoever gives up
    rej.info_length = 8;
    put64(rej.info.data(), ca_guid);
  }
  return rej;
}

void Agent::Impl::send_rejection(Connection& c, uint16_t reason,
                                 std::span<const uint8_t> private_data, TimeNs now) {
  Rej rej = rejection(c, reason);
  std::copy_n(private_data.begin(), std::min(private_data.size(), rej.private_data.size()),
              rej.private_data.begin());
  counters.rejects_sent++;
  send(c, {c.transaction_id, 0, rej}, now, false);
  c.rejected = true;
}

std::string Agent::Impl::peer_text(const Connection& c) const {
  const std::string address = to_string(c.peer);
  return c.active ? address + " port " + std::to_string(c.port) : address;
}

// ---- Agent

Agent::Agent(const AgentOptions& options, Actions& actions, Events& events, uint64_t seed)
    : impl_(std::make_unique<Impl>(options, actions, events, seed)) {}
Agent::~Agent() = default;

void Agent::receive(const MadArrival& arrival, TimeNs now) {
  const Impl::Entry entry(*impl_);
  impl_->receive(arrival, now);
}

void Agent::expire(TimeNs now) {
  const Impl::Entry entry(*impl_);
  while (!impl_->timers.empty() && impl_->timers.begin()->first <= now)
    impl_->on_timer(*impl_->by_local(impl_->timers.begin()->second), now);
}

TimeNs Agent::next_deadline() const {
  return impl_->timers.empty() ? reactor::kNever : impl_->timers.begin()->first;
}

const AgentCounters& Agent::counters() const {
  return impl_->counters;
}
size_t Agent::connections() const {
  return impl_->connections.size() - impl_->finished_count;
}
size_t Agent::half_open() const {
  return impl_->half_open_count;
}
size_t Agent::remembered() const {
  return impl_->finished_count;
}
uint64_t Agent::ca_guid() const {
  return impl_->ca_guid;
}

}  // namespace nvmeof::rdma::soft::cm
