// What a target does when no Keep Alive came in time: nothing of that controller is begun any more,
// its queues end, and a sign of life that comes too late brings nothing back.
#include <algorithm>

#include "support/target_rig.h"
#include "test.h"

using namespace nvmeof::test;
using namespace nvmeof::nvmf;
namespace block = nvmeof::block;
namespace rdma = nvmeof::rdma;
using nvmeof::reactor::kNever;
using nvmeof::reactor::Lease;
using nvmeof::reactor::TimeNs;

namespace {

constexpr TimeNs kHour = 3'600'000'000'000;

TargetLimits sole_reactor() {
  TargetLimits limits = TargetRig::small_limits();
  limits.sole_reactor = true;
  return limits;
}

struct Leased {
  std::unique_ptr<block::Backing> memory = open_memory();
  TargetRig rig;
  RawHost host;
  std::shared_ptr<Lease> lease = std::make_shared<Lease>();

  // `in_place`: host data are fetched to where they belong.
  explicit Leased(bool in_place = false)
      : rig(sole_reactor(), capabilities(in_place)), host(&rig, 7, 16) {
    rig.add_namespace(1, memory.get());
    CHECK(lease->set(kHour, Lease::clock()));
    rig.engine->bind(7, {1, 1, 1, false, 0, lease});
    std::fill(host.memory.begin(), host.memory.end(), 'X');
  }
  ~Leased() { rig.check_idle(); }
  static std::unique_ptr<block::Backing> open_memory() {
    block::Options options;
    options.kind = block::Kind::Memory;
    options.size = 1 << 20;
    return std::move(*block::open_backing(options));
  }
  static rdma::Capabilities capabilities(bool in_place) {
    rdma::Capabilities all = LoopbackFabric::full_capabilities();
    all.free_registration = in_place;
    return all;
  }
  void end() { CHECK(lease->set(1, Lease::clock() - 1000)); }
  uint8_t byte(uint64_t at) const {
    return static_cast<const uint8_t*>(memory->resident().base)[at];
  }
  Sqe write(uint16_t cid, uint64_t slba, uint32_t bytes = 4096) const {
    return Sqe(io::kWrite, cid, 1)
        .range(slba, bytes / 512)
        .keyed(host.address(), bytes, host.key());
  }
  bool ended() const {
    const Event* const closed = rig.sink.last(EventKind::QueueClosed);
    return closed != nullptr && closed->text() == "no Keep Alive came in time";
  }
};

}  // namespace

TEST(a_write_is_done_while_the_lease_holds) {
  for (const bool in_place : {false, true}) {
    Leased t(in_place);
    CHECK_EQ(t.host.ask(t.write(1, 8)).status, 0);
    CHECK_EQ(t.byte(8 * 512), 'X');
    CHECK_EQ(t.rig.sink.count(EventKind::QueueClosed), 0u);
  }
}

TEST(nothing_that_changes_data_begins_after_it_and_the_queue_ends) {
  for (const uint8_t opcode : {io::kWrite, io::kWriteZeroes, io::kDatasetManagement}) {
    Leased t;
    CHECK_EQ(t.host.ask(t.write(1, 0)).status, 0);
    std::fill(t.host.memory.begin(), t.host.memory.end(), 'Z');
    t.end();
    Sqe late = t.write(2, 0);
    late.byte(sqe::kOpcode, opcode);
    if (opcode == io::kDatasetManagement) {
      std::fill_n(t.host.memory.begin(), 16, uint8_t{0});
      t.host.memory[4] = 8;  // blocks of its one range
      late.dword(sqe::kCdw10, 0).dword(sqe::kCdw11, 4);
    }
    t.host.send(late);
    t.host.send(t.write(3, 100));
    t.rig.settle();
    CHECK(t.ended());
    CHECK(t.host.answer(2) == nullptr && t.host.answer(3) == nullptr);
    CHECK_EQ(t.byte(0), 'X');
    CHECK_EQ(t.byte(100 * 512), 0);
    CHECK_EQ(t.rig.sink.count(EventKind::QueueQuiet), 1u);
    CHECK_EQ(t.rig.sink.count(EventKind::IoError), 0u);
  }
}

TEST(in_capsule_data_are_not_written_either) {
  Leased t;
  t.end();
  t.host.send(Sqe(io::kWrite, 1, 1).range(0, 1).in_capsule(0, 512), std::vector<uint8_t>(512, 'X'));
  t.rig.settle();
  CHECK(t.ended());
  CHECK_EQ(t.byte(0), 0);
}

TEST(reads_go_on) {
  Leased t;
  t.end();
  const Sqe read = Sqe(io::kRead, 1, 1).range(0, 8).keyed(t.host.address(), 4096, t.host.key());
  CHECK_EQ(t.host.ask(read).status, 0);
  CHECK_EQ(t.host.memory[0], 0);
}

// What is fetched to where it belongs lands without a submission.
TEST(host_data_that_come_late_are_not_placed) {
  Leased t(true);
  const uint32_t target = t.host.target_qp();
  t.rig.fabric.hold(target, true);
  t.host.send(t.write(1, 8));
  t.rig.settle();
  CHECK_EQ(t.rig.counter("live.targetBuffers"), 0u);
  t.end();
  t.rig.fabric.hold(target, false);
  t.rig.settle();
  CHECK_EQ(t.byte(8 * 512), 0);
  CHECK(t.ended());
}

TEST(keep_alive_renews_it_when_it_arrives_and_ends_its_queue_when_too_late) {
  Leased t;
  RawHost admin(&t.rig, 8, 16);
  t.rig.engine->renew_by(8, t.lease);
  CHECK(t.lease->set(kHour, Lease::clock() - kHour / 2));
  CHECK(t.lease->left(Lease::clock()) <= kHour / 2);
  admin.send(Sqe(0x18, 1));
  t.rig.settle();
  CHECK(t.lease->left(Lease::clock()) > kHour / 2);
  CHECK_EQ(t.rig.sink.count(EventKind::Capsule), 1u);
  t.rig.engine->complete(8, t.rig.sink.last(EventKind::Capsule)->tag, 0, 0, {});
  t.rig.settle();
  CHECK_EQ(admin.answers.size(), 1u);
  // Another command is no sign of life.
  CHECK(t.lease->set(kHour, Lease::clock() - kHour / 2));
  admin.send(Sqe(0x06, 2));
  t.rig.settle();
  CHECK(t.lease->left(Lease::clock()) <= kHour / 2);
  t.rig.engine->complete(8, t.rig.sink.last(EventKind::Capsule)->tag, 0, 0, {});

  t.end();
  admin.send(Sqe(0x18, 3));
  t.rig.settle();
  CHECK(t.ended());
  CHECK_EQ(t.rig.sink.last(EventKind::QueueClosed)->id, 8u);
  CHECK_EQ(t.rig.sink.count(EventKind::Capsule), 2u);
  CHECK(t.lease->over(Lease::clock()));
}

TEST_MAIN
