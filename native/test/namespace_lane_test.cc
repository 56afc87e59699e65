// A namespace lane over a real host engine and a scripted controller: what its commands look like,
// how requests are cut, wait, fail and end.
#include "attach/namespace_lane.h"

#include <unistd.h>

#include "support/host_harness.h"

using namespace nvmeof;
using namespace nvmeof::attach;
using namespace nvmeof::nvmf;
using namespace nvmeof::test;

namespace {

constexpr uint32_t kLba = 512;
constexpr uint32_t kQueue = 1;

Geometry geometry() {
  Geometry g;
  g.nsid = 7;
  g.lba_bytes = kLba;
  g.lba_count = 1ull << 40;
  g.transfer_max = 8 * kLba;
  g.can_write_zeroes = g.can_deallocate = g.volatile_write_cache = true;
  return g;
}

struct Asked {
  IoRequest io;
  int ends = 0;
  IoEnd end{};
  uint16_t status = 0;
  std::vector<Asked*>* order = nullptr;
  void (*then)(Asked* asked) = nullptr;
  void* context = nullptr;
};

struct LaneRig : HostHarness {
  explicit LaneRig(uint32_t depth = 4, const Geometry& g = geometry(), uint32_t queue_depth = 32,
                   rdma::Capabilities capabilities = LoopbackFabric::full_capabilities(),
                   reactor::TimeNs command_time = 0)
      : HostHarness(capabilities) {
    CHECK(connect(kQueue, queue_depth));
    auto made = NamespaceLane::create(engine.get(), reactor::Reactor::current(), kQueue,
                                      {depth, command_time}, g);
    if (!made) std::abort();
    lane = std::move(*made);
    auto registered = lane->register_memory(bytes.data(), kMemory);
    if (!registered) std::abort();
    own = std::move(*registered);
  }
  ~LaneRig() { end(); }

  Asked& ask(Operation operation, uint64_t offset = 0, uint64_t length = 0) {
    asked.emplace_back();
    Asked& made = asked.back();
    made.io.operation = operation;
    made.io.offset = offset;
    made.io.length = length;
    made.io.memory = own.get();
    made.io.context = &made;
    made.order = &order;
    made.io.done = [](IoRequest* request, IoEnd how, uint16_t status) {
      auto* ended = static_cast<Asked*>(request->context);
      ended->ends++;
      ended->end = how;
      ended->status = status;
      ended->order->push_back(ended);
      if (ended->then != nullptr) ended->then(ended);
    };
    return made;
  }
  Asked& submit(Operation operation, uint64_t offset = 0, uint64_t length = 0) {
    Asked& made = ask(operation, offset, length);
    lane->submit(&made.io);
    return made;
  }
  // Answers the oldest capsule that waits.
  Capsule answer(uint16_t status = 0) {
    if (target.capsules.empty()) run();
    if (target.capsules.empty()) {
      fail(__FILE__, __LINE__, "no capsule came");
      return {};
    }
    const Capsule capsule = target.capsules.front();
    target.capsules.pop_front();
    target.respond(capsule, status);
    run();
    return capsule;
  }
  // Everything ended once; nothing of lane or engine is left.
  void end() {
    if (!lane) return;
    CHECK_EQ(lane->in_flight(), 0u);
    for (const Asked& each : asked) CHECK_EQ(each.ends, 1);
    lane.reset();
    own.reset();
    engine->close(kQueue);
    run();
    check_nothing_left();
  }

  std::unique_ptr<NamespaceLane> lane;
  std::unique_ptr<RegisteredMemory> own;
  std::deque<Asked> asked;
  std::vector<Asked*> order;
};

uint32_t cdw(const Capsule& capsule, unsigned index) {
  return load32(capsule.sqe + 4 * index);
}
uint64_t slba(const Capsule& capsule) {
  return load64(capsule.sqe + sqe::kCdw10);
}
uint32_t blocks(const Capsule& capsule) {
  return load16(capsule.sqe + sqe::kCdw12) + 1u;
}

}  // namespace

TEST(read_brings_the_controllers_bytes) {
  on_reactor([] {
    LaneRig r;
    Asked& read = r.ask(Operation::Read, 5 * kLba, 2 * kLba);
    read.io.memory_offset = 4096;
    r.lane->submit(&read.io);
    CHECK_EQ(r.lane->in_flight(), 1u);
    r.run();
    REQUIRE(r.target.capsules.size() == 1);
    const Capsule& capsule = r.target.capsules[0];
    CHECK_EQ(capsule.sqe[0], io::kRead);
    CHECK_EQ(load32(capsule.sqe + sqe::kNsid), 7u);
    CHECK_EQ(slba(capsule), 5u);
    CHECK_EQ(cdw(capsule, 12), 1u);
    CHECK_EQ(capsule.address, reinterpret_cast<uintptr_t>(r.bytes.data()) + 4096);
    CHECK_EQ(capsule.length, 2 * kLba);
    CHECK(r.target.write_host(capsule, std::vector<uint8_t>(2 * kLba, 0xC3)));
    r.answer();
    CHECK_EQ(read.ends, 1);
    CHECK(read.end == IoEnd::Ok);
    CHECK_EQ(r.bytes[4096], 0xC3);
    CHECK_EQ(r.bytes[4096 + 2 * kLba - 1], 0xC3);
    CHECK_EQ(r.lane->in_flight(), 0u);
  });
}

TEST(larger_requests_are_cut_at_the_largest_transfer) {
  on_reactor([] {
    LaneRig r(16);
    Asked& write = r.ask(Operation::Write, 100 * kLba, 20 * kLba);
    write.io.fua = true;
    write.io.memory_offset = 8192;
    r.lane->submit(&write.io);
    r.run();
    REQUIRE(r.target.capsules.size() == 3);
    const uint64_t expected[][2] = {{100, 8}, {108, 8}, {116, 4}};
    uint64_t at = 8192;
    for (const auto& [lba, count] : expected) {
      CHECK_EQ(write.ends, 0);
      const Capsule& capsule = r.target.capsules.front();
      std::vector<uint8_t> data = capsule.data;
      if (data.empty()) CHECK(r.target.read_host(capsule, &data));
      CHECK_EQ(slba(capsule), lba);
      CHECK_EQ(blocks(capsule), count);
      CHECK_EQ(cdw(capsule, 12) >> 16, 1u << 14);  // FUA, in each of them
      CHECK_EQ(data.size(), count * kLba);
      CHECK(std::memcmp(data.data(), r.bytes.data() + at, data.size()) == 0);
      at += count * kLba;
      r.answer();
    }
    CHECK_EQ(write.ends, 1);
    CHECK(write.end == IoEnd::Ok);
  });
}

TEST(a_command_never_has_more_than_65536_blocks) {
  on_reactor([] {
    Geometry g = geometry();
    g.transfer_max = 1u << 31;  // beyond what a keyed SGL describes, too
    LaneRig r(4, g);
    Asked& zeroes = r.ask(Operation::WriteZeroes, kLba, 65537ull * kLba);
    zeroes.io.deallocate = true;
    zeroes.io.fua = true;
    r.lane->submit(&zeroes.io);
    const Capsule first = r.answer(), second = r.answer();
    CHECK_EQ(first.sqe[0], io::kWriteZeroes);
    CHECK_EQ(slba(first), 1u);
    CHECK_EQ(cdw(first, 12), 0xFFFFu | 1u << 25 | 1u << 30);
    CHECK_EQ(slba(second), 65537u);
    CHECK_EQ(cdw(second, 12), 0u | 1u << 25 | 1u << 30);
    CHECK_EQ(first.length, 0u);
    CHECK(zeroes.ends == 1 && zeroes.end == IoEnd::Ok);
    std::vector<uint8_t> large(1u << 24);
    auto memory = r.lane->register_memory(large.data(), large.size());
    REQUIRE(bool(memory));
    Asked& read = r.ask(Operation::Read, 0, large.size());
    read.io.memory = memory->get();
    r.lane->submit(&read.io);
    CHECK_EQ(r.answer().length, (1u << 24) - kLba);
    CHECK_EQ(r.answer().length, kLba);
    CHECK_EQ(read.ends, 1);
  });
}

TEST(the_controllers_own_limits_are_kept) {
  on_reactor([] {
    Geometry g = geometry();
    g.write_zeroes_max = 16;
    g.discard_max = 100;
    LaneRig r(4, g);
    r.submit(Operation::WriteZeroes, 0, 20 * kLba);
    CHECK_EQ(blocks(r.answer()), 16u);
    CHECK_EQ(blocks(r.answer()), 4u);
    r.submit(Operation::Discard, 0, 101 * kLba);
    CHECK_EQ(load32(r.answer().data.data() + 4), 100u);
    CHECK_EQ(load32(r.answer().data.data() + 4), 1u);
  });
}

TEST(write_zeroes_that_keeps_the_blocks_allocated) {
  on_reactor([] {
    LaneRig r;
    r.submit(Operation::WriteZeroes, 0, kLba);
    CHECK_EQ(cdw(r.answer(), 12), 0u);
  });
}

TEST(discard_is_a_range_of_dataset_management) {
  on_reactor([] {
    LaneRig r(4);
    const uint64_t most = 0xFFFFFFFFull;
    Asked& large = r.submit(Operation::Discard, 9 * kLba, (most + 3) * kLba);
    Asked& small = r.submit(Operation::Discard, 77 * kLba, kLba);
    r.run();
    REQUIRE(r.target.capsules.size() == 3);
    const uint64_t expected[][2] = {{9, most}, {9 + most, 3}, {77, 1}};
    for (const auto& [lba, count] : expected) {
      const Capsule capsule = r.answer();
      CHECK_EQ(capsule.sqe[0], io::kDatasetManagement);
      CHECK_EQ(cdw(capsule, 10), 0u);  // one range
      CHECK_EQ(cdw(capsule, 11), 4u);  // deallocate
      CHECK_EQ(cdw(capsule, 12), 0u);
      REQUIRE(capsule.data.size() == 16);
      CHECK_EQ(load32(capsule.data.data()), 0u);
      CHECK_EQ(load32(capsule.data.data() + 4), count);
      CHECK_EQ(load64(capsule.data.data() + 8), lba);
    }
    CHECK(large.ends == 1 && large.end == IoEnd::Ok);
    CHECK(small.ends == 1 && small.end == IoEnd::Ok);
  });
}

TEST(flush_goes_only_where_there_is_a_cache) {
  on_reactor([] {
    {
      LaneRig r;
      Asked& flush = r.submit(Operation::Flush);
      const Capsule capsule = r.answer();
      CHECK_EQ(capsule.sqe[0], io::kFlush);
      CHECK_EQ(load32(capsule.sqe + sqe::kNsid), 7u);
      for (unsigned i = 10; i < 16; i++) CHECK_EQ(cdw(capsule, i), 0u);
      CHECK_EQ(flush.ends, 1);
    }
    Geometry g = geometry();
    g.volatile_write_cache = false;
    LaneRig r(4, g);
    Asked& flush = r.submit(Operation::Flush);
    CHECK(flush.ends == 1 && flush.end == IoEnd::Ok);
    Asked& nothing = r.submit(Operation::Read, 0, 0);
    CHECK(nothing.ends == 1 && nothing.end == IoEnd::Ok);
    r.run();
    CHECK_EQ(r.target.capsules.size(), 0u);
  });
}

TEST(what_the_namespace_cannot_is_not_sent) {
  on_reactor([] {
    Geometry g = geometry();
    g.can_write_zeroes = g.can_deallocate = false;
    {
      LaneRig r(4, g);
      for (const Operation operation : {Operation::WriteZeroes, Operation::Discard}) {
        const Asked& asked = r.submit(operation, 0, kLba);
        CHECK(asked.ends == 1 && asked.end == IoEnd::Failed);
        CHECK_EQ(asked.status, 0x001);  // Invalid Command Opcode
      }
      r.run();
      CHECK_EQ(r.target.capsules.size(), 0u);
    }
    g = geometry();
    g.read_only = true;
    LaneRig r(4, g);
    for (const Operation operation :
         {Operation::Write, Operation::WriteZeroes, Operation::Discard}) {
      const Asked& asked = r.submit(operation, 0, kLba);
      CHECK(asked.ends == 1 && asked.end == IoEnd::Failed);
      CHECK_EQ(asked.status, 0x020);  // Namespace is Write Protected
    }
    r.run();
    CHECK_EQ(r.target.capsules.size(), 0u);
    r.submit(Operation::Read, 0, kLba);
    CHECK_EQ(r.answer().sqe[0], io::kRead);
    r.submit(Operation::Flush);
    CHECK_EQ(r.answer().sqe[0], io::kFlush);
  });
}

TEST(requests_beyond_the_depth_wait_in_order) {
  on_reactor([] {
    LaneRig r(2);
    r.submit(Operation::Read, 0, 24 * kLba);
    for (uint64_t i = 1; i < 6; i++) r.submit(Operation::Read, i * 1000 * kLba, kLba);
    const uint64_t expected[] = {0, 8, 16, 1000, 2000, 3000, 4000, 5000};
    for (const uint64_t lba : expected) {
      r.run();
      CHECK(r.target.capsules.size() <= 2);
      CHECK_EQ(slba(r.answer()), lba);
    }
    REQUIRE(r.order.size() == 6);
    for (size_t i = 0; i < 6; i++) CHECK(r.order[i] == &r.asked[i]);
  });
}

TEST(an_error_in_the_middle_ends_the_request_once) {
  on_reactor([] {
    LaneRig r(2);
    Asked& large = r.submit(Operation::Read, 0, 64 * kLba);
    Asked& next = r.submit(Operation::Read, 5000 * kLba, kLba);
    r.run();
    REQUIRE(r.target.capsules.size() == 2);
    const Capsule first = r.target.capsules[0], second = r.target.capsules[1];
    r.target.capsules.clear();
    r.target.respond(second, 0x4281);  // Unrecovered Read Error, DNR
    r.run();
    CHECK_EQ(large.ends, 0);  // the first command still has its memory
    REQUIRE(r.target.capsules.size() == 1);
    CHECK_EQ(slba(r.target.capsules[0]), 5000u);  // no more of the failed one
    r.target.respond(first, 0x80);
    r.run();
    CHECK_EQ(large.ends, 1);
    CHECK(large.end == IoEnd::Failed);
    CHECK_EQ(large.status, 0x281);  // the first that came, without its flags
    r.answer();
    CHECK(next.ends == 1 && next.end == IoEnd::Ok);
    CHECK_EQ(r.order.size(), size_t{2});
    // The last command of a request, alone.
    Asked& last = r.submit(Operation::Read, 0, 16 * kLba);
    r.answer();
    r.answer(0x4080);
    CHECK(last.ends == 1 && last.end == IoEnd::Failed && last.status == 0x80);
  });
}

TEST(a_failed_first_request_without_commands_leaves_the_list) {
  on_reactor([] {
    LaneRig r(1);
    Asked& large = r.submit(Operation::Read, 0, 64 * kLba);
    Asked& next = r.submit(Operation::Read, 5000 * kLba, kLba);
    r.answer(0x4281);
    CHECK(large.ends == 1 && large.end == IoEnd::Failed);
    CHECK_EQ(slba(r.answer()), 5000u);
    CHECK_EQ(next.ends, 1);
  });
}

TEST(a_dead_queue_ends_everything_once) {
  for (const bool windows : {true, false}) {
    on_reactor([windows] {
      rdma::Capabilities capabilities = LoopbackFabric::full_capabilities();
      capabilities.memory_windows = windows;
      LaneRig r(2, geometry(), 32, capabilities);
      r.submit(Operation::Write, 0, 64 * kLba);
      for (int i = 0; i < 5; i++) r.submit(Operation::Read, 0, kLba);
      r.submit(Operation::Flush);
      r.run();
      r.target.device()->disconnect(r.target.connections[0]->id);
      // Regions go with the last `done`, before the queue and its protection domain do.
      Asked& last = r.asked.back();
      last.context = &r;
      last.then = [](Asked* ended) { static_cast<LaneRig*>(ended->context)->own.reset(); };
      r.run();
      CHECK_EQ(r.order.size(), size_t{7});
      for (const Asked& each : r.asked) CHECK(each.ends == 1 && each.end == IoEnd::Disconnected);
      CHECK_EQ(r.lane->in_flight(), 0u);
      Asked& late = r.submit(Operation::Read, 0, kLba);
      CHECK(late.ends == 1 && late.end == IoEnd::Disconnected);
      Asked& long_late = r.submit(Operation::Read, 0, 640 * kLba);
      CHECK(long_late.ends == 1 && long_late.end == IoEnd::Disconnected);
    });
  }
}

TEST(a_command_without_an_answer_is_given_up) {
  std::unique_ptr<LaneRig> rig;
  const reactor::TimeNs begun = reactor::monotonic_now();
  on_reactor([&rig] {
    rig = std::make_unique<LaneRig>(4, geometry(), 32, LoopbackFabric::full_capabilities(),
                                    20'000'000);
    rig->submit(Operation::Flush);
    rig->submit(Operation::Read, 0, kLba);
    rig->run();
    CHECK_EQ(rig->target.capsules.size(), size_t{2});
  });
  // The reactor looks at the lane by itself.
  const auto ended = [&rig] {
    int ends = 0;
    on_reactor([&] { ends = rig->asked[0].ends; });
    return ends == 1;
  };
  while (!ended() && reactor::monotonic_now() - begun < 10'000'000'000) usleep(1000);
  on_reactor([&rig] {
    CHECK(rig->asked[0].end == IoEnd::TimedOut);
    // The controller may still write what it was asked for: the memory is not the caller's yet.
    CHECK_EQ(rig->asked[1].ends, 0);
    rig->answer();
    rig->answer();
    CHECK(rig->asked[1].ends == 1 && rig->asked[1].end == IoEnd::TimedOut);
    Asked& later = rig->submit(Operation::Write, 0, kLba);
    rig->answer();
    CHECK(later.ends == 1 && later.end == IoEnd::Ok);
    rig.reset();
  });
}

TEST(a_command_is_not_given_up_before_its_time) {
  std::unique_ptr<LaneRig> rig;
  on_reactor([&rig] {
    rig = std::make_unique<LaneRig>(4, geometry(), 32, LoopbackFabric::full_capabilities(),
                                    60'000'000'000);
    rig->submit(Operation::Flush);
    rig->run();
  });
  usleep(20'000);  // many looks at the lane
  on_reactor([&rig] {
    CHECK_EQ(rig->asked[0].ends, 0);
    rig->answer();
    CHECK(rig->asked[0].ends == 1 && rig->asked[0].end == IoEnd::Ok);
    rig.reset();
  });
}

TEST(another_users_cancellation_leaves_its_commands_alone) {
  on_reactor([] {
    LaneRig r;
    Asked& flush = r.submit(Operation::Flush);
    r.run();
    for (uint64_t tag = 0; tag < 256; tag++) r.engine->cancel(kQueue, tag);
    CHECK_EQ(flush.ends, 0);
    r.answer();
    CHECK(flush.ends == 1 && flush.end == IoEnd::Ok);
  });
}

TEST(memory_cannot_be_registered_for_a_closed_queue) {
  on_reactor([] {
    rdma::Capabilities capabilities = LoopbackFabric::full_capabilities();
    capabilities.memory_windows = false;
    LaneRig r(2, geometry(), 32, capabilities);
    auto second = r.lane->register_memory(r.bytes.data(), 4096);
    CHECK(bool(second));
    (*second).reset();
    CHECK(!NamespaceLane::create(r.engine.get(), reactor::Reactor::current(), kQueue + 1, {2},
                                 geometry()));
  });
}

TEST(done_may_submit_again) {
  on_reactor([] {
    LaneRig r(2);
    struct Again {
      LaneRig* rig;
      int left;
    } again{&r, 100};
    const auto resubmit = [](Asked* ended) {
      auto* more = static_cast<Again*>(ended->context);
      if (--more->left <= 0) return;
      ended->ends = 0;
      more->rig->lane->submit(&ended->io);
    };
    for (int i = 0; i < 3; i++) {
      Asked& each = r.ask(Operation::Read, 0, 20 * kLba);
      each.context = &again;
      each.then = resubmit;
      r.lane->submit(&each.io);
    }
    while (r.lane->in_flight() != 0 && r.order.size() < 1000) r.answer();
    CHECK_EQ(r.order.size(), size_t{102});
  });
}

TEST(resubmission_of_what_ends_at_once_does_not_nest) {
  on_reactor([] {
    Geometry g = geometry();
    g.volatile_write_cache = false;
    LaneRig r(2, g);
    struct Again {
      LaneRig* rig;
      int left, depth, deepest;
    } again{&r, 100'000, 0, 0};
    const auto resubmit = [](Asked* ended) {
      auto* more = static_cast<Again*>(ended->context);
      more->deepest = std::max(more->deepest, ++more->depth);
      if (--more->left > 0) {
        ended->ends = 0;
        more->rig->lane->submit(&ended->io);
      }
      more->depth--;
    };
    Asked& flush = r.ask(Operation::Flush);
    flush.context = &again;
    flush.then = resubmit;
    r.lane->submit(&flush.io);
    CHECK_EQ(again.left, 0);
    CHECK_EQ(again.deepest, 1);
    // On a dead queue, too.
    r.target.device()->disconnect(r.target.connections[0]->id);
    r.run();
    again = {&r, 100'000, 0, 0};
    Asked& read = r.ask(Operation::Read, 0, 20 * kLba);
    read.context = &again;
    read.then = resubmit;
    r.lane->submit(&read.io);
    CHECK_EQ(again.left, 0);
    CHECK_EQ(again.deepest, 1);
    CHECK(read.end == IoEnd::Disconnected);
  });
}

TEST(bad_geometry_is_refused) {
  on_reactor([] {
    LaneRig r;
    const auto refused = [&](uint32_t depth, void (*spoil)(Geometry&)) {
      Geometry g = geometry();
      spoil(g);
      return !NamespaceLane::create(r.engine.get(), reactor::Reactor::current(), kQueue, {depth},
                                    g);
    };
    CHECK(refused(0, [](Geometry&) {}));
    CHECK(refused(4, [](Geometry& g) { g.nsid = 0; }));
    CHECK(refused(4, [](Geometry& g) { g.nsid = 0xFFFFFFFF; }));
    CHECK(refused(4, [](Geometry& g) { g.lba_bytes = 0; }));
    CHECK(refused(4, [](Geometry& g) { g.lba_bytes = 520; }));
    CHECK(refused(4, [](Geometry& g) { g.lba_bytes = g.transfer_max = 1u << 30; }));
    CHECK(refused(4, [](Geometry& g) { g.lba_count = 0; }));
    CHECK(refused(4, [](Geometry& g) { g.lba_count = 1ull << 55; }));
    CHECK(refused(4, [](Geometry& g) { g.transfer_max = 0; }));
    CHECK(refused(4, [](Geometry& g) { g.transfer_max = kLba + 1; }));
    CHECK(!refused(4, [](Geometry&) {}));
  });
}

TEST(the_lane_can_be_made_on_another_thread) {
  std::unique_ptr<LaneRig> rig;
  on_reactor([&] { rig = std::make_unique<LaneRig>(); });
  auto made = NamespaceLane::create(rig->engine.get(), test_reactor(), kQueue, {2}, geometry());
  CHECK(bool(made));
  auto region = (*made)->register_memory(rig->bytes.data(), 4096);
  CHECK(bool(region));
  (*region).reset();
  (*made).reset();
  on_reactor([&] { rig.reset(); });
}

TEST_MAIN
