#include "cost/simulated_device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cost/collecting.h"
#include "loopback.h"
#include "rdma/soft/shard.h"

namespace nvmeof::test::cost {

namespace soft = rdma::soft;

namespace {

// As in rdma/soft/udp_link.h.
constexpr size_t kReceiveBatch = 4, kSendBatch = 64;
constexpr uint32_t kArenaBytes = 64u << 20;
constexpr size_t kMessages = 65536;
constexpr uint32_t kMtu = 4096;
constexpr uint8_t kReads = soft::kReadsMax;
constexpr uint32_t kWindowBytes = 1536u << 10;  // what 4 MiB of socket buffer give

soft::TransportConfig config() {
  soft::TransportConfig config;
  config.max_reads = kReads;
  config.receive_window_bytes = config.send_window_bytes_max = kWindowBytes;
  return config;
}

rdma::ConnectionId next_id = 1;

}  // namespace

SimulatedDevice::SimulatedDevice(uint32_t host, uint64_t seed)
    : address_(ipv4(host)),
      keys_(soft::KeyTable::create()),
      reader_(keys_),
      transport_(0, *this, *keys_, config(), seed, *this),
      arena_(kArenaBytes),
      messages_(kMessages) {
  capabilities_.max_sge = capabilities_.max_read_sge = 16;
  capabilities_.max_inline = transport_.config().max_inline;
  capabilities_.max_responder_resources = capabilities_.max_initiator_depth = kReads;
  capabilities_.send_with_invalidate = capabilities_.memory_windows = capabilities_.srq = true;
  capabilities_.path_mtu = kMtu;
  capabilities_.free_registration = true;
  capabilities_.receive_window_bytes = kWindowBytes;
}

SimulatedDevice::~SimulatedDevice() = default;

void SimulatedDevice::put(const soft::Flow* flow, const uint8_t* bytes, uint32_t length,
                          uint16_t segment) {
  SimulatedDevice& to = *peer_;
  if (to.arena_next_ + length > kArenaBytes) to.arena_next_ = 0;
  to.waiting_bytes_ += length;
  // Half the ring: what is left at its end when it wraps stays free.
  if (to.waiting_bytes_ > kArenaBytes / 2 || to.arrived_ - to.taken_ == kMessages) {
    std::fprintf(stderr, "more is on its way than the simulated link holds\n");
    std::abort();
  }
  std::memcpy(to.arena_.data() + to.arena_next_, bytes, length);
  to.messages_[to.arrived_++ % kMessages] = {flow, to.arena_next_, length, segment};
  to.arena_next_ += length;
}

void SimulatedDevice::send(std::span<const soft::Train> trains) {
  const NotCollected kernel;
  size_t messages = 0;
  for (const soft::Train& train : trains) {
    traffic_.packets += train.segments;
    traffic_.bytes += train.total_bytes;
    if (whole_trains_) {
      put(train.flow, train.bytes, train.total_bytes, train.segment_bytes);
      messages++;
      continue;
    }
    for (uint32_t at = 0; at < train.total_bytes; at += train.segment_bytes, messages++) {
      const uint32_t length = std::min<uint32_t>(train.segment_bytes, train.total_bytes - at);
      put(train.flow, train.bytes + at, length, train.segment_bytes);
    }
  }
  traffic_.trains += messages;
  traffic_.send_calls += whole_trains_ ? (messages + kSendBatch - 1) / kSendBatch : messages;
}

int SimulatedDevice::receive(TimeNs now) {
  for (auto& event : std::exchange(due_, {})) event();
  traffic_.receive_calls++;
  const soft::KeyTable::Section section(reader_);
  int packets = 0;
  for (size_t batch = 0; batch < kReceiveBatch && taken_ < arrived_; batch++) {
    const Message& message = messages_[taken_++ % kMessages];
    traffic_.receive_messages++;
    waiting_bytes_ -= message.bytes;
    soft::Arrival arrival{
        &message.flow->local, &message.flow->remote, arena_.data() + message.offset, 0, -1, 0};
    uint32_t left = message.bytes;
    for (uint16_t index = 0; left > 0; index++, packets++) {
      arrival.length = std::min<uint32_t>(left, message.segment_bytes);
      if (checks_twice_ && !second_check_.check(arrival, index).good) std::abort();
      transport_.receive(arrival, now, index);
      arrival.bytes += arrival.length;
      left -= arrival.length;
    }
  }
  return packets;
}

int SimulatedDevice::transmit(TimeNs now) {
  const soft::KeyTable::Section section(reader_);
  return static_cast<int>(transport_.transmit(now));
}

void SimulatedDevice::on_error(soft::QueuePair&, const char* reason) {
  std::fprintf(stderr, "a queue pair failed: %s\n", reason);
  std::abort();
}

// ---- Objects

Result<std::unique_ptr<rdma::ProtectionDomain>> SimulatedDevice::allocate_pd() {
  return keys_->allocate_pd();
}

Result<std::unique_ptr<rdma::CompletionQueue>> SimulatedDevice::create_cq(uint32_t depth) {
  return std::unique_ptr<rdma::CompletionQueue>(std::make_unique<soft::CompletionQueue>(depth));
}

Result<std::unique_ptr<rdma::SharedReceiveQueue>> SimulatedDevice::create_srq(
    rdma::ProtectionDomain* pd, uint32_t max_wr, uint32_t max_sge) {
  return std::unique_ptr<rdma::SharedReceiveQueue>(
      std::make_unique<soft::SharedReceiveQueue>(pd, max_wr, max_sge));
}

Result<std::unique_ptr<rdma::QueuePair>> SimulatedDevice::create_qp(
    const rdma::QueuePairOptions& options) {
  auto qp = transport_.create_qp(options);
  if (!qp) return qp.error();
  return std::unique_ptr<rdma::QueuePair>(std::move(*qp));
}

// ---- Connections: both ends at once, without messages

Result<uint32_t> SimulatedDevice::listen(uint16_t, rdma::ConnectionHandler* handler) {
  listener_ = handler;
  return 1u;
}

Result<rdma::ConnectionId> SimulatedDevice::connect(const sockaddr_storage&, uint16_t port,
                                                    rdma::QueuePair* qp,
                                                    const rdma::ConnectionParameters& parameters,
                                                    rdma::ConnectionHandler* handler) {
  const rdma::ConnectionId id = next_id++;
  connections_[id] = {static_cast<soft::QueuePair*>(qp), handler};
  peer_->due_.push_back([this, id, port, reads = parameters.responder_resources] {
    static constexpr uint8_t kNothing[32] = {};
    peer_->listener_->on_connect_request(
        {id, 1, address_, peer_->address_, port, kReads, reads, kNothing});
  });
  return id;
}

Result<void> SimulatedDevice::accept(rdma::ConnectionId id, rdma::QueuePair* qp,
                                     const rdma::ConnectionParameters&) {
  auto* const own = static_cast<soft::QueuePair*>(qp);
  const Connection& other = peer_->connections_[id];
  connections_[id] = {own, listener_};
  const Joint here{own->number(), transport_.random24(), kReads, kReads};
  const Joint there{other.qp->number(), peer_->transport_.random24(), kReads, kReads};
  if (auto up = bring_up(own, here, there); !up) return up;
  if (auto up = peer_->bring_up(other.qp, there, here); !up) return up;
  peer_->due_.push_back([handler = other.handler, id] {
    handler->on_connect_response(id, {kReads, kReads, {}});
  });
  return {};
}

Result<void> SimulatedDevice::bring_up(soft::QueuePair* qp, const Joint& own, const Joint& other) {
  flows_.push_back(std::make_unique<soft::Flow>(
      soft::make_flow(soft::with_port(address_, 0xC000), soft::with_port(peer_->address_, 4791))));
  soft::QpAttributes attributes;
  attributes.flow = flows_.back().get();
  attributes.access = rdma::kLocalWrite | rdma::kRemoteWrite | rdma::kRemoteRead;
  attributes.path_mtu = kMtu;
  attributes.destination_qpn = other.qpn;
  attributes.send_psn = own.psn;
  attributes.receive_psn = other.psn;
  attributes.max_reads = own.initiator_depth;
  attributes.max_dest_reads = own.responder_resources;
  return qp->bring_up(attributes);
}

void SimulatedDevice::disconnect(rdma::ConnectionId id) {
  for (SimulatedDevice* side : {this, peer_}) {
    const auto found = side->connections_.find(id);
    if (found == side->connections_.end()) continue;
    const Connection connection = found->second;
    side->connections_.erase(found);
    connection.qp->to_error();
    connection.handler->on_disconnected(id, "disconnected");
  }
}

}  // namespace nvmeof::test::cost
