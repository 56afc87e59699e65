// A target engine over the loopback provider, polled by the test, and raw hosts that send it any
// bytes as capsules. Time stands still unless the test moves it. Single thread.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "nvmf/nvme.h"
#include "nvmf/status.h"
#include "nvmf/target_engine.h"
#include "support/loopback_provider.h"
#include "support/scripted_backing.h"

namespace nvmeof::test {

using nvmf::EventKind;

struct Event {
  EventKind kind;
  uint32_t id, tag, code;
  uint64_t value;
  std::vector<uint8_t> first, second;
  std::string text() const { return {second.begin(), second.end()}; }
};

class EventCollector : public nvmf::EventSink {
 public:
  void push(EventKind kind, uint32_t id, uint32_t tag, uint32_t code, uint64_t value,
            std::span<const uint8_t> first, std::span<const uint8_t> second) override {
    events.push_back(
        {kind, id, tag, code, value, {first.begin(), first.end()}, {second.begin(), second.end()}});
  }
  size_t count(EventKind kind) const;
  const Event* last(EventKind kind) const;  // nullptr: none
  std::vector<Event> events;
};

// A submission queue entry under construction: PSDT 01, no data.
struct Sqe {
  std::array<uint8_t, 64> bytes{};
  Sqe(uint8_t opcode, uint16_t cid, uint32_t nsid = 0);
  Sqe& range(uint64_t slba, uint32_t blocks);  // blocks: 1-based
  Sqe& keyed(uint64_t address, uint32_t length, uint32_t key, uint8_t type = nvmf::kSglKeyed);
  Sqe& in_capsule(uint64_t offset, uint32_t length);
  Sqe& dword(unsigned offset, uint32_t value);
  Sqe& byte(unsigned offset, uint8_t value);
};

struct Answer {
  uint64_t result;
  uint16_t sqhd, sqid, cid, status;  // status as nvmf::status has it
  uint32_t invalidated;              // key, 0: plain SEND
};

class TargetRig;

class RawHost {
 public:
  // Connects a queue; the rig accepts it as `queue`. In-capsule data as the rig's limits say.
  RawHost(TargetRig* rig, uint32_t queue, uint32_t depth, size_t memory_bytes = 3u << 20);
  ~RawHost();
  void send(const Sqe& sqe, std::span<const uint8_t> data = {});
  void send_bytes(std::span<const uint8_t> capsule);
  // Sends, settles, and returns the answer; status 0xFFFF: none came.
  Answer ask(const Sqe& sqe, std::span<const uint8_t> data = {});
  const Answer* answer(uint16_t cid) const;  // the last one with this CID
  void poll();
  void disconnect();
  // A key over the host's memory that dies by invalidation.
  uint32_t bind_window(uint64_t offset, uint64_t length);
  uint64_t address(uint64_t offset = 0) const {
    return reinterpret_cast<uint64_t>(memory.data()) + offset;
  }
  uint32_t key() const { return region_->rkey(); }
  uint32_t target_qp() const;  // number of the target's queue pair

  std::vector<uint8_t> memory;
  std::vector<Answer> answers;
  bool connected = false, failed = false, disconnected = false;
  uint32_t queue;
  std::unique_ptr<rdma::QueuePair> qp;

 private:
  class Handler;
  void post_receive(uint32_t index);
  TargetRig* rig_;
  std::unique_ptr<Handler> handler_;
  std::unique_ptr<rdma::ProtectionDomain> pd_;
  std::unique_ptr<rdma::CompletionQueue> cq_;
  std::unique_ptr<rdma::MemoryRegion> region_, capsules_region_;
  std::vector<std::unique_ptr<rdma::MemoryWindow>> windows_;
  std::vector<uint8_t> capsules_;  // receives, then one outgoing capsule per send
  uint32_t receives_, capsule_bytes_, sends_ = 0, send_slots_;
  rdma::ConnectionId connection_ = 0;
};

class TargetRig {
 public:
  explicit TargetRig(nvmf::TargetLimits limits = small_limits(),
                     const rdma::Capabilities& target = LoopbackFabric::full_capabilities());
  ~TargetRig();
  // 2 MiB arena, 64 receives, 4096 bytes in capsule, 256 KiB transfers.
  static nvmf::TargetLimits small_limits();
  void settle();
  // Adds the backing as a namespace of table 1 and waits until that holds.
  void add_namespace(uint32_t nsid, block::Backing* backing, bool write_protected = false,
                     uint32_t max_transfer = 0);
  // Binds the host's queue as I/O queue 1 of table 1.
  void bind(const RawHost& host, bool flow_control_disabled = false);
  uint64_t counter(const char* name);  // aborts on an unknown name
  // CHECKs that no slot, buffer or receive is in use.
  void check_idle();

  nvmf::TargetLimits limits;
  LoopbackFabric fabric;
  std::unique_ptr<LoopbackDevice> target_device, host_device;
  EventCollector sink;
  std::unique_ptr<nvmf::TargetEngine> engine;
  std::vector<RawHost*> hosts;
  uint64_t now = 1;
  uint32_t next_host = 2;
};

}  // namespace nvmeof::test
