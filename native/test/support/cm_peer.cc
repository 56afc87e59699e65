#include "support/cm_peer.h"

#include <arpa/inet.h>

#include <algorithm>

namespace nvmeof::test {
namespace {

cm::AgentOptions with_address(cm::AgentOptions options, const sockaddr_storage& address) {
  options.address = address;
  return options;
}

}  // namespace

sockaddr_storage ip(const std::string& text, uint16_t port) {
  sockaddr_storage address{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
  } else {
    inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr);
    v6.sin6_family = AF_INET6;
  }
  v4.sin_port = htons(port);
  return address;
}

CmPeer::CmPeer(const std::string& its_address, uint64_t seed, cm::AgentOptions options)
    : address(ip(its_address)), agent(with_address(options, address), *this, *this, seed) {}

void CmPeer::note(ConnectionId id, const std::string& what) {
  log.push_back(what);
  history[id].push_back(what);
}

void CmPeer::send_mad(const sockaddr_storage& peer, std::span<const uint8_t, cm::kMadBytes> mad) {
  SentMad one;
  one.peer = peer;
  std::copy(mad.begin(), mad.end(), one.bytes.begin());
  if (cm::decode(mad, one.mad) != cm::MadFault::None) log.push_back("undecodable");
  sent.push_back(one);
}

void CmPeer::activate(ConnectionId id, const cm::QueuePairPath& path) {
  paths[id] = path;
  log.push_back("activate");
  if (auto_activate) agent.activated(id, activation_succeeds, now);
}

void CmPeer::to_error(ConnectionId id, uint32_t) {
  errors[id]++;
}

void CmPeer::on_request(const cm::IncomingRequest& request) {
  requests[request.id] = request;
  request_data[request.id].assign(request.private_data.begin(), request.private_data.end());
  note(request.id, "request");
  if (answer == Answer::Accept) {
    cm::AcceptArguments arguments;
    arguments.qpn = next_qpn++;
    arguments.receive_psn = 0x222222;
    arguments.parameters.responder_resources = arguments.parameters.initiator_depth = reads;
    arguments.parameters.private_data = reply_data;
    if (!agent.accept(request.id, arguments, now)) log.push_back("accept failed");
  } else if (answer == Answer::Reject) {
    agent.reject(request.id, cm::reject::kConsumer, reject_data, now);
  }
}

void CmPeer::on_connected(ConnectionId id, const rdma::ConnectResponse& response) {
  responses[id] = response;
  response_data[id].assign(response.private_data.begin(), response.private_data.end());
  note(id, "connected");
}

void CmPeer::on_failed(ConnectionId id, const rdma::ConnectFailed& failed) {
  failures.insert_or_assign(id, failed);
  failure_data[id].assign(failed.private_data.begin(), failed.private_data.end());
  last_message = failed.message;
  note(id, "failed");
}

void CmPeer::on_established(ConnectionId id) {
  note(id, "established");
}

void CmPeer::on_disconnected(ConnectionId id, const std::string& reason) {
  last_message = reason;
  note(id, "disconnected");
}

ConnectionId CmPeer::connect(const sockaddr_storage& peer, uint16_t port, uint32_t qpn) {
  cm::ConnectArguments arguments;
  arguments.peer = peer;
  arguments.port = port;
  arguments.qpn = qpn;
  arguments.receive_psn = 0x111111;
  arguments.parameters.responder_resources = arguments.parameters.initiator_depth = reads;
  const ConnectionId id = cm::new_connection_id();
  if (!agent.connect(id, arguments, now)) log.push_back("connect refused");
  return id;
}

void CmPeer::deliver(const sockaddr_storage& from, std::span<const uint8_t> mad) {
  // A private copy of exactly this size, so that ASan sees any read beyond it.
  const std::vector<uint8_t> copy(mad.begin(), mad.end());
  agent.receive({&from, &address, 1, copy}, now);
}

void CmPeer::advance(TimeNs by) {
  const TimeNs end = now + by;
  while (agent.next_deadline() <= end) {
    now = std::max(now, agent.next_deadline());
    agent.expire(now);
  }
  now = end;
}

size_t CmPeer::count(cm::Attribute attribute) const {
  return static_cast<size_t>(std::count_if(sent.begin(), sent.end(), [&](const SentMad& one) {
    return one.bytes[17] == static_cast<uint8_t>(attribute);
  }));
}

}  // namespace nvmeof::test
