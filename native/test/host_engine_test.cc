// The host engine against a scripted target: connecting, what capsules look like, how commands end.
// Wrong answers, deaths and cancellation are in host_engine_faults_test.cc.
#include <algorithm>

#include "support/host_harness.h"

using namespace nvmeof;
using namespace nvmeof::nvmf;
using namespace nvmeof::test;

namespace {

uint64_t sgl_bytes_sum(const Capsule& capsule) {
  uint64_t sum = 0;
  for (int i = 0; i < 15; i++) sum += capsule.sqe[sqe::kSgl1 + i];
  return sum;
}

}  // namespace

TEST(connects_and_closes) {
  on_reactor([] {
    HostHarness h;
    h.target.private_data.assign(32, 0);
    h.target.private_data[2] = 16;
    h.request_data.assign(32, 0x77);
    REQUIRE(h.connect(7, 16));
    CHECK(h.target.connections[0]->request_data == std::vector<uint8_t>(32, 0x77));
    const SunkEvent* up = h.sink.last(EventKind::QueueEstablished);
    REQUIRE(up != nullptr);
    CHECK_EQ(up->id, 7u);
    CHECK_EQ(up->code, 16u << 8);  // the target's responder resources 0, initiator depth 16
    CHECK_EQ(up->first.size(), size_t{32});
    CHECK_EQ(up->first[2], 16);
    CHECK_EQ(h.engine->live_queues(), 1u);
    CHECK(!h.start_connect(7, 16));  // the id is taken
    h.engine->close(7);
    h.engine->close(7);
    h.run();
    CHECK_EQ(h.sink.count(EventKind::QueueClosed, 7), 1);
    CHECK(h.target.connections[0]->disconnected);
    CHECK_EQ(h.sink.events.size(), size_t{2});
    h.check_nothing_left();
    h.engine->close(7);  // unknown by now
    REQUIRE(h.connect(8, 16));
    h.engine->close(8);
    h.run();
    h.check_nothing_left();
  });
}

TEST(connect_failures_are_reported_once) {
  on_reactor([] {
    HostHarness h;
    h.target.answer = ScriptedTarget::Answer::Reject;
    h.target.private_data = {0, 0, 6, 0};
    REQUIRE(bool(h.start_connect(1, 16)));
    TestCommand& early = h.submit(1);
    h.run();
    const SunkEvent* failed = h.sink.last(EventKind::ConnectFailed);
    REQUIRE(failed != nullptr);
    CHECK_EQ(failed->code, static_cast<uint32_t>(rdma::ConnectFailure::Rejected) | 28u << 16);
    CHECK_EQ(failed->first.size(), size_t{4});
    CHECK_EQ(failed->first[2], 6);
    CHECK(!failed->second.empty());
    CHECK(early.outcome == Outcome::NeverSent);
    CHECK(h.submit(1).outcome == Outcome::NeverSent);

    REQUIRE(bool(h.start_connect(2, 16, 0, 1000, 9)));  // nobody listens
    h.run();
    CHECK_EQ(h.sink.count(EventKind::ConnectFailed, 2), 1);
    CHECK_EQ(h.sink.count(EventKind::QueueEstablished, 2), 0);
    h.check_nothing_left();
  });
}

TEST(connect_ends_at_its_time_limit) {
  on_reactor([] {
    HostHarness h;
    h.target.answer = ScriptedTarget::Answer::Ignore;
    REQUIRE(bool(h.start_connect(1, 16, 0, 250)));
    h.now = reactor::Reactor::current()->now() + 249'000'000;
    CHECK_EQ(h.engine->next_deadline(), h.now + 1'000'000);
    h.run();
    CHECK_EQ(h.sink.events.size(), size_t{0});
    h.now += 1'000'000;
    h.run();
    const SunkEvent* failed = h.sink.last(EventKind::ConnectFailed);
    REQUIRE(failed != nullptr);
    CHECK_EQ(failed->code, static_cast<uint32_t>(rdma::ConnectFailure::Unreachable));
    CHECK_EQ(h.engine->next_deadline(), reactor::kNever);
    h.check_nothing_left();
  });
}

TEST(connect_can_be_given_up) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(bool(h.start_connect(1, 16)));
    TestCommand& early = h.submit(1);
    h.engine->close(1);
    h.run();
    const SunkEvent* failed = h.sink.last(EventKind::ConnectFailed);
    REQUIRE(failed != nullptr);
    CHECK_EQ(failed->code, static_cast<uint32_t>(rdma::ConnectFailure::Cancelled));
    CHECK(early.outcome == Outcome::NeverSent);
    h.check_nothing_left();
  });
}

TEST(bad_options_are_refused) {
  on_reactor([] {
    HostHarness h;
    for (const uint32_t depth : {0u, 1u, 65537u}) CHECK(!h.start_connect(1, depth));
    CHECK(!h.start_connect(1, 16, 1u << 24));
    CHECK_EQ(h.engine->live_queues(), 0u);
    h.check_nothing_left();
  });
}

TEST(command_without_data) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 16));
    TestCommand& flush = h.command();
    for (int i = 0; i < 64; i++) flush.host.sqe[i] = static_cast<uint8_t>(i + 1);
    h.engine->submit(1, &flush.host);
    h.run();
    REQUIRE(h.target.capsules.size() == 1);
    const Capsule& capsule = h.target.capsules[0];
    CHECK_EQ(capsule.sqe[0], 1);
    CHECK_EQ(capsule.sqe[1], 0x42);  // PSDT 01, the rest as given
    CHECK(std::memcmp(capsule.sqe + 4, flush.host.sqe + 4, 20) == 0);
    CHECK(std::memcmp(capsule.sqe + 40, flush.host.sqe + 40, 24) == 0);
    CHECK_EQ(sgl_bytes_sum(capsule), 0u);
    CHECK_EQ(capsule.sgl_type, 0x40);
    CHECK(capsule.data.empty());
    CHECK_EQ(flush.ends, 0);
    h.target.send(0, ScriptedTarget::cqe(capsule.cid, 0x4002, 0x1122334455667788));
    h.run();
    CHECK_EQ(flush.ends, 1);
    CHECK(flush.outcome == Outcome::Ok);
    CHECK_EQ(load64(flush.cqe.data()), 0x1122334455667788u);
    CHECK_EQ(load16(flush.cqe.data() + 14), 0x8004);
    // Zero bytes are no data, whatever the direction.
    h.submit(1, Direction::ToController, 0, 0);
    h.run();
    CHECK_EQ(h.target.capsules[1].sgl_type, 0x40);
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

TEST(read_exposes_exactly_its_bytes) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 16));
    TestCommand& read = h.submit(1, Direction::ToHost, 8192 + 12, 5000);
    h.run();
    REQUIRE(h.target.capsules.size() == 1);
    const Capsule capsule = h.target.capsules[0];
    CHECK_EQ(capsule.sgl_type, 0x4F);
    CHECK_EQ(capsule.address, reinterpret_cast<uintptr_t>(h.bytes.data()) + 8192 + 12);
    CHECK_EQ(capsule.length, 5000u);
    CHECK(capsule.key != h.region->region->rkey());
    CHECK_EQ(h.counter("live.host.windows"), 1u);
    const std::vector<uint8_t> before(h.bytes.begin(), h.bytes.end());
    CHECK(h.target.write_host(capsule, std::vector<uint8_t>(5000, 0xAB)));
    CHECK(std::memcmp(h.bytes.data(), before.data(), 8192 + 12) == 0);
    CHECK_EQ(h.bytes[8192 + 12], 0xAB);
    CHECK_EQ(h.bytes[8192 + 12 + 4999], 0xAB);
    CHECK_EQ(h.bytes[8192 + 12 + 5000], before[8192 + 12 + 5000]);
    h.target.respond(capsule);
    h.run();
    CHECK(read.ends == 1 && read.outcome == Outcome::Ok);
    CHECK_EQ(h.counter("live.host.windows"), 0u);
    CHECK_EQ(h.counter("host.localInvalidates"), 0u);
    CHECK(!h.target.write_host(capsule, {1}));  // the key died with the command
    h.run();
    h.check_nothing_left();
  });
}

TEST(access_beyond_the_command_kills_the_queue) {
  struct Case {
    Direction direction;
    bool write;
    uint64_t offset, extra;
  };
  for (const Case c :
       {Case{Direction::ToHost, true, 1, 0}, Case{Direction::ToHost, false, 0, 0},
        Case{Direction::ToController, true, 0, 0}, Case{Direction::ToController, false, 0, 1}}) {
    on_reactor([c] {
      HostHarness h;
      REQUIRE(h.connect(1, 16, 0));
      h.submit(1, c.direction, 4096, 4096);
      TestCommand& other = h.submit(1);
      h.run();
      const Capsule capsule = h.target.capsules[0];
      std::vector<uint8_t> data(4096);
      const bool done = c.write ? h.target.write_host(capsule, data, c.offset)
                                : h.target.read_host(capsule, &data, c.extra);
      CHECK(!done);
      h.run();
      CHECK(other.outcome == Outcome::QueueDied);
      h.check_nothing_left();
    });
  }
}

TEST(key_dies_by_us_when_the_answer_leaves_it) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 16));
    TestCommand& read = h.submit(1, Direction::ToHost, 0, 4096);
    h.run();
    const uint32_t qp = host_qp(h, 0);
    h.fabric.hold(qp, true);
    h.target.respond(h.target.capsules[0], 0, false);
    h.run();
    CHECK_EQ(h.counter("host.localInvalidates"), 1u);
    CHECK_EQ(read.ends, 0);  // not before the key is dead
    CHECK_EQ(h.counter("live.host.windows"), 1u);
    h.fabric.hold(qp, false);
    h.run();
    CHECK(read.ends == 1 && read.outcome == Outcome::Ok);
    CHECK(!h.target.write_host(h.target.capsules[0], {1}));
    h.run();
    h.check_nothing_left();
  });
}

TEST(writes_travel_in_the_capsule_by_size_and_load) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 64, 4096));
    h.submit(1, Direction::ToController, 100, 4096);
    h.run();
    const Capsule one = h.target.capsules[0];
    CHECK_EQ(one.sgl_type, 0x01);
    CHECK_EQ(one.length, 4096u);
    CHECK_EQ(one.address, 0u);
    CHECK_EQ(one.key & 0xFF, 0u);  // bytes 11 to 14: high length byte, reserved
    REQUIRE(one.data.size() == 4096);
    CHECK(std::memcmp(one.data.data(), h.bytes.data() + 100, 4096) == 0);
    h.target.respond(one);
    h.submit(1, Direction::ToController, 0, 4097);  // beyond what the target takes
    h.run();
    const Capsule two = h.target.capsules[1];
    CHECK_EQ(two.sgl_type, 0x4F);
    std::vector<uint8_t> data;
    CHECK(h.target.read_host(two, &data));
    CHECK(std::memcmp(data.data(), h.bytes.data(), 4097) == 0);
    h.target.respond(two);
    h.run();
    h.target.capsules.clear();
    // Many at once: only the small ones in the capsule.
    for (int i = 0; i < 20; i++) {
      h.submit(1, Direction::ToController, static_cast<uint64_t>(i) * 4096, i % 2 ? 1024 : 4096);
    }
    h.run();
    REQUIRE(h.target.capsules.size() == 20);
    for (size_t i = 0; i < 20; i++) {
      const Capsule& capsule = h.target.capsules[i];
      CHECK_EQ(capsule.sgl_type, i % 2 ? 0x01 : 0x4F);
      if (i % 2 == 0) continue;
      REQUIRE(capsule.data.size() == 1024);
      CHECK(std::memcmp(capsule.data.data(), h.bytes.data() + i * 4096, 1024) == 0);
    }
    CHECK_EQ(h.counter("host.inCapsule"), 11u);
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

TEST(buffer_is_free_at_the_end_though_the_send_is_not_acknowledged) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 2, 4096));
    h.submit(1, Direction::ToController, 0, 2048);
    const std::vector<uint8_t> sent(h.bytes.begin(), h.bytes.begin() + 2048);
    const uint32_t qp = host_qp(h, 0);
    h.fabric.hold(qp, true);
    h.engine->poll(h.now);  // posted, not gone
    std::memset(h.bytes.data(), 0, 2048);
    h.fabric.hold(qp, false);
    h.run();
    REQUIRE(h.target.capsules.size() == 1);
    CHECK(h.target.capsules[0].data == sent);
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

TEST(answered_commands_do_not_wait_for_their_acknowledgement) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 2));
    const uint32_t qp = host_qp(h, 0);
    h.fabric.hold_acknowledgements(qp, true);
    TestCommand& first = h.submit(1, Direction::ToHost, 0, 512);
    TestCommand& second = h.submit(1, Direction::ToHost, 4096, 512);
    h.run();
    REQUIRE(h.target.capsules.size() == 1);  // two entries: one command in flight
    h.target.respond(h.target.capsules[0]);
    h.run();
    CHECK(first.ends == 1 && first.outcome == Outcome::Ok);
    REQUIRE(h.target.capsules.size() == 2);
    h.target.respond(h.target.capsules[1]);
    h.run();
    CHECK(second.ends == 1 && second.outcome == Outcome::Ok);
    // Capsules that may still be sent again are not touched: a third waits for the first's.
    TestCommand& third = h.submit(1);
    h.run();
    CHECK_EQ(h.target.capsules.size(), 2u);
    CHECK_EQ(h.counter("live.host.slots"), 2u);
    h.fabric.hold_acknowledgements(qp, false);
    h.run();
    REQUIRE(h.target.capsules.size() == 3);
    CHECK_EQ(h.counter("live.host.slots"), 1u);
    h.target.respond(h.target.capsules[2]);
    h.run();
    CHECK(third.ends == 1 && third.outcome == Outcome::Ok);
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

TEST(without_memory_windows_the_regions_key_serves) {
  on_reactor([] {
    rdma::Capabilities capabilities = LoopbackFabric::full_capabilities();
    capabilities.memory_windows = false;
    HostHarness h(capabilities);
    REQUIRE(h.connect(1, 16, 0));
    TestCommand& read = h.submit(1, Direction::ToHost, 64, 512);
    TestCommand& given_up = h.submit(1, Direction::ToHost, 4096, 512);
    h.run();
    const Capsule capsule = h.target.capsules[0];
    CHECK_EQ(capsule.sgl_type, 0x40);
    CHECK_EQ(capsule.key, h.regions[1]->region->rkey());
    CHECK(h.target.write_host(capsule, std::vector<uint8_t>(512, 9)));
    h.target.respond(capsule);
    h.run();
    CHECK(read.ends == 1 && read.outcome == Outcome::Ok);
    CHECK_EQ(h.bytes[64], 9);
    // Its memory stays within the target's reach until the answer.
    h.engine->cancel(1, given_up.host.tag);
    h.run();
    CHECK_EQ(given_up.ends, 0);
    h.target.respond(h.target.capsules[1]);
    h.run();
    CHECK(given_up.ends == 1 && given_up.outcome == Outcome::Cancelled);
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

TEST(commands_beyond_the_depth_wait_in_order) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 4));
    std::vector<TestCommand*> order;
    for (int i = 0; i < 50; i++) {
      TestCommand& command = h.command();
      command.host.sqe[8] = static_cast<uint8_t>(i);
      command.order = &order;
      h.engine->submit(1, &command.host);
    }
    size_t answered = 0;
    std::vector<uint16_t> cids;
    while (answered < 50) {
      h.run();
      REQUIRE(h.target.capsules.size() == std::min<size_t>(50 - answered, 3));
      for (size_t i = 0; i < h.target.capsules.size(); i++) {
        CHECK_EQ(h.target.capsules[i].sqe[8], answered + i);
      }
      const Capsule capsule = h.target.capsules.front();
      h.target.capsules.pop_front();
      cids.push_back(capsule.cid);
      h.target.respond(capsule);
      answered++;
    }
    h.run();
    CHECK_EQ(order.size(), size_t{50});
    for (size_t i = 0; i < order.size(); i++) CHECK_EQ(order[i]->host.sqe[8], i);
    std::sort(cids.begin(), cids.end());
    CHECK(std::unique(cids.begin(), cids.end()) == cids.end());  // none is used again soon
    CHECK(cids.back() != 0xFFFF);
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

TEST(done_may_submit_again) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 2));
    struct Again {
      HostEngine* engine;
      int left = 100;
    } again{h.engine.get()};
    TestCommand& command = h.command();
    command.context = &again;
    command.then = [](TestCommand* ended) {
      auto* more = static_cast<Again*>(ended->context);
      if (--more->left > 0) more->engine->submit(1, &ended->host);
    };
    h.engine->submit(1, &command.host);
    for (int i = 0; i < 1000 && again.left > 0; i++) {
      h.run(1);
      while (!h.target.capsules.empty()) {
        h.target.respond(h.target.capsules.front());
        h.target.capsules.pop_front();
      }
    }
    CHECK_EQ(again.left, 0);
    CHECK_EQ(command.ends, 100);
    CHECK_EQ(h.counter("host.commands"), 100u);
    command.ends = 1;
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

TEST(one_iteration_posts_once) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 64, 0));
    h.fabric.post_send_calls = 0;
    for (int i = 0; i < 30; i++)
      h.submit(1, Direction::ToHost, static_cast<uint64_t>(i) * 512, 512);
    CHECK(!h.engine->arm());  // there is something to post
    h.engine->poll(h.now);
    CHECK_EQ(h.fabric.post_send_calls, 1u);
    h.run();
    REQUIRE(h.target.capsules.size() == 30);
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

TEST(controllers_smaller_receive_queue_limits_commands) {
  on_reactor([] {
    HostHarness h;
    h.target.private_data.assign(32, 0);
    h.target.private_data[2] = 4;  // CRQSIZE
    REQUIRE(h.connect(1, 16));
    for (int i = 0; i < 10; i++) h.submit(1);
    h.run();
    CHECK_EQ(h.target.capsules.size(), size_t{4});
    h.target.respond(h.target.capsules[1]);
    h.run();
    CHECK_EQ(h.target.capsules.size(), size_t{5});
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

// A command for each that ends would be packets one by one for ever.
TEST(a_full_receive_window_opens_when_a_quarter_is_free) {
  on_reactor([] {
    HostHarness h(with_receive_window(128 << 10));
    REQUIRE(h.connect(1, 64, 0) && h.connect(2, 64, 0));
    for (const uint32_t queue : {1u, 2u})
      for (int i = 0; i < 20; i++) h.submit(queue, Direction::ToHost, 0, 8192);
    h.run();
    REQUIRE(h.target.capsules.size() == 16);
    const auto answer = [&] {
      h.target.respond(h.target.capsules.front());
      h.target.capsules.pop_front();
      h.run();
    };
    for (int i = 0; i < 3; i++) answer();
    CHECK_EQ(h.target.capsules.size(), size_t{13});
    answer();
    CHECK_EQ(h.target.capsules.size(), size_t{16});
    for (int i = 0; i < 100 && !h.target.capsules.empty(); i++) answer();
    for (const TestCommand& command : h.commands) CHECK_EQ(command.ends, 1);
    h.engine->close(1);
    h.engine->close(2);
    h.run();
    h.check_nothing_left();
  });
}

TEST(reads_share_the_receive_window) {
  on_reactor([] {
    HostHarness h(with_receive_window(64 << 10));
    REQUIRE(h.connect(1, 64, 0) && h.connect(2, 64, 0));
    std::vector<TestCommand*> order;
    const auto read = [&](uint32_t queue, uint32_t length) -> TestCommand& {
      TestCommand& command = h.command(Direction::ToHost, 0, length);
      command.order = &order;
      command.host.sqe[8] = static_cast<uint8_t>(queue);
      h.engine->submit(queue, &command.host);
      return command;
    };
    for (int i = 0; i < 20; i++) read(1, 16 << 10);
    h.run();
    CHECK_EQ(h.target.capsules.size(), size_t{4});
    for (int i = 0; i < 20; i++) read(2, 16 << 10);
    TestCommand& large = read(1, 128 << 10);
    TestCommand& last = read(2, 512);
    h.run();
    CHECK_EQ(h.target.capsules.size(), size_t{4});
    CHECK_EQ(h.counter("live.host.receiveBytes"), 64u << 10);
    // A write and a small read of a queue without reads are not held up.
    REQUIRE(h.connect(3, 64, 0));
    h.submit(3, Direction::ToController, 0, 64 << 10);
    TestCommand& small = read(3, 4096);
    h.run();
    CHECK_EQ(h.target.capsules.size(), size_t{6});
    h.target.respond(h.target.capsules[5]);
    h.run();
    CHECK_EQ(small.ends, 1);
    h.target.capsules.pop_back();
    h.target.capsules.pop_back();
    order.clear();

    bool large_alone = false;
    for (int i = 0; i < 100 && !h.target.capsules.empty(); i++) {
      uint64_t waiting = 0;
      for (const Capsule& capsule : h.target.capsules) waiting += capsule.length;
      const bool has_large = h.target.capsules.back().length == 128 << 10;
      large_alone |= has_large && h.target.capsules.size() == 1;
      CHECK(waiting <= 64 << 10 || (has_large && h.target.capsules.size() == 1));
      h.target.respond(h.target.capsules.front());
      h.target.capsules.pop_front();
      h.run();
    }
    CHECK(large_alone);
    CHECK(large.ends == 1 && last.ends == 1);
    REQUIRE(order.size() == 42);
    // Neither queue waited for the other's whole list: of the first 20 at least 5 are of queue 2.
    int second = 0;
    for (size_t i = 0; i < 20; i++) second += order[i]->host.sqe[8] == 2;
    CHECK(second >= 5);
    for (const uint32_t queue : {1u, 2u, 3u}) h.engine->close(queue);
    h.run();
    h.check_nothing_left();
  });
}

TEST(many_queues_share_completion_queues) {
  on_reactor([] {
    HostHarness h;
    h.target.receives_per_queue = 8;
    for (uint32_t queue = 0; queue < 40; queue++) REQUIRE(h.connect(queue, 128, 0));
    for (int round = 0; round < 3; round++) {
      for (uint32_t queue = 0; queue < 40; queue++) h.submit(queue, Direction::ToHost, 0, 512);
      h.run();
      REQUIRE(h.target.capsules.size() == 40);
      for (const Capsule& capsule : h.target.capsules) h.target.respond(capsule);
      h.target.capsules.clear();
      h.run();
    }
    for (const TestCommand& command : h.commands) CHECK(command.outcome == Outcome::Ok);
    for (uint32_t queue = 0; queue < 40; queue += 2) h.engine->close(queue);
    h.run();
    CHECK_EQ(h.engine->live_queues(), 20u);
    for (uint32_t queue = 100; queue < 120; queue++) REQUIRE(h.connect(queue, 128, 0));
    for (uint32_t queue = 0; queue < 120; queue++) h.engine->close(queue);
    h.run();
    h.check_nothing_left();
  });
}

TEST_MAIN
