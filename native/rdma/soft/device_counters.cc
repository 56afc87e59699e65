// The names under which a soft device's counters are seen: tables, summed over its reactors.
#include <algorithm>
#include <string_view>

#include "rdma/soft/device.h"

namespace nvmeof::rdma::soft {

namespace {

struct TransportName {
  const char* name;
  uint64_t TransportCounters::*field;
};
constexpr TransportName kTransport[] = {
    {"soft.rx.packets", &TransportCounters::rx_packets},
    {"soft.rx.bytes", &TransportCounters::rx_bytes},
    {"soft.rx.datagrams", &TransportCounters::rx_ud},
    {"soft.rx.bad_icrc", &TransportCounters::bad_icrc},
    {"soft.rx.icrc_recovered", &TransportCounters::icrc_recovered},
    {"soft.rx.malformed", &TransportCounters::malformed},
    {"soft.rx.unknown_qp", &TransportCounters::unknown_qp},
    {"soft.rx.wrong_reactor", &TransportCounters::foreign},
    {"soft.rx.wrong_address", &TransportCounters::wrong_address},
    {"soft.rx.wrong_service", &TransportCounters::wrong_service},
    {"soft.rx.wrong_state", &TransportCounters::wrong_state},
    {"soft.rx.bad_qkey", &TransportCounters::bad_qkey},
    {"soft.rx.unexpected_response", &TransportCounters::unexpected_response},
    {"soft.rx.congestion_ignored", &TransportCounters::congestion_ignored},
    {"soft.requester.acks", &TransportCounters::acks_received},
    {"soft.requester.naks", &TransportCounters::naks_received},
    {"soft.requester.receiver_not_ready", &TransportCounters::rnr_received},
    {"soft.requester.timeouts", &TransportCounters::timeouts},
    {"soft.requester.retransmits", &TransportCounters::retransmits},
    {"soft.requester.retransmits_timeout", &TransportCounters::retransmits_timeout},
    {"soft.requester.retransmits_nak", &TransportCounters::retransmits_nak},
    {"soft.requester.retransmits_implied", &TransportCounters::retransmits_implied},
    {"soft.requester.retransmits_not_ready", &TransportCounters::retransmits_not_ready},
    {"soft.requester.retransmitted_packets", &TransportCounters::retransmitted_packets},
    {"soft.requester.implied_naks", &TransportCounters::implied_naks},
    {"soft.requester.stale_acks", &TransportCounters::stale_acks},
    {"soft.requester.retry_exceeded", &TransportCounters::retry_exceeded},
    {"soft.requester.unreachable", &TransportCounters::unreachable},
    {"soft.requester.unreachable_ignored", &TransportCounters::unreachable_ignored},
    {"soft.requester.probes", &TransportCounters::probes},
    {"soft.responder.acks", &TransportCounters::acks_sent},
    {"soft.responder.naks", &TransportCounters::naks_sent},
    {"soft.responder.receiver_not_ready", &TransportCounters::rnr_sent},
    {"soft.responder.sequence_errors", &TransportCounters::sequence_errors},
    {"soft.responder.duplicates", &TransportCounters::duplicates},
    {"soft.responder.read_replays", &TransportCounters::read_replays},
    {"soft.responder.duplicates_dropped", &TransportCounters::duplicates_dropped},
    {"soft.responder.remote_errors", &TransportCounters::remote_errors},
    {"soft.responder.atomics", &TransportCounters::atomics},
    {"soft.responder.atomic_replays", &TransportCounters::atomic_replays},
    {"soft.responder.unreliable_dropped", &TransportCounters::unreliable_dropped},
    {"soft.tx.datagrams", &TransportCounters::tx_ud},
    {"soft.cq_overflows", &TransportCounters::cq_overflows},
    {"soft.qp_errors", &TransportCounters::qp_errors},
};

struct LinkName {
  const char* name;
  std::atomic<uint64_t> LinkCounters::*field;
};
constexpr LinkName kLink[] = {
    {"soft.tx.packets", &LinkCounters::tx_packets},
    {"soft.tx.bytes", &LinkCounters::tx_bytes},
    {"soft.tx.trains", &LinkCounters::tx_trains},
    {"socket.send_calls", &LinkCounters::tx_calls},
    {"socket.receive_calls", &LinkCounters::rx_calls},
    {"socket.receive_messages", &LinkCounters::rx_messages},
    {"socket.receive_errors", &LinkCounters::rx_errors},
    {"socket.received_without_header", &LinkCounters::rx_without_header},
    {"socket.dropped_full", &LinkCounters::tx_dropped_full},
    {"socket.dropped_too_large", &LinkCounters::tx_dropped_too_large},
    {"socket.dropped_error", &LinkCounters::tx_dropped_error},
    {"socket.dropped_without_gso", &LinkCounters::tx_dropped_gso},
    {"socket.faults_reported", &LinkCounters::faults_reported},
    {"socket.faults_lost", &LinkCounters::faults_lost},
    {"socket.sends_repeated", &LinkCounters::sends_repeated},
};

struct ShardName {
  const char* name;
  uint64_t ShardCounters::*field;
};
constexpr ShardName kShard[] = {
    {"soft.queue_pairs", &ShardCounters::queue_pairs},
    {"soft.rx.handed_over", &ShardCounters::handed_over},
    {"soft.rx.hand_over_dropped", &ShardCounters::hand_over_dropped},
    {"soft.rx.datagrams_dropped", &ShardCounters::datagrams_dropped},
};

struct FaultName {
  const char* name;
  const FaultCounters& (Shard::*direction)() const;
  std::atomic<uint64_t> FaultCounters::*field;
};
constexpr FaultName kFaults[] = {
    {"soft.fault.in_dropped", &Shard::faults_in, &FaultCounters::dropped},
    {"soft.fault.in_overflowed", &Shard::faults_in, &FaultCounters::overflowed},
    {"soft.fault.in_delayed", &Shard::faults_in, &FaultCounters::delayed},
    {"soft.fault.in_duplicated", &Shard::faults_in, &FaultCounters::duplicated},
    {"soft.fault.in_reordered", &Shard::faults_in, &FaultCounters::reordered},
    {"soft.fault.out_dropped", &Shard::faults_out, &FaultCounters::dropped},
    {"soft.fault.out_overflowed", &Shard::faults_out, &FaultCounters::overflowed},
    {"soft.fault.out_delayed", &Shard::faults_out, &FaultCounters::delayed},
    {"soft.fault.out_duplicated", &Shard::faults_out, &FaultCounters::duplicated},
    {"soft.fault.out_reordered", &Shard::faults_out, &FaultCounters::reordered},
};

// What is shown of each reactor by itself.
constexpr std::string_view kOfReactor[] = {
    "soft.rx.packets",
    "soft.rx.wrong_reactor",
    "soft.rx.handed_over",
    "soft.tx.packets",
    "soft.tx.trains",
    "socket.send_calls",
    "socket.receive_calls",
    "socket.receive_messages",
    "soft.requester.acks",
    "soft.responder.acks",
    "soft.requester.retransmits",
    "soft.requester.retransmits_timeout",
    "soft.requester.retransmits_nak",
    "soft.requester.retransmits_implied",
    "soft.requester.retransmits_not_ready",
    "soft.queue_pairs",
};
bool of_reactor(std::string_view name) {
  return std::ranges::find(kOfReactor, name) != std::end(kOfReactor);
}

struct AgentName {
  const char* name;
  uint64_t cm::AgentCounters::*field;
};
constexpr AgentName kAgent[] = {
    {"soft.cm.received", &cm::AgentCounters::mads_received},
    {"soft.cm.malformed", &cm::AgentCounters::mads_malformed},
    {"soft.cm.ignored", &cm::AgentCounters::mads_ignored},
    {"soft.cm.sent", &cm::AgentCounters::mads_sent},
    {"soft.cm.retries", &cm::AgentCounters::retries},
    {"soft.cm.requests", &cm::AgentCounters::requests_received},
    {"soft.cm.requests_refused", &cm::AgentCounters::requests_refused},
    {"soft.cm.duplicates", &cm::AgentCounters::duplicates},
    {"soft.cm.stale", &cm::AgentCounters::stale},
    {"soft.cm.rejects_sent", &cm::AgentCounters::rejects_sent},
    {"soft.cm.rejects_received", &cm::AgentCounters::rejects_received},
    {"soft.cm.connected", &cm::AgentCounters::connected},
    {"soft.cm.disconnected", &cm::AgentCounters::disconnected},
    {"soft.cm.failed", &cm::AgentCounters::failed},
};

struct MemoryName {
  const char* name;
  uint64_t MemoryCounters::*field;
};
constexpr MemoryName kMemory[] = {
    {"soft.memory.protection_domains", &MemoryCounters::protection_domains},
    {"soft.memory.regions", &MemoryCounters::regions},
    {"soft.memory.windows", &MemoryCounters::windows},
    {"soft.memory.bound_windows", &MemoryCounters::bound_windows},
};

}  // namespace

std::vector<CounterValue> Device::counters_of(unsigned reactor) const {
  const auto found = std::ranges::find(shards_, reactor,
                                       [](const auto& shard) { return shard->reactor().index(); });
  if (found == shards_.end()) return {};
  std::vector<CounterValue> out;
  const ShardCounters shard = (*found)->counters();
  for (const auto& [name, field] : kTransport)
    if (of_reactor(name)) out.push_back({name, shard.transport.*field});
  for (const auto& [name, field] : kShard)
    if (of_reactor(name)) out.push_back({name, shard.*field});
  const LinkCounters& link = (*found)->link().counters();
  for (const auto& [name, field] : kLink)
    if (of_reactor(name)) out.push_back({name, (link.*field).load(std::memory_order_relaxed)});
  return out;
}

std::vector<CounterValue> Device::counters() const {
  std::vector<CounterValue> out;
  std::vector<ShardCounters> shards;
  for (const auto& shard : shards_) shards.push_back(shard->counters());
  for (const auto& [name, field] : kTransport) {
    uint64_t sum = 0;
    for (const ShardCounters& shard : shards) sum += shard.transport.*field;
    out.push_back({name, sum});
  }
  for (const auto& [name, field] : kShard) {
    uint64_t sum = 0;
    for (const ShardCounters& shard : shards) sum += shard.*field;
    out.push_back({name, sum});
  }
  for (const auto& [name, field] : kLink) {
    uint64_t sum = 0;
    for (const auto& shard : shards_)
      sum += (shard->link().counters().*field).load(std::memory_order_relaxed);
    out.push_back({name, sum});
  }
  if (options_.fault_injection) {
    for (const auto& [name, direction, field] : kFaults) {
      uint64_t sum = 0;
      for (const auto& shard : shards_)
        sum += (((*shard).*direction)().*field).load(std::memory_order_relaxed);
      out.push_back({name, sum});
    }
  }
  const cm::AgentCounters agent = connections_->agent_counters();
  for (const auto& [name, field] : kAgent) out.push_back({name, agent.*field});
  const MemoryCounters memory = keys_->counters();
  for (const auto& [name, field] : kMemory) out.push_back({name, memory.*field});

  uint32_t buffer = ~0u;  // the smallest is what limits
  for (const auto& shard : shards_) buffer = std::min(buffer, shard->link().receive_buffer_bytes());
  out.push_back({"soft.connections", connections_->live()});
  out.push_back({"soft.pcap_failed", pcap_ && pcap_->failed() ? 1u : 0u});
  constexpr CounterKind kSmallest = CounterKind::Smallest;
  out.push_back({"soft.path_mtu_bytes", capabilities_.path_mtu, kSmallest});
  out.push_back({"soft.receive_window_bytes", capabilities_.receive_window_bytes, kSmallest});
  out.push_back({"socket.receive_buffer_bytes", buffer, kSmallest});
  out.push_back({"socket.gso", gso_.load(std::memory_order_relaxed) ? 1u : 0u, kSmallest});
  return out;
}

}  // namespace nvmeof::rdma::soft
