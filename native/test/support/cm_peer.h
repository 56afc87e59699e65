// A cm::Agent with everything around it that a device would be, recorded and under the test's
// control: queue pairs that move (or not) when asked, an application that accepts or rejects.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "rdma/soft/cm/agent.h"

namespace nvmeof::test {

namespace cm = rdma::soft::cm;
using rdma::ConnectionId;
using rdma::soft::TimeNs;

inline constexpr TimeNs kMs = 1'000'000;

sockaddr_storage ip(const std::string& text, uint16_t port = 0);

struct SentMad {
  sockaddr_storage peer{};
  cm::MadBytes bytes{};
  cm::Mad mad;
};

class CmPeer : public cm::Actions, public cm::Events {
 public:
  explicit CmPeer(const std::string& address, uint64_t seed = 1, cm::AgentOptions options = {});

  // Actions
  void send_mad(const sockaddr_storage& peer, std::span<const uint8_t, cm::kMadBytes> mad) override;
  void activate(ConnectionId id, const cm::QueuePairPath& path) override;
  void to_error(ConnectionId id, uint32_t qpn) override;
  // Events
  void on_request(const cm::IncomingRequest& request) override;
  void on_connected(ConnectionId id, const rdma::ConnectResponse& response) override;
  void on_failed(ConnectionId id, const rdma::ConnectFailed& failed) override;
  void on_established(ConnectionId id) override;
  void on_disconnected(ConnectionId id, const std::string& reason) override;

  ConnectionId connect(const sockaddr_storage& peer, uint16_t port, uint32_t qpn);
  // Delivers bytes as if `from` had sent them; each call also sets the agent's clock.
  void deliver(const sockaddr_storage& from, std::span<const uint8_t> mad);
  void advance(TimeNs by);
  size_t count(cm::Attribute attribute) const;  // sent
  const SentMad& last() const { return sent.back(); }

  sockaddr_storage address;
  TimeNs now = 1000 * kMs;
  std::vector<SentMad> sent;
  std::vector<std::string> log;  // "request 3", "connected 1", ...
  std::map<ConnectionId, cm::QueuePairPath> paths;
  std::map<ConnectionId, rdma::ConnectFailed> failures;
  std::map<ConnectionId, std::vector<uint8_t>> failure_data, response_data, request_data;
  std::map<ConnectionId, cm::IncomingRequest> requests;
  std::map<ConnectionId, rdma::ConnectResponse> responses;
  std::map<ConnectionId, int> errors;                        // to_error calls
  std::map<ConnectionId, std::vector<std::string>> history;  // events of each connection
  std::string last_message;

  // What the application and the device do by themselves.
  bool auto_activate = true, activation_succeeds = true;
  enum class Answer { Nothing, Accept, Reject } answer = Answer::Accept;
  std::vector<uint8_t> reply_data, reject_data;
  uint32_t next_qpn = 100;
  uint8_t reads = 16;
  cm::Agent agent;

 private:
  void note(ConnectionId id, const std::string& what);
};

}  // namespace nvmeof::test
