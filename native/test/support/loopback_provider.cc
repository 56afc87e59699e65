// The fabric of the loopback provider: executes work requests between two queue pairs, carries
// connection events, injects faults. Runs on the test's only thread.
#include "support/loopback_provider.h"

#include <arpa/inet.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support/loopback_objects.h"

namespace nvmeof::test {

using namespace rdma;

LoopbackFabric::LoopbackFabric() = default;
LoopbackFabric::~LoopbackFabric() = default;

Capabilities LoopbackFabric::full_capabilities() {
  Capabilities c;
  c.max_sge = 4;
  c.max_read_sge = 2;
  c.max_inline = 64;
  c.max_responder_resources = 16;
  c.max_initiator_depth = 16;
  c.send_with_invalidate = c.memory_windows = c.srq = true;
  c.path_mtu = 4096;
  return c;
}

std::unique_ptr<LoopbackDevice> LoopbackFabric::open(const char* address,
                                                     const Capabilities& capabilities) {
  return std::make_unique<LoopbackDevice>(this, address, capabilities);
}

int LoopbackFabric::progress() {
  int steps = 0;
  if (!hold_disconnects) {
    for (const auto& [id, reason] : held_disconnects_) end_connection(id, reason);
    held_disconnects_.clear();
  }
  for (size_t waiting = events_.size(); waiting > 0 && !events_.empty(); waiting--, steps++) {
    const auto event = std::move(events_.front());
    events_.pop_front();
    event();
  }
  std::vector<uint32_t> numbers;
  for (const auto& [number, qp] : queue_pairs_) numbers.push_back(number);
  for (const uint32_t number : numbers) {
    for (int budget = 64; budget > 0; budget--) {
      const auto found = queue_pairs_.find(number);
      if (found == queue_pairs_.end() || !work(found->second)) break;
      steps++;
    }
  }
  return steps;
}

void LoopbackFabric::settle() {
  while (progress() > 0) {
  }
}

void LoopbackFabric::hold(uint32_t qp, bool held) {
  if (const auto found = queue_pairs_.find(qp); found != queue_pairs_.end())
    found->second->held_ = held;
}

void LoopbackFabric::hold_acknowledgements(uint32_t qp, bool held) {
  const auto found = queue_pairs_.find(qp);
  if (found == queue_pairs_.end()) return;
  found->second->acknowledgements_held_ = held;
  if (!held) found->second->release_acknowledgements(Status::Success);
}

void LoopbackFabric::fail_next(uint32_t qp, Opcode opcode, Status status) {
  if (const auto found = queue_pairs_.find(qp); found != queue_pairs_.end())
    found->second->faults_[opcode] = status;
}

void LoopbackFabric::cut(uint32_t qp) {
  if (const auto found = queue_pairs_.find(qp); found != queue_pairs_.end())
    found->second->cut_ = true;
}

uint32_t LoopbackFabric::peer_of(uint32_t qp) const {
  const auto found = queue_pairs_.find(qp);
  return found == queue_pairs_.end() ? 0 : found->second->peer_;
}

State LoopbackFabric::state_of(uint32_t qp) const {
  const auto found = queue_pairs_.find(qp);
  return found == queue_pairs_.end() ? State::Reset : found->second->state_;
}

uint32_t LoopbackFabric::new_key(const LoopbackKey& key) {
  const uint32_t name = next_key_++;
  keys_[name] = key;
  return name;
}

const LoopbackKey* LoopbackFabric::find_key(uint32_t key, const void* domain) const {
  const auto found = keys_.find(key);
  return found == keys_.end() || found->second.domain != domain ? nullptr : &found->second;
}

namespace {

bool covers(const LoopbackKey& key, uint64_t address, uint64_t length) {
  return address >= key.address && length <= key.length &&
         address - key.address <= key.length - length;
}

uint8_t* bytes_at(uint64_t address) {
  return reinterpret_cast<uint8_t*>(address);
}

const char* trace_name(Opcode opcode) {
  switch (opcode) {
    case Opcode::Send:
      return "send ";
    case Opcode::SendWithImm:
      return "send+imm ";
    case Opcode::SendWithInvalidate:
      return "send+inv ";
    case Opcode::RdmaWrite:
      return "write ";
    case Opcode::RdmaWriteWithImm:
      return "write+imm ";
    case Opcode::RdmaRead:
      return "read ";
    case Opcode::BindMemoryWindow:
      return "bind ";
    case Opcode::LocalInvalidate:
      return "invalidate ";
    case Opcode::AtomicFetchAdd:
    case Opcode::AtomicCompareSwap:
      break;  // refused when posted
  }
  return "? ";
}

// Copies `data` into scatter entries; the caller checked that it fits.
void scatter(const std::vector<uint8_t>& data, const Sge* sges, unsigned count) {
  size_t at = 0;
  for (unsigned i = 0; i < count && at < data.size(); i++) {
    const size_t part = std::min<size_t>(sges[i].length, data.size() - at);
    std::memcpy(bytes_at(sges[i].address), data.data() + at, part);
    at += part;
  }
}

}  // namespace

bool LoopbackFabric::work(LoopbackQueuePair* qp) {
  if (qp->sends_.empty()) return false;
  if (qp->state_ == State::Err) {
    qp->release_acknowledgements(Status::FlushError);
    qp->complete_send(Status::FlushError);
    return true;
  }
  if (qp->state_ != State::Rts || qp->held_) return false;
  bool wait = false;
  const Opcode opcode = qp->sends_.front().request.opcode;
  const Status status = execute(qp, &wait);
  if (wait) return false;
  if (tracing) trace += trace_name(opcode);
  qp->complete_send(status);
  if (status != Status::Success) fail(qp);
  return true;
}

Status LoopbackFabric::execute(LoopbackQueuePair* qp, bool* wait) {
  const SendWorkRequest& r = qp->sends_.front().request;
  if (qp->cut_) return Status::RetryExceeded;
  if (const auto fault = qp->faults_.find(r.opcode); fault != qp->faults_.end()) {
    const Status status = fault->second;
    qp->faults_.erase(fault);
    return status;
  }
  if (r.opcode == Opcode::BindMemoryWindow || r.opcode == Opcode::LocalInvalidate)
    return execute_local(qp, r);

  std::vector<uint8_t> data;
  uint64_t length = 0;
  if (const Status status = gather(qp, &data, &length); status != Status::Success) return status;
  const auto found = queue_pairs_.find(qp->peer_);
  if (found == queue_pairs_.end()) return Status::RetryExceeded;
  LoopbackQueuePair* peer = found->second;
  if (peer->state_ == State::Err || peer->state_ == State::Reset) return Status::RetryExceeded;
  const bool read = r.opcode == Opcode::RdmaRead;
  const bool writes = r.opcode == Opcode::RdmaWrite || r.opcode == Opcode::RdmaWriteWithImm;
  if ((read || writes) && length > 0) {
    const LoopbackKey* key = find_key(r.rkey, peer->options_.pd);
    const uint8_t right = read ? kRemoteRead : kRemoteWrite;
    const bool allowed = key && (key->access & right) && covers(*key, r.remote_address, length) &&
                         (key->window_qp == 0 || key->window_qp == peer->number_);
    if (!allowed) {
      fail(peer);
      return Status::RemoteAccessError;
    }
    if (read) {
      if (r.lease && r.lease->over(reactor::Lease::clock())) return Status::LocalAccessError;
      data.assign(bytes_at(r.remote_address), bytes_at(r.remote_address) + length);
      scatter(data, qp->sends_.front().sges, r.num_sge);
    } else {
      std::memcpy(bytes_at(r.remote_address), data.data(), data.size());
    }
  }
  if (read || r.opcode == Opcode::RdmaWrite) return Status::Success;
  return deliver(peer, r, data, wait);
}

Status LoopbackFabric::execute_local(LoopbackQueuePair* qp, const SendWorkRequest& r) {
  const void* domain = qp->options_.pd;
  if (r.opcode == Opcode::LocalInvalidate) {
    const LoopbackKey* key = find_key(r.imm_or_rkey, domain);
    if (!key || key->window_qp != qp->number_) return Status::LocalQpOperationError;
    keys_.erase(r.imm_or_rkey);
    return Status::Success;
  }
  const LoopbackKey* region = find_key(r.bind.region->lkey(), domain);
  if (!region || !covers(*region, r.bind.address, r.bind.length) || keys_.count(r.bind.rkey) ||
      !(region->access & kWindowBind))
    return Status::MemoryWindowBindError;
  keys_[r.bind.rkey] = {domain, r.bind.address, r.bind.length, r.bind.access, qp->number_};
  static_cast<LoopbackWindow*>(r.bind.window)->bound = r.bind.rkey;
  return Status::Success;
}

// Local entries: gathered for what leaves, only checked for what arrives (READ).
Status LoopbackFabric::gather(LoopbackQueuePair* qp, std::vector<uint8_t>* data, uint64_t* length) {
  const auto& send = qp->sends_.front();
  const bool read = send.request.opcode == Opcode::RdmaRead;
  for (unsigned i = 0; i < send.request.num_sge; i++) {
    const Sge& sge = send.sges[i];
    *length += sge.length;
    if (sge.length == 0) continue;
    if (!(send.request.flags & kInline)) {
      const LoopbackKey* key = find_key(sge.lkey, qp->options_.pd);
      if (!key || !covers(*key, sge.address, sge.length) || (read && !(key->access & kLocalWrite)))
        return Status::LocalProtectionError;
    }
    if (!read) data->insert(data->end(), bytes_at(sge.address), bytes_at(sge.address) + sge.length);
  }
  return Status::Success;
}

// A message that consumes a receive of the peer.
Status LoopbackFabric::deliver(LoopbackQueuePair* peer, const SendWorkRequest& r,
                               const std::vector<uint8_t>& data, bool* wait) {
  LoopbackReceives* receives = peer->receives();
  if (receives->waiting.empty()) {
    receiver_not_ready_++;
    *wait = true;
    return Status::Success;
  }
  const LoopbackReceive receive = receives->waiting.front();
  receives->waiting.pop_front();
  if (Side* s = side(peer->connection_); s && !s->active) establish(peer->connection_);
  const bool writes = r.opcode == Opcode::RdmaWriteWithImm;
  uint64_t room = 0;
  for (unsigned i = 0; i < receive.num_sge; i++) room += receive.sges[i].length;
  if (!writes && data.size() > room) {
    peer->complete_receive(receive, Status::LocalLengthError, Opcode::Send, 0, 0, 0);
    fail(peer);
    return Status::RemoteInvalidRequest;
  }
  const bool invalidates = r.opcode == Opcode::SendWithInvalidate;
  if (invalidates) {
    const LoopbackKey* key = find_key(r.imm_or_rkey, peer->options_.pd);
    if (!key || key->window_qp != peer->number_) {
      peer->complete_receive(receive, Status::LocalAccessError, Opcode::Send, 0, 0, 0);
      fail(peer);
      return Status::RemoteAccessError;
    }
    keys_.erase(r.imm_or_rkey);
  }
  if (!writes) scatter(data, receive.sges, receive.num_sge);
  uint8_t flags = 0;
  if (invalidates)
    flags = kWithInvalidate;
  else if (r.opcode != Opcode::Send)
    flags = kWithImm;
  const Opcode seen = r.opcode == Opcode::SendWithImm ? Opcode::Send : r.opcode;
  peer->complete_receive(receive, Status::Success, seen, static_cast<uint32_t>(data.size()), flags,
                         r.imm_or_rkey);
  return Status::Success;
}

void LoopbackFabric::fail(LoopbackQueuePair* qp) {
  if (qp->state_ == State::Err) return;
  qp->to_error();
  if (qp->connection_) end_connection(qp->connection_, failure);
}

LoopbackFabric::Side* LoopbackFabric::side(ConnectionId id) {
  const auto found = sides_.find(id);
  return found == sides_.end() ? nullptr : &found->second;
}

void LoopbackFabric::establish(ConnectionId passive) {
  Side* s = side(passive);
  if (!s || s->established) return;
  s->established = true;
  s->handler->on_established(passive);
}

void LoopbackFabric::end_connection(ConnectionId id, const std::string& reason) {
  events_.push_back([this, id, reason] {
    if (hold_disconnects) {
      held_disconnects_.push_back({id, reason});
      return;
    }
    const ConnectionId other = side(id) ? side(id)->peer : 0;
    report_disconnected(id, reason);
    report_disconnected(other, reason);
  });
}

void LoopbackFabric::report_disconnected(ConnectionId id, const std::string& reason) {
  Side* s = side(id);
  if (!s || s->reported) return;
  s->reported = true;
  if (const auto qp = queue_pairs_.find(s->qp); qp != queue_pairs_.end()) qp->second->to_error();
  ConnectionHandler* handler = s->handler;
  const bool established = s->established;
  sides_.erase(id);
  if (established) {
    handler->on_disconnected(id, reason);
  } else {
    handler->on_connect_failed(id, {ConnectFailure::Cancelled, 0, {}, reason});
  }
}

}  // namespace nvmeof::test
