// The connection agent against bad requests, strangers, wrong ids, floods and bad local arguments;
// listeners, IPv6, unsupported services.
#include "support/cm_pair.h"

using namespace nvmeof;
using namespace nvmeof::test;
using namespace nvmeof::rdma::soft;
using rdma::ConnectFailure;

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
  bad.receive_psn = 1u << 24;
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
