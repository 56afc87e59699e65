// The connection exchanges of the captures replayed against the agent: as the passive side with the
// kernel host's datagrams, as the active side with the kernel target's. What we send is the
// kernel's bytes but for the values that are ours (ids, GUID, queue pair, PSN, timers).
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "rdma/soft/packet.h"
#include "support/cm_peer.h"
#include "support/pcap_reader.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::test;
using namespace nvmeof::rdma::soft;
using cm::Attribute;

namespace {

struct Exchange {  // the datagrams of one connection, in order
  sockaddr_storage host{}, target{};
  std::string file;
  std::vector<cm::Mad> mads;
  const cm::Mad* first(Attribute attribute) const {
    for (const cm::Mad& mad : mads)
      if (cm::encode(mad)[17] == static_cast<uint8_t>(attribute)) return &mad;
    return nullptr;
  }
};

struct Ids {
  uint32_t local = 0, remote = 0;
};
template <typename M>
Ids ids_of(const M& m) {
  if constexpr (requires { m.remote_comm_id; })
    return {m.local_comm_id, m.remote_comm_id};
  else if constexpr (requires { m.local_comm_id; })
    return {m.local_comm_id, 0};
  else
    return {};
}

// By the host's comm id, which the REQ introduces and every answer names.
std::vector<Exchange> exchanges() {
  std::vector<Exchange> all;
  std::map<std::pair<std::string, uint32_t>, size_t> by_id;
  for (const CapturedPacket& captured : all_captured()) {
    Packet packet;
    cm::Mad mad;
    if (parse(captured.udp, packet) != PacketFault::None || packet.dest_qpn != kQpnGsi) continue;
    if (cm::decode({packet.payload, packet.payload_length}, mad) != cm::MadFault::None) continue;
    const Ids ids = std::visit([](const auto& m) { return ids_of(m); }, mad.message);
    if (std::holds_alternative<cm::Req>(mad.message) &&
        !by_id.contains({captured.file, ids.local})) {
      by_id[{captured.file, ids.local}] = all.size();
      all.push_back({captured.source, captured.destination, captured.file, {}});
    }
    for (const uint32_t id : {ids.local, ids.remote})
      if (const auto found = by_id.find({captured.file, id}); found != by_id.end()) {
        all[found->second].mads.push_back(mad);
        break;
      }
  }
  return all;
}

// PSN of the first request to each queue pair (capture, address, number).
using FirstPsns = std::map<std::tuple<std::string, std::string, uint32_t>, uint32_t>;
FirstPsns first_psns() {
  FirstPsns firsts;
  for (const CapturedPacket& captured : all_captured()) {
    Packet packet;
    if (parse(captured.udp, packet) != PacketFault::None || packet.dest_qpn == kQpnGsi) continue;
    if (packet.row->has(kRequest))
      firsts.try_emplace({captured.file, to_string(captured.destination), packet.dest_qpn},
                         packet.psn);
  }
  return firsts;
}

cm::AgentOptions options_with_mtu(uint32_t path_mtu) {
  cm::AgentOptions options;
  options.path_mtu = path_mtu;
  return options;
}

}  // namespace

TEST(as_passive_side_we_answer_kernel_hosts_like_a_kernel_target) {
  int accepted = 0, rejected = 0, disconnected_by_host = 0;
  for (const Exchange& exchange : exchanges()) {
    const cm::Req req = std::get<cm::Req>(exchange.mads.front().message);
    CmPeer target(to_string(exchange.target), 3, options_with_mtu(4096));
    const cm::Mad* rej = exchange.first(Attribute::Rej);
    const auto* captured_rej = rej == nullptr ? nullptr : std::get_if<cm::Rej>(&rej->message);
    if (captured_rej == nullptr || captured_rej->reason != cm::reject::kInvalidServiceId)
      CHECK(bool(target.agent.listen(static_cast<uint16_t>(req.service_id))));
    if (captured_rej != nullptr) {
      target.answer = CmPeer::Answer::Reject;
      target.reject_data.assign(captured_rej->private_data.begin(),
                                captured_rej->private_data.end());
    }
    target.deliver(exchange.host, cm::encode(exchange.mads.front()));
    REQUIRE(target.sent.size() == 1);
    if (captured_rej != nullptr) {
      CHECK(target.last().bytes == cm::encode(*rej));  // to the byte
      rejected++;
      continue;
    }
    REQUIRE(target.requests.size() == 1);
    const auto& [id, request] = *target.requests.begin();
    CHECK(same_address(request.peer, exchange.host) && request.peer_port != 0);
    CHECK_EQ(int{request.initiator_depth}, std::min(16, int{req.initiator_depth}));
    // The REP, with our values put into the kernel's.
    const cm::Mad* captured_mad = exchange.first(Attribute::Rep);
    REQUIRE(captured_mad != nullptr);
    cm::Mad expected = *captured_mad;
    auto& rep = std::get<cm::Rep>(expected.message);
    const auto& ours = std::get<cm::Rep>(target.last().mad.message);
    const uint32_t kernel_id = rep.local_comm_id;
    CHECK(ours.responder_resources == std::min<uint8_t>(16, req.initiator_depth));
    CHECK(ours.initiator_depth == std::min<uint8_t>(16, req.responder_resources));
    rep.local_comm_id = ours.local_comm_id;
    rep.qpn = 100;
    rep.starting_psn = 0x222222;
    rep.ca_guid = target.agent.ca_guid();
    rep.responder_resources = ours.responder_resources;
    rep.initiator_depth = ours.initiator_depth;
    rep.failover_accepted = 1;
    rep.end_to_end_flow = true;
    rep.private_data = {};
    CHECK(target.last().bytes == cm::encode(expected));
    const cm::QueuePairPath& path = target.paths[id];
    CHECK(path.remote_qpn == req.qpn && path.send_psn == req.starting_psn);
    CHECK(req.primary.ack_timeout > 14 && path.local_ack_timeout == 14 &&
          path.flow_label == req.primary.flow_label);
    CHECK_EQ(path.path_mtu, mtu_bytes(req.path_mtu));
    CHECK_EQ(source_port_of_label(path.flow_label), source_port_of_label(req.primary.flow_label));
    // The host's later datagrams, with our id in place of the kernel's.
    accepted++;
    for (const cm::Mad& mad : exchange.mads) {
      cm::Mad changed = mad;
      const size_t before = target.sent.size();
      if (auto* rtu = std::get_if<cm::Rtu>(&changed.message)) {
        rtu->remote_comm_id = ours.local_comm_id;
        target.deliver(exchange.host, cm::encode(changed));
        CHECK(target.history[id].back() == "established");
      } else if (auto* dreq = std::get_if<cm::Dreq>(&changed.message)) {
        if (dreq->remote_comm_id != kernel_id) continue;  // the kernel target's own
        dreq->remote_comm_id = ours.local_comm_id;
        dreq->remote_qpn = 100;
        target.deliver(exchange.host, cm::encode(changed));
        REQUIRE(target.sent.size() == before + 1);
        const auto* drep = std::get_if<cm::Drep>(&target.last().mad.message);
        CHECK(drep != nullptr && drep->remote_comm_id == req.local_comm_id);
        CHECK(target.last().mad.transaction_id == changed.transaction_id);
        CHECK(target.history[id].back() == "disconnected");
        CHECK_EQ(target.errors[id], 1);
        CHECK_EQ(target.agent.connections(), size_t{0});
        disconnected_by_host++;
      }
    }
  }
  CHECK(accepted >= 20);
  CHECK(rejected >= 9);
  CHECK(disconnected_by_host >= 12);
}

// Each side names the PSN at which the other one begins to send: kernels really did in the
// captures, and we do.
TEST(starting_psns_are_those_of_the_peers_first_packets) {
  FirstPsns firsts = first_psns();
  // Taken once: numbers come again later in a capture.
  const auto take = [&firsts](const Exchange& exchange, const sockaddr_storage& to, uint32_t qpn) {
    return firsts.extract({exchange.file, to_string(to), qpn});
  };
  int from_hosts = 0, from_targets = 0;
  for (const Exchange& exchange : exchanges()) {
    const cm::Req& req = std::get<cm::Req>(exchange.mads.front().message);
    const cm::Mad* answer = exchange.first(Attribute::Rep);
    if (answer == nullptr) continue;
    const cm::Rep& rep = std::get<cm::Rep>(answer->message);
    CmPeer target(to_string(exchange.target), 3, options_with_mtu(4096));
    CHECK(bool(target.agent.listen(static_cast<uint16_t>(req.service_id))));
    target.deliver(exchange.host, cm::encode(exchange.mads.front()));
    REQUIRE(target.requests.size() == 1);
    const cm::QueuePairPath& path = target.paths[target.requests.begin()->first];
    CHECK_EQ(path.receive_psn, std::get<cm::Rep>(target.last().mad.message).starting_psn);
    if (const auto first = take(exchange, exchange.host, req.qpn)) {
      CHECK_EQ(path.send_psn, first.mapped());
      from_targets++;
    }
    CmPeer host(to_string(exchange.host), 5, options_with_mtu(mtu_bytes(req.path_mtu)));
    const ConnectionId id =
        host.connect(exchange.target, static_cast<uint16_t>(req.service_id), 77);
    const cm::Req ours = std::get<cm::Req>(host.last().mad.message);
    cm::Mad changed = *answer;
    std::get<cm::Rep>(changed.message).remote_comm_id = ours.local_comm_id;
    changed.transaction_id = host.last().mad.transaction_id;
    host.deliver(exchange.target, cm::encode(changed));
    CHECK_EQ(host.paths[id].receive_psn, ours.starting_psn);
    if (const auto first = take(exchange, exchange.target, rep.qpn)) {
      CHECK_EQ(host.paths[id].send_psn, first.mapped());
      from_hosts++;
    }
  }
  CHECK(from_hosts >= 20);
  CHECK(from_targets >= 20);
}

TEST(as_active_side_we_ask_like_a_kernel_host) {
  int connected = 0, rejected = 0, disconnected_by_target = 0;
  for (const Exchange& exchange : exchanges()) {
    cm::Mad expected = exchange.mads.front();
    auto& req = std::get<cm::Req>(expected.message);
    CmPeer host(to_string(exchange.host), 5, options_with_mtu(mtu_bytes(req.path_mtu)));
    const ConnectionId id =
        host.connect(exchange.target, static_cast<uint16_t>(req.service_id), 77);
    REQUIRE(host.sent.size() == 1);
    const cm::Req ours = std::get<cm::Req>(host.last().mad.message);
    // The REQ, with our values put into the kernel's.
    const uint32_t kernel_id = req.local_comm_id;
    expected.transaction_id = host.last().mad.transaction_id;
    req.local_comm_id = ours.local_comm_id;
    req.ca_guid = host.agent.ca_guid();
    req.qpn = 77;
    req.starting_psn = 0x111111;
    req.responder_resources = req.initiator_depth = 16;
    req.local_response_timeout = 16;
    req.end_to_end_flow = true;
    req.primary.ack_timeout = 14;
    req.primary.flow_label = ours.primary.flow_label;
    cm::IpHeader header;
    REQUIRE(cm::decode_ip_header(ours.private_data, header));
    CHECK(same_address(header.source, exchange.host) && header.source_port >= 1024);
    std::fill(req.private_data.begin() + cm::kIpHeaderBytes, req.private_data.end(), uint8_t{0});
    req.private_data[2] = ours.private_data[2];  // the source port
    req.private_data[3] = ours.private_data[3];
    req.local_eecn = req.remote_eecn = 0;
    CHECK(host.last().bytes == cm::encode(expected));
    for (const cm::Mad& mad : exchange.mads) {
      cm::Mad changed = mad;
      if (auto* rep = std::get_if<cm::Rep>(&changed.message)) {
        rep->remote_comm_id = ours.local_comm_id;
        host.deliver(exchange.target, cm::encode(changed));
        const cm::QueuePairPath& path = host.paths[id];
        CHECK(path.remote_qpn == rep->qpn && path.send_psn == rep->starting_psn);
        CHECK(path.max_reads == std::min<uint8_t>(16, rep->responder_resources));
        CHECK(path.max_dest_reads == std::min<uint8_t>(16, rep->initiator_depth));
        CHECK_EQ(int{path.rnr_retry}, int{rep->rnr_retry_count});
        const auto* rtu = std::get_if<cm::Rtu>(&host.last().mad.message);
        CHECK(rtu != nullptr && rtu->remote_comm_id == rep->local_comm_id);
        CHECK(host.history[id].back() == "connected");
        CHECK(host.response_data[id] ==
              std::vector<uint8_t>(rep->private_data.begin(), rep->private_data.end()));
        connected++;
      } else if (auto* rej = std::get_if<cm::Rej>(&changed.message)) {
        rej->remote_comm_id = ours.local_comm_id;
        host.deliver(exchange.target, cm::encode(changed));
        CHECK(host.failures.at(id).failure == rdma::ConnectFailure::Rejected);
        CHECK_EQ(host.failures.at(id).reason, rej->reason);
        rejected++;
      } else if (auto* dreq = std::get_if<cm::Dreq>(&changed.message)) {
        if (dreq->remote_comm_id != kernel_id || host.history[id].back() != "connected") continue;
        dreq->remote_comm_id = ours.local_comm_id;
        dreq->remote_qpn = 77;
        host.deliver(exchange.target, cm::encode(changed));
        CHECK(std::holds_alternative<cm::Drep>(host.last().mad.message));
        CHECK(host.history[id].back() == "disconnected");
        disconnected_by_target++;
      }
    }
  }
  CHECK(connected >= 20);
  CHECK(rejected >= 9);
  CHECK(disconnected_by_target >= 4);
}

TEST_MAIN
