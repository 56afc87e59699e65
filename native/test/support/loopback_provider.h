// An RDMA provider in memory: queue pairs joined back to back, no packets, no clock, no threads.
// Every engine under test opens its Device from one LoopbackFabric; work runs, in the order it was
// posted, when progress() is called or a completion queue is polled, so a test repeats exactly.
// Strict where hardware is: keys, ranges, access rights, queue depths and SGE limits are checked.
// Faults are injected per queue pair. Single thread.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rdma/provider.h"

namespace nvmeof::test {

class LoopbackDevice;
class LoopbackQueuePair;
class LoopbackCompletionQueue;
class LoopbackReceives;

// What one key gives access to. Regions have two keys (lkey, rkey), a bound window one.
struct LoopbackKey {
  const void* domain;
  uint64_t address;
  uint64_t length;
  uint8_t access;
  uint32_t window_qp;  // queue pair of a bound window, 0 for a region
};

class LoopbackFabric {
 public:
  LoopbackFabric();
  ~LoopbackFabric();  // every device is gone before
  // All capabilities on: 4 SGEs, 16 READs, invalidate, windows, SRQ.
  static rdma::Capabilities full_capabilities();
  // `address`: IPv4 text, unique in the fabric.
  std::unique_ptr<LoopbackDevice> open(const char* address, const rdma::Capabilities& capabilities);

  // Runs one round: waiting connection events, then each queue pair's work. Returns the steps done.
  int progress();
  // progress() until nothing moves.
  void settle();
  // Default true: polling a completion queue makes progress first.
  bool progress_on_poll = true;

  // Faults. Queue pairs by their number; unknown numbers are ignored.
  void hold(uint32_t qp, bool held);  // posted work stays where it is (peer and ACKs are silent)
  // Work goes out and is answered, but its completions come only when this is taken back, or as
  // flushed when the queue pair fails.
  void hold_acknowledgements(uint32_t qp, bool held);
  // The next request of this opcode ends with `status`, and the queue pair in ERR.
  void fail_next(uint32_t qp, rdma::Opcode opcode, rdma::Status status);
  void cut(uint32_t qp);  // the cable: the next request ends with RetryExceeded
  // Passive sides get no on_established from an RTU: the first message must do.
  bool lose_rtu = false;
  // disconnect() of this device's sides reports nothing until released.
  bool hold_disconnects = false;
  // What the provider says of a queue pair that failed.
  std::string failure = "the queue pair failed";

  uint32_t peer_of(uint32_t qp) const;  // 0: none
  rdma::State state_of(uint32_t qp) const;
  size_t live_queue_pairs() const { return queue_pairs_.size(); }
  uint32_t probes = 0;  // asked for
  size_t live_keys() const { return keys_.size(); }
  uint64_t receiver_not_ready() const { return receiver_not_ready_; }
  // Work requests executed so far, in order, as text for CHECKs: "write send send+inv read ...".
  std::string trace;
  bool tracing = false;
  uint64_t post_send_calls = 0;

 private:
  friend class LoopbackDevice;
  friend class LoopbackQueuePair;
  friend class LoopbackCompletionQueue;
  friend class LoopbackDomain;
  friend class LoopbackRegion;
  friend class LoopbackWindow;

  // One end of a connection. `peer` is the other end's id.
  struct Side {
    LoopbackDevice* device;
    rdma::ConnectionHandler* handler;
    uint32_t qp = 0;
    rdma::ConnectionId peer = 0;
    bool active = false, established = false, reported = false;
  };

  uint32_t new_key(const LoopbackKey& key);
  const LoopbackKey* find_key(uint32_t key, const void* domain) const;
  bool work(LoopbackQueuePair* qp);  // one request; false: nothing could move
  rdma::Status execute(LoopbackQueuePair* qp, bool* wait);
  rdma::Status execute_local(LoopbackQueuePair* qp, const rdma::SendWorkRequest& r);
  rdma::Status gather(LoopbackQueuePair* qp, std::vector<uint8_t>* data, uint64_t* length);
  rdma::Status deliver(LoopbackQueuePair* peer, const rdma::SendWorkRequest& r,
                       const std::vector<uint8_t>& data, bool* wait);
  void fail(LoopbackQueuePair* qp);  // to ERR, and tells the connection
  void end_connection(rdma::ConnectionId id, const std::string& reason);
  void report_disconnected(rdma::ConnectionId id, const std::string& reason);
  void establish(rdma::ConnectionId passive);
  Side* side(rdma::ConnectionId id);

  std::map<uint32_t, LoopbackQueuePair*> queue_pairs_;
  std::map<std::string, LoopbackDevice*> devices_;
  std::map<uint32_t, LoopbackKey> keys_;
  std::map<rdma::ConnectionId, Side> sides_;
  std::deque<std::function<void()>> events_;
  std::vector<std::pair<rdma::ConnectionId, std::string>> held_disconnects_;
  uint32_t next_qp_ = 0x11, next_key_ = 0x1000;
  rdma::ConnectionId next_connection_ = 1;
  uint64_t receiver_not_ready_ = 0;
};

class LoopbackDevice : public rdma::Device {
 public:
  LoopbackDevice(LoopbackFabric* fabric, std::string address, const rdma::Capabilities& c);
  ~LoopbackDevice() override;
  const rdma::Capabilities& capabilities() const override { return capabilities_; }
  sockaddr_storage address() const override;
  Result<std::unique_ptr<rdma::ProtectionDomain>> allocate_pd() override;
  Result<std::unique_ptr<rdma::CompletionQueue>> create_cq(uint32_t depth) override;
  Result<std::unique_ptr<rdma::SharedReceiveQueue>> create_srq(rdma::ProtectionDomain* pd,
                                                               uint32_t max_wr,
                                                               uint32_t max_sge) override;
  Result<std::unique_ptr<rdma::QueuePair>> create_qp(
      const rdma::QueuePairOptions& options) override;
  Result<uint32_t> listen(uint16_t port, rdma::ConnectionHandler* handler) override;
  void unlisten(uint32_t listener) override;
  Result<rdma::ConnectionId> connect(const sockaddr_storage& peer, uint16_t port,
                                     rdma::QueuePair* qp,
                                     const rdma::ConnectionParameters& parameters,
                                     rdma::ConnectionHandler* handler) override;
  Result<void> accept(rdma::ConnectionId id, rdma::QueuePair* qp,
                      const rdma::ConnectionParameters& parameters) override;
  void reject(rdma::ConnectionId id, uint16_t reason,
              std::span<const uint8_t> private_data) override;
  void disconnect(rdma::ConnectionId id) override;
  void abandon(rdma::ConnectionId id) override;
  std::vector<rdma::CounterValue> counters() const override;

 private:
  friend class LoopbackFabric;
  struct Listener {
    uint16_t port;
    rdma::ConnectionHandler* handler;
  };
  LoopbackFabric* fabric_;
  std::string address_;
  rdma::Capabilities capabilities_;
  std::map<uint32_t, Listener> listeners_;
  uint32_t next_listener_ = 1;
};

}  // namespace nvmeof::test
