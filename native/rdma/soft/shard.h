// One reactor's share of a soft device: its UdpLink, its Transport, its flows, and the two pollers
// that drive them (receive first in a loop iteration, transmit last). Everything on the reactor's
// thread after open(); counters are read from anywhere. Connection management sits above, behind
// ShardEvents.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "rdma/soft/fault_link.h"
#include "rdma/soft/flow.h"
#include "rdma/soft/transport.h"
#include "rdma/soft/udp_link.h"

namespace nvmeof::rdma::soft {

// All calls come between packets, never from inside the transport's own work: a handler may do what
// it likes, but on_qp_* must not destroy the device.
class ShardEvents {
 public:
  virtual ~ShardEvents() = default;
  // A datagram to QP1 arrived (on shard 0, where they are steered).
  virtual void on_datagram(const UdArrival& arrival, TimeNs now) = 0;
  // One with a wrong ICRC was dropped.
  virtual void on_bad_datagram(const sockaddr_storage& peer) = 0;
  // On shard `index`: a packet of a queue pair, or a datagram to QP1, did not get through.
  virtual void on_peer_fault(unsigned index, const ErrorReport& report, TimeNs now) = 0;
  virtual void on_qp_established(QueuePair& qp) = 0;
  virtual void on_qp_error(QueuePair& qp, const char* reason) = 0;
  // Timers of connection management on shard `index`.
  virtual int run_timers(unsigned index, TimeNs now) = 0;
  virtual TimeNs next_timer(unsigned index) const = 0;
};

// READs and atomics of a queue pair at a time, in each direction. Each WRITE command of NVMe is
// one: with fewer, the target of a deep queue waits for a round trip after every handful.
inline constexpr uint8_t kReadsMax = 128;

struct ShardOptions {
  unsigned index = 0;  // in the device's list of reactors
  reactor::Reactor* reactor = nullptr;
  UdpLinkOptions link;
  uint32_t path_mtu = 1024;
};

// A copy of the transport's counters and its live objects, for other threads.
struct ShardCounters {
  TransportCounters transport{};
  uint64_t queue_pairs = 0, handed_over = 0, hand_over_dropped = 0, datagrams_dropped = 0;
};

class Shard final : private LinkEvents, private TransportEvents {
 public:
  static Result<std::unique_ptr<Shard>> open(const ShardOptions& options,
                                             std::shared_ptr<KeyTable> keys, ShardEvents& events);
  ~Shard() override;

  // On the reactor's thread: begins and ends polling. `peers`: all shards of the device.
  void attach(std::span<const std::unique_ptr<Shard>> peers);
  void detach();

  unsigned index() const { return index_; }
  reactor::Reactor& reactor() { return *reactor_; }
  Transport& transport() { return *transport_; }
  UdpLink& link() { return *link_; }
  const UdpLink& link() const { return *link_; }
  uint32_t receive_window_bytes() const { return receive_window_bytes_; }

  // The flow to a peer's reactor; one for all queue pairs between them, so that their packets share
  // trains.
  const Flow* acquire_flow(const sockaddr_storage& peer, uint8_t train_key);
  void release_flow(const Flow* flow);
  size_t flows_in_use() const;

  ShardCounters counters() const;  // any thread
  const FaultCounters& faults_in() const { return faults_in_; }
  const FaultCounters& faults_out() const { return faults_out_; }
  // Made on any thread, empty rules make none. Set on the reactor's: what waited under the rules
  // before goes on its way. Returns the one before, which is the caller's to free.
  std::unique_ptr<FaultLink> make_faults(const FaultRules& rules);
  std::unique_ptr<FaultLink> set_faults(std::unique_ptr<FaultLink> faults);

 private:
  struct ReceivePoller final : reactor::Poller {
    explicit ReceivePoller(Shard& owner) : shard(owner) {}
    int poll(TimeNs now) override { return shard.poll_receive(now); }
    bool arm() override {
      shard.link_->expect_wake_up();
      shard.publish_counters();
      if (shard.pcap_ != nullptr) shard.pcap_->flush();
      return true;
    }
    Shard& shard;
  };
  struct TransmitPoller final : reactor::Poller {
    explicit TransmitPoller(Shard& owner) : shard(owner) {}
    int poll(TimeNs now) override { return shard.poll_transmit(now); }
    TimeNs next_deadline() const override;
    Shard& shard;
  };
  struct Handover;
  using FlowKey = std::pair<Gid, uint8_t>;
  // Never freed: a queue pair in ERR may name its flow for ever (it sends nothing). Reused for
  // another peer when nobody holds it and the last batch that used it has left.
  struct FlowEntry {
    Flow flow;
    FlowKey key;
    uint32_t references = 0;
    TimeNs released = 0;
    bool queued = false;  // in idle_flows_
  };
  struct Datagram {
    sockaddr_storage source;
    uint32_t source_qpn;
    uint8_t traffic_class;
    uint8_t payload[256];
  };

  Shard(const ShardOptions& options, std::shared_ptr<KeyTable> keys, ShardEvents& events);
  int poll_receive(TimeNs now);
  int poll_transmit(TimeNs now);
  void deliver_datagrams(TimeNs now);
  void deliver_reports();
  FlowEntry& take_flow_entry();
  void publish_counters();

  // LinkEvents
  void on_packet(const Arrival& arrival, uint16_t expected_id) override;
  void on_fault(const ErrorReport& report) override;
  // TransportEvents
  void on_ud(const UdArrival& arrival, TimeNs now) override;
  void on_foreign(unsigned reactor, const Arrival& arrival) override;
  void on_established(QueuePair& qp) override { events_.on_qp_established(qp); }
  void on_error(QueuePair& qp, const char* reason) override { events_.on_qp_error(qp, reason); }

  static constexpr unsigned kDatagrams = 64, kHandoversMax = 256;

  unsigned index_;
  reactor::Reactor* reactor_;
  ShardEvents& events_;
  sockaddr_storage address_;
  std::shared_ptr<KeyTable> keys_;
  KeyTable::Reader reader_;
  PcapWriter* pcap_;  // may be null
  std::unique_ptr<UdpLink> link_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<FaultLink> faults_;  // null, but in tests of failures
  FaultCounters faults_in_{}, faults_out_{};
  uint32_t receive_window_bytes_ = 0;
  ReceivePoller receive_poller_;
  TransmitPoller transmit_poller_;
  std::span<const std::unique_ptr<Shard>> peers_;

  TimeNs now_ = 0;
  uint16_t expected_id_ = 0;
  std::vector<Datagram> datagrams_;  // of this receive batch, capacity kDatagrams
  std::deque<FlowEntry> flows_;
  std::map<FlowKey, FlowEntry*> flow_index_;
  std::deque<FlowEntry*> idle_flows_;   // by time of release
  std::atomic<unsigned> handovers_{0};  // on their way to this shard
  std::atomic<uint64_t> handed_over_{0}, hand_over_dropped_{0}, datagrams_dropped_{0};

  // What other threads read: copied every 10 ms and before sleep, word by word.
  static constexpr size_t kWords = sizeof(TransportCounters) / sizeof(uint64_t);
  static_assert(sizeof(TransportCounters) % sizeof(uint64_t) == 0);
  std::array<std::atomic<uint64_t>, kWords> published_{};
  std::atomic<uint64_t> published_queue_pairs_{0};
  TimeNs published_at_ = 0, flushed_at_ = 0;
};

}  // namespace nvmeof::rdma::soft
