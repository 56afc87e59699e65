#include "rdma/verbs/device.h"

#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "rdma/verbs/text.h"

namespace nvmeof::rdma::verbs {

namespace {

constexpr uint32_t kSgeMax = 16;
constexpr uint32_t kInlineWanted = 64;
// rdma_rxe. Its windows cannot be used: a receive does not tell which key the peer ended, and to
// end a key a second time, from either side, stops the kernel (rxe_do_invalidate_mw, up to 6.12 at
// least). Without a window no peer can do that.
constexpr uint32_t kSoftRoceVendor = 0xffffff;
// siw. Its kernel half takes inline data of SEND and RDMA WRITE alone (siw_activate_tx_from_sq).
constexpr uint32_t kSoftIwarpVendor = 0x626d74;
constexpr uint32_t kReadsMax = 255;  // what a CM message can say

Error not_a_reactor() {
  return Error{EPERM, "This call belongs on the thread of one of the device's reactors."};
}

uint32_t positive(int value) {
  return value > 0 ? static_cast<uint32_t>(value) : 0;
}

Result<void> check(const DeviceOptions& options, std::span<reactor::Reactor* const> reactors) {
  if (reactors.empty() || reactors.size() > reactor::kReactorsMax)
    return Error{EINVAL, "A device runs on 1 to 64 reactors."};
  if (!options.pcap_path.empty())
    return Error{EINVAL,
                 "The verbs provider sees no packets: capture with the network card's own tools, "
                 "or choose the provider \"soft\"."};
  if (options.local_ack_timeout > 31)
    return Error{EINVAL, "The local ACK timeout is an exponent of 1 to 31."};
  return {};
}

Error no_device(const Library& library, const sockaddr_storage& address) {
  const std::string devices = describe_devices(library);
  return Error{ENODEV, "No RDMA device owns " + text_of(address) + ", whose RoCE GID would be " +
                           text_of(gid_of(address)) + ": " +
                           (devices.empty() ? "there is no RDMA device." : devices + ".")};
}

}  // namespace

// ---- Opening

Result<std::unique_ptr<Device>> Device::open(const DeviceOptions& options,
                                             std::span<reactor::Reactor* const> reactors) {
  auto library = load_library();
  if (!library) return library.error();
  return open(**library, options, reactors);
}

Result<std::unique_ptr<Device>> Device::open(const Library& library, const DeviceOptions& options,
                                             std::span<reactor::Reactor* const> reactors) {
  assert(reactor::Reactor::current() == nullptr);
  const sockaddr_storage address = with_port(unmapped(options.address), 0);
  std::unique_ptr<Device> device(new Device(library, address));
  if (auto bound = device->bind(); !bound) return bound.error();
  if (auto checked = check(options, reactors); !checked) return checked.error();
  if (auto read = device->read_capabilities(options); !read) return read.error();

  ControlOptions control;
  control.address = address;
  control.port = {device->id_->verbs, device->id_->port_num};
  control.fabric = device->capabilities_.fabric;
  control.capabilities = device->capabilities_;
  control.local_ack_timeout = options.local_ack_timeout;
  control.connect_timeout_ms = options.connect_timeout_ms;
  for (unsigned i = 0; i < reactors.size(); i++)
    device->shards_.push_back(std::make_unique<Shard>(i, reactors[i]));
  device->control_ = std::make_unique<Control>(library, control, device->channel_, device->shards_,
                                               device->counts_);
  if (auto started = device->control_->start(); !started) return started.error();
  for (const auto& shard : device->shards_) shard->reactor().run_and_wait([&] { shard->attach(); });
  device->attached_ = true;
  return device;
}

// rdma_cm finds the device and port of an address; the id that is bound to it keeps them.
Result<void> Device::bind() {
  // Without a device, librdmacm cannot be used at all.
  int count = 0;
  ibv_device** const devices = library_.get_device_list(&count);
  if (devices != nullptr) library_.free_device_list(devices);
  if (devices == nullptr || count == 0) return no_device(library_, address_);

  channel_ = library_.create_event_channel();
  if (channel_ == nullptr) {
    const int code = errno;
    if (!any_device_has_gid(library_, address_)) return no_device(library_, address_);
    return Error{code == ENODEV ? EACCES : code,
                 "An RDMA device owns " + text_of(address_) +
                     ", but connection management cannot be used" + reason_of(code) +
                     ": sudo modprobe rdma_ucm, and access to /dev/infiniband/rdma_cm."};
  }
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  if (library_.create_id(channel_, &id_, nullptr, RDMA_PS_TCP) != 0)
    return Error{errno, "rdma_create_id failed" + reason_of(errno) + "."};
  sockaddr_storage address = address_;
  if (library_.bind_addr(id_, reinterpret_cast<sockaddr*>(&address)) != 0 || id_->verbs == nullptr)
    return no_device(library_, address_);
  return {};
}

Result<void> Device::read_capabilities(const DeviceOptions& options) {
  const Port port{id_->verbs, id_->port_num};
  name_ = library_.get_device_name(port.context->device);
  const auto state = query(library_, port);
  if (!state) return state.error();
  if (auto gid = check_gid(library_, port, state.value(), address_); !gid) return gid;
  if (options.path_mtu != 0 && options.path_mtu != state.value().mtu)
    return Error{EINVAL, "The path MTU of " + name_of(library_, port) + " is " +
                             std::to_string(state.value().mtu) +
                             ", as the MTU of its network interface allows; it cannot be set to " +
                             std::to_string(options.path_mtu) + " here."};
  if (const int code = library_.query_device(port.context, &limits_); code != 0)
    return Error{code, name_ + " does not tell its limits" + reason_of(code) + "."};

  Capabilities& can = capabilities_;
  can.fabric = state.value().fabric;
  can.path_mtu = state.value().mtu;
  can.max_sge = std::clamp(positive(limits_.max_sge), 1u, kSgeMax);
  can.max_read_sge = std::clamp(positive(limits_.max_sge_rd), 1u, can.max_sge);
  can.max_responder_resources = std::min(positive(limits_.max_qp_rd_atom), kReadsMax);
  can.max_initiator_depth = std::min(positive(limits_.max_qp_init_rd_atom), kReadsMax);
  can.max_cq_entries = positive(limits_.max_cqe);
  can.srq = limits_.max_srq > 0;
  can.atomics = limits_.atomic_cap != IBV_ATOMIC_NONE;
  can.send_with_invalidate = (limits_.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS) != 0;
  constexpr unsigned kType2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  can.memory_windows = can.send_with_invalidate && limits_.vendor_id != kSoftRoceVendor &&
                       (limits_.device_cap_flags & kType2) != 0;
  can.inline_with_invalidate = traits_.inline_with_invalidate =
      limits_.vendor_id != kSoftIwarpVendor;
  if (can.fabric == Fabric::Iwarp) {
    can.receiver_not_ready = false;
    can.max_read_sge = 1;
    traits_.register_read_sinks = true;
    traits_.signal_writes = true;
    traits_.immediates = false;
  }
  return probe(limits_);
}

// What no attribute tells is found by trying: inline data, and whether windows can be had.
Result<void> Device::probe(const ibv_device_attr&) {
  auto pd = allocate_pd();
  if (!pd) return pd.error();
  if (capabilities_.memory_windows)
    capabilities_.memory_windows = static_cast<bool>((*pd)->allocate_window());
  auto cq = CompletionQueue::create(library_, id_->verbs, 1, 0, nullptr, counts_);
  if (!cq) return cq.error();
  for (const uint32_t bytes : {kInlineWanted, 32u, 0u}) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = (*cq)->cq();
    attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 1;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    attributes.cap.max_inline_data = bytes;
    attributes.qp_type = IBV_QPT_RC;
    ibv_qp* const qp =
        library_.create_qp(static_cast<ProtectionDomain*>(pd->get())->pd(), &attributes);
    if (qp == nullptr) {
      if (bytes != 0) continue;
      return Error{errno, name_ + " makes no queue pair" + reason_of(errno) + "."};
    }
    library_.destroy_qp(qp);
    capabilities_.max_inline = traits_.max_inline = bytes;
    return {};
  }
  return {};
}

Device::~Device() {
  if (control_) control_->stop();
  if (attached_) {
    assert(reactor::Reactor::current() == nullptr);
    for (const auto& shard : shards_) shard->reactor().run_and_wait([&] { shard->detach(); });
    // Messages on their way were posted before: they run before these.
    for (const auto& shard : shards_) shard->reactor().run_and_wait([] {});
  }
  control_.reset();
  if (id_ != nullptr) library_.destroy_id(id_);
  if (channel_ != nullptr) library_.destroy_event_channel(channel_);
}

Shard* Device::current_shard() const {
  const reactor::Reactor* const here = reactor::Reactor::current();
  for (const auto& shard : shards_) {
    if (&shard->reactor() == here) return shard.get();
  }
  return nullptr;
}

// ---- Objects

Result<std::unique_ptr<rdma::ProtectionDomain>> Device::allocate_pd() {
  ibv_pd* const pd = library_.alloc_pd(id_->verbs);
  if (pd == nullptr)
    return Error{errno, name_ + " has no further protection domain" + reason_of(errno) + "."};
  return std::unique_ptr<rdma::ProtectionDomain>(
      std::make_unique<ProtectionDomain>(library_, pd, counts_));
}

Result<std::unique_ptr<rdma::CompletionQueue>> Device::create_cq(uint32_t depth) {
  Shard* const shard = current_shard();
  if (shard == nullptr) return not_a_reactor();
  if (depth == 0 || depth > positive(limits_.max_cqe))
    return Error{EINVAL, "A completion queue of " + name_ + " has 1 to " +
                             std::to_string(limits_.max_cqe) + " entries, not " +
                             std::to_string(depth) + "."};
  // Interrupts of a core's queue on that core, where the device has vectors enough.
  const int vectors = std::max(id_->verbs->num_comp_vectors, 1);
  const int core = shard->reactor().core();
  const int vector = (core >= 0 ? core : static_cast<int>(shard->index())) % vectors;
  auto queue =
      CompletionQueue::create(library_, id_->verbs, depth, vector, &shard->reactor(), counts_);
  if (!queue) return queue.error();
  return std::unique_ptr<rdma::CompletionQueue>(std::move(*queue));
}

Result<std::unique_ptr<rdma::SharedReceiveQueue>> Device::create_srq(rdma::ProtectionDomain* pd,
                                                                     uint32_t max_wr,
                                                                     uint32_t max_sge) {
  if (current_shard() == nullptr) return not_a_reactor();
  if (pd == nullptr || max_wr == 0 || max_wr > positive(limits_.max_srq_wr))
    return Error{EINVAL, "A shared receive queue of " + name_ +
                             " needs a protection domain and 1 to " +
                             std::to_string(limits_.max_srq_wr) + " work requests, not " +
                             std::to_string(max_wr) + "."};
  auto queue = SharedReceiveQueue::create(library_, static_cast<ProtectionDomain*>(pd)->pd(),
                                          max_wr, max_sge);
  if (!queue) return queue.error();
  return std::unique_ptr<rdma::SharedReceiveQueue>(std::move(*queue));
}

Result<std::unique_ptr<rdma::QueuePair>> Device::create_qp(const QueuePairOptions& options) {
  if (current_shard() == nullptr) return not_a_reactor();
  if (options.type != QpType::Rc)
    return Error{ENOTSUP, "The verbs provider makes reliable connections only."};
  if (options.pd == nullptr || options.send_cq == nullptr || options.receive_cq == nullptr)
    return Error{EINVAL, "A queue pair needs a protection domain and completion queues."};
  if (options.max_send_sge > capabilities_.max_sge ||
      options.max_receive_sge > capabilities_.max_sge)
    return Error{EINVAL, "A work request of " + name_ + " has " +
                             std::to_string(capabilities_.max_sge) + " SGEs at most."};
  if (std::max(options.max_send_wr, options.max_receive_wr) > positive(limits_.max_qp_wr))
    return Error{EINVAL, "A queue pair of " + name_ + " has " + std::to_string(limits_.max_qp_wr) +
                             " work requests at most, not " +
                             std::to_string(std::max(options.max_send_wr, options.max_receive_wr)) +
                             "."};
  auto qp = QueuePair::create(library_, options, traits_, *control_, counts_);
  if (!qp) return qp.error();
  // To INIT at once: receives can be posted before a connection exists, which iWARP needs.
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  int mask = 0;
  if (library_.init_qp_attr(id_, &attributes, &mask) != 0)
    return Error{errno, "rdma_init_qp_attr failed" + reason_of(errno)};
  attributes.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  if (capabilities_.atomics) attributes.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
  if (auto ready = (*qp)->handle()->modify(&attributes, mask, State::Reset); !ready)
    return ready.error();
  return std::unique_ptr<rdma::QueuePair>(std::move(*qp));
}

// ---- Connections

Result<uint32_t> Device::listen(uint16_t port, ConnectionHandler* handler) {
  if (current_shard() == nullptr) return not_a_reactor();
  return control_->listen(port, handler);
}

void Device::unlisten(uint32_t listener) {
  control_->unlisten(listener);
}

Result<ConnectionId> Device::connect(const sockaddr_storage& peer, uint16_t port,
                                     rdma::QueuePair* qp, const ConnectionParameters& parameters,
                                     ConnectionHandler* handler) {
  Shard* const shard = current_shard();
  if (shard == nullptr) return not_a_reactor();
  sockaddr_storage remote = with_port(unmapped(peer), port);
  if (remote.ss_family != address_.ss_family)
    return Error{EAFNOSUPPORT, text_of(peer) + " cannot be reached from " + text_of(address_) +
                                   ": one is IPv4 and the other IPv6."};
  if (remote.ss_family == AF_INET6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(remote);
    if (v6.sin6_scope_id == 0 && IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr))
      v6.sin6_scope_id = reinterpret_cast<const sockaddr_in6&>(address_).sin6_scope_id;
  }
  return control_->connect(*shard, remote, static_cast<QueuePair*>(qp), parameters, handler);
}

Result<void> Device::accept(ConnectionId id, rdma::QueuePair* qp,
                            const ConnectionParameters& parameters) {
  Shard* const shard = current_shard();
  if (shard == nullptr) return not_a_reactor();
  return control_->accept(*shard, id, static_cast<QueuePair*>(qp), parameters);
}

void Device::reject(ConnectionId id, uint16_t reason, std::span<const uint8_t> private_data) {
  control_->reject(id, reason, private_data);
}

void Device::disconnect(ConnectionId id) {
  control_->disconnect(id);
}

void Device::abandon(ConnectionId id) {
  control_->abandon(current_shard(), id);
}

std::vector<CounterValue> Device::counters() const {
  const auto read = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {
      {"verbs.queue_pairs", read(counts_.queue_pairs)},
      {"verbs.connections", read(counts_.connections)},
      {"verbs.memory.protection_domains", read(counts_.domains)},
      {"verbs.memory.regions", read(counts_.regions)},
      {"verbs.memory.windows", read(counts_.windows)},
      {"verbs.memory.failed_deregistrations", read(counts_.failed_deregistrations)},
      {"verbs.completion_errors", read(counts_.completion_errors)},
      {"verbs.dropped_completions", read(counts_.dropped_completions)},
      {"verbs.cm.unexpected_events", control_->unexpected_events()},
  };
}

}  // namespace nvmeof::rdma::verbs
