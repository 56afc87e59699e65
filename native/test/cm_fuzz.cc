// Datagrams into an agent that has a listener, a connect in progress and an established connection.
// The input is a sequence of records: one byte of flags, then 256 bytes of a MAD (short ones are
// tried as they are). Flags: 1 send from the peer that is known, 2 put live comm ids and the
// transaction id in, 4 let time pass (bits 5-7: how long), 8 the application answers what waits
// (16: by rejecting); without 4, bits 5-7 name a local event.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "rdma/soft/packet.h"
#include "support/cm_peer.h"

using namespace nvmeof;
using namespace nvmeof::test;
using namespace nvmeof::rdma::soft;

namespace {

constexpr uint16_t kPort = 4420;
constexpr size_t kHeader = 24, kAttributeAt = 17, kTidAt = 8;

void require(bool condition) {
  if (!condition) std::abort();
}

struct World {
  World() {
    (void)peer.agent.listen(kPort);
    CmPeer other("10.0.0.1", 2);
    (void)other.agent.listen(kPort);
    established = peer.connect(other.address, kPort, 77);
    established_req = peer.last().mad;
    other.deliver(peer.address, cm::MadBytes(peer.last().bytes));
    established_remote = std::get<cm::Rep>(other.last().mad.message).local_comm_id;
    peer.deliver(other.address, cm::MadBytes(other.last().bytes));
    connecting = peer.connect(other.address, kPort, 78);
    connecting_req = peer.last().mad;
    known = other.address;
    peer.answer = CmPeer::Answer::Nothing;
  }
  // Comm ids that mean something, where the fuzzer cannot guess them: of the established
  // connection, the one in progress, or the last that we accepted.
  void put_ids(cm::MadBytes& mad) const {
    if (mad[kAttributeAt] == static_cast<uint8_t>(cm::Attribute::Req)) return;
    uint32_t theirs = established_remote, qpn = 77;
    uint32_t ours = std::get<cm::Req>(established_req.message).local_comm_id;
    uint64_t transaction = established_req.transaction_id;
    if ((mad[kHeader + 3] & 3) == 1) {
      theirs = get32(mad.data() + kHeader);
      ours = std::get<cm::Req>(connecting_req.message).local_comm_id;
      transaction = connecting_req.transaction_id;
      qpn = 78;
    } else if ((mad[kHeader + 3] & 3) == 2) {
      for (const SentMad& sent : peer.sent)
        if (const auto* rep = std::get_if<cm::Rep>(&sent.mad.message)) {
          theirs = rep->remote_comm_id;
          ours = rep->local_comm_id;
          qpn = rep->qpn;
          transaction = sent.mad.transaction_id;
        }
    }
    put64(mad.data() + kTidAt, transaction);
    put32(mad.data() + kHeader, theirs);
    put32(mad.data() + kHeader + 4, ours);
    if (mad[kAttributeAt] == static_cast<uint8_t>(cm::Attribute::Dreq))
      put24(mad.data() + kHeader + 8, qpn);
  }
  void local_event(uint8_t which) {
    std::vector<ConnectionId> ids{established, connecting};
    for (const auto& [id, request] : peer.requests) ids.push_back(id);
    for (const ConnectionId id : ids) {
      if (which == 1) peer.agent.data_arrived(id, peer.now);
      if (which == 2) peer.agent.disconnect(id, peer.now);
      if (which == 3) peer.agent.queue_pair_failed(id, "test", peer.now);
      if (which == 4) {
        peer.agent.abandon(id, peer.now);
        abandoned = true;
      }
    }
    if (which == 5) peer.agent.bad_icrc_seen(known);
    if (which == 6) peer.agent.peer_unreachable(known, peer.now);
    if (which == 7) peer.agent.datagram_too_large(known, peer.now);
  }
  void answer_waiting(uint8_t how) {
    for (const auto& [id, request] : peer.requests) {
      if (peer.history[id].size() != 1) continue;
      cm::AcceptArguments arguments;
      arguments.qpn = peer.next_qpn++;
      if ((how & 16) != 0)
        peer.agent.reject(id, cm::reject::kConsumer, {}, peer.now);
      else
        (void)peer.agent.accept(id, arguments, peer.now);
    }
  }
  CmPeer peer{"10.0.0.2", 1};
  sockaddr_storage known{};
  ConnectionId established = 0, connecting = 0;
  cm::Mad established_req, connecting_req;
  uint32_t established_remote = 0;
  bool abandoned = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 16 * 257) return 0;
  World world;
  const sockaddr_storage stranger = ip("10.0.0.3");
  while (size > 0) {
    const uint8_t flags = *data++;
    size--;
    const size_t take = std::min(size, cm::kMadBytes);
    std::vector<uint8_t> bytes(data, data + take);
    data += take;
    size -= take;
    cm::MadBytes mad;
    if (take == cm::kMadBytes && (flags & 2) != 0) {
      std::copy(bytes.begin(), bytes.end(), mad.begin());
      world.put_ids(mad);
      bytes.assign(mad.begin(), mad.end());
    }
    cm::Mad decoded, again;
    if (cm::decode(bytes, decoded) == cm::MadFault::None) {
      const cm::MadBytes encoded = cm::encode(decoded);
      require(cm::decode(encoded, again) == cm::MadFault::None);
      require(cm::encode(again) == encoded);
    }
    const size_t before = world.peer.sent.size();
    world.peer.deliver((flags & 1) != 0 ? world.known : stranger, bytes);
    require(world.peer.sent.size() <= before + 2);  // never an amplifier
    if ((flags & 8) != 0) world.answer_waiting(flags);
    if ((flags & 4) != 0)
      world.peer.advance((1 + (flags >> 5)) * 700 * kMs);
    else
      world.local_event(flags >> 5);
  }
  // Whatever came, everything ends: at most one outcome each, and nothing stays.
  for (const auto& [id, log] : world.peer.history) world.peer.agent.disconnect(id, world.peer.now);
  world.peer.agent.disconnect(world.established, world.peer.now);
  world.peer.advance(120'000 * kMs);
  require(world.peer.agent.connections() == 0);
  require(world.peer.agent.half_open() == 0);
  require(world.peer.agent.remembered() == 0);
  require(world.peer.agent.next_deadline() == reactor::kNever);
  for (const auto& [id, log] : world.peer.history) {
    size_t ends = 0;
    for (const std::string& entry : log) ends += entry == "failed" || entry == "disconnected";
    require(ends <= 1 && world.peer.errors[id] <= 1);
  }
  if (world.abandoned) return 0;
  require(world.peer.history[world.connecting].size() >= 1);
  require(world.peer.history[world.established].back() == "disconnected");
  return 0;
}
