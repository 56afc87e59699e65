#include "rdma/soft/device.h"

#include <sys/random.h>
#include <unistd.h>

#include <cassert>
#include <cstdlib>
#include <string>

#include "rdma/soft/packet.h"
#include "rdma/soft/steering.h"

namespace nvmeof::rdma::soft {

namespace {

constexpr uint8_t kAckTimeoutDefault = 14;  // 67 ms
constexpr uint32_t kSgeMax = 16;
constexpr uint32_t kCqDepthMax = 1u << 22;
constexpr uint32_t kSrqDepthMax = 1u << 20;

uint64_t random64() {
  uint64_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) std::abort();
  return value;
}

Error not_a_reactor() {
  return Error{EPERM, "This call belongs on the thread of one of the device's reactors."};
}

Error not_reliable() {
  return Error{EINVAL, "Connection management joins RC queue pairs only."};
}

// Of a queue pair that was set up without connection management, or of datagrams.
class ShardAddressHandle final : public AddressHandle {
 public:
  ShardAddressHandle(Shard& shard, const Flow* flow) : AddressHandle(flow), shard_(shard) {}
  ~ShardAddressHandle() override { shard_.release_flow(flow()); }

 private:
  Shard& shard_;
};

cm::AgentOptions agent_options(const DeviceOptions& options, const sockaddr_storage& address,
                               uint32_t path_mtu) {
  cm::AgentOptions out;
  out.address = address;
  out.path_mtu = path_mtu;
  out.local_ack_timeout = options.local_ack_timeout != 0
                              ? static_cast<uint8_t>(options.local_ack_timeout)
                              : kAckTimeoutDefault;
  out.max_responder_resources = out.max_initiator_depth = kReadsMax;
  out.connect_timeout = TimeNs{options.connect_timeout_ms} * 1'000'000;
  return out;
}

Result<void> check(const DeviceOptions& options, const sockaddr_storage& address,
                   std::span<reactor::Reactor* const> reactors) {
  if (reactors.empty() || reactors.size() > reactor::kReactorsMax)
    return Error{EINVAL, "A device runs on 1 to 64 reactors."};
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6)
    return Error{EAFNOSUPPORT, "A device needs an IPv4 or IPv6 address of this machine."};
  if (is_unspecified(address) || is_multicast(address))
    return Error{EINVAL, to_string(address) +
                             " cannot be opened: the checksum of RoCEv2 covers the address, so one "
                             "address of this machine must be named."};
  if (options.local_ack_timeout > 31)
    return Error{EINVAL, "The local ACK timeout is an exponent of 1 to 31."};
  if (options.path_mtu != 0 && mtu_bytes(mtu_code(options.path_mtu)) != options.path_mtu)
    return Error{EINVAL, "The path MTU is 256, 512, 1024, 2048 or 4096 bytes, not " +
                             std::to_string(options.path_mtu) + "."};
  return {};
}

Result<uint32_t> path_mtu_for(const DeviceOptions& options, const sockaddr_storage& address,
                              const Interface& interface) {
  const uint32_t largest = path_mtu_of_interface(interface.mtu);
  if (largest == 0)
    return Error{EMSGSIZE, "The MTU of " + interface.name + " (" + to_string(address) + ") is " +
                               std::to_string(interface.mtu) + ": RoCEv2 needs 352 at least."};
  if (options.path_mtu > largest)
    return Error{EMSGSIZE, "A path MTU of " + std::to_string(options.path_mtu) +
                               " needs an MTU of " + std::to_string(options.path_mtu + 96) + "; " +
                               interface.name + " (" + to_string(address) + ") has " +
                               std::to_string(interface.mtu) + ", which takes " +
                               std::to_string(largest) + "."};
  return options.path_mtu != 0 ? options.path_mtu : largest;
}

}  // namespace

Device::Device(const DeviceOptions& options, std::shared_ptr<KeyTable> keys)
    : options_(options),
      address_(with_port(unmapped(options.address), 0)),
      keys_(std::move(keys)) {}

Result<std::unique_ptr<Device>> Device::open(const DeviceOptions& options,
                                             std::span<reactor::Reactor* const> reactors) {
  assert(reactor::Reactor::current() == nullptr);
  std::unique_ptr<Device> device(new Device(options, KeyTable::create()));
  if (auto checked = check(options, device->address_, reactors); !checked) return checked.error();
  const Interface interface = interface_of(device->address_);
  const auto path_mtu = path_mtu_for(options, device->address_, interface);
  if (!path_mtu) return path_mtu.error();
  if (!options.pcap_path.empty()) {
    auto pcap = PcapWriter::open(options.pcap_path);
    if (!pcap) return pcap.error();
    device->pcap_ = std::move(*pcap);
  }
  device->gso_.store(gso_usable(device->address_, interface));

  Capabilities& can = device->capabilities_;
  can.max_sge = can.max_read_sge = kSgeMax;
  can.max_inline = TransportConfig{}.max_inline;
  can.max_responder_resources = can.max_initiator_depth = kReadsMax;
  can.max_cq_entries = kCqDepthMax;
  can.send_with_invalidate = can.memory_windows = can.srq = true;
  can.atomics = can.unconnected_setup = can.uc = can.ud = true;
  can.path_mtu = path_mtu.value();
  can.free_registration = true;

  device->connections_ =
      std::make_unique<Connections>(agent_options(options, device->address_, can.path_mtu),
                                    static_cast<unsigned>(reactors.size()), random64());
  if (auto opened = device->open_shards(reactors); !opened) return opened.error();
  return device;
}

Result<void> Device::open_shards(std::span<reactor::Reactor* const> reactors) {
  auto sockets = open_receive_group(address_, static_cast<unsigned>(reactors.size()));
  if (!sockets) return sockets.error();
  Result<void> result;
  for (unsigned i = 0; i < reactors.size(); i++) {
    ShardOptions shard;
    shard.index = i;
    shard.reactor = reactors[i];
    shard.path_mtu = capabilities_.path_mtu;
    shard.link.address = address_;
    shard.link.receive_fd = (*sockets)[i];
    shard.link.buffer_bytes = options_.socket_buffer_bytes;
    shard.link.gso = &gso_;
    shard.link.pcap = pcap_.get();
    shard.link.full_icrc = options_.full_icrc;
    shard.link.index = i;
    shard.link.reactors = static_cast<unsigned>(reactors.size());
    auto opened = Shard::open(shard, keys_, *connections_);  // owns the socket in any case
    if (opened) {
      shards_.push_back(std::move(*opened));
      continue;
    }
    for (size_t k = i + 1; k < sockets->size(); k++) close((*sockets)[k]);
    return opened.error();
  }
  connections_->set_shards(shards_);
  capabilities_.receive_window_bytes = shards_[0]->receive_window_bytes();
  for (const auto& shard : shards_) shard->reactor().run_and_wait([&] { shard->attach(shards_); });
  attached_ = true;
  return result;
}

Device::~Device() {
  if (!attached_) return;
  assert(reactor::Reactor::current() == nullptr);
  connections_->close_listeners();
  // Last first, so that shard 0 hears of every connection that was left and tells its peer.
  for (size_t i = shards_.size(); i-- > 0;)
    shards_[i]->reactor().run_and_wait([&] { connections_->close(static_cast<unsigned>(i)); });
  for (const auto& shard : shards_) shard->reactor().run_and_wait([&] { shard->detach(); });
  // Packets handed over and mailboxes on their way were posted before; they run before these.
  for (int round = 0; round < 2; round++) {
    for (const auto& shard : shards_) shard->reactor().run_and_wait([] {});
  }
}

Shard* Device::current_shard() const {
  const reactor::Reactor* const here = reactor::Reactor::current();
  for (const auto& shard : shards_) {
    if (&shard->reactor() == here) return shard.get();
  }
  return nullptr;
}

// ---- Objects

Result<std::unique_ptr<ProtectionDomain>> Device::allocate_pd() {
  return keys_->allocate_pd();
}

Result<std::unique_ptr<rdma::CompletionQueue>> Device::create_cq(uint32_t depth) {
  if (current_shard() == nullptr) return not_a_reactor();
  if (depth == 0 || depth > kCqDepthMax)
    return Error{EINVAL,
                 "A completion queue has 1 to 4194304 entries, not " + std::to_string(depth) + "."};
  return std::unique_ptr<rdma::CompletionQueue>(std::make_unique<CompletionQueue>(depth));
}

Result<std::unique_ptr<rdma::SharedReceiveQueue>> Device::create_srq(ProtectionDomain* pd,
                                                                     uint32_t max_wr,
                                                                     uint32_t max_sge) {
  if (current_shard() == nullptr) return not_a_reactor();
  if (pd == nullptr || max_wr == 0 || max_wr > kSrqDepthMax || max_sge == 0 || max_sge > kSgeMax)
    return Error{
        EINVAL,
        "A shared receive queue needs a protection domain, 1 to 1048576 work requests and 1 "
        "to 16 SGEs."};
  return std::unique_ptr<rdma::SharedReceiveQueue>(
      std::make_unique<SharedReceiveQueue>(pd, max_wr, max_sge));
}

Result<std::unique_ptr<rdma::QueuePair>> Device::create_qp(const QueuePairOptions& options) {
  Shard* const shard = current_shard();
  if (shard == nullptr) return not_a_reactor();
  if (options.max_send_sge > kSgeMax || options.max_receive_sge > kSgeMax)
    return Error{EINVAL, "A work request has 16 SGEs at most."};
  auto qp = shard->transport().create_qp(options);
  if (!qp) return qp.error();
  return std::unique_ptr<rdma::QueuePair>(std::move(*qp));
}

Result<sockaddr_storage> Device::peer_address(const sockaddr_storage& peer) const {
  const sockaddr_storage remote = unmapped(peer);
  if (remote.ss_family != address_.ss_family)
    return Error{EAFNOSUPPORT, to_string(peer) + " cannot be reached from " + to_string(address_) +
                                   ": one is IPv4 and the other IPv6."};
  if (is_unspecified(remote) || is_multicast(remote))
    return Error{EINVAL, to_string(peer) + " is not the address of a peer."};
  return remote;
}

// ---- Without connection management

Result<std::unique_ptr<rdma::AddressHandle>> Device::create_address_handle(
    ProtectionDomain* pd, const sockaddr_storage& peer) {
  Shard* const shard = current_shard();
  if (shard == nullptr) return not_a_reactor();
  if (pd == nullptr) return Error{EINVAL, "An address handle needs a protection domain."};
  const auto remote = peer_address(peer);
  if (!remote) return remote.error();
  return std::unique_ptr<rdma::AddressHandle>(
      std::make_unique<ShardAddressHandle>(*shard, shard->acquire_flow(remote.value(), 0)));
}

Result<void> Device::connect_path(rdma::QueuePair* qp, const PathAttributes& attributes) {
  Shard* const shard = current_shard();
  auto* const soft = static_cast<QueuePair*>(qp);
  if (shard == nullptr || &shard->transport() != &soft->transport()) return not_a_reactor();
  if (soft->state() != State::Reset)
    return Error{EINVAL, std::string("connect_path: the queue pair is in ") +
                             rdma::to_string(soft->state()) + ", not in RESET."};
  QpAttributes out;
  out.access = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;
  out.path_mtu = attributes.path_mtu != 0 ? attributes.path_mtu : capabilities_.path_mtu;
  out.destination_qpn = attributes.destination_qpn;
  out.receive_psn = attributes.receive_psn;
  out.send_psn = attributes.send_psn;
  out.qkey = attributes.qkey;
  out.max_dest_reads = attributes.responder_resources;
  out.max_reads = attributes.initiator_depth;
  out.timeout = static_cast<uint8_t>(options_.local_ack_timeout);
  out.retry_count = attributes.retry_count;
  out.rnr_retry = attributes.rnr_retry_count;
  if (out.path_mtu > capabilities_.path_mtu)
    return Error{EMSGSIZE, "A path MTU of " + std::to_string(out.path_mtu) +
                               " is more than the device has: " +
                               std::to_string(capabilities_.path_mtu) + "."};
  if (soft->type() == QpType::Ud) return soft->bring_up(out);
  const auto remote = peer_address(attributes.peer);
  if (!remote) return remote.error();
  const auto key = static_cast<uint8_t>(reactor_of(attributes.destination_qpn));
  auto path =
      std::make_unique<ShardAddressHandle>(*shard, shard->acquire_flow(remote.value(), key));
  out.flow = path->flow();
  auto up = soft->bring_up(out);
  soft->keep(std::move(path));  // also when it stopped half way: it may name the flow already
  return up;
}

// ---- Faults

Result<void> Device::set_faults(const FaultRules& rules) {
  assert(reactor::Reactor::current() == nullptr);
  if (!options_.fault_injection)
    return Error{EPERM, "The device on " + to_string(address_) +
                            " was not opened for faults: open it with faultInjection."};
  if (auto checked = check(rules); !checked) return checked;
  for (const FaultRule& rule : rules.rules) {
    if (rule.peer.ss_family == AF_UNSPEC) continue;
    if (auto peer = peer_address(rule.peer); !peer) return peer.error();
  }
  for (const auto& shard : shards_) {
    auto faults = shard->make_faults(rules);
    // What was there before is freed here, not on the reactor.
    shard->reactor().run_and_wait([&] { faults = shard->set_faults(std::move(faults)); });
  }
  return {};
}

// ---- Connections

Result<uint32_t> Device::listen(uint16_t port, ConnectionHandler* handler) {
  if (current_shard() == nullptr) return not_a_reactor();
  return connections_->listen(port, handler);
}

void Device::unlisten(uint32_t listener) {
  connections_->unlisten(listener);
}

Result<ConnectionId> Device::connect(const sockaddr_storage& peer, uint16_t port,
                                     rdma::QueuePair* qp, const ConnectionParameters& parameters,
                                     ConnectionHandler* handler) {
  Shard* const shard = current_shard();
  if (shard == nullptr) return not_a_reactor();
  const auto remote = peer_address(peer);
  if (!remote) return remote.error();
  if (!static_cast<QueuePair*>(qp)->reliable()) return not_reliable();
  return connections_->connect(*shard, remote.value(), port, static_cast<QueuePair*>(qp),
                               parameters, handler);
}

Result<void> Device::accept(ConnectionId id, rdma::QueuePair* qp,
                            const ConnectionParameters& parameters) {
  Shard* const shard = current_shard();
  if (shard == nullptr) return not_a_reactor();
  if (!static_cast<QueuePair*>(qp)->reliable()) return not_reliable();
  return connections_->accept(*shard, id, static_cast<QueuePair*>(qp), parameters);
}

void Device::reject(ConnectionId id, uint16_t reason, std::span<const uint8_t> private_data) {
  connections_->reject(id, reason, private_data);
}

void Device::disconnect(ConnectionId id) {
  connections_->disconnect(id);
}

void Device::abandon(ConnectionId id) {
  Shard* const shard = current_shard();
  assert(shard != nullptr && "abandon() belongs on a reactor of the device");
  connections_->abandon(*shard, id);
}

}  // namespace nvmeof::rdma::soft
