// A controller that has acknowledged every capsule and then dies sends nothing any more, and
// nothing of ours is left that it would have to acknowledge: the host engine asks it whether it
// lives.
#include "support/host_harness.h"

using namespace nvmeof;
using namespace nvmeof::nvmf;
using namespace nvmeof::test;

namespace {

struct Probing : HostHarness {
  explicit Probing(bool asks = true) {
    probes = asks;
    now = reactor::Reactor::current()->now();
    up = connect(1, 16);
    fabric.probes = 0;
  }
  // Turns the clock to each deadline of the engine until `ns` have passed.
  void pass(reactor::TimeNs ns) {
    const reactor::TimeNs end = now + ns;
    while (engine->next_deadline() <= end) {
      now = std::max(now, engine->next_deadline());
      run(1);
    }
    now = end;
    run(1);
  }
  void finish() {
    engine->close(1);
    run();
    check_nothing_left();
  }
  bool up;
};

}  // namespace

TEST(a_silent_controller_that_owes_an_answer_is_asked_every_interval) {
  on_reactor([] {
    Probing h;
    REQUIRE(h.up);
    h.submit(1);
    h.run();
    h.pass(kProbeInterval - 1);
    CHECK_EQ(h.fabric.probes, 0u);
    h.pass(10 * kProbeInterval);
    CHECK_EQ(h.fabric.probes, 10u);
    h.target.respond(h.target.capsules.back());
    h.run();
    h.pass(10 * kProbeInterval);
    CHECK_EQ(h.fabric.probes, 10u);
    // Nothing wakes an idle reactor for it.
    CHECK(h.engine->next_deadline() == reactor::kNever);
    h.finish();
  });
}

TEST(answers_keep_a_controller_from_being_asked) {
  on_reactor([] {
    Probing h;
    REQUIRE(h.up);
    h.submit(1);
    h.run();
    for (int i = 0; i < 10; i++) {
      h.submit(1);
      h.run();
      h.target.respond(h.target.capsules.back());
      h.run();
      h.pass(kProbeInterval);
    }
    CHECK_EQ(h.fabric.probes, 0u);
    // One of them has waited all the while.
    h.pass(2 * kProbeInterval);
    CHECK_EQ(h.fabric.probes, 2u);
    h.finish();
  });
}

TEST(queues_whose_answers_may_take_long_are_left_alone) {
  on_reactor([] {
    Probing h(false);
    REQUIRE(h.up);
    h.submit(1);
    h.run();
    h.pass(100 * kProbeInterval);
    CHECK_EQ(h.fabric.probes, 0u);
    CHECK(h.engine->next_deadline() == reactor::kNever);
    h.finish();
  });
}

TEST_MAIN
