// The verbs provider's rdma::Device: one address on one port of an RDMA device, chosen by rdma_cm.
// Objects are made on the reactors that own them; connection management has a thread of its own
// (control.h).
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rdma/provider.h"
#include "rdma/verbs/control.h"
#include "rdma/verbs/library.h"
#include "rdma/verbs/queue_pair.h"

namespace nvmeof::rdma::verbs {

class Device final : public rdma::Device {
 public:
  // ENODEV when no RDMA device owns the address, ENOTSUP without the libraries; with any other
  // error the address does belong to an RDMA device, and the message says what is wrong with it.
  static Result<std::unique_ptr<Device>> open(const Library& library, const DeviceOptions& options,
                                              std::span<reactor::Reactor* const> reactors);
  // With the libraries of this machine.
  static Result<std::unique_ptr<Device>> open(const DeviceOptions& options,
                                              std::span<reactor::Reactor* const> reactors);
  ~Device() override;

  const Capabilities& capabilities() const override { return capabilities_; }
  sockaddr_storage address() const override { return address_; }
  std::string name() const override { return name_; }
  Result<std::unique_ptr<rdma::ProtectionDomain>> allocate_pd() override;
  Result<std::unique_ptr<rdma::CompletionQueue>> create_cq(uint32_t depth) override;
  Result<std::unique_ptr<rdma::SharedReceiveQueue>> create_srq(rdma::ProtectionDomain* pd,
                                                               uint32_t max_wr,
                                                               uint32_t max_sge) override;
  Result<std::unique_ptr<rdma::QueuePair>> create_qp(const QueuePairOptions& options) override;

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

  std::vector<CounterValue> counters() const override;

 private:
  Device(const Library& library, const sockaddr_storage& address)
      : library_(library), address_(address) {}
  Result<void> bind();
  Result<void> read_capabilities(const DeviceOptions& options);
  Result<void> probe(const ibv_device_attr& attributes);
  Shard* current_shard() const;

  const Library& library_;
  const sockaddr_storage address_;
  std::string name_;
  Capabilities capabilities_;
  QueuePairTraits traits_;
  ibv_device_attr limits_{};
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;  // bound to the address: holds the device open
  mutable ObjectCounts counts_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unique_ptr<Control> control_;
  bool attached_ = false;
};

}  // namespace nvmeof::rdma::verbs
