// Faults in packets; see fault_link.h.
#include "rdma/soft/fault_link.h"

#include <algorithm>
#include <cstring>

#include "rdma/soft/icrc.h"

namespace nvmeof::rdma::soft {

namespace {

using reactor::add_relaxed;

constexpr size_t kScratchBytes = 64 << 10;
constexpr unsigned kSendBatch = 32;

bool needs_queue(const FaultRule& rule) {
  return rule.delay_ns > 0 || rule.jitter_ns > 0 || rule.reorder > 0;
}

// SplitMix64's finalizer: seeds that are next to each other give sequences that are not.
uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t FaultLink::Random::next() {
  return mixed(state_ += 0x9e3779b97f4a7c15ull);
}

bool FaultLink::Random::happens(double probability) {
  if (probability <= 0) return false;
  if (probability >= 1) return true;
  return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
}

FaultLink::FaultLink(const FaultRules& rules, const Place& place)
    : rules_(rules),
      place_(place),
      in_(make_direction(false, place.in)),
      out_(make_direction(true, place.out)),
      scratch_(new uint8_t[kScratchBytes]) {}

FaultLink::Direction FaultLink::make_direction(bool out, FaultCounters& counters) const {
  Direction direction{{}, nullptr, counters};
  bool queue = false;
  for (size_t i = 0; i < rules_.rules.size(); i++) {
    const FaultRule& rule = rules_.rules[i];
    if (!(out ? rule.out : rule.in)) continue;
    const uint64_t stream = (uint64_t{place_.index} << 32) | (i << 1) | (out ? 1u : 0u);
    direction.rules.push_back(
        {&rule, gid_of(unmapped(rule.peer)), Random(mixed(rules_.seed) ^ mixed(stream + 1))});
    queue |= needs_queue(rule);
  }
  if (queue)
    direction.queue = std::make_unique<FaultQueue>(rules_.queue_packets, place_.packet_bytes);
  return direction;
}

FaultLink::Rule* FaultLink::Direction::find(const sockaddr_storage& peer) {
  if (rules.empty()) return nullptr;
  const Gid gid = gid_of(unmapped(peer));
  for (Rule& rule : rules) {
    if (rule.what->peer.ss_family == AF_UNSPEC || rule.peer == gid) return &rule;
  }
  return nullptr;
}

// The draws of a packet do not depend on what became of those before it.
FaultLink::Fate FaultLink::draw(Rule& rule, FaultCounters& count) const {
  const FaultRule& what = *rule.what;
  const bool drop = rule.random.happens(what.drop);
  const bool duplicate = rule.random.happens(what.duplicate);
  const bool reorder = rule.random.happens(what.reorder);
  const uint64_t jitter = what.jitter_ns > 0 ? rule.random.next() % (what.jitter_ns + 1) : 0;
  Fate fate;
  if (drop) {
    add_relaxed(count.dropped, 1);
    fate.copies = 0;
    return fate;
  }
  if (what.delay_ns + what.jitter_ns > 0) {
    rule.last_due = std::max(rule.last_due, place_.now + what.delay_ns + jitter);
    fate.due = rule.last_due;
  }
  if (reorder) {
    add_relaxed(count.reordered, 1);
    fate.due = (fate.due == 0 ? place_.now : fate.due) + what.reorder_ns;
  }
  if (duplicate) {
    add_relaxed(count.duplicated, 1);
    fate.copies = 2;
  }
  return fate;
}

// Puts the packet into the queue; false when there was none to put.
bool FaultLink::keep(Direction& direction, HeldPacket* packet, TimeNs due) {
  if (packet == nullptr) {
    add_relaxed(direction.count.overflowed, 1);
    return false;
  }
  add_relaxed(direction.count.delayed, 1);
  direction.queue->push(packet, due);
  return true;
}

// ---- Out

// Packets of one flow that go on at once. Their identification is their place in the train, which
// their ICRC covers (PROTOCOL.md 2.2): it is computed again where that changed.
struct FaultLink::Gathered {
  Link& below;
  uint8_t* const scratch;
  Train train{};

  void add(const Flow& flow, std::span<const uint8_t> packet, uint16_t segment_bytes,
           uint16_t was) {
    const auto length = static_cast<uint32_t>(packet.size());
    const uint32_t bytes_max = std::min<uint32_t>(below.train_bytes_max(), kScratchBytes);
    if (train.segments == below.segments_max() || train.total_bytes + length > bytes_max) flush();
    uint8_t* const at = scratch + train.total_bytes;
    std::memcpy(at, packet.data(), length);
    if (was != train.segments) icrc_append(flow, at, length, train.segments);
    const auto segments = static_cast<uint16_t>(train.segments + 1);
    train = {&flow, scratch, train.total_bytes + length, segment_bytes, segments};
    if (length < segment_bytes) flush();  // only the last of a train may be shorter
  }
  void flush() {
    // The kernel takes a single packet for a train only as long as it says.
    if (train.segments == 1) train.segment_bytes = static_cast<uint16_t>(train.total_bytes);
    if (train.segments > 0) below.send({&train, 1});
    train = {};
  }
};

void FaultLink::send(std::span<const Train> trains) {
  size_t first = 0;  // of those that go as they are
  for (size_t i = 0; i < trains.size(); i++) {
    Rule* const rule = out_.find(trains[i].flow->remote);
    if (rule == nullptr) continue;
    Fate fate;
    const uint16_t untouched = untouched_segments(*rule, trains[i], &fate);
    if (untouched == trains[i].segments) continue;
    if (i > first) place_.below.send(trains.subspan(first, i - first));
    first = i + 1;
    send_piecewise(*rule, trains[i], untouched, fate);
  }
  if (first < trains.size()) place_.below.send(trains.subspan(first));
}

// How many packets of the train nothing happens to until one has another fate.
uint16_t FaultLink::untouched_segments(Rule& rule, const Train& train, Fate* fate) {
  for (uint16_t i = 0; i < train.segments; i++) {
    *fate = draw(rule, out_.count);
    if (!fate->untouched()) return i;
  }
  return train.segments;
}

// The packet behind the `untouched` ones has the fate that was drawn; the rest have none yet.
void FaultLink::send_piecewise(Rule& rule, const Train& train, uint16_t untouched, Fate fate) {
  Gathered gathered{place_.below, scratch_.get()};
  for (uint16_t i = 0; i < train.segments; i++) {
    const uint32_t at = uint32_t{i} * train.segment_bytes;
    const uint32_t length = std::min<uint32_t>(train.segment_bytes, train.total_bytes - at);
    const std::span<const uint8_t> packet{train.bytes + at, length};
    if (i > untouched) fate = draw(rule, out_.count);
    const unsigned copies = i < untouched ? 1 : fate.copies;
    const TimeNs due = i < untouched ? 0 : fate.due;
    for (unsigned copy = 0; copy < copies; copy++) {
      if (due == 0) {
        gathered.add(*train.flow, packet, train.segment_bytes, i);
      } else {
        hold_segment(*train.flow, packet, i == 0, due);
      }
    }
  }
  gathered.flush();
}

void FaultLink::hold_segment(const Flow& flow, std::span<const uint8_t> packet, bool first,
                             TimeNs due) {
  HeldPacket* const held = out_.queue->take(static_cast<uint32_t>(packet.size()));
  if (!keep(out_, held, due)) return;
  held->flow = flow;
  std::memcpy(held->bytes, packet.data(), packet.size());
  // It leaves alone.
  if (!first) icrc_append(held->flow, held->bytes, held->length, 0);
}

int FaultLink::transmit_until(TimeNs until) {
  if (out_.queue == nullptr) return 0;
  int packets = 0;
  for (;;) {
    std::array<HeldPacket*, kSendBatch> due;
    std::array<Train, kSendBatch> trains;
    unsigned count = 0;
    while (count < kSendBatch && (due[count] = out_.queue->pop(until)) != nullptr) {
      const HeldPacket& packet = *due[count];
      trains[count++] = {&packet.flow, packet.bytes, packet.length,
                         static_cast<uint16_t>(packet.length), 1};
    }
    if (count == 0) return packets;
    place_.below.send({trains.data(), count});
    for (unsigned i = 0; i < count; i++) out_.queue->give(due[i]);
    packets += static_cast<int>(count);
  }
}

// ---- In

void FaultLink::on_packet(const Arrival& arrival, uint16_t expected_id) {
  Rule* const rule = in_.find(*arrival.source);
  if (rule == nullptr) {
    place_.above.on_packet(arrival, expected_id);
    return;
  }
  const Fate fate = draw(*rule, in_.count);
  for (unsigned copy = 0; copy < fate.copies; copy++) {
    if (fate.due == 0) {
      place_.above.on_packet(arrival, expected_id);
      continue;
    }
    HeldPacket* const held = in_.queue->take(arrival.length);
    if (!keep(in_, held, fate.due)) continue;
    held->source = *arrival.source;
    held->ip_id = arrival.ip_id;
    held->expected_id = expected_id;
    held->traffic_class = arrival.traffic_class;
    held->seen = arrival.seen;
    std::memcpy(held->bytes, arrival.bytes, arrival.length);
  }
}

int FaultLink::deliver_until(TimeNs until) {
  if (in_.queue == nullptr) return 0;
  int packets = 0;
  while (HeldPacket* const held = in_.queue->pop(until)) {
    place_.above.on_packet({&held->source, &place_.address, held->bytes, held->length, held->ip_id,
                            held->traffic_class, held->seen},
                           held->expected_id);
    in_.queue->give(held);
    packets++;
  }
  return packets;
}

// ICMP comes on the same way as packets; what our own kernel says does not.
void FaultLink::on_fault(const ErrorReport& report) {
  if (report.fault == SendFault::PortUnreachable) {
    const Rule* const rule = in_.find(report.peer);
    if (rule != nullptr && rule->what->drop >= 1) {
      add_relaxed(in_.count.dropped, 1);
      return;
    }
  }
  place_.above.on_fault(report);
}

// ----

TimeNs FaultLink::next_deadline() const {
  TimeNs next = reactor::kNever;
  for (const Direction* direction : {&in_, &out_}) {
    if (direction->queue != nullptr) next = std::min(next, direction->queue->next_due());
  }
  return next;
}

size_t FaultLink::held() const {
  size_t packets = 0;
  for (const Direction* direction : {&in_, &out_}) {
    if (direction->queue != nullptr) packets += direction->queue->size();
  }
  return packets;
}

}  // namespace nvmeof::rdma::soft
