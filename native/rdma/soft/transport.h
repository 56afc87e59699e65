// The transport of one reactor and one device: dispatches arriving packets to queue pairs, lets
// queue pairs with work run, keeps their deadlines. Pure: no sockets, no clock, no threads. Packets
// leave through the Link by way of a TxBatch; time comes with every call. Everything on one thread.
//
// A caller loops: receive() for every packet, then transmit(now) once, and again at
// next_deadline(). When memory regions may end on other threads meanwhile, it holds a
// KeyTable::Section around those calls.
#pragma once
#include <memory>
#include <vector>

#include "rdma/soft/icrc.h"
#include "rdma/soft/link.h"
#include "rdma/soft/memory.h"
#include "rdma/soft/queue_pair.h"
#include "rdma/soft/queue_pair_list.h"
#include "rdma/soft/timer_heap.h"
#include "rdma/soft/tx_batch.h"

namespace nvmeof::rdma::soft {

// The top six bits of a queue pair number are its reactor's index: one byte load and a shift for
// the socket filter that steers packets. The rest is random. QP1 (connection management) steers to
// reactor 0.
inline constexpr unsigned kQpnReactorShift = 18;
inline constexpr uint32_t kQpnRandomMask = (1u << kQpnReactorShift) - 1;
inline constexpr unsigned reactor_of(uint32_t qpn) {
  return qpn >> kQpnReactorShift & 63;
}

struct TransportConfig {
  // READ data that may be on its way to this reactor at a time, all queue pairs together.
  uint32_t receive_window_bytes = 128 << 10;
  uint32_t send_window_bytes = 256 << 10;    // where each queue pair starts
  uint32_t send_window_bytes_max = 4 << 20;  // how far it grows
  uint32_t ack_request_packets = 16;         // AckReq at least this often in long messages
  uint32_t burst_packets = 64;               // of one queue pair before the next has its turn
  uint32_t transmit_packets = 512;           // of one transmit() call
  uint32_t max_inline = 64;
  uint32_t port_mtu = 4096;        // bytes of a datagram, at most
  uint8_t max_reads = 16;          // inbound and outbound READs and atomics per queue pair, at most
  bool unlimited_retries = false;  // sequence errors and timeouts never end a queue pair
};

// A datagram to QP1.
struct UdArrival {
  const sockaddr_storage* source;
  const sockaddr_storage* destination;
  uint32_t source_qpn;
  std::span<const uint8_t> payload;  // valid during the call only
  uint8_t traffic_class;
};

// Called from receive() and transmit(), never from inside a queue pair's own work: a handler may
// destroy queue pairs in on_established and on_error, not in on_ud and on_foreign.
class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  virtual void on_ud(const UdArrival& arrival, TimeNs now) = 0;
  // The QPN is of another reactor: hand the packet over (the ICRC is not checked yet).
  virtual void on_foreign(unsigned reactor, const Arrival& arrival) = 0;
  // The first good request arrived on a queue pair (IBV_EVENT_COMM_EST).
  virtual void on_established(QueuePair& qp) = 0;
  // The queue pair failed by itself; its work is flushed.
  virtual void on_error(QueuePair& qp, const char* reason) = 0;
};

struct TransportCounters {
  uint64_t rx_packets, rx_bytes, tx_packets, tx_ud, rx_ud;
  // drops
  uint64_t bad_icrc, malformed, unknown_qp, foreign, wrong_address, wrong_service, wrong_state,
      bad_qkey, unexpected_response, congestion_ignored;
  uint64_t icrc_recovered;  // good, but with the IPv4 identification derived from the ICRC
  // requester
  uint64_t acks_received, naks_received, rnr_received, timeouts, retransmits, retransmitted_packets,
      implied_naks, stale_acks, retry_exceeded, unreachable, unreachable_ignored, probes;
  // of `retransmits`, by cause
  uint64_t retransmits_timeout, retransmits_nak, retransmits_implied, retransmits_not_ready;
  // responder
  uint64_t acks_sent, naks_sent, rnr_sent, sequence_errors, duplicates, read_replays,
      duplicates_dropped, remote_errors;
  uint64_t atomics, atomic_replays;
  uint64_t unreliable_dropped;  // UC and UD packets out of order, or without a receive or a right
  uint64_t cq_overflows, qp_errors;
};

class Transport {
 public:
  Transport(unsigned reactor_index, Link& link, KeyTable& keys, const TransportConfig& config,
            uint64_t seed, TransportEvents& events);
  ~Transport();  // all its queue pairs are gone
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  Result<std::unique_ptr<QueuePair>> create_qp(const QueuePairOptions& options);

  // One packet. `expected_id`: its position in the received train (icrc.h).
  void receive(const Arrival& arrival, TimeNs now, uint16_t expected_id = 0);
  // The packets that follow may have come long after those before.
  void begin_message() { message_time_ = 0; }
  // A datagram from QP1 (Q_Key 0x80010000) to the peer's QP1.
  void send_ud(const Flow& flow, std::span<const uint8_t> payload);
  // Due timers, then packets of whoever has work, then flush. Returns how many packets left.
  uint32_t transmit(TimeNs now);
  // When transmit() must run although nothing arrived; 0: at once, there is work.
  TimeNs next_deadline() const {
    const bool work =
        !running_.empty() || !telling_.empty() || (window_freed_ && !waiting_.empty());
    return work ? 0 : timers_.next();
  }

  // An ICMP port-unreachable quoted a packet of ours to `destination_qpn` at `address`. If `psn` is
  // really outstanding, the queue pair fails at once; anything else is forged or late and ignored.
  void report_unreachable(uint32_t destination_qpn, uint32_t psn, const sockaddr_storage& address);

  // Where packets go from now on; between two transmit().
  void set_link(Link& link) { batch_.set_link(link); }

  unsigned reactor_index() const { return reactor_index_; }
  const TransportConfig& config() const { return config_; }
  const TransportCounters& counters() const { return counters_; }
  const TxCounters& tx_counters() const { return batch_.counters(); }
  size_t queue_pairs() const { return queue_pairs_; }
  uint32_t read_bytes_outstanding() const { return read_bytes_; }
  uint32_t random24();  // first PSNs

  // ---- For queue pairs
  KeyTable& keys() { return keys_; }
  TransportCounters& count() { return counters_; }
  void schedule(QueuePair& qp) { running_.push(qp); }
  void set_timer(QueuePair& qp) { timers_.set(qp, qp.requester().deadline()); }
  // READ bytes this chunk may have; false: none now, the queue pair is scheduled when there are.
  bool take_read_window(QueuePair& qp, uint32_t bytes);
  void give_read_window(uint32_t bytes);
  uint32_t read_chunk(uint32_t mtu) const;         // bytes of one READ REQUEST, at most
  void tell(QueuePair& qp) { telling_.push(qp); }  // events are due
  // Lease::clock(), read since the socket gave the message that this packet came in: before, the
  // process may have been stopped.
  TimeNs message_time() {
    if (message_time_ == 0) message_time_ = reactor::Lease::clock();
    return message_time_;
  }

 private:
  friend class QueuePair;
  struct Slot {
    uint32_t number = 0;  // 0: free
    QueuePair* qp = nullptr;
  };

  QueuePair* find(uint32_t number) const;
  uint32_t new_number();
  void insert(QueuePair& qp);
  void place(const Slot& slot);
  void remove(QueuePair& qp);
  void forget(QueuePair& qp);  // its timers, its turn, its events
  bool hears_anyone(const QueuePair* qp);
  void deliver(QueuePair& qp, const Packet& packet, TimeNs now);
  void deliver_datagram(QueuePair& qp, const Packet& packet, const Arrival& arrival);
  void receive_ud(const Packet& packet, const Arrival& arrival, TimeNs now);
  void expire(TimeNs now);
  void deliver_events();
  uint64_t random();

  unsigned reactor_index_;
  KeyTable& keys_;
  TransportConfig config_;
  TransportEvents& events_;
  TxBatch batch_;
  IcrcReceiver icrc_;
  TransportCounters counters_{};
  TimerHeap timers_;
  uint64_t rng_;
  uint32_t ud_psn_;

  std::vector<Slot> by_number_;  // open addressing, a power of two
  size_t queue_pairs_ = 0;
  std::vector<uint32_t> released_;  // numbers given back lately: not to be reused yet
  size_t released_next_ = 0;

  QueuePairList running_;  // have work
  QueuePairList waiting_;  // for room in the receive window
  QueuePairList telling_;  // events are due
  uint32_t read_bytes_ = 0;
  bool window_freed_ = false;
  TimeNs message_time_ = 0;  // 0: not read yet
};

}  // namespace nvmeof::rdma::soft
