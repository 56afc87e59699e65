// The host engine when things go wrong: answers that fit no command, queues that die in every
// state, commands that are given up, and long random sequences of all of it. Every command must end
// exactly once and every slot, key and byte of the receive window must come back.
#include <functional>
#include <random>

#include "support/host_harness.h"

using namespace nvmeof;
using namespace nvmeof::nvmf;
using namespace nvmeof::test;

namespace {

using Bytes = std::vector<uint8_t>;

Bytes answer_to(uint32_t cid, uint16_t status = 0) {
  return ScriptedTarget::cqe(static_cast<uint16_t>(cid), status);
}

// A queue with an answered command (0), and three in flight: a read (1), an in-capsule write (2),
// one without data (3).
struct FourCommands : HostHarness {
  FourCommands() {
    up = connect(1, 16, 4096);
    submit(1, Direction::ToHost, 0, 512);
    run();
    target.respond(target.capsules[0]);
    run();
    submit(1, Direction::ToHost, 4096, 4096);
    submit(1, Direction::ToController, 0, 512);
    submit(1);
    run();
    up = up && target.capsules.size() == 4;
  }
  const Capsule& capsule(size_t index) const { return target.capsules[index]; }
  bool up;
};

}  // namespace

TEST(wrong_answers_close_the_queue) {
  struct Case {
    const char* name;
    std::function<void(FourCommands&)> act;
  };
  const Case cases[] = {
      {"empty", [](FourCommands& h) { h.target.send(0, {}); }},
      {"15 bytes",
       [](FourCommands& h) {
         Bytes bytes = answer_to(h.capsule(3).cid);
         bytes.pop_back();
         h.target.send(0, bytes);
       }},
      {"17 bytes", [](FourCommands& h) { h.target.send(0, Bytes(17)); }},
      {"unknown index",
       [](FourCommands& h) { h.target.send(0, answer_to(h.capsule(3).cid | 15)); }},
      {"FFFFh", [](FourCommands& h) { h.target.send(0, answer_to(0xFFFF)); }},
      {"unused slot", [](FourCommands& h) { h.target.send(0, answer_to(9)); }},
      {"generation to come",
       [](FourCommands& h) { h.target.send(0, answer_to(h.capsule(3).cid + 16u)); }},
      {"late answer", [](FourCommands& h) { h.target.send(0, answer_to(h.capsule(0).cid)); }},
      {"answer twice at once",
       [](FourCommands& h) {
         h.target.send(0, answer_to(h.capsule(3).cid));
         h.target.send(0, answer_to(h.capsule(3).cid));
       }},
      {"answer twice while the key dies",
       [](FourCommands& h) {
         h.target.send(0, answer_to(h.capsule(1).cid));
         h.engine->poll(h.now);
         h.fabric.hold(host_qp(h, 0), true);
         h.target.send(0, answer_to(h.capsule(1).cid));
       }},
      {"another command's key",
       [](FourCommands& h) { h.target.send(0, answer_to(h.capsule(3).cid), h.capsule(1).key); }},
      {"key of a command in the capsule",
       [](FourCommands& h) { h.target.send(0, answer_to(h.capsule(2).cid), h.capsule(1).key); }},
      {"dead key",
       [](FourCommands& h) { h.target.send(0, answer_to(h.capsule(1).cid), h.capsule(0).key); }},
      {"no key", [](FourCommands& h) { h.target.send(0, answer_to(h.capsule(1).cid), 0x7777); }},
  };
  for (const Case& c : cases) {
    on_reactor([&c] {
      FourCommands h;
      REQUIRE(h.up);
      REQUIRE(h.connect(2, 4));
      TestCommand& innocent = h.submit(2);
      h.run();
      c.act(h);
      h.fabric.hold(host_qp(h, 0), false);
      h.run();
      const SunkEvent* closed = h.sink.last(EventKind::QueueClosed);
      if (closed == nullptr || closed->id != 1 || closed->second.empty()) {
        fail(__FILE__, __LINE__, std::string("not closed: ") + c.name);
      }
      CHECK_EQ(h.engine->live_queues(), 1u);
      h.target.respond(h.target.capsules.back());
      h.run();
      CHECK(innocent.outcome == Outcome::Ok);
      CHECK(h.submit(1).outcome == Outcome::NeverSent);
      h.engine->close(2);
      h.run();
      h.check_nothing_left();
    });
  }
}

TEST(reasons_name_what_happened) {
  on_reactor([] {
    FourCommands h;
    REQUIRE(h.up);
    h.target.send(0, answer_to(h.capsule(0).cid));
    h.run();
    const SunkEvent* closed = h.sink.last(EventKind::QueueClosed);
    REQUIRE(closed != nullptr);
    CHECK(closed->second.find("not in flight") != std::string::npos);
    CHECK_EQ(h.counter("host.protocolErrors"), 1u);
    h.check_nothing_left();
  });
  on_reactor([] {
    FourCommands h;
    REQUIRE(h.up);
    h.fabric.cut(host_qp(h, 0));
    h.submit(1);
    h.run();
    const SunkEvent* closed = h.sink.last(EventKind::QueueClosed);
    REQUIRE(closed != nullptr);
    CHECK(!closed->second.empty());
    CHECK_EQ(h.counter("host.protocolErrors"), 0u);
    h.check_nothing_left();
  });
  on_reactor([] {  // what the provider knows of a peer that does not answer
    FourCommands h;
    REQUIRE(h.up);
    h.fabric.failure = "no answer: a link on the way is too narrow";
    h.fabric.fail_next(host_qp(h, 0), rdma::Opcode::Send, rdma::Status::RetryExceeded);
    h.submit(1);
    h.run();
    const SunkEvent* closed = h.sink.last(EventKind::QueueClosed);
    REQUIRE(closed != nullptr);
    CHECK(closed->second.find(h.fabric.failure) != std::string::npos);
    h.check_nothing_left();
  });
}

// 100 commands in every state a command can be in, then the end by every cause.
TEST(queue_death_with_a_hundred_in_flight) {
  const std::pair<const char*, std::function<void(HostHarness&)>> deaths[] = {
      {"close", [](HostHarness& h) { h.engine->close(1); }},
      {"peer disconnects",
       [](HostHarness& h) { h.target.device()->disconnect(h.target.connections[0]->id); }},
      {"peer's queue pair fails", [](HostHarness& h) { h.target.connections[0]->qp->to_error(); }},
      {"cable",
       [](HostHarness& h) {
         h.fabric.cut(host_qp(h, 0));
         h.fabric.cut(h.target.connections[0]->qp->number());
       }},
      {"bind fails",
       [](HostHarness& h) {
         h.fabric.fail_next(host_qp(h, 0), rdma::Opcode::BindMemoryWindow,
                            rdma::Status::MemoryWindowBindError);
       }},
      {"send fails",
       [](HostHarness& h) {
         h.fabric.fail_next(host_qp(h, 0), rdma::Opcode::Send, rdma::Status::RnrRetryExceeded);
       }},
      {"invalidation fails",
       [](HostHarness& h) {
         h.fabric.fail_next(host_qp(h, 0), rdma::Opcode::LocalInvalidate,
                            rdma::Status::LocalQpOperationError);
       }},
  };
  for (const auto& [name, die] : deaths) {
    for (int phase = 0; phase < 4; phase++) {
      on_reactor([&, name = name, &die = die] {
        rdma::Capabilities capabilities = LoopbackFabric::full_capabilities();
        capabilities.receive_window_bytes = 256 << 10;
        HostHarness h(capabilities);
        REQUIRE(h.connect(1, 64, 4096));
        const auto some = [&](int count) {
          for (int i = 0; i < count; i++) {
            const auto direction = static_cast<Direction>(i % 3);
            h.submit(1, direction, static_cast<uint64_t>(i) * 4096, i % 2 ? 512 : 4096);
          }
        };
        some(40);
        h.run();
        // Some answered with their keys still alive, some given up.
        for (size_t i = 0; i < 9; i++) h.target.respond(h.target.capsules[i], 0, false);
        const uint32_t qp = host_qp(h, 0);
        if (phase >= 1) h.fabric.hold(qp, true);
        for (uint64_t tag = 20; tag < 28; tag++) h.engine->cancel(1, tag);
        h.engine->poll(h.now);
        some(60);
        if (phase >= 2) h.engine->poll(h.now);
        if (phase == 3) h.fabric.hold(qp, false);
        die(h);
        h.fabric.hold(qp, false);
        h.run(8);
        if (h.engine->live_queues() != 0) {  // the fault found nothing to hit
          h.submit(1, Direction::ToHost, 0, 4096);
          h.run();
          h.engine->close(1);
          h.run();
        }
        CHECK_EQ(h.sink.count(EventKind::QueueClosed, 1), 1);
        CHECK(h.submit(1).outcome == Outcome::NeverSent);
        const int before = failures();
        h.check_nothing_left();
        if (failures() != before) std::fprintf(stderr, "death: %s, phase %d\n", name, phase);
      });
    }
  }
}

TEST(closed_queue_waits_for_the_connections_end) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 16));
    TestCommand& command = h.submit(1);
    h.run();
    h.fabric.hold_disconnects = true;
    h.engine->close(1);
    h.run();
    CHECK(command.outcome == Outcome::QueueDied);  // at once
    CHECK_EQ(h.sink.count(EventKind::QueueClosed, 1), 0);
    CHECK(h.engine->arm());  // nothing to spin for
    CHECK(!h.start_connect(1, 16));
    h.fabric.hold_disconnects = false;
    h.run();
    CHECK_EQ(h.sink.count(EventKind::QueueClosed, 1), 1);
    h.check_nothing_left();
  });
}

TEST(engine_ends_with_commands_in_flight) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 16) && h.connect(2, 16));
    REQUIRE(bool(h.start_connect(3, 16)));
    for (int i = 0; i < 30; i++) {
      h.submit(1 + static_cast<uint32_t>(i % 3), Direction::ToHost, 0, 4096);
    }
    h.engine->poll(h.now);
    h.region.reset();
    h.engine.reset();
    for (const TestCommand& command : h.commands) {
      CHECK(command.ends == 1 && command.outcome != Outcome::Ok);
    }
    CHECK_EQ(h.sink.count(EventKind::QueueClosed, 1), 1);
    CHECK_EQ(h.sink.count(EventKind::QueueClosed, 2), 1);
    CHECK_EQ(h.sink.count(EventKind::ConnectFailed, 3), 1);
    h.target.progress();
    h.target.connections.clear();
    CHECK_EQ(h.fabric.live_queue_pairs(), size_t{0});
    CHECK_EQ(h.fabric.live_keys(), h.bare_keys);
  });
}

TEST(cancel_of_a_waiting_command) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 2));
    std::vector<TestCommand*> order;
    for (int i = 0; i < 5; i++) {
      TestCommand& command = h.command();
      command.order = &order;
      h.engine->submit(1, &command.host);
    }
    h.run();
    for (const size_t i : {4u, 2u}) {  // the last, one between
      h.engine->cancel(1, h.commands[i].host.tag);
      CHECK(h.commands[i].ends == 1 && h.commands[i].outcome == Outcome::Cancelled);
    }
    h.engine->cancel(1, 999);
    h.submit(1).order = &order;  // behind the new last one
    for (int i = 0; i < 4; i++) {
      REQUIRE(h.target.capsules.size() == 1);
      h.target.respond(h.target.capsules[0]);
      h.target.capsules.clear();
      h.run();
    }
    REQUIRE(order.size() == 6);
    const size_t expected[] = {4, 2, 0, 1, 3, 5};
    for (size_t i = 0; i < 6; i++) CHECK(order[i] == &h.commands[expected[i]]);
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

namespace {

// A queue with one command in flight that exposes memory, given up.
struct GivenUp : HostHarness {
  explicit GivenUp(Direction direction, uint32_t depth = 4) {
    REQUIRE(connect(1, depth, 0));
    given_up_at = reactor::Reactor::current()->now();
    command = &submit(1, direction, 0, 4096);
    run();
    REQUIRE(target.capsules.size() == 1);
    capsule = target.capsules[0];
    engine->cancel(1, command->host.tag);
    engine->cancel(1, command->host.tag);
    run();
  }
  // What the controller does with the command's data; false when it may not.
  bool use_key() {
    if (command->host.direction == Direction::ToHost) {
      return target.write_host(capsule, Bytes(4096, 0x5A));
    }
    Bytes data;
    return target.read_host(capsule, &data);
  }
  void grace_ends() {
    now = given_up_at + kCancelGrace;
    run();
  }
  reactor::TimeNs given_up_at;
  TestCommand* command;
  Capsule capsule;
};

}  // namespace

TEST(cancelled_command_keeps_its_key_until_the_answer) {
  for (const Direction direction : {Direction::ToHost, Direction::ToController}) {
    for (const bool invalidates : {false, true}) {
      on_reactor([direction, invalidates] {
        GivenUp h(direction);
        CHECK_EQ(h.command->ends, 0);
        CHECK_EQ(h.engine->next_deadline(), h.given_up_at + kCancelGrace);
        CHECK(h.use_key());  // a slow controller does no harm
        h.now = h.given_up_at + kCancelGrace - 1;
        h.run();
        CHECK_EQ(h.command->ends, 0);
        h.target.respond(h.capsule, 7, invalidates);  // e.g. Command Abort Requested
        h.run();
        CHECK(h.command->ends == 1 && h.command->outcome == Outcome::Cancelled);
        CHECK_EQ(load16(h.command->cqe.data() + 14), 0);
        CHECK_EQ(h.counter("host.localInvalidates"), invalidates ? 0u : 1u);
        CHECK_EQ(h.counter("host.cancelled"), 1u);
        CHECK_EQ(h.counter("live.host.windows") + h.counter("live.host.slots"), 0u);
        h.grace_ends();  // of a command that is over
        CHECK_EQ(h.engine->next_deadline(), reactor::kNever);
        TestCommand& next = h.submit(1, Direction::ToHost, 0, 4096);
        h.run();
        h.target.respond(h.target.capsules.back());
        h.run();
        CHECK(next.ends == 1 && next.outcome == Outcome::Ok);
        h.engine->close(1);
        h.run();
        h.check_nothing_left();
      });
    }
  }
}

TEST(key_of_a_cancelled_command_ends_after_the_grace_period) {
  on_reactor([] {
    GivenUp h(Direction::ToHost, 2);
    TestCommand& next = h.submit(1);
    h.run();
    const uint32_t qp = host_qp(h, 0);
    h.fabric.hold(qp, true);
    h.grace_ends();
    CHECK_EQ(h.counter("host.localInvalidates"), 1u);
    CHECK_EQ(h.command->ends, 0);  // not before the key is dead
    h.fabric.hold(qp, false);
    h.run();
    CHECK(h.command->ends == 1 && h.command->outcome == Outcome::Cancelled);
    CHECK_EQ(h.counter("live.host.windows"), 0u);
    CHECK_EQ(h.engine->next_deadline(), reactor::kNever);
    // The slot and its command id wait for the controller.
    CHECK_EQ(h.target.capsules.size(), size_t{1});
    CHECK_EQ(h.counter("live.host.slots"), 1u);
    h.target.respond(h.capsule, 7, false);
    h.run();
    REQUIRE(h.target.capsules.size() == 2);
    h.target.respond(h.target.capsules[1]);
    h.run();
    CHECK(next.outcome == Outcome::Ok);
    CHECK_EQ(h.engine->live_queues(), 1u);
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

TEST(memory_of_a_cancelled_command_is_out_of_reach_after_the_grace_period) {
  for (const bool by_answer : {false, true}) {
    on_reactor([by_answer] {
      GivenUp h(Direction::ToHost);
      h.grace_ends();
      REQUIRE(h.command->ends == 1);
      const uint8_t before = h.bytes[0];
      if (by_answer) {
        h.target.respond(h.capsule, 0, true);
      } else {
        CHECK(!h.use_key());
      }
      CHECK_EQ(h.bytes[0], before);
      h.run();
      CHECK_EQ(h.engine->live_queues(), 0u);
      h.check_nothing_left();
    });
  }
}

TEST(queue_that_dies_within_the_grace_period_ends_the_command_once) {
  for (const bool answered : {false, true}) {
    on_reactor([answered] {
      GivenUp h(Direction::ToController);
      h.fabric.hold(host_qp(h, 0), true);
      if (answered) h.target.respond(h.capsule, 0, false);
      h.engine->poll(h.now);
      h.engine->close(1);
      h.run();
      h.grace_ends();
      CHECK(h.command->ends == 1 && h.command->outcome == Outcome::Cancelled);
      h.check_nothing_left();
    });
  }
}

TEST(cancel_and_answer_cross) {
  // The answer, with and without invalidation, is in the completion queue when the command is given
  // up, before and after the engine posted its own invalidation.
  for (const bool invalidates : {false, true}) {
    on_reactor([invalidates] {
      HostHarness h;
      REQUIRE(h.connect(1, 4));
      TestCommand& read = h.submit(1, Direction::ToHost, 0, 4096);
      h.run();
      h.fabric.progress_on_poll = false;
      h.target.respond(h.target.capsules[0], 0, invalidates);
      h.engine->cancel(1, read.host.tag);
      h.fabric.progress_on_poll = true;
      h.run();
      CHECK(read.ends == 1 && read.outcome == Outcome::Cancelled);
      CHECK_EQ(h.engine->live_queues(), 1u);
      CHECK_EQ(h.counter("live.host.slots"), 0u);
      CHECK_EQ(h.counter("host.localInvalidates"), invalidates ? 0u : 1u);
      h.engine->close(1);
      h.run();
      h.check_nothing_left();
    });
  }
}

TEST(cancel_of_commands_without_a_key_ends_at_once) {
  on_reactor([] {
    HostHarness h;
    REQUIRE(h.connect(1, 3, 4096));
    TestCommand& none = h.submit(1);
    TestCommand& write = h.submit(1, Direction::ToController, 0, 4096);
    TestCommand& next = h.submit(1);
    h.run();
    REQUIRE(h.target.capsules.size() == 2);
    h.engine->cancel(1, none.host.tag);
    h.engine->cancel(1, write.host.tag);
    CHECK(none.ends == 1 && none.outcome == Outcome::Cancelled);
    CHECK(write.ends == 1 && write.outcome == Outcome::Cancelled);
    h.run();
    CHECK_EQ(h.target.capsules.size(), size_t{2});
    h.target.respond(h.target.capsules[0]);
    h.run();
    REQUIRE(h.target.capsules.size() == 3);
    h.target.respond(h.target.capsules[2]);
    h.target.respond(h.target.capsules[1]);
    h.run();
    CHECK(next.outcome == Outcome::Ok);
    CHECK_EQ(h.counter("live.host.slots"), 0u);
    h.engine->close(1);
    h.run();
    h.check_nothing_left();
  });
}

TEST(starved_queue_can_be_cancelled_and_closed) {
  on_reactor([] {
    HostHarness h(with_receive_window(8192));
    for (uint32_t queue = 1; queue <= 4; queue++) REQUIRE(h.connect(queue, 16, 0));
    h.submit(1, Direction::ToHost, 0, 8192);
    h.run();
    TestCommand& second = h.submit(2, Direction::ToHost, 0, 8192);
    h.submit(3, Direction::ToHost, 0, 8192);
    TestCommand& fourth = h.submit(4, Direction::ToHost, 0, 8192);
    h.run();
    CHECK_EQ(h.target.capsules.size(), size_t{1});
    h.engine->cancel(2, second.host.tag);
    CHECK_EQ(second.ends, 1);
    h.engine->close(3);
    h.run();
    h.engine->close(1);  // what its read held comes back
    h.run();
    REQUIRE(h.target.capsules.size() == 2);
    h.target.respond(h.target.capsules[1]);
    h.run();
    CHECK(fourth.outcome == Outcome::Ok);
    h.engine->close(2);
    h.engine->close(4);
    h.run();
    h.check_nothing_left();
  });
}

namespace {

// One random session; returns how many commands ended well.
int random_session(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  rdma::Capabilities capabilities = LoopbackFabric::full_capabilities();
  capabilities.memory_windows = below(4) != 0;
  capabilities.receive_window_bytes = below(2) != 0 ? 16384 : 0;
  // In some sessions each grace period is over at once. An answer that invalidates a key after that
  // ends the queue: not in every session.
  const bool cancels = below(2) != 0, overdue = cancels && below(2) != 0;
  const bool invalidates = !overdue || below(2) != 0;
  HostHarness h(capabilities);
  const uint32_t queues = 1 + below(3);
  for (uint32_t queue = 1; queue <= queues; queue++) {
    CHECK(h.connect(queue, 2 + below(20), below(2) != 0 ? 4096 : 0));
  }
  if (overdue) h.now = reactor::Reactor::current()->now() + kCancelGrace;
  for (int step = 0; step < 400; step++) {
    const uint32_t queue = 1 + below(queues), action = below(100);
    if (action < 40) {
      h.submit(queue, static_cast<Direction>(below(3)), below(100) * 512, 1 + below(8192));
    } else if (action < 45) {
      const uint64_t tag = 1 + below(static_cast<uint32_t>(h.commands.size()) + 1);
      if (cancels) h.engine->cancel(queue, tag);
    } else if (action < 55) {
      h.engine->poll(h.now);
    } else if (action < 56) {
      if (below(5) == 0) h.engine->close(queue);
    } else {
      if (!h.target.capsules.empty()) {
        const size_t index = below(static_cast<uint32_t>(h.target.capsules.size()));
        const Capsule capsule = h.target.capsules[index];
        h.target.capsules.erase(h.target.capsules.begin() + static_cast<ptrdiff_t>(index));
        h.target.respond(capsule, 0, invalidates && below(2) != 0);
      }
      h.run(1);
    }
  }
  for (uint32_t queue = 1; queue <= queues; queue++) h.engine->close(queue);
  h.run();
  h.check_nothing_left();
  int good = 0;
  for (const TestCommand& command : h.commands) good += command.outcome == Outcome::Ok;
  return good;
}

}  // namespace

TEST(random_sessions) {
  on_reactor([] {
    int good = 0;
    for (uint32_t seed = 1; seed <= 300; seed++) {
      const int before = failures();
      good += random_session(seed);
      if (failures() == before) continue;
      std::fprintf(stderr, "random session with seed %u\n", seed);
      return;
    }
    CHECK(good > 300 * 20);
  });
}

TEST_MAIN
