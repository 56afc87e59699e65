// Any bytes as capsules, in any order with backing, control plane and connection doing what they
// may: to a bound and to an unbound queue of one target. Afterwards nothing may be left in use.
//
// Input: records of a control byte, a length byte (in units of 2), and that many bytes of capsule.
// Length 255: no capsule; what the target sends stays where it is from here on, or leaves again.
// Control bits: 0 to the unbound queue, 1 name the host's memory in the SGL, 2 the backing holds
// its requests from here on, 3 it releases them, 4 the control plane answers, 5 abort this CID, 6
// do not settle yet, 7 pad the capsule to a whole SQE with PSDT 01.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "support/target_rig.h"

using namespace nvmeof::test;
using namespace nvmeof::nvmf;
namespace rdma = nvmeof::rdma;

namespace {

constexpr uint32_t kQueues[2] = {7, 8};

void answer_all(TargetRig& rig) {
  static const std::vector<uint8_t> data(4096, 0xA5);
  std::vector<Event> events;
  events.swap(rig.sink.events);
  for (const Event& event : events)
    if (event.kind == EventKind::Capsule)
      rig.engine->complete(event.id, event.tag, event.tag, event.first[2] & 1 ? 0x4002 : 0, data);
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "after the run: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  TargetLimits limits = TargetRig::small_limits();
  limits.arena_bytes = limits.max_transfer_bytes = 64 * 1024;
  limits.arena_bytes *= 2;
  limits.shared_receives = 16;
  limits.in_capsule_bytes = 384;  // the longest capsules of the input are longer
  limits.sole_reactor = true;
  rdma::Capabilities device = LoopbackFabric::full_capabilities();
  device.free_registration = true;
  ScriptedBacking first(128 * 1024), second(64 * 1024, 4096), third(32 * 1024), memory(16 * 1024);
  memory.is_resident = true;
  third.deallocates = false;  // the backings outlive the rig's channels
  TargetRig rig(limits, device);
  rig.add_namespace(1, &first);
  rig.add_namespace(2, &second);
  rig.add_namespace(3, &third, false, 4096);
  rig.add_namespace(4, &third, true);
  rig.add_namespace(5, &memory);
  auto hosts = std::array{std::make_unique<RawHost>(&rig, kQueues[0], 8, 128 * 1024),
                          std::make_unique<RawHost>(&rig, kQueues[1], 8, 128 * 1024)};
  rig.bind(*hosts[0]);
  const std::array numbers{hosts[0]->target_qp(), hosts[1]->target_qp()};
  bool silent = false;
  const auto set_silent = [&](bool value) {
    silent = value;
    for (const uint32_t number : numbers) rig.fabric.hold(number, silent);
  };

  for (size_t at = 0; size - at >= 2;) {
    const uint8_t control = input[at];
    if (input[at + 1] == 0xff) {
      set_silent(!silent);
      at += 2;
      continue;
    }
    const size_t length = std::min<size_t>(size_t{input[at + 1]} * 2, size - at - 2);
    std::vector<uint8_t> capsule(input + at + 2, input + at + 2 + length);
    at += 2 + length;
    RawHost& host = *hosts[control & 1];
    if (control & 0x80) {
      if (capsule.size() < 64) capsule.resize(64);
      capsule[1] = static_cast<uint8_t>((capsule[1] & 0x04) | 0x40);
    }
    if ((control & 2) && capsule.size() >= 64) {
      const Sqe named = Sqe(0, 0).keyed(host.address(), 0, host.key());
      std::copy_n(&named.bytes[24], 8, &capsule[24]);
      std::copy_n(&named.bytes[35], 4, &capsule[35]);
    }
    first.hold = second.hold = third.hold = control & 4;
    host.send_bytes(capsule);
    if (!(control & 0x40)) rig.settle();
    if (control & 8) {
      first.release_all();
      second.release_all();
      third.release_all();
    }
    if (control & 0x10) answer_all(rig);
    if ((control & 0x20) && capsule.size() >= 64)
      rig.engine->abort(host.queue, load16(&capsule[2]));
  }

  set_silent(false);
  for (auto& host : hosts) host->disconnect();
  rig.settle();
  for (ScriptedBacking* backing : {&first, &second, &third}) {
    backing->hold = false;
    backing->release_all();
  }
  rig.settle();
  require(rig.engine->live_queues() == 0, "a queue is left");
  require(rig.counter("live.targetCommands") == 0, "a command is left");
  require(rig.counter("live.targetBuffers") == 0, "a buffer is left");
  require(rig.counter("live.targetReceives") == 0, "a receive is left");
  require(rig.fabric.live_queue_pairs() == 2, "a queue pair is left");
  return 0;
}
