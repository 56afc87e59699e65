// Reads of namespaces that lie in memory: sent from there without a buffer, where that is safe, and
// what the namespace then waits for. Over the loopback provider, whose packets carry 1024 bytes.
#include <algorithm>

#include "support/target_rig.h"
#include "test.h"

using namespace nvmeof::test;
using namespace nvmeof::nvmf;
namespace rdma = nvmeof::rdma;

namespace {

TargetLimits sole_reactor(bool alone = true) {
  TargetLimits limits = TargetRig::small_limits();
  limits.sole_reactor = alone;
  return limits;
}
rdma::Capabilities free_registration(bool is_free = true) {
  rdma::Capabilities capabilities = LoopbackFabric::full_capabilities();
  capabilities.free_registration = is_free;
  return capabilities;
}

struct Resident {
  ScriptedBacking backing;
  TargetRig rig;
  RawHost host;
  explicit Resident(const TargetLimits& limits = sole_reactor(),
                    const rdma::Capabilities& capabilities = free_registration(),
                    uint32_t block_size = 512)
      : backing(1u << 20, block_size), rig(limits, capabilities), host(&rig, 7, 16) {
    for (size_t i = 0; i < backing.bytes.size(); i++)
      backing.bytes[i] = static_cast<uint8_t>(i * 13 + (i >> 9));
    backing.is_resident = true;
    rig.add_namespace(1, &backing);
    rig.bind(host);
  }
  ~Resident() { rig.check_idle(); }
  Sqe read(uint16_t cid, uint64_t slba, uint32_t bytes) const {
    return Sqe(io::kRead, cid, 1)
        .range(slba, bytes / backing.block_size())
        .keyed(host.address(), bytes, host.key());
  }
  bool arrived(uint64_t slba, uint32_t bytes) const {
    const auto from =
        backing.bytes.begin() + static_cast<std::ptrdiff_t>(slba * backing.block_size());
    return std::equal(from, from + bytes, host.memory.begin());
  }
};

struct Flag {
  int runs = 0;
  static void set(void* context) { static_cast<Flag*>(context)->runs++; }
};

}  // namespace

TEST(a_read_is_sent_from_where_the_data_lies) {
  Resident r;
  CHECK_EQ(r.host.ask(r.read(1, 100, 8192)).status, 0);
  CHECK(r.arrived(100, 8192));
  CHECK(r.backing.seen.empty());  // the backing was not asked
  CHECK_EQ(r.rig.counter("target.bytes.read"), 8192u);
  // More at a time than buffers would hold.
  const uint32_t target = r.host.target_qp();
  r.rig.fabric.hold(target, true);
  for (uint16_t cid = 2; cid < 14; cid++) r.host.send(r.read(cid, 0, 256 * 1024));
  r.rig.settle();
  CHECK_EQ(r.rig.counter("live.targetBuffers"), 0u);
  r.rig.fabric.hold(target, false);
  r.rig.settle();
  for (uint16_t cid = 2; cid < 14; cid++) CHECK_EQ(r.host.answer(cid)->status, 0);
  CHECK(r.arrived(0, 256 * 1024));
}

TEST(what_stands_there_when_it_leaves_is_sent) {
  Resident r;
  const uint32_t target = r.host.target_qp();
  r.rig.fabric.hold(target, true);
  r.host.send(r.read(1, 8, 512));
  r.rig.settle();
  std::fill_n(r.backing.bytes.begin() + 8 * 512, 512, uint8_t{0xEE});
  r.rig.fabric.hold(target, false);
  r.rig.settle();
  CHECK_EQ(r.host.answer(1)->status, 0);
  CHECK(r.arrived(8, 512));
}

TEST(a_read_goes_through_a_buffer_where_memory_may_not_be_sent) {
  // Another reactor may write meanwhile; registered memory is pinned; a block needs several
  // packets.
  struct Case {
    TargetLimits limits;
    rdma::Capabilities capabilities;
    uint32_t block_size;
  };
  for (const Case& each : {Case{sole_reactor(false), free_registration(), 512},
                           Case{sole_reactor(), free_registration(false), 512},
                           Case{sole_reactor(), free_registration(), 4096}}) {
    Resident r(each.limits, each.capabilities, each.block_size);
    CHECK_EQ(r.host.ask(r.read(1, 2, 8192)).status, 0);
    CHECK(r.arrived(2, 8192));
    CHECK_EQ(r.backing.seen.size(), 1u);
  }
}

TEST(refusals_are_as_ever) {
  Resident r;
  CHECK_EQ(r.host.ask(r.read(1, 2048, 512)).status, status::kLbaOutOfRange);
  CHECK_EQ(r.host.ask(r.read(2, 0, 512).dword(sqe::kNsid, 9)).status, status::kInvalidNamespace);
  CHECK(r.backing.seen.empty());
}

TEST(a_namespace_stays_until_the_host_has_what_was_read) {
  Resident r;
  const uint32_t target = r.host.target_qp();
  r.rig.fabric.hold_acknowledgements(target, true);
  r.host.send(r.read(1, 0, 4096));
  r.rig.settle();
  CHECK_EQ(r.host.answer(1)->status, 0);  // but nothing says that it arrived
  Flag removed;
  r.rig.engine->remove_namespace(1, 1, Flag::set, &removed);
  r.rig.settle();
  CHECK_EQ(removed.runs, 0);
  CHECK_EQ(r.backing.open_channels, 1);
  r.rig.fabric.hold_acknowledgements(target, false);
  r.rig.settle();
  CHECK_EQ(removed.runs, 1);
  CHECK_EQ(r.backing.open_channels, 0);
  CHECK_EQ(r.host.ask(r.read(2, 0, 512)).status, status::kInvalidNamespace);
}

TEST(a_queue_that_dies_lets_go_of_the_namespace) {
  Resident r;
  r.rig.fabric.hold(r.host.target_qp(), true);
  for (uint16_t cid = 1; cid < 8; cid++) r.host.send(r.read(cid, 0, 4096));
  r.rig.settle();
  Flag removed;
  r.rig.engine->remove_namespace(1, 1, Flag::set, &removed);
  r.host.disconnect();
  r.rig.settle();
  CHECK_EQ(removed.runs, 1);
}

// ---- writes

namespace {

Sqe write(const Resident& r, uint16_t cid, uint64_t slba, uint32_t bytes) {
  return Sqe(io::kWrite, cid, 1)
      .range(slba, bytes / r.backing.block_size())
      .keyed(r.host.address(), bytes, r.host.key());
}

void fill(Resident& r, uint8_t with) {
  std::fill(r.host.memory.begin(), r.host.memory.end(), with);
}

}  // namespace

TEST(a_write_is_fetched_to_where_the_data_belong) {
  Resident r;
  fill(r, 0x5A);
  const std::vector<uint8_t> before = r.backing.bytes;
  CHECK_EQ(r.host.ask(write(r, 1, 100, 8192)).status, 0);
  CHECK(r.arrived(100, 8192));
  CHECK(r.backing.seen.empty());  // the backing was not asked
  CHECK_EQ(r.rig.counter("target.bytes.written"), 8192u);
  // And nothing beside it.
  CHECK(std::equal(before.begin(), before.begin() + 100 * 512, r.backing.bytes.begin()));
  CHECK(std::equal(before.begin() + 116 * 512, before.end(), r.backing.bytes.begin() + 116 * 512));
}

TEST(a_write_goes_through_a_buffer_where_a_block_takes_several_packets) {
  Resident r(sole_reactor(), free_registration(), 4096);
  fill(r, 0x5A);
  CHECK_EQ(r.host.ask(write(r, 1, 2, 8192)).status, 0);
  CHECK(r.arrived(2, 8192));
  CHECK_EQ(r.backing.seen.size(), 1u);
}

TEST(a_write_to_a_protected_namespace_leaves_it_alone) {
  Resident r;
  r.rig.add_namespace(1, &r.backing, true);
  fill(r, 0x5A);
  const std::vector<uint8_t> before = r.backing.bytes;
  CHECK_EQ(r.host.ask(write(r, 1, 0, 4096)).status, status::kNamespaceWriteProtected);
  CHECK(r.backing.bytes == before);
}

TEST(a_write_that_met_a_shrinking_namespace_is_fetched_again) {
  Resident r;
  const uint32_t target = r.host.target_qp();
  r.rig.fabric.hold(target, true);
  r.host.send(write(r, 1, 100, 8192));
  r.rig.settle();
  CHECK(r.host.answer(1) == nullptr);
  r.backing.shrunk++;
  r.rig.fabric.hold(target, false);
  r.rig.settle();
  CHECK_EQ(r.host.answer(1)->status, 0);
  CHECK(r.arrived(100, 8192));
  CHECK_EQ(r.backing.seen.size(), 1u);  // through a buffer
  CHECK_EQ(r.host.ask(write(r, 2, 100, 8192)).status, 0);
  CHECK_EQ(r.backing.seen.size(), 1u);
}

TEST(a_queue_that_dies_is_quiet_when_nothing_is_fetched_into_memory_any_more) {
  Resident r;
  const uint32_t target = r.host.target_qp();
  fill(r, 0x5A);
  r.rig.fabric.hold_disconnects = true;
  r.rig.fabric.hold(target, true);
  r.host.send(write(r, 1, 100, 8192));
  r.rig.settle();
  r.rig.engine->close(7);
  r.rig.settle();
  CHECK_EQ(r.rig.sink.count(EventKind::QueueQuiet), 0u);
  CHECK_EQ(r.rig.counter("live.targetCommands"), 1u);
  r.rig.now += 1'000'000'000;  // patience ends: the work requests are flushed
  r.rig.settle();
  CHECK_EQ(r.rig.sink.count(EventKind::QueueQuiet), 1u);
  CHECK_EQ(r.rig.sink.count(EventKind::QueueClosed), 0u);
  const std::vector<uint8_t> then = r.backing.bytes;
  r.rig.fabric.hold(target, false);
  r.rig.settle();
  CHECK(r.backing.bytes == then);
  r.rig.fabric.hold_disconnects = false;
  r.rig.settle();
}

TEST(a_namespace_stays_until_what_is_written_to_it_has_come) {
  for (const bool dies : {false, true}) {
    Resident r;
    r.rig.fabric.hold(r.host.target_qp(), true);
    for (uint16_t cid = 1; cid < 8; cid++) r.host.send(write(r, cid, cid * 8, 4096));
    r.rig.settle();
    Flag removed;
    r.rig.engine->remove_namespace(1, 1, Flag::set, &removed);
    r.rig.settle();
    CHECK_EQ(removed.runs, 0);
    if (dies)
      r.host.disconnect();
    else
      r.rig.fabric.hold(r.host.target_qp(), false);
    r.rig.settle();
    CHECK_EQ(removed.runs, 1);
    if (!dies) CHECK_EQ(r.host.answer(1)->status, status::kInvalidNamespace);
  }
}

TEST_MAIN
