// Two soft devices joined by memory instead of sockets: the transport, the memory keys and the
// engines are the real ones, whole trains are handed from one side to the other without loss. What
// is counted are the system calls that UdpLink would make. One thread, virtual time.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "rdma/soft/flow.h"
#include "rdma/soft/transport.h"

namespace nvmeof::test::cost {

using reactor::TimeNs;

struct Traffic {
  uint64_t packets = 0, bytes = 0, trains = 0;
  uint64_t send_calls = 0, receive_calls = 0, receive_messages = 0;
};

class SimulatedDevice final : public rdma::Device,
                              private rdma::soft::TransportEvents,
                              private rdma::soft::Link {
 public:
  SimulatedDevice(uint32_t host, uint64_t seed);  // IPv4 address
  ~SimulatedDevice() override;
  void join(SimulatedDevice* peer) { peer_ = peer; }

  // The two polls of a loop iteration, as rdma/soft/shard.cc has them. Both return packets.
  int receive(TimeNs now);
  int transmit(TimeNs now);
  // Regressions to show that a comparison finds them: every packet is sent by itself; every packet
  // that arrives is checked twice.
  void break_trains() { whole_trains_ = false; }
  void check_twice() { checks_twice_ = true; }

  const Traffic& traffic() const { return traffic_; }
  const rdma::soft::Transport& transport() const { return transport_; }

  // ---- rdma::Device
  const rdma::Capabilities& capabilities() const override { return capabilities_; }
  sockaddr_storage address() const override { return address_; }
  Result<std::unique_ptr<rdma::ProtectionDomain>> allocate_pd() override;
  Result<std::unique_ptr<rdma::CompletionQueue>> create_cq(uint32_t depth) override;
  Result<std::unique_ptr<rdma::SharedReceiveQueue>> create_srq(rdma::ProtectionDomain* pd,
                                                               uint32_t max_wr,
                                                               uint32_t max_sge) override;
  Result<std::unique_ptr<rdma::QueuePair>> create_qp(
      const rdma::QueuePairOptions& options) override;
  Result<uint32_t> listen(uint16_t port, rdma::ConnectionHandler* handler) override;
  void unlisten(uint32_t) override { listener_ = nullptr; }
  Result<rdma::ConnectionId> connect(const sockaddr_storage& peer, uint16_t port,
                                     rdma::QueuePair* qp,
                                     const rdma::ConnectionParameters& parameters,
                                     rdma::ConnectionHandler* handler) override;
  Result<void> accept(rdma::ConnectionId id, rdma::QueuePair* qp,
                      const rdma::ConnectionParameters& parameters) override;
  void reject(rdma::ConnectionId, uint16_t, std::span<const uint8_t>) override {}
  void disconnect(rdma::ConnectionId id) override;
  void abandon(rdma::ConnectionId id) override { connections_.erase(id); }
  std::vector<rdma::CounterValue> counters() const override { return {}; }

 private:
  struct Connection {
    rdma::soft::QueuePair* qp;
    rdma::ConnectionHandler* handler;
  };
  // A train on its way, as a socket with GRO hands it over.
  struct Message {
    const rdma::soft::Flow* flow;
    uint32_t offset, bytes;
    uint16_t segment_bytes;
  };
  // What both queue pairs of a connection are told.
  struct Joint {
    uint32_t qpn, psn;
    uint8_t responder_resources, initiator_depth;
  };

  // rdma::soft::Link
  void send(std::span<const rdma::soft::Train> trains) override;
  uint16_t segments_max() const override { return 64; }
  uint32_t train_bytes_max() const override { return 65535 - 28; }
  // rdma::soft::TransportEvents
  void on_ud(const rdma::soft::UdArrival&, TimeNs) override {}
  void on_foreign(unsigned, const rdma::soft::Arrival&) override {}
  void on_established(rdma::soft::QueuePair&) override {}
  void on_error(rdma::soft::QueuePair& qp, const char* reason) override;

  void put(const rdma::soft::Flow* flow, const uint8_t* bytes, uint32_t length, uint16_t segment);
  Result<void> bring_up(rdma::soft::QueuePair* qp, const Joint& own, const Joint& other);

  sockaddr_storage address_;
  rdma::Capabilities capabilities_;
  std::shared_ptr<rdma::soft::KeyTable> keys_;
  rdma::soft::KeyTable::Reader reader_;
  rdma::soft::Transport transport_;
  std::vector<std::unique_ptr<rdma::soft::Flow>> flows_;
  SimulatedDevice* peer_ = nullptr;
  rdma::ConnectionHandler* listener_ = nullptr;
  std::map<rdma::ConnectionId, Connection> connections_;
  std::vector<std::function<void()>> due_;  // events of connections, for the next receive()
  bool whole_trains_ = true, checks_twice_ = false;
  rdma::soft::IcrcReceiver second_check_;
  Traffic traffic_;

  // What has arrived and was not taken yet: two rings.
  std::vector<uint8_t> arena_;
  uint32_t arena_next_ = 0, waiting_bytes_ = 0;
  std::vector<Message> messages_;
  size_t arrived_ = 0, taken_ = 0;
};

}  // namespace nvmeof::test::cost
