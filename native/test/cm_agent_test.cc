// The connection agent message by message: duplicates, losses, timers, cancellation, stale
// connections. What peers that do not mean well send is in cm_refusal_test.cc.
#include <set>

#include "support/cm_pair.h"

using namespace nvmeof;
using namespace nvmeof::test;
using namespace nvmeof::rdma::soft;
using cm::Attribute;
using rdma::ConnectFailure;

TEST(a_connection_lives_and_ends) {
  Pair p;
  p.target.reply_data = {1, 2, 3};
  p.connect();
  CHECK((p.host.history[p.id] == Log{"connected"}));
  CHECK((p.target.history[p.target_id()] == Log{"request", "established"}));
  CHECK(p.host.response_data[p.id][2] == 3 && p.host.response_data[p.id].size() == 196);
  const cm::QueuePairPath &h = p.host.paths[p.id], &t = p.target.paths[p.target_id()];
  CHECK(h.local_qpn == 77 && h.remote_qpn == t.local_qpn && t.remote_qpn == 77);
  CHECK(h.send_psn == t.receive_psn && t.send_psn == h.receive_psn);
  CHECK(h.path_mtu == 1024 && t.path_mtu == 1024 && h.flow_label == t.flow_label);
  CHECK(h.max_reads == t.max_dest_reads && t.max_reads == h.max_dest_reads);
  p.host.agent.disconnect(p.id, p.host.now);
  p.settle();
  CHECK((p.host.history[p.id] == Log{"connected", "disconnected"}));
  CHECK((p.target.history[p.target_id()] == Log{"request", "established", "disconnected"}));
  CHECK(p.host.errors[p.id] == 1 && p.target.errors[p.target_id()] == 1);
  CHECK(p.host.agent.connections() == 0 && p.target.agent.connections() == 0);
  p.host.advance(10'000 * kMs);
  p.target.advance(10'000 * kMs);
  CHECK(p.host.agent.remembered() == 0 && p.target.agent.remembered() == 0);
  CHECK(p.host.agent.next_deadline() == reactor::kNever);
  CHECK(p.target.agent.next_deadline() == reactor::kNever);
}

TEST(both_sides_disconnect_at_once) {
  Pair p;
  p.connect();
  p.host.agent.disconnect(p.id, p.host.now);
  p.target.agent.disconnect(p.target_id(), p.target.now);
  p.settle();
  CHECK(p.host.history[p.id].back() == "disconnected" && p.host.history[p.id].size() == 2);
  CHECK(p.target.history[p.target_id()].back() == "disconnected");
  CHECK_EQ(p.target.history[p.target_id()].size(), size_t{3});
  CHECK(p.host.errors[p.id] == 1 && p.target.errors[p.target_id()] == 1);
}

TEST(the_path_mtu_is_the_smaller_one_and_depths_are_clamped) {
  cm::AgentOptions large;
  large.path_mtu = 4096;
  large.max_responder_resources = 4;
  CmPeer host("10.0.0.2", 1), target("10.0.0.1", 2, large);
  (void)target.agent.listen(kPort);
  const ConnectionId id = host.connect(target.address, kPort, 77);
  target.deliver(host.address, host.last().bytes);
  host.deliver(target.address, target.last().bytes);
  CHECK_EQ(host.paths[id].path_mtu, 1024u);
  CHECK_EQ(target.paths.begin()->second.path_mtu, 1024u);
  CHECK_EQ(int{host.paths[id].max_reads}, 4);
  CHECK_EQ(int{target.paths.begin()->second.max_dest_reads}, 4);
  CHECK_EQ(int{target.paths.begin()->second.max_reads}, 16);
}

TEST(requests_are_repeated_with_growing_patience_and_bounded) {
  CmPeer host("10.0.0.2");
  const ConnectionId id = host.connect(ip("10.0.0.9"), kPort, 77);
  const TimeNs start = host.now;
  std::vector<TimeNs> at;
  while (host.history[id].empty()) {
    const size_t before = host.sent.size();
    host.advance(host.agent.next_deadline() - host.now);
    if (host.sent.size() > before && host.history[id].empty())
      at.push_back((host.now - start) / kMs);
  }
  CHECK((at == std::vector<TimeNs>{50, 150, 350, 750, 1550, 3150, 4750}));
  CHECK_EQ((host.now - start) / kMs, TimeNs{5000});
  CHECK(host.failures.at(id).failure == ConnectFailure::Unreachable);
  CHECK(host.last_message.find("10.0.0.9 port 4420") != std::string::npos);
  CHECK(message<cm::Rej>(host.last()).reason == cm::reject::kTimeout);
  CHECK_EQ(host.errors[id], 0);  // the queue pair never left RESET
  CHECK_EQ(host.agent.connections(), size_t{0});
}

TEST(why_a_connect_failed_is_told) {
  CmPeer host("10.0.0.2");
  const ConnectionId gone = host.connect(ip("10.0.0.9"), kPort, 77);
  host.agent.peer_unreachable(ip("10.0.0.8"), host.now);
  CHECK(host.failures.empty());
  host.agent.peer_unreachable(ip("10.0.0.9", 4791), host.now);
  CHECK(host.failures.at(gone).failure == ConnectFailure::PortUnreachable);
  const ConnectionId large = host.connect(ip("10.0.0.9"), kPort, 78);
  host.agent.datagram_too_large(ip("10.0.0.9"), host.now);
  CHECK(host.failures.at(large).failure == ConnectFailure::MtuTooLarge);
  const ConnectionId rewritten = host.connect(ip("10.0.0.9"), kPort, 79);
  host.agent.bad_icrc_seen(ip("10.0.0.9"));
  host.advance(6000 * kMs);
  CHECK(host.failures.at(rewritten).failure == ConnectFailure::BadIcrc);
  const ConnectionId cancelled = host.connect(ip("10.0.0.9"), kPort, 80);
  host.agent.disconnect(cancelled, host.now);
  CHECK(host.failures.at(cancelled).failure == ConnectFailure::Cancelled);
}

TEST(rejections_carry_reason_and_data) {
  Pair p;
  p.target.answer = CmPeer::Answer::Reject;
  p.target.reject_data = {0, 0, 6, 0};
  p.connect();
  CHECK(p.host.failures.at(p.id).failure == ConnectFailure::Rejected);
  CHECK_EQ(p.host.failures.at(p.id).reason, cm::reject::kConsumer);
  CHECK(p.host.failure_data[p.id].size() == 148 && p.host.failure_data[p.id][2] == 6);
  // The REJ is lost: the repeated REQ gets the same answer, and the application is not asked twice.
  const size_t asked = p.target.requests.size();
  const ConnectionId second = p.host.connect(p.target.address, kPort, 78);
  p.to_target();
  p.drop();
  p.host.advance(60 * kMs);
  p.settle();
  CHECK(p.host.failures.at(second).reason == cm::reject::kConsumer);
  CHECK_EQ(p.target.requests.size(), asked + 1);
  const ConnectionId nobody = p.host.connect(p.target.address, 9999, 79);
  p.settle();
  CHECK_EQ(p.host.failures.at(nobody).reason, cm::reject::kInvalidServiceId);
  CHECK(p.host.last_message.find("nobody listens") != std::string::npos);
}

TEST(a_lost_reply_is_repeated_and_a_duplicate_is_answered) {
  Pair p;
  p.id = p.host.connect(p.target.address, kPort, 77);
  p.to_target();
  p.drop();  // the REP
  p.target.advance(60 * kMs);
  CHECK_EQ(p.target.count(Attribute::Rep), size_t{2});
  p.to_host();
  p.drop();  // the RTU
  CHECK((p.host.history[p.id] == Log{"connected"}));
  p.target.advance(120 * kMs);
  CHECK_EQ(p.target.count(Attribute::Rep), size_t{3});
  p.settle();
  CHECK_EQ(p.host.count(Attribute::Rtu), size_t{2});
  CHECK((p.target.history[p.target_id()] == Log{"request", "established"}));
  CHECK((p.host.history[p.id] == Log{"connected"}));
  p.target.advance(20'000 * kMs);
  CHECK_EQ(p.target.count(Attribute::Rep), size_t{3});
}

TEST(duplicates_of_every_message_change_nothing) {
  Pair p;
  p.connect();
  p.host.agent.disconnect(p.id, p.host.now);
  p.settle();
  const Log host_log = p.host.log, target_log = p.target.log;
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0, n = p.host.sent.size(); i < n; i++)
      p.target.deliver(p.host.address, cm::MadBytes(p.host.sent[i].bytes));
    for (size_t i = 0, n = p.target.sent.size(); i < n; i++)
      p.host.deliver(p.target.address, cm::MadBytes(p.target.sent[i].bytes));
  }
  CHECK(p.host.log == host_log && p.target.log == target_log);
  CHECK(p.host.agent.connections() == 0 && p.target.agent.connections() == 0);
}

TEST(a_duplicate_request_while_the_application_thinks_asks_for_patience) {
  Pair p;
  p.target.answer = CmPeer::Answer::Nothing;
  p.id = p.host.connect(p.target.address, kPort, 77);
  p.to_target();
  p.host.advance(60 * kMs);
  p.to_target();
  const cm::Mra mra = message<cm::Mra>(p.target.last());
  CHECK(mra.about == cm::About::Req && mra.remote_comm_id != 0 && mra.service_timeout == 20);
  p.to_host();
  const size_t before = p.host.sent.size();
  p.host.advance(3000 * kMs);
  CHECK_EQ(p.host.sent.size(), before);  // it waits
  cm::AcceptArguments arguments;
  arguments.qpn = 5;
  CHECK(bool(p.target.agent.accept(p.target_id(), arguments, p.target.now)));
  p.settle();
  CHECK((p.host.history[p.id] == Log{"connected"}));
  CHECK_EQ(p.target.requests.size(), size_t{1});
}

TEST(an_application_that_never_answers_costs_a_bounded_time) {
  Pair p;
  p.target.answer = CmPeer::Answer::Nothing;
  p.id = p.host.connect(p.target.address, kPort, 77);
  p.to_target();
  CHECK_EQ(p.target.agent.half_open(), size_t{1});
  p.target.advance(5001 * kMs);
  CHECK_EQ(p.target.agent.half_open(), size_t{0});
  p.to_host();
  CHECK_EQ(p.host.failures.at(p.id).reason, cm::reject::kTimeout);
  cm::AcceptArguments arguments;
  arguments.qpn = 5;
  const auto late = p.target.agent.accept(p.target_id(), arguments, p.target.now);
  CHECK(!late && late.error().code == ENOTCONN);
}

TEST(data_before_the_rtu_establishes) {
  Pair p;
  p.id = p.host.connect(p.target.address, kPort, 77);
  p.to_target();
  p.to_host();
  p.drop();
  p.target.agent.data_arrived(p.target_id(), p.target.now);
  CHECK((p.target.history[p.target_id()] == Log{"request", "established"}));
  p.target.agent.data_arrived(p.target_id(), p.target.now);
  p.target.deliver(p.host.address, p.host.last().bytes);  // the RTU after all
  CHECK((p.target.history[p.target_id()] == Log{"request", "established"}));
}

TEST(an_rtu_that_never_comes_fails_the_accepted_connection) {
  Pair p;
  p.id = p.host.connect(p.target.address, kPort, 77);
  p.to_target();
  p.target.advance(5001 * kMs);
  CHECK((p.target.history[p.target_id()] == Log{"request", "failed"}));
  CHECK(p.target.failures.begin()->second.failure == ConnectFailure::Unreachable);
  CHECK_EQ(p.target.errors[p.target_id()], 1);
  CHECK(message<cm::Rej>(p.target.last()).about == cm::About::Other);
}

TEST(a_queue_pair_that_does_not_move_fails_both_sides) {
  Pair p;
  p.target.activation_succeeds = false;
  p.connect();
  CHECK(p.target.failures.begin()->second.failure == ConnectFailure::NoResources);
  CHECK_EQ(p.host.failures.at(p.id).reason, cm::reject::kNoResources);
  Pair q;
  q.host.activation_succeeds = false;
  q.connect();
  CHECK(q.host.failures.at(q.id).failure == ConnectFailure::NoResources);
  CHECK(q.target.failures.begin()->second.failure == ConnectFailure::Rejected);
  CHECK(q.host.agent.connections() + q.target.agent.connections() == 0);
}

TEST(disconnect_of_a_dead_peer_ends_in_bounded_time) {
  Pair p;
  p.connect();
  p.drop();
  p.host.agent.disconnect(p.id, p.host.now);
  CHECK_EQ(p.host.errors[p.id], 1);  // at once, not after the answer
  CHECK((p.host.history[p.id] == Log{"connected"}));
  p.host.advance(1501 * kMs);
  CHECK((p.host.history[p.id] == Log{"connected", "disconnected"}));
  CHECK(p.host.count(Attribute::Dreq) >= 4);
}

TEST(a_dreq_for_an_unknown_connection_is_answered) {
  CmPeer target("10.0.0.1");
  cm::Dreq dreq;
  dreq.local_comm_id = 5;
  dreq.remote_comm_id = 6;
  target.deliver(ip("10.0.0.2"), cm::encode({99, 0, dreq}));
  const cm::Drep drep = message<cm::Drep>(target.last());
  CHECK(drep.local_comm_id == 6 && drep.remote_comm_id == 5);
  CHECK_EQ(target.last().mad.transaction_id, uint64_t{99});
}

TEST(a_failed_queue_pair_disconnects_and_tells_the_peer) {
  Pair p;
  p.connect();
  p.target.agent.queue_pair_failed(p.target_id(), "retry count exceeded", p.target.now);
  CHECK(p.target.history[p.target_id()].back() == "disconnected");
  CHECK(p.target.last_message == "retry count exceeded");
  CHECK_EQ(p.target.errors[p.target_id()], 0);  // it is in ERR already
  p.settle();
  CHECK(p.host.history[p.id].back() == "disconnected");
  CHECK_EQ(p.target.history[p.target_id()].size(), size_t{3});
  CHECK_EQ(p.target.agent.connections(), size_t{0});
}

TEST(who_hangs_up_because_of_a_failure_is_told_which_and_waits_for_no_answer) {
  Pair p;
  p.connect();
  p.host.agent.disconnect(p.id, p.host.now);
  p.host.agent.queue_pair_failed(p.id, "retry count exceeded", p.host.now);
  CHECK((p.host.history[p.id] == Log{"connected", "disconnected"}));
  CHECK(p.host.last_message == "retry count exceeded");
  p.settle();
  CHECK((p.host.history[p.id] == Log{"connected", "disconnected"}));
  CHECK(p.target.history[p.target_id()].back() == "disconnected");
}

TEST(abandon_is_silent_here_and_told_to_the_peer) {
  Pair p;
  p.connect();
  p.host.agent.abandon(p.id, p.host.now);
  p.settle();
  CHECK((p.host.history[p.id] == Log{"connected"}));
  CHECK_EQ(p.host.errors[p.id], 0);
  CHECK(p.target.history[p.target_id()].back() == "disconnected");
  Pair q;  // before any answer
  q.id = q.host.connect(q.target.address, kPort, 77);
  q.target.answer = CmPeer::Answer::Nothing;
  q.to_target();
  q.host.agent.abandon(q.id, q.host.now);
  q.settle();
  CHECK(q.host.history[q.id].empty() && q.target.agent.half_open() == 0);
  Pair r;  // after the REP, before activation
  r.host.auto_activate = false;
  r.id = r.host.connect(r.target.address, kPort, 77);
  r.to_target();
  r.to_host();
  r.host.agent.abandon(r.id, r.host.now);
  r.host.agent.activated(r.id, true, r.host.now);  // late
  r.settle();
  CHECK(r.host.history[r.id].empty());
  CHECK(r.target.history[r.target_id()].back() == "failed");
}

TEST(a_stale_connection_is_ended_and_the_new_one_comes_through) {
  // The host process dies and another one with the same GUID and queue pair number connects.
  Pair p;
  p.connect();
  const ConnectionId old = p.target_id();
  CmPeer reborn("10.0.0.2", 1);  // the same seed: the same GUID
  // Moves its random numbers on.
  reborn.agent.abandon(reborn.connect(p.target.address, kPort, 500), reborn.now);
  const ConnectionId id = reborn.connect(p.target.address, kPort, 77);
  REQUIRE(message<cm::Req>(reborn.last()).ca_guid == p.host.agent.ca_guid());
  p.target.deliver(reborn.address, cm::MadBytes(reborn.last().bytes));
  CHECK(p.target.history[old].back() == "disconnected");
  CHECK_EQ(p.target.errors[old], 1);
  CHECK_EQ(message<cm::Rej>(p.target.last()).reason, cm::reject::kStaleConnection);
  reborn.deliver(p.target.address, cm::MadBytes(p.target.last().bytes));
  CHECK(reborn.history[id].empty());  // it tries again under a new comm id
  const size_t before = reborn.sent.size();
  reborn.advance(60 * kMs);
  REQUIRE(reborn.sent.size() > before);
  p.target.now = reborn.now;
  p.target.deliver(reborn.address, cm::MadBytes(reborn.last().bytes));
  reborn.deliver(p.target.address, cm::MadBytes(p.target.last().bytes));
  CHECK((reborn.history[id] == Log{"connected"}));
  CHECK(p.target.history.size() == 2);
}

TEST(a_peer_that_keeps_saying_stale_is_believed_in_the_end) {
  CmPeer host("10.0.0.2");
  const sockaddr_storage peer = ip("10.0.0.1");
  const ConnectionId id = host.connect(peer, kPort, 77);
  std::set<uint32_t> comm_ids;
  for (int i = 0; i < 4; i++) {
    CHECK(host.history[id].empty());
    const cm::Req req = message<cm::Req>(host.last());
    comm_ids.insert(req.local_comm_id);
    cm::Rej rej;
    rej.remote_comm_id = req.local_comm_id;
    rej.reason = cm::reject::kStaleConnection;
    host.deliver(peer, cm::encode({host.last().mad.transaction_id, 0, rej}));
    host.advance(60 * kMs);
  }
  CHECK_EQ(comm_ids.size(), size_t{4});
  CHECK_EQ(host.failures.at(id).reason, cm::reject::kStaleConnection);
  CHECK_EQ(host.agent.connections(), size_t{0});
}

TEST(rej_stale_ends_an_established_connection_but_other_late_rejs_do_not) {
  Pair p;
  p.connect();
  cm::Rej rej;
  rej.local_comm_id = message<cm::Rtu>(p.host.last()).remote_comm_id;
  rej.remote_comm_id = message<cm::Rtu>(p.host.last()).local_comm_id;
  rej.reason = cm::reject::kInvalidCommId;
  p.host.deliver(p.target.address, cm::encode({1, 0, rej}));
  CHECK((p.host.history[p.id] == Log{"connected"}));
  rej.reason = cm::reject::kStaleConnection;
  p.host.deliver(ip("10.0.0.66"), cm::encode({1, 0, rej}));  // not the peer
  CHECK((p.host.history[p.id] == Log{"connected"}));
  p.host.deliver(p.target.address, cm::encode({1, 0, rej}));
  CHECK((p.host.history[p.id] == Log{"connected", "disconnected"}));
}

TEST_MAIN
