// The connection agent message by message: duplicates, losses, timers, refusals, stale connections,
// limits, and messages of peers that do not mean well.
#include <set>

#include "rdma/soft/packet.h"
#include "support/cm_peer.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::test;
using namespace nvmeof::rdma::soft;
using cm::Attribute;
using rdma::ConnectFailure;

namespace {

using Log = std::vector<std::string>;
constexpr uint16_t kPort = 4420;

// Two agents joined by hand: pass() delivers what one has sent since the last time.
struct Pair {
  CmPeer host{"10.0.0.2", 1}, target{"10.0.0.1", 2};
  size_t from_host = 0, from_target = 0;
  ConnectionId id = 0;

  Pair() { (void)target.agent.listen(kPort); }
  void to_target() {
    while (from_host < host.sent.size())
      target.deliver(host.address, cm::MadBytes(host.sent[from_host++].bytes));
  }
  void to_host() {
    while (from_target < target.sent.size())
      host.deliver(target.address, cm::MadBytes(target.sent[from_target++].bytes));
  }
  void drop() {
    from_host = host.sent.size();
    from_target = target.sent.size();
  }
  void settle() {
    while (from_host < host.sent.size() || from_target < target.sent.size()) {
      to_target();
      to_host();
    }
  }
  void connect() {
    id = host.connect(target.address, kPort, 77);
    settle();
  }
  ConnectionId target_id() const { return target.requests.rbegin()->first; }
};

template <typename M>
M message(const SentMad& sent) {
  const M* m = std::get_if<M>(&sent.mad.message);
  if (m == nullptr) {
    fail(__FILE__, __LINE__, "another kind of message was sent last");
    return {};
  }
  return *m;
}

cm::Mad request_from(CmPeer& host, const sockaddr_storage& to) {
  host.connect(to, kPort, 77);
  return host.last().mad;
}

}  // namespace

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

TEST(bad_requests_are_refused_with_their_reason) {
  struct Case {
    const char* what;
    void (*damage)(cm::Req&);
    uint16_t reason;  // 0: no answer at all
  };
  const Case cases[] = {
      {"comm id 0", [](cm::Req& r) { r.local_comm_id = 0; }, 0},
      {"UC", [](cm::Req& r) { r.transport_type = 1; }, cm::reject::kInvalidTransport},
      {"RD", [](cm::Req& r) { r.transport_type = 2; }, cm::reject::kInvalidTransport},
      {"XRC", [](cm::Req& r) { r.transport_type = 3; }, cm::reject::kInvalidTransport},
      {"extended", [](cm::Req& r) { r.extended_transport = 1; }, cm::reject::kInvalidTransport},
      {"QPN 0", [](cm::Req& r) { r.qpn = 0; }, cm::reject::kUnsupported},
      {"QPN 1", [](cm::Req& r) { r.qpn = 1; }, cm::reject::kUnsupported},
      {"QPN multicast", [](cm::Req& r) { r.qpn = 0xffffff; }, cm::reject::kUnsupported},
      {"P_Key", [](cm::Req& r) { r.pkey = 0x1234; }, cm::reject::kUnsupported},
      {"MTU 0", [](cm::Req& r) { r.path_mtu = 0; }, cm::reject::kInvalidMtu},
      {"MTU 6", [](cm::Req& r) { r.path_mtu = 6; }, cm::reject::kInvalidMtu},
      {"MTU 15", [](cm::Req& r) { r.path_mtu = 15; }, cm::reject::kInvalidMtu},
      {"our GID", [](cm::Req& r) { r.primary.remote_gid[15] ^= 1; }, cm::reject::kInvalidGid},
      {"its GID", [](cm::Req& r) { r.primary.local_gid[15] ^= 1; }, cm::reject::kInvalidGid},
      {"service", [](cm::Req& r) { r.service_id ^= 1; }, cm::reject::kInvalidServiceId},
      {"port space", [](cm::Req& r) { r.service_id ^= 1u << 16; }, cm::reject::kInvalidServiceId},
      {"high bits", [](cm::Req& r) { r.service_id |= 1ull << 40; }, cm::reject::kInvalidServiceId},
      {"CM version", [](cm::Req& r) { r.private_data[0] = 1; }, cm::reject::kConsumer},
      {"IP version", [](cm::Req& r) { r.private_data[1] = 0x50; }, cm::reject::kConsumer},
      {"IP family", [](cm::Req& r) { r.private_data[1] = 0x60; }, cm::reject::kConsumer},
      {"source", [](cm::Req& r) { r.private_data[19] ^= 1; }, cm::reject::kConsumer},
      {"destination", [](cm::Req& r) { r.private_data[35] ^= 1; }, cm::reject::kConsumer},
  };
  CmPeer target("10.0.0.1", 2);
  (void)target.agent.listen(kPort);
  CmPeer host("10.0.0.2", 1);
  for (const Case& one : cases) {
    cm::Mad mad = request_from(host, target.address);
    one.damage(std::get<cm::Req>(mad.message));
    const size_t before = target.sent.size();
    target.deliver(host.address, cm::encode(mad));
    if (one.reason == 0) {
      CHECK_EQ(target.sent.size(), before);
    } else if (target.sent.size() != before + 1 ||
               message<cm::Rej>(target.last()).reason != one.reason) {
      fail(__FILE__, __LINE__, one.what);
    }
    CHECK_EQ(target.agent.connections(), size_t{0});
  }
  CHECK(target.requests.empty());
  // An alternate path is legal: we say that we do not fail over to it.
  cm::Mad mad = request_from(host, target.address);
  std::get<cm::Req>(mad.message).alternate.local_lid = 7;
  target.deliver(host.address, cm::encode(mad));
  CHECK_EQ(int{message<cm::Rep>(target.last()).failover_accepted}, 1);
}

TEST(malformed_datagrams_and_strangers_are_ignored) {
  CmPeer target("10.0.0.1");
  (void)target.agent.listen(kPort);
  CmPeer host("10.0.0.2");
  const cm::Mad mad = request_from(host, target.address);
  const cm::MadBytes bytes = cm::encode(mad);
  for (size_t length = 0; length < bytes.size(); length += 17)
    target.deliver(host.address, std::span(bytes).first(length));
  target.agent.receive({&host.address, &target.address, 2, bytes}, target.now);  // not from QP1
  for (const char* stranger : {"224.0.0.1", "255.255.255.255", "0.0.0.0", "fd00::1"})
    target.deliver(ip(stranger), bytes);
  CHECK(target.sent.empty() && target.requests.empty());
  CHECK_EQ(target.agent.counters().mads_malformed, uint64_t{16 + 1 + 4});
}

TEST(messages_with_wrong_ids_or_senders_change_nothing) {
  Pair p;
  p.connect();
  const uint32_t host_id = message<cm::Rtu>(p.host.last()).local_comm_id;
  const uint32_t target_id = message<cm::Rtu>(p.host.last()).remote_comm_id;
  const Log before = p.target.log;
  cm::Dreq dreq;
  dreq.local_comm_id = host_id;
  dreq.remote_comm_id = target_id;
  dreq.remote_qpn = p.target.paths[p.target_id()].local_qpn;
  const auto try_dreq = [&](const sockaddr_storage& from, cm::Dreq damaged) {
    p.target.deliver(from, cm::encode({1, 0, damaged}));
    CHECK(p.target.log == before);
    CHECK_EQ(p.target.agent.connections(), size_t{1});
  };
  try_dreq(ip("10.0.0.3"), dreq);
  cm::Dreq damaged = dreq;
  damaged.local_comm_id ^= 1;
  try_dreq(p.host.address, damaged);
  damaged = dreq;
  damaged.remote_qpn ^= 1;
  try_dreq(p.host.address, damaged);
  cm::Drep drep;
  drep.local_comm_id = host_id;
  drep.remote_comm_id = target_id;
  p.target.deliver(p.host.address, cm::encode({1, 0, drep}));
  CHECK(p.target.log == before);
  p.target.deliver(p.host.address, cm::encode({1, 0, dreq}));
  CHECK(p.target.log != before);
  // A REP for nothing: the sender is told to stop.
  cm::Rep rep;
  rep.local_comm_id = 1;
  rep.remote_comm_id = 2;
  rep.qpn = 3;
  p.host.deliver(p.target.address, cm::encode({1, 0, rep}));
  CHECK_EQ(message<cm::Rej>(p.host.last()).reason, cm::reject::kInvalidCommId);
}

TEST(a_malformed_reply_fails_the_connect) {
  Pair p;
  p.id = p.host.connect(p.target.address, kPort, 77);
  p.to_target();
  cm::Mad mad = p.target.last().mad;
  std::get<cm::Rep>(mad.message).qpn = 1;
  p.host.deliver(p.target.address, cm::encode(mad));
  CHECK(p.host.failures.at(p.id).failure == ConnectFailure::Rejected);
  p.to_target();
  CHECK(p.target.history[p.target_id()].back() == "failed");
}

TEST(floods_of_requests_are_bounded) {
  cm::AgentOptions options;
  options.half_open_max = 50;
  options.finished_max = 100;
  CmPeer target("10.0.0.1", 2, options);
  (void)target.agent.listen(kPort);
  target.answer = CmPeer::Answer::Nothing;
  CmPeer host("10.0.0.2", 1);
  for (uint32_t i = 0; i < 500; i++) {
    host.connect(target.address, kPort, 1000 + i);
    target.deliver(host.address, cm::MadBytes(host.last().bytes));
  }
  CHECK_EQ(target.agent.half_open(), size_t{50});
  CHECK_EQ(target.requests.size(), size_t{50});
  CHECK_EQ(message<cm::Rej>(target.last()).reason, cm::reject::kNoResources);
  target.advance(5001 * kMs);
  CHECK_EQ(target.agent.half_open(), size_t{0});
  target.answer = CmPeer::Answer::Reject;
  for (uint32_t i = 0; i < 500; i++) {
    host.connect(target.address, kPort, 2000 + i);
    target.deliver(host.address, cm::MadBytes(host.last().bytes));
  }
  CHECK_EQ(target.requests.size(), size_t{550});
  CHECK_EQ(target.agent.remembered(), size_t{100});
  CHECK_EQ(target.agent.connections(), size_t{0});
}

TEST(listeners) {
  CmPeer target("10.0.0.1");
  const auto first = target.agent.listen(kPort);
  CHECK(bool(first));
  const auto again = target.agent.listen(kPort);
  CHECK(!again && again.error().code == EADDRINUSE);
  CHECK(!target.agent.listen(0));
  const auto other = target.agent.listen(8009);
  CHECK(bool(other) && other.value() != first.value());
  target.answer = CmPeer::Answer::Nothing;
  CmPeer host("10.0.0.2");
  const ConnectionId id = host.connect(target.address, kPort, 77);
  target.deliver(host.address, cm::MadBytes(host.last().bytes));
  CHECK_EQ(target.requests.begin()->second.listener, first.value());
  target.agent.unlisten(first.value());
  host.deliver(target.address, cm::MadBytes(target.last().bytes));
  CHECK_EQ(host.failures.at(id).reason, cm::reject::kInvalidServiceId);
  CHECK(bool(target.agent.listen(kPort)));
}

TEST(bad_arguments_are_refused) {
  CmPeer host("10.0.0.2");
  const auto refused = [&](cm::ConnectArguments arguments) {
    const auto result = host.agent.connect(cm::new_connection_id(), arguments, host.now);
    return !result && result.error().code == EINVAL;
  };
  const cm::ConnectArguments good{ip("10.0.0.1"), kPort, 77, 5, false, {}};
  cm::ConnectArguments bad = good;
  bad.peer = ip("fd00::1");
  CHECK(refused(bad));
  bad.peer = ip("224.0.0.1");
  CHECK(refused(bad));
  bad.peer = ip("0.0.0.0");
  CHECK(refused(bad));
  bad = good;
  bad.port = 0;
  CHECK(refused(bad));
  bad = good;
  bad.qpn = 1;
  CHECK(refused(bad));
  bad = good;
  bad.send_psn = 1u << 24;
  CHECK(refused(bad));
  const std::vector<uint8_t> data(57);
  bad = good;
  bad.parameters.private_data = data;
  CHECK(refused(bad));
  bad = good;
  bad.parameters.retry_count = 8;
  CHECK(refused(bad));
  CHECK(host.sent.empty());
  const ConnectionId id = cm::new_connection_id();
  CHECK(bool(host.agent.connect(id, good, host.now)));
  CHECK(!host.agent.connect(id, good, host.now));
}

TEST(unreliable_datagram_service_requests_are_answered_unsupported) {
  CmPeer target("10.0.0.1");
  cm::SidrReq request;
  request.request_id = 9;
  request.service_id = 0x01110000 | kPort;
  target.deliver(ip("10.0.0.2"), cm::encode({4, 0, request}));
  const cm::SidrRep answer = message<cm::SidrRep>(target.last());
  CHECK(answer.request_id == 9 && answer.status == 1 && answer.service_id == request.service_id);
}

TEST(ipv6_works_alike) {
  CmPeer host("fd00::2", 1), target("fd00::1", 2);
  (void)target.agent.listen(kPort);
  const ConnectionId id = host.connect(target.address, kPort, 77);
  CHECK_EQ(int{message<cm::Req>(host.last()).private_data[1]}, 0x60);
  target.deliver(host.address, cm::MadBytes(host.last().bytes));
  host.deliver(target.address, cm::MadBytes(target.last().bytes));
  target.deliver(host.address, cm::MadBytes(host.last().bytes));
  CHECK((host.history[id] == Log{"connected"}));
  CHECK(target.log.back() == "established");
  CHECK(to_string(target.requests.begin()->second.peer) == "fd00::2");
}

TEST(processes_differ_in_guid_and_comm_ids) {
  CmPeer one("10.0.0.2", 1), two("10.0.0.2", 2);
  CHECK(one.agent.ca_guid() != two.agent.ca_guid());
  one.connect(ip("10.0.0.1"), kPort, 77);
  two.connect(ip("10.0.0.1"), kPort, 77);
  CHECK(message<cm::Req>(one.last()).local_comm_id != message<cm::Req>(two.last()).local_comm_id);
}

TEST_MAIN
