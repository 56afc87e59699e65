#include "rdma/soft/shard.h"

#include <sys/random.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>

#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {

namespace {

constexpr TimeNs kPublishInterval = 10'000'000;
constexpr TimeNs kFlushInterval = 1'000'000'000;  // of a capture, while the reactor never sleeps
// Flows beyond this many are reused for other peers once they are idle for a loop iteration.
constexpr size_t kFlowsKept = 256;
constexpr uint32_t kPacketMax = 4200;  // longest headers and 4096 bytes of payload

uint64_t random64() {
  uint64_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) std::abort();
  return value;
}

// How much payload may be on its way to a socket whose buffer the kernel counts in whole pages and
// with its bookkeeping: a packet of 256 bytes is charged for more than 1024.
uint32_t window_of_buffer(uint32_t granted, uint32_t path_mtu) {
  const uint32_t usable = path_mtu <= 512 ? granted / 5 : granted / 8 * 3;
  return std::max<uint32_t>(usable, 16 * path_mtu);
}

TransportConfig config_of(uint32_t window, uint32_t path_mtu) {
  TransportConfig config;
  config.port_mtu = path_mtu;
  config.receive_window_bytes = window;
  config.max_reads = kReadsMax;
  // The peer's buffer is not known; one like ours is the best guess, and losses correct it.
  config.send_window_bytes = std::min(config.send_window_bytes, window);
  config.send_window_bytes_max = std::max(config.send_window_bytes, window);
  return config;
}

}  // namespace

// A packet that was steered to another shard than its queue pair's.
struct Shard::Handover {
  Shard* to;
  sockaddr_storage source;
  uint32_t length;
  uint16_t expected_id;
  uint8_t traffic_class;
  SeenHeader seen;
  uint8_t bytes[];
};

TimeNs Shard::TransmitPoller::next_deadline() const {
  const TimeNs next =
      std::min(shard.transport_->next_deadline(), shard.events_.next_timer(shard.index_));
  return shard.faults_ == nullptr ? next : std::min(next, shard.faults_->next_deadline());
}

Shard::Shard(const ShardOptions& options, std::shared_ptr<KeyTable> keys, ShardEvents& events)
    : index_(options.index),
      reactor_(options.reactor),
      events_(events),
      address_(with_port(options.link.address, kUdpPort)),
      keys_(std::move(keys)),
      reader_(keys_),
      pcap_(options.link.pcap),
      receive_poller_(*this),
      transmit_poller_(*this) {
  datagrams_.reserve(kDatagrams);
}

Result<std::unique_ptr<Shard>> Shard::open(const ShardOptions& options,
                                           std::shared_ptr<KeyTable> keys, ShardEvents& events) {
  std::unique_ptr<Shard> shard(new Shard(options, std::move(keys), events));
  UdpLinkOptions link = options.link;
  link.port_seed = static_cast<uint32_t>(random64());
  auto opened = UdpLink::open(link);
  if (!opened) return opened.error();
  shard->link_ = std::move(*opened);
  shard->receive_window_bytes_ =
      window_of_buffer(shard->link_->receive_buffer_bytes(), options.path_mtu);
  shard->transport_ =
      std::make_unique<Transport>(options.index, *shard->link_, *shard->keys_,
                                  config_of(shard->receive_window_bytes_, options.path_mtu),
                                  random64(), static_cast<TransportEvents&>(*shard));
  return shard;
}

Shard::~Shard() = default;

void Shard::attach(std::span<const std::unique_ptr<Shard>> peers) {
  peers_ = peers;
  now_ = reactor_->now();
  reactor_->add(&receive_poller_, reactor::Stage::Receive);
  reactor_->add(&transmit_poller_, reactor::Stage::Transmit);
  for (const int fd : link_->descriptors()) reactor_->add_fd(fd);
}

void Shard::detach() {
  // What was queued last (a DREP, an ACK) still leaves.
  poll_transmit(reactor_->now());
  set_faults(nullptr);
  for (const int fd : link_->descriptors()) reactor_->remove_fd(fd);
  reactor_->remove(&receive_poller_);
  reactor_->remove(&transmit_poller_);
  publish_counters();
}

// ---- The two polls of a loop iteration

int Shard::poll_receive(TimeNs now) {
  now_ = now;
  transport_->begin_message();
  int packets;
  {
    const KeyTable::Section section(reader_);
    if (faults_ == nullptr) [[likely]] {
      packets = link_->receive(now, *this);
    } else {
      packets = faults_->deliver() + link_->receive(now, *faults_);
    }
  }
  if (!datagrams_.empty()) deliver_datagrams(now);
  deliver_reports();
  return packets;
}

int Shard::poll_transmit(TimeNs now) {
  now_ = now;
  int work = events_.run_timers(index_, now);
  {
    const KeyTable::Section section(reader_);
    work += static_cast<int>(transport_->transmit(now));
  }
  if (faults_ != nullptr) [[unlikely]]
    work += faults_->transmit();
  deliver_reports();
  if (now - published_at_ >= kPublishInterval) publish_counters();
  if (pcap_ != nullptr && now - flushed_at_ >= kFlushInterval) {
    pcap_->flush();
    flushed_at_ = now;
  }
  return work;
}

void Shard::deliver_reports() {
  if (faults_ == nullptr) [[likely]] {
    link_->deliver_faults(*this);
  } else {
    link_->deliver_faults(*faults_);
  }
}

void Shard::on_packet(const Arrival& arrival, uint16_t expected_id) {
  expected_id_ = expected_id;
  const uint64_t bad = transport_->counters().bad_icrc;
  transport_->receive(arrival, now_, expected_id);
  if (transport_->counters().bad_icrc != bad && peek_dest_qpn(arrival.bytes) == kQpnGsi)
    events_.on_bad_datagram(*arrival.source);
}

void Shard::on_fault(const ErrorReport& report) {
  if (report.has_bth && report.fault == SendFault::PortUnreachable && report.dest_qpn > kQpnGsi)
    transport_->report_unreachable(report.dest_qpn, report.psn, report.peer);
  events_.on_peer_fault(index_, report, now_);
}

// ---- Faults

std::unique_ptr<FaultLink> Shard::make_faults(const FaultRules& rules) {
  if (rules.rules.empty()) return nullptr;
  const FaultLink::Place place{*link_,     *this,       now_,       address_,
                               faults_in_, faults_out_, kPacketMax, index_};
  return std::make_unique<FaultLink>(rules, place);
}

std::unique_ptr<FaultLink> Shard::set_faults(std::unique_ptr<FaultLink> faults) {
  now_ = reactor_->now();
  if (faults_ != nullptr) {
    {
      const KeyTable::Section section(reader_);
      faults_->deliver_all();
    }
    if (!datagrams_.empty()) deliver_datagrams(now_);
    faults_->transmit_all();
  }
  faults_.swap(faults);
  transport_->set_link(faults_ == nullptr ? static_cast<Link&>(*link_) : *faults_);
  return faults;
}

// ---- Datagrams to QP1: kept until the transport is between packets

void Shard::on_ud(const UdArrival& arrival, TimeNs) {
  if (datagrams_.size() == kDatagrams || arrival.payload.size() != sizeof Datagram::payload) {
    datagrams_dropped_.fetch_add(1, std::memory_order_relaxed);
    return;  // connection management repeats what is lost
  }
  Datagram& datagram = datagrams_.emplace_back();
  datagram.source = *arrival.source;
  datagram.source_qpn = arrival.source_qpn;
  datagram.traffic_class = arrival.traffic_class;
  std::memcpy(datagram.payload, arrival.payload.data(), sizeof datagram.payload);
}

void Shard::deliver_datagrams(TimeNs now) {
  for (const Datagram& datagram : datagrams_) {
    events_.on_datagram({&datagram.source, &address_, datagram.source_qpn, datagram.payload,
                         datagram.traffic_class},
                        now);
  }
  datagrams_.clear();
}

// ---- Packets for queue pairs of other reactors

// Rare: a train or a merged message that held packets of two reactors, or packets that came while
// the group of sockets was being built.
void Shard::on_foreign(unsigned reactor, const Arrival& arrival) {
  Shard* const to = reactor < peers_.size() ? peers_[reactor].get() : nullptr;
  const bool full = to == nullptr || arrival.length > kPacketMax ||
                    to->handovers_.load(std::memory_order_relaxed) >= kHandoversMax;
  void* const memory = full ? nullptr : std::malloc(sizeof(Handover) + arrival.length);
  if (memory == nullptr) {
    hand_over_dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto* const handover = static_cast<Handover*>(memory);
  *handover = {to,           *arrival.source,       arrival.length,
               expected_id_, arrival.traffic_class, arrival.seen};
  std::memcpy(handover->bytes, arrival.bytes, arrival.length);
  to->handovers_.fetch_add(1, std::memory_order_relaxed);
  const auto run = [](void* context, uint64_t) {
    auto* const packet = static_cast<Handover*>(context);
    Shard& self = *packet->to;
    self.handovers_.fetch_sub(1, std::memory_order_relaxed);
    self.now_ = self.reactor_->now();
    self.transport_->begin_message();
    {
      const KeyTable::Section section(self.reader_);
      self.on_packet({&packet->source, &self.address_, packet->bytes, packet->length, -1,
                      packet->traffic_class, packet->seen},
                     packet->expected_id);
    }
    if (!self.datagrams_.empty()) self.deliver_datagrams(self.now_);
    std::free(packet);
  };
  if (to->reactor_->post({run, handover, 0})) {
    handed_over_.fetch_add(1, std::memory_order_relaxed);
  } else {
    to->handovers_.fetch_sub(1, std::memory_order_relaxed);
    hand_over_dropped_.fetch_add(1, std::memory_order_relaxed);
    std::free(handover);
  }
}

// ---- Flows

Shard::FlowEntry& Shard::take_flow_entry() {
  while (flows_.size() > kFlowsKept && !idle_flows_.empty()) {
    FlowEntry& oldest = *idle_flows_.front();
    if (oldest.references == 0 && oldest.released >= now_) break;  // still in this batch
    idle_flows_.pop_front();
    oldest.queued = false;
    if (oldest.references != 0) continue;  // taken again meanwhile
    flow_index_.erase(oldest.key);
    return oldest;
  }
  return flows_.emplace_back();
}

const Flow* Shard::acquire_flow(const sockaddr_storage& peer, uint8_t train_key) {
  const FlowKey key{gid_of(peer), train_key};
  auto found = flow_index_.find(key);
  if (found == flow_index_.end()) {
    FlowEntry& entry = take_flow_entry();
    sockaddr_storage remote = with_port(unmapped(peer), kUdpPort);
    if (remote.ss_family == AF_INET6) {
      auto& v6 = reinterpret_cast<sockaddr_in6&>(remote);
      if (v6.sin6_scope_id == 0 && IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr))
        v6.sin6_scope_id = reinterpret_cast<const sockaddr_in6&>(address_).sin6_scope_id;
    }
    entry.key = key;
    entry.flow =
        make_flow(with_port(address_, link_->source_port(remote, train_key)), remote, train_key);
    found = flow_index_.emplace(key, &entry).first;
  }
  found->second->references++;
  return &found->second->flow;
}

void Shard::release_flow(const Flow* flow) {
  const auto found = flow_index_.find({gid_of(flow->remote), flow->train_key});
  assert(found != flow_index_.end() && found->second->references > 0);
  FlowEntry& entry = *found->second;
  entry.references--;
  entry.released = now_;
  if (entry.references == 0 && !entry.queued) {
    entry.queued = true;
    idle_flows_.push_back(&entry);
  }
}

size_t Shard::flows_in_use() const {
  return static_cast<size_t>(std::count_if(
      flows_.begin(), flows_.end(), [](const FlowEntry& entry) { return entry.references > 0; }));
}

// ---- Counters

void Shard::publish_counters() {
  uint64_t words[kWords];
  std::memcpy(words, &transport_->counters(), sizeof words);
  for (size_t i = 0; i < kWords; i++) published_[i].store(words[i], std::memory_order_relaxed);
  published_queue_pairs_.store(transport_->queue_pairs(), std::memory_order_relaxed);
  published_at_ = now_;
}

ShardCounters Shard::counters() const {
  ShardCounters result;
  uint64_t words[kWords];
  for (size_t i = 0; i < kWords; i++) words[i] = published_[i].load(std::memory_order_relaxed);
  std::memcpy(&result.transport, words, sizeof words);
  result.queue_pairs = published_queue_pairs_.load(std::memory_order_relaxed);
  result.handed_over = handed_over_.load(std::memory_order_relaxed);
  result.hand_over_dropped = hand_over_dropped_.load(std::memory_order_relaxed);
  result.datagrams_dropped = datagrams_dropped_.load(std::memory_order_relaxed);
  return result;
}

}  // namespace nvmeof::rdma::soft
