// Connection management of the verbs provider over fake libraries: rdma_cm's events in the order
// of the book, in odd orders, and the troubles of the device.
#include "support/verbs_rig.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test;

namespace {

struct Opened : VerbsRig {
  Opened() {
    fake.add_device("rxe0", "10.9.0.1");
    ready = static_cast<bool>(open());
    CHECK(ready);
    ids = fake.live_ids();
  }
  bool ready = false;
  size_t ids = 0;  // of the device alone

  void settled() {
    for (int i = 0; i < 5000 && fake.live_ids() != ids; i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK_EQ(fake.live_ids(), ids);
  }
};

struct Listening : Opened {
  Listening() {
    run([this] {
      auto made = device->listen(4420, &handler);
      if (made) listener = *made;
    });
    listener_id = fake.wait_for("listen");
    ids = fake.live_ids();
  }
  bool request() {
    const size_t before = handler.count();
    peer = fake.push_request(listener_id, std::vector<uint8_t>(56, 1));
    handler.wait(before + 1);
    return handler.count() == before + 1;
  }
  Result<void> accept() {
    Result<void> result;
    run([&] {
      if (!make_queue_pair()) std::abort();
      ConnectionParameters parameters;
      parameters.initiator_depth = 16;
      parameters.private_data = data;
      result = device->accept(handler.last_request, qp.get(), parameters);
    });
    return result;
  }
  uint32_t listener = 0;
  rdma_cm_id* listener_id = nullptr;
  rdma_cm_id* peer = nullptr;
};

}  // namespace

TEST(an_active_connection_goes_through_its_steps) {
  Opened rig;
  REQUIRE(rig.establish());
  CHECK(rig.handler.wait(1) ==
        "response 5 3 0");  // as the peer sent them, not as rdma_cm turns them
  CHECK(rig.fake.states(rig.qp->number()) == "INIT RTR RTS ");
  FakeId& id = rig.fake.id_of(rig.cm);
  CHECK(id.calls == "bind resolve_addr resolve_route connect establish ");
  CHECK_EQ(id.parameters.responder_resources, 128u);  // the device's limit, not the 200 asked for
  CHECK_EQ(id.parameters.qp_num, rig.qp->number());
  CHECK(id.private_data == rig.data);
  CHECK(rig.qp->state() == State::Rts);
  rig.run([&] { rig.device->disconnect(rig.connection); });
  CHECK(rig.fake.wait_for("disconnect") == rig.cm);
  CHECK_EQ(rig.handler.count(), 1u);
  rig.fake.push(RDMA_CM_EVENT_DISCONNECTED, rig.cm);
  CHECK(rig.handler.wait(2) == "disconnected disconnected by this side");
  rig.settled();
}

TEST(a_peer_that_answers_no_dreq_is_let_go) {
  Opened rig;
  REQUIRE(rig.establish());
  rig.run([&] { rig.device->disconnect(rig.connection); });
  CHECK(rig.handler.wait(2) == "disconnected disconnected by this side");
  rig.settled();
}

TEST(failures_of_a_connect_keep_their_reasons) {
  const struct {
    const char* until;
    rdma_cm_event_type event;
    int status;
    std::vector<uint8_t> data;
    const char* text;
  } cases[] = {
      {"resolve_addr",
       RDMA_CM_EVENT_ADDR_ERROR,
       -EHOSTUNREACH,
       {},
       "failed 0 0 0 the peer's address"},
      {"resolve_route",
       RDMA_CM_EVENT_ROUTE_ERROR,
       -ENETUNREACH,
       {},
       "failed 0 0 0 there is no route"},
      {"connect",
       RDMA_CM_EVENT_UNREACHABLE,
       -ETIMEDOUT,
       {},
       "failed 0 0 0 the peer did not answer"},
      {"connect", RDMA_CM_EVENT_REJECTED, 8, {}, "failed 2 8 0 "},
      {"connect", RDMA_CM_EVENT_REJECTED, 28, std::vector<uint8_t>(148), "failed 2 28 148 "},
      {"connect", RDMA_CM_EVENT_CONNECT_ERROR, -EIO, {}, "failed 0 0 0 the connection could not"},
      {"connect", RDMA_CM_EVENT_DEVICE_REMOVAL, 0, {}, "failed 6 0 0 the RDMA device was removed"},
  };
  for (const auto& each : cases) {
    Opened rig;
    rdma_cm_id* const id = rig.connect_until(each.until);
    REQUIRE(id != nullptr);
    rig.fake.push(each.event, id, each.status, each.data);
    const std::string heard = rig.handler.wait(1);
    CHECK(heard.starts_with(each.text));
    if (!heard.starts_with(each.text)) std::fprintf(stderr, "heard: %s\n", heard.c_str());
    CHECK(rig.qp->state() == State::Err);
    rig.settled();
  }
}

TEST(a_refusal_on_iwarp_has_the_reasons_of_the_others) {
  for (const size_t bytes : {size_t{0}, size_t{4}}) {
    VerbsRig rig;
    rig.fake.make_iwarp(rig.fake.add_device("siw0", "10.9.0.1"));
    REQUIRE(rig.open());
    rdma_cm_id* const id = rig.connect_until("connect");
    REQUIRE(id != nullptr);
    rig.fake.push(RDMA_CM_EVENT_REJECTED, id, -ECONNREFUSED, std::vector<uint8_t>(bytes));
    CHECK(rig.handler.wait(1).starts_with(bytes == 0 ? "failed 2 8 0" : "failed 2 28 4"));
  }
}

TEST(calls_that_fail_at_once_end_the_connect) {
  Opened rig;
  rig.fake.fail_resolve = ENETUNREACH;
  rig.run([&] {
    REQUIRE(rig.make_queue_pair());
    CHECK(static_cast<bool>(
        rig.device->connect(ip("10.9.0.2"), 4420, rig.qp.get(), {}, &rig.handler)));
  });
  CHECK(rig.handler.wait(1).starts_with("failed 0 0 0 the peer's address"));
  rig.settled();
  rig.run([&] { rig.drop(); });
  rig.fake.fail_modify_to_rtr = EINVAL;
  rdma_cm_id* const id = rig.connect_until("connect");
  rig.fake.push(RDMA_CM_EVENT_CONNECT_RESPONSE, id);
  CHECK(rig.handler.wait(2).starts_with("failed 6 0 0 the queue pair cannot go to RTR"));
  rig.settled();
}

TEST(events_in_odd_order_are_counted_and_change_nothing) {
  Opened rig;
  rdma_cm_id* const id = rig.connect_until("resolve_addr");
  REQUIRE(id != nullptr);
  for (const auto event : {RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_ESTABLISHED,
                           RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_DISCONNECTED})
    rig.fake.push(event, id);
  rig.fake.push(RDMA_CM_EVENT_TIMEWAIT_EXIT, id);
  rig.fake.push(RDMA_CM_EVENT_ADDR_RESOLVED, id);
  REQUIRE(rig.fake.wait_for("resolve_route") == id);
  CHECK_EQ(rig.counter("verbs.cm.unexpected_events"), 4u);
  rig.fake.push(RDMA_CM_EVENT_ADDR_RESOLVED, id);
  rig.fake.push(RDMA_CM_EVENT_ROUTE_RESOLVED, id);
  REQUIRE(rig.fake.wait_for("connect") == id);
  rig.fake.push(RDMA_CM_EVENT_CONNECT_RESPONSE, id);
  rig.fake.push(RDMA_CM_EVENT_CONNECT_RESPONSE, id);
  rig.fake.push(RDMA_CM_EVENT_REJECTED, id, 28);
  CHECK(rig.handler.wait(1) == "response 5 3 0");
  rig.fake.push(RDMA_CM_EVENT_DISCONNECTED, id);
  CHECK(rig.handler.wait(2) == "disconnected the peer disconnected");
  rig.settled();
  CHECK_EQ(rig.handler.count(), 2u);
  CHECK_EQ(rig.counter("verbs.cm.unexpected_events"), 7u);
}

TEST(nothing_is_heard_of_an_abandoned_connection) {
  Opened rig;
  rdma_cm_id* const id = rig.connect_until("connect");
  REQUIRE(id != nullptr);
  rig.fake.push(RDMA_CM_EVENT_CONNECT_RESPONSE, id);
  rig.run([&] {
    rig.device->abandon(rig.connection);
    rig.drop();
  });
  rig.settled();
  CHECK(rig.handler.count() <= 1);  // the response, when it was quicker
}

// ---- Passive side

TEST(a_request_is_handed_up_accepted_and_established) {
  Listening rig;
  REQUIRE(rig.request());
  CHECK(rig.handler.wait(1) == "request 5 3 4711");
  REQUIRE(rig.accept());
  REQUIRE(rig.fake.wait_for("accept") == rig.peer);
  CHECK(rig.fake.states(rig.qp->number()) == "INIT RTR RTS ");
  CHECK_EQ(rig.fake.id_of(rig.peer).parameters.initiator_depth, 16u);
  const SendWorkRequest early{};
  rig.run([&] { CHECK(static_cast<bool>(rig.qp->post_send({&early, 1}))); });  // data before RTU
  rig.fake.push_async(*rig.fake.devices[0], IBV_EVENT_COMM_EST, &rig.fake.qp(rig.qp->number()).qp);
  CHECK(rig.fake.wait_for("notify") == rig.peer);
  rig.fake.push(RDMA_CM_EVENT_ESTABLISHED, rig.peer);
  CHECK(rig.handler.wait(2) == "established");
  rig.fake.push(RDMA_CM_EVENT_DISCONNECTED, rig.peer);
  CHECK(rig.handler.wait(3) == "disconnected the peer disconnected");
  rig.settled();
}

TEST(a_request_that_is_refused_or_whose_listener_closes_is_gone) {
  Listening rig;
  REQUIRE(rig.request());
  rig.run([&] { rig.device->reject(rig.handler.last_request, 28, rig.data); });
  rig.settled();
  REQUIRE(rig.request());
  rig.run([&] { rig.device->unlisten(rig.listener); });
  rig.ids--;  // the listener's own
  rig.settled();
  CHECK(!rig.accept());
}

TEST(a_peer_that_gives_up_before_the_answer_is_told_to_who_accepts) {
  Listening rig;
  REQUIRE(rig.request());
  rig.fake.push(RDMA_CM_EVENT_UNREACHABLE, rig.peer, -ETIMEDOUT);
  rig.settled();
  REQUIRE(rig.accept());
  CHECK(rig.handler.wait(2).starts_with("failed 5 0 0 the peer gave the connection up"));
}

TEST(a_port_in_use_is_refused) {
  Opened rig;
  rig.fake.fail_listen = EADDRINUSE;
  rig.run([&] {
    const auto made = rig.device->listen(4420, &rig.handler);
    CHECK(!made && made.error().code == EADDRINUSE);
    CHECK(made.error().message.find("4420 of 10.9.0.1") != std::string::npos);
  });
  rig.settled();
}

// ---- The device's troubles

TEST(a_queue_pair_that_the_device_reports_ends_its_connection_once) {
  Opened rig;
  REQUIRE(rig.establish());
  ibv_qp* const qp = &rig.fake.qp(rig.qp->number()).qp;
  rig.fake.push_async(*rig.fake.devices[0], IBV_EVENT_QP_FATAL, qp);
  rig.fake.push_async(*rig.fake.devices[0], IBV_EVENT_QP_ACCESS_ERR, qp);
  CHECK(rig.handler.wait(2) == "disconnected the device reports a fatal error of the queue pair");
  rig.settled();
  CHECK_EQ(rig.handler.count(), 2u);
}

TEST(a_port_that_is_down_fails_connects_and_after_a_while_connections) {
  Opened rig;
  REQUIRE(rig.establish());
  FakeDevice& device = *rig.fake.devices[0];
  const auto set_port = [&](ibv_port_state state, ibv_event_type event) {
    {
      const std::lock_guard<std::mutex> lock(rig.fake.mutex);
      device.port.state = state;
    }
    rig.fake.push_async(device, event);
  };
  set_port(IBV_PORT_DOWN, IBV_EVENT_PORT_ERR);
  set_port(IBV_PORT_ACTIVE, IBV_EVENT_PORT_ACTIVE);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_EQ(rig.handler.count(), 1u);  // a flap
  set_port(IBV_PORT_DOWN, IBV_EVENT_PORT_ERR);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(rig.handler.wait(2) == "disconnected rxe0 port 1 is down");
  CHECK(std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(2500));
  rig.settled();
  rig.run([&] {
    rig.drop();
    REQUIRE(rig.make_queue_pair());
    CHECK(static_cast<bool>(
        rig.device->connect(ip("10.9.0.2"), 4420, rig.qp.get(), {}, &rig.handler)));
  });
  CHECK(rig.handler.wait(3) == "failed 0 0 0 rxe0 port 1 is down");
}

TEST(a_device_that_is_removed_takes_its_connections_along) {
  Opened rig;
  REQUIRE(rig.establish());
  rig.fake.push(RDMA_CM_EVENT_DEVICE_REMOVAL, rig.cm);
  CHECK(rig.handler.wait(2) == "disconnected the RDMA device was removed");
  rig.settled();
  rig.run([&] {
    rig.drop();
    REQUIRE(rig.make_queue_pair());
    CHECK(static_cast<bool>(
        rig.device->connect(ip("10.9.0.2"), 4420, rig.qp.get(), {}, &rig.handler)));
  });
  CHECK(rig.handler.wait(3) == "failed 0 0 0 the RDMA device was removed");
}

TEST(an_address_that_moves_ends_the_connection) {
  Opened rig;
  REQUIRE(rig.establish());
  rig.fake.push(RDMA_CM_EVENT_ADDR_CHANGE, rig.cm);
  CHECK(rig.handler.wait(2) == "disconnected the address moved to another RDMA device");
  rig.settled();
}

TEST_MAIN
