// A simulated network: virtual time, seeded loss, duplication, reordering, corruption and delay
// between any number of nodes. Everything follows from the seed. A node is one Transport with some
// memory; the same Transport code runs on real sockets.
#pragma once
#include <arpa/inet.h>

#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "rdma/soft/flow.h"
#include "rdma/soft/transport.h"

namespace nvmeof::test::sim {

using namespace nvmeof::rdma;
using reactor::TimeNs;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>((next() >> 32) % limit); }
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1p-53 < p; }

 private:
  uint64_t state_;
};

struct Faults {
  double loss = 0, duplicate = 0, reorder = 0, corrupt = 0;
  TimeNs latency = 5'000, jitter = 3'000, reorder_delay = 300'000;
};

struct NetworkCounters {
  uint64_t sent = 0, lost = 0, duplicated = 0, reordered = 0, corrupted = 0, delivered = 0;
};

class Node;

class Network {
 public:
  explicit Network(uint64_t seed) : random(seed) {}

  Faults faults;
  NetworkCounters counters;
  Random random;
  TimeNs now = 1'000'000;
  // Sees every packet before the faults; false drops it. May change the bytes' copy.
  std::function<bool(Node& from, std::vector<uint8_t>& bytes)> filter;

  void attach(Node* node) { nodes_.push_back(node); }
  void send(Node& from, const soft::Train& train);
  // Until `done` holds; false when nothing more would happen or `limit` is reached.
  bool run(const std::function<bool()>& done, TimeNs limit);
  // For this long, or until nothing more happens.
  void run_for(TimeNs duration) {
    run([] { return false; }, now + duration);
  }

 private:
  struct Flying {
    TimeNs time;
    uint64_t order;
    sockaddr_storage source, destination;
    uint16_t ip_id;
    std::vector<uint8_t> bytes;
    bool operator<(const Flying& other) const {  // the earliest on top of the heap
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  void fly(const soft::Flow& flow, std::vector<uint8_t> bytes, uint16_t ip_id);
  void deliver(const Flying& packet);

  std::vector<Node*> nodes_;
  std::priority_queue<Flying> flying_;
  uint64_t order_ = 0;
};

inline sockaddr_storage address(const char* text, uint16_t port = 4791) {
  sockaddr_storage storage{};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
  } else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
  }
  return storage;
}

// One process with one reactor: a transport, a protection domain, memory, a completion queue.
class Node final : public soft::TransportEvents, public soft::Link {
 public:
  Node(Network& network, const char* ip, uint64_t seed, const soft::TransportConfig& config = {},
       size_t memory_bytes = 1 << 20, uint32_t cq_depth = 4096, unsigned reactor = 0)
      : network_(network),
        self(address(ip)),
        keys(soft::KeyTable::create()),
        transport(reactor, *this, *keys, config, seed, *this),
        pd(std::move(keys->allocate_pd().value())),
        memory(memory_bytes),
        region(std::move(pd->register_memory(memory.data(), memory.size(),
                                             kLocalWrite | kRemoteWrite | kRemoteRead |
                                                 kRemoteAtomic | kWindowBind)
                             .value())),
        cq(cq_depth) {
    network.attach(this);
  }

  // ---- soft::Link
  void send(std::span<const soft::Train> trains) override {
    for (const soft::Train& train : trains) network_.send(*this, train);
  }
  uint16_t segments_max() const override { return 64; }
  uint32_t train_bytes_max() const override { return 65000; }

  // ---- soft::TransportEvents
  void on_ud(const soft::UdArrival& arrival, TimeNs) override {
    datagrams.emplace_back(arrival.payload.begin(), arrival.payload.end());
  }
  void on_foreign(unsigned reactor, const soft::Arrival&) override { foreign.push_back(reactor); }
  void on_established(soft::QueuePair& qp) override { established.push_back(qp.number()); }
  void on_error(soft::QueuePair&, const char* reason) override { errors.emplace_back(reason); }

  uint64_t at(uint64_t offset) const { return reinterpret_cast<uint64_t>(memory.data()) + offset; }
  Sge sge(uint64_t offset, uint32_t length) const { return {at(offset), length, region->lkey()}; }

  std::unique_ptr<soft::QueuePair> make_qp(uint32_t depth = 128, uint32_t max_sge = 4,
                                           SharedReceiveQueue* srq = nullptr,
                                           QpType type = QpType::Rc) {
    QueuePairOptions options;
    options.pd = pd.get();
    options.send_cq = options.receive_cq = &cq;
    options.srq = srq;
    options.max_send_wr = options.max_receive_wr = depth;
    options.max_send_sge = options.max_receive_sge = max_sge;
    options.context = this;
    options.type = type;
    return std::move(transport.create_qp(options).value());
  }
  std::vector<WorkCompletion> poll() {
    std::vector<WorkCompletion> all(cq.waiting());
    all.resize(static_cast<size_t>(cq.poll(all)));
    return all;
  }

 private:
  Network& network_;

 public:
  sockaddr_storage self;
  std::vector<std::vector<uint8_t>> datagrams;
  std::vector<unsigned> foreign;
  std::vector<uint32_t> established;
  std::vector<std::string> errors;
  std::shared_ptr<soft::KeyTable> keys;
  soft::Transport transport;
  std::unique_ptr<ProtectionDomain> pd;
  std::vector<uint8_t> memory;
  std::unique_ptr<MemoryRegion> region;
  soft::CompletionQueue cq;
  std::vector<std::unique_ptr<soft::Flow>> flows;
  // What an engine would do between receiving and transmitting: poll, post.
  std::function<void()> process;
};

struct ConnectOptions {
  uint32_t mtu = 1024;
  uint8_t reads = 8;
  uint8_t timeout = 8;  // 1 ms
  uint8_t retry_count = 7, rnr_retry = 7;
  uint8_t access = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;
  uint32_t qkey = 0x11111111;
};

// INIT, RTR and RTS with what the peer says.
inline Result<void> bring_up(Node& node, soft::QueuePair& qp, const sockaddr_storage& peer,
                             uint32_t peer_qpn, uint32_t send_psn, uint32_t receive_psn,
                             const ConnectOptions& options) {
  node.flows.push_back(std::make_unique<soft::Flow>(
      soft::make_flow(soft::with_port(node.self, 0xc000), soft::with_port(peer, 4791))));
  soft::QpAttributes attributes;
  attributes.flow = node.flows.back().get();
  attributes.access = options.access;
  attributes.path_mtu = options.mtu;
  attributes.destination_qpn = peer_qpn;
  attributes.send_psn = send_psn;
  attributes.receive_psn = receive_psn;
  attributes.max_reads = attributes.max_dest_reads = options.reads;
  attributes.timeout = options.timeout;
  attributes.retry_count = options.retry_count;
  attributes.rnr_retry = options.rnr_retry;
  attributes.qkey = options.qkey;
  return qp.bring_up(attributes);
}

inline bool connect(Node& a, soft::QueuePair& qa, Node& b, soft::QueuePair& qb,
                    const ConnectOptions& options = {}) {
  const uint32_t psn_a = a.transport.random24(), psn_b = b.transport.random24();
  return bring_up(a, qa, b.self, qb.number(), psn_a, psn_b, options) &&
         bring_up(b, qb, a.self, qa.number(), psn_b, psn_a, options);
}

inline void Network::send(Node& from, const soft::Train& train) {
  for (uint32_t i = 0; i < train.segments; i++) {
    const uint32_t offset = i * train.segment_bytes;
    const uint32_t length = std::min<uint32_t>(train.segment_bytes, train.total_bytes - offset);
    std::vector<uint8_t> bytes(train.bytes + offset, train.bytes + offset + length);
    counters.sent++;
    if (filter && !filter(from, bytes)) continue;
    if (random.chance(faults.loss)) {
      counters.lost++;
      continue;
    }
    if (random.chance(faults.duplicate)) {
      counters.duplicated++;
      fly(*train.flow, bytes, static_cast<uint16_t>(i));
    }
    if (random.chance(faults.corrupt)) {
      counters.corrupted++;
      bytes[random.below(length)] ^= static_cast<uint8_t>(1u << random.below(8));
    }
    fly(*train.flow, std::move(bytes), static_cast<uint16_t>(i));
  }
}

inline void Network::fly(const soft::Flow& flow, std::vector<uint8_t> bytes, uint16_t ip_id) {
  TimeNs delay = faults.latency;
  if (random.chance(faults.reorder)) {
    counters.reordered++;
    delay += random.next() % faults.reorder_delay;
  }
  // Whole microseconds: packets arrive in small batches.
  const TimeNs time = (now + delay + 999) / 1000 * 1000;
  flying_.push({time, order_++, flow.local, flow.remote, ip_id, std::move(bytes)});
}

inline void Network::deliver(const Flying& packet) {
  counters.delivered++;
  const soft::Arrival arrival{&packet.source,      &packet.destination,
                              packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()),
                              packet.ip_id,        0};
  for (Node* node : nodes_)
    if (soft::same_address(node->self, packet.destination)) node->transport.receive(arrival, now);
}

inline bool Network::run(const std::function<bool()>& done, TimeNs limit) {
  for (;;) {
    TimeNs next = reactor::kNever;
    for (Node* node : nodes_) {
      if (node->process) node->process();
      if (node->transport.next_deadline() <= now) node->transport.transmit(now);
      next = std::min(next, node->transport.next_deadline());
    }
    if (done()) return true;
    if (!flying_.empty()) next = std::min(next, flying_.top().time);
    if (next == reactor::kNever || next > limit) return false;
    now = std::max(now, next);
    while (!flying_.empty() && flying_.top().time <= now) {
      const Flying packet = flying_.top();
      flying_.pop();
      deliver(packet);
    }
  }
}

}  // namespace nvmeof::test::sim
