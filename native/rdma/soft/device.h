// The soft provider's rdma::Device: one address, a Shard for each reactor, a key table, and
// connection management (connections.h) on the first reactor. Nothing above this header knows that
// packets go over UDP.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "rdma/provider.h"
#include "rdma/soft/connections.h"
#include "rdma/soft/shard.h"

namespace nvmeof::rdma::soft {

class Device final : public rdma::Device {
 public:
  static Result<std::unique_ptr<Device>> open(const DeviceOptions& options,
                                              std::span<reactor::Reactor* const> reactors);
  // From a thread that is no reactor. Queue pairs, completion and receive queues are gone before;
  // open connections are left without a word to their handlers, but the peers hear of it.
  ~Device() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  sockaddr_storage address() const override { return address_; }
  Result<std::unique_ptr<ProtectionDomain>> allocate_pd() override;
  Result<std::unique_ptr<rdma::CompletionQueue>> create_cq(uint32_t depth) override;
  Result<std::unique_ptr<rdma::SharedReceiveQueue>> create_srq(ProtectionDomain* pd,
                                                               uint32_t max_wr,
                                                               uint32_t max_sge) override;
  Result<std::unique_ptr<rdma::QueuePair>> create_qp(const QueuePairOptions& options) override;

  Result<void> connect_path(rdma::QueuePair* qp, const PathAttributes& attributes) override;
  Result<std::unique_ptr<rdma::AddressHandle>> create_address_handle(
      ProtectionDomain* pd, const sockaddr_storage& peer) override;

  Result<uint32_t> listen(uint16_t port, ConnectionHandler* handler) override;
  void unlisten(uint32_t listener) override;
  Result<ConnectionId> connect(const sockaddr_storage& peer, uint16_t port, rdma::QueuePair* qp,
                               const ConnectionParameters& parameters,
                               ConnectionHandler* handler) override;
  Result<void> accept(ConnectionId id, rdma::QueuePair* qp,
                      const ConnectionParameters& parameters) override;
  void reject(ConnectionId id, uint16_t reason, std::span<const uint8_t> private_data) override;
  void disconnect(ConnectionId id) override;
  void abandon(ConnectionId id) override;

  Result<void> set_faults(const FaultRules& rules) override;

  std::vector<CounterValue> counters() const override;
  std::vector<CounterValue> counters_of(unsigned reactor) const override;

 private:
  Device(const DeviceOptions& options, std::shared_ptr<KeyTable> keys);
  Result<void> open_shards(std::span<reactor::Reactor* const> reactors);
  Result<sockaddr_storage> peer_address(const sockaddr_storage& peer) const;
  Shard* current_shard() const;  // of the calling reactor, nullptr if it is none of ours

  DeviceOptions options_;
  sockaddr_storage address_;
  Capabilities capabilities_;
  std::shared_ptr<KeyTable> keys_;
  std::atomic<bool> gso_{false};
  std::unique_ptr<PcapWriter> pcap_;
  std::unique_ptr<Connections> connections_;
  std::vector<std::unique_ptr<Shard>> shards_;
  bool attached_ = false;
};

}  // namespace nvmeof::rdma::soft
