// Stands between a reactor's link and its transport and does to packets what fault rules say:
// drops, delays, duplicates and reorders them, in both directions. Only there while a device has
// rules. On the reactor's thread; nothing is allocated after it was made.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "rdma/fault_rules.h"
#include "rdma/soft/fault_queue.h"
#include "rdma/soft/flow.h"
#include "rdma/soft/udp_link.h"

namespace nvmeof::rdma::soft {

// Of one direction. Counted on the reactor's thread, read from anywhere.
struct FaultCounters {
  std::atomic<uint64_t> dropped, overflowed, delayed, duplicated, reordered;
};

class FaultLink final : public Link, public LinkEvents {
 public:
  // What a FaultLink stands between, and counts into; all of it outlives it.
  struct Place {
    Link& below;
    LinkEvents& above;
    const TimeNs& now;                // of the reactor's loop iteration
    const sockaddr_storage& address;  // ours
    FaultCounters &in, &out;
    uint32_t packet_bytes;  // of the longest packet
    unsigned index;         // of the reactor: each has faults of its own
  };
  FaultLink(const FaultRules& rules, const Place& place);

  // Link, for the transport
  void send(std::span<const Train> trains) override;
  uint16_t segments_max() const override { return place_.below.segments_max(); }
  uint32_t train_bytes_max() const override { return place_.below.train_bytes_max(); }
  // LinkEvents, for the link
  void on_packet(const Arrival& arrival, uint16_t expected_id) override;
  void on_fault(const ErrorReport& report) override;

  // What is due by now goes on its way; how many packets. deliver() calls on_packet() above.
  int deliver() { return deliver_until(place_.now); }
  int transmit() { return transmit_until(place_.now); }
  // Everything that waits goes on its way now, in order: before the rules change.
  int deliver_all() { return deliver_until(reactor::kNever); }
  int transmit_all() { return transmit_until(reactor::kNever); }
  TimeNs next_deadline() const;
  size_t held() const;  // packets

 private:
  class Random {
   public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next();
    bool happens(double probability);  // 0 and 1 without a draw

   private:
    uint64_t state_;
  };
  // A rule in one direction.
  struct Rule {
    const FaultRule* what;
    Gid peer;
    Random random;
    TimeNs last_due = 0;
  };
  struct Direction {
    std::vector<Rule> rules;
    std::unique_ptr<FaultQueue> queue;  // null: no rule needs one
    FaultCounters& count;
    Rule* find(const sockaddr_storage& peer);
  };
  // What happens to one packet. `due` 0: it goes on at once.
  struct Fate {
    unsigned copies = 1;
    TimeNs due = 0;
    bool untouched() const { return copies == 1 && due == 0; }
  };
  // Of a train, what goes on at once, gathered into trains again.
  struct Gathered;

  Direction make_direction(bool out, FaultCounters& counters) const;
  Fate draw(Rule& rule, FaultCounters& count) const;
  bool keep(Direction& direction, HeldPacket* packet, TimeNs due);
  uint16_t untouched_segments(Rule& rule, const Train& train, Fate* fate);
  void send_piecewise(Rule& rule, const Train& train, uint16_t untouched, Fate fate);
  void hold_segment(const Flow& flow, std::span<const uint8_t> packet, bool first, TimeNs due);
  int deliver_until(TimeNs until);
  int transmit_until(TimeNs until);

  const FaultRules rules_;
  const Place place_;
  Direction in_, out_;
  std::unique_ptr<uint8_t[]> scratch_;  // a train
};

}  // namespace nvmeof::rdma::soft
