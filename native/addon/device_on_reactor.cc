// One device on one reactor; see device_on_reactor.h.
#include "addon/device_on_reactor.h"

#include <cerrno>
#include <cstring>

namespace nvmeof::addon {

namespace {

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

rdma::ConnectFailure failure_of(int code) {
  switch (code) {
    case EADDRINUSE:
      return rdma::ConnectFailure::AddressInUse;
    case EMSGSIZE:
      return rdma::ConnectFailure::MtuTooLarge;
    case ECONNREFUSED:
      return rdma::ConnectFailure::PortUnreachable;
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EINVAL:
      return rdma::ConnectFailure::Unreachable;
    default:
      return rdma::ConnectFailure::NoResources;
  }
}

// IB CM reject reason "consumer reject" needs private data; this says only that we have no room.
constexpr uint16_t kRejectNoResources = 3;

}  // namespace

DeviceOnReactor::DeviceOnReactor(rdma::Device* device, reactor::Reactor* reactor, EventRing* ring,
                                 nvmf::MultipathEngine* multipath, const TableMirror* tables,
                                 const nvmf::TargetLimits& limits)
    : device_(device),
      reactor_(reactor),
      ring_(ring),
      multipath_(multipath),
      tables_(tables),
      limits_(limits),
      commands_(reactor, ring, device->capabilities().memory_windows) {}

Result<nvmf::TargetEngine*> DeviceOnReactor::target() {
  if (target_) return target_.get();
  auto made = nvmf::TargetEngine::create(device_, reactor_, this, limits_);
  if (!made) return made.error();
  target_ = std::move(*made);
  for (const auto& [table, mirrored] : *tables_) {
    for (const auto& [nsid, entry] : mirrored.namespaces) {
      target_->set_namespace(
          table, nsid, entry, [](void*) {}, nullptr);
    }
    for (const auto& [at, rule] : mirrored.refused) {
      target_->set_access(
          table, rule, [](void*) {}, nullptr);
    }
  }
  target_seen_.store(target_.get(), std::memory_order_release);
  return target_.get();
}

Result<nvmf::HostEngine*> DeviceOnReactor::host() {
  if (host_) return host_.get();
  auto made = nvmf::HostEngine::create(device_, reactor_, this);
  if (!made) return made.error();
  host_ = std::move(*made);
  commands_.use(host_.get());
  multipath_->engine_made(host_.get());
  host_seen_.store(host_.get(), std::memory_order_release);
  return host_.get();
}

void DeviceOnReactor::track(uint32_t queue) {
  queues_.insert(queue);
  live_queues_.store(static_cast<uint32_t>(queues_.size()), std::memory_order_release);
}

void DeviceOnReactor::accept(uint32_t queue, rdma::ConnectionId connection,
                             nvmf::AcceptOptions options,
                             const std::vector<uint8_t>& private_data) {
  track(queue);
  options.parameters.private_data = private_data;
  Result<nvmf::TargetEngine*> engine = target();
  Error error;
  if (engine) {
    const Result<void> accepted = (*engine)->accept(queue, connection, options);
    if (accepted) return;
    error = accepted.error();
  } else {
    error = engine.error();
  }
  device_->reject(connection, kRejectNoResources, {});
  push(nvmf::EventKind::QueueClosed, queue, 0, 0, 0, {}, bytes_of(error.message));
}

void DeviceOnReactor::connect(uint32_t queue, const sockaddr_storage& peer, uint16_t port,
                              nvmf::HostQueueOptions options,
                              const std::vector<uint8_t>& private_data) {
  track(queue);
  options.parameters.private_data = private_data;
  Result<nvmf::HostEngine*> engine = host();
  Error error;
  if (engine) {
    const Result<void> connecting = (*engine)->connect(queue, peer, port, options);
    if (connecting) return;
    error = connecting.error();
  } else {
    error = engine.error();
  }
  push(nvmf::EventKind::ConnectFailed, queue, 0, static_cast<uint32_t>(failure_of(error.code)), 0,
       {}, bytes_of(error.message));
}

void DeviceOnReactor::close(uint32_t queue) {
  // Ids are unique in the process: the engine that does not know one ignores it.
  if (!queues_.contains(queue)) return;
  if (target_) target_->close(queue);
  if (host_ && queues_.contains(queue)) host_->close(queue);
}

void DeviceOnReactor::change(const Change& change) {
  if (!target_) return;
  auto* pending = new PendingChange{change.operation, this};
  changes_.insert(pending);
  change.operation->pending.fetch_add(1, std::memory_order_relaxed);
  switch (change.kind) {
    case Change::Kind::Set:
      target_->set_namespace(change.table, change.nsid, change.entry, changed, pending);
      break;
    case Change::Kind::Remove:
      target_->remove_namespace(change.table, change.nsid, changed, pending);
      break;
    case Change::Kind::DestroyTable:
      target_->destroy_table(change.table, changed, pending);
      break;
    case Change::Kind::Access:
      target_->set_access(change.table, change.access, changed, pending);
      break;
  }
}

void DeviceOnReactor::changed(void* context) {
  auto* pending = static_cast<PendingChange*>(context);
  pending->on->changes_.erase(pending);
  const nvmf::TargetEngine* engine = pending->on->target_.get();
  pending->operation->confirm(*pending->on->ring_, engine ? engine->change_error() : nullptr);
  delete pending;
}

void DeviceOnReactor::name_listener(uint32_t device_listener, uint32_t listener) {
  listeners_[device_listener] = listener;
}

void DeviceOnReactor::begin_close() {
  const std::set<uint32_t> queues = queues_;
  for (const uint32_t queue : queues) close(queue);
  if (!target_) return;
  for (const auto& [table, mirrored] : *tables_) {
    live_tables_.fetch_add(1, std::memory_order_relaxed);
    target_->destroy_table(
        table, [](void* live) { static_cast<std::atomic<uint32_t>*>(live)->fetch_sub(1); },
        &live_tables_);
  }
}

// ---- Events and the end

void DeviceOnReactor::push(nvmf::EventKind kind, uint32_t id, uint32_t tag, uint32_t code,
                           uint64_t value, std::span<const uint8_t> first,
                           std::span<const uint8_t> second) {
  if (kind == nvmf::EventKind::ConnectRequest) {
    const auto listener = listeners_.find(id);
    if (listener == listeners_.end()) {  // taken back a moment ago
      device_->reject(value, kRejectNoResources, {});
      return;
    }
    id = listener->second;
  } else if (kind == nvmf::EventKind::QueueClosed || kind == nvmf::EventKind::ConnectFailed) {
    queues_.erase(id);
    commands_.drop_regions_of(id);
    if (host_) multipath_->queue_gone(host_.get(), id);
    live_queues_.store(static_cast<uint32_t>(queues_.size()), std::memory_order_release);
  }
  ring_->push(kind, id, tag, code, value, first, second);
}

void DeviceOnReactor::tear_down() {
  target_seen_.store(nullptr, std::memory_order_release);
  host_seen_.store(nullptr, std::memory_order_release);
  // Before the engine, which owns their protection domain.
  commands_.drop_regions();
  if (host_) multipath_->queue_gone(host_.get(), 0);
  target_.reset();
  host_.reset();
  commands_.end_all();
  while (!changes_.empty()) changed(*changes_.begin());
  const std::string reason = "the device was closed";
  while (!queues_.empty()) {
    push(nvmf::EventKind::QueueClosed, *queues_.begin(), 0, 0, 0, {}, bytes_of(reason));
  }
  listeners_.clear();
}

// ---- ListenRouter

void ListenRouter::set(unsigned reactor, DeviceOnReactor* on) {
  if (on_.size() <= reactor) on_.resize(reactor + 1);
  on_[reactor] = on;
}

nvmf::TargetEngine* ListenRouter::here() const {
  const reactor::Reactor* reactor = reactor::Reactor::current();
  if (!reactor || reactor->index() >= on_.size()) return nullptr;
  return on_[reactor->index()]->target_on_thread();
}

void ListenRouter::on_connect_request(const rdma::ConnectRequest& request) {
  if (auto* engine = here()) engine->on_connect_request(request);
}
void ListenRouter::on_connect_response(rdma::ConnectionId id,
                                       const rdma::ConnectResponse& response) {
  if (auto* engine = here()) engine->on_connect_response(id, response);
}
void ListenRouter::on_connect_failed(rdma::ConnectionId id, const rdma::ConnectFailed& failed) {
  if (auto* engine = here()) engine->on_connect_failed(id, failed);
}
void ListenRouter::on_established(rdma::ConnectionId id) {
  if (auto* engine = here()) engine->on_established(id);
}
void ListenRouter::on_disconnected(rdma::ConnectionId id, const std::string& reason) {
  if (auto* engine = here()) engine->on_disconnected(id, reason);
}

}  // namespace nvmeof::addon
