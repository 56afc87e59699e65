// What the tests of the connection agent share: two agents joined by hand, and short ways to look
// at what was sent.
#pragma once
#include "support/cm_peer.h"
#include "test.h"

namespace nvmeof::test {

using Log = std::vector<std::string>;
inline constexpr uint16_t kPort = 4420;

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

inline cm::Mad request_from(CmPeer& host, const sockaddr_storage& to) {
  host.connect(to, kPort, 77);
  return host.last().mad;
}

}  // namespace nvmeof::test
