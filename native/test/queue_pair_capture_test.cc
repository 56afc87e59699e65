// Sessions of stock kernels replayed. As responder: the request packets of each captured queue pair
// (queue pair numbers and keys rewritten, everything else as captured) go to one of ours, which
// must accept them all and, where the capture is of a network without faults, answer RDMA READs
// with the same packets and end on the same PSN and MSN. As requester: the work requests that the
// kernel must have had are posted to one of ours, which has to send the same packets and to take
// the kernel's answers.
#include <algorithm>
#include <map>

#include "sim/raw_peer.h"
#include "support/pcap_reader.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test;
using namespace nvmeof::test::sim;

namespace {

struct Frame {
  soft::Packet packet;
  bool forward;  // from the side that is played (or replaced) to the other
};

// One reliable connection of a capture, seen from one side.
struct Session {
  uint32_t mtu = 1024;
  std::vector<Frame> frames;
};

bool lossless(const std::string& name) {
  return name.rfind("main", 0) == 0;
}

// Every connection twice: the requests of one side and the answers to them, then the other's.
std::vector<Session> sessions_of(const std::string& name) {
  static std::map<std::string, std::vector<CapturedPacket>> kept;
  kept[name] = captured(name);
  const std::vector<CapturedPacket>& packets = kept[name];
  // The UDP source port belongs to the connection, in both directions (PROTOCOL 1).
  std::map<std::pair<std::string, uint16_t>, Session> all;
  for (const CapturedPacket& frame : packets) {
    soft::Packet packet;
    if (soft::parse(frame.udp, packet) != soft::PacketFault::None) continue;
    if (!packet.row->has(soft::kReliable)) continue;
    const bool request = packet.row->has(soft::kRequest);
    const std::string requester = soft::to_string(request ? frame.source : frame.destination);
    Session& session = all[{requester, soft::port_of(frame.source)}];
    session.frames.push_back({packet, request});
    if (packet.payload_length > session.mtu) session.mtu = 4096;
  }
  std::vector<Session> result;
  for (auto& [key, session] : all) result.push_back(std::move(session));
  return result;
}

// Captured keys, given a region of ours each, and captured addresses, mapped into it.
class Keys {
 public:
  explicit Keys(RawPeer& peer) : peer_(peer) {}
  static constexpr uint32_t kSpan = 256 << 10;
  struct Mapped {
    uint64_t base;
    uint32_t rkey;
    std::unique_ptr<MemoryWindow> window;
  };
  Mapped& of(uint32_t rkey, uint64_t address) {
    auto found = mapped_.find(rkey);
    if (found != mapped_.end()) return found->second;
    Mapped fresh{address, 0, std::move(peer_.node.pd->allocate_window().value())};
    fresh.rkey = fresh.window->next_rkey();
    const auto domain = static_cast<soft::SoftProtectionDomain&>(*peer_.node.pd).id();
    CHECK(peer_.node.keys->bind(static_cast<soft::SoftMemoryWindow&>(*fresh.window),
                                static_cast<soft::SoftMemoryRegion&>(*peer_.node.region), domain,
                                peer_.qp->number(), peer_.node.at(0), kSpan, fresh.rkey,
                                kRemoteRead | kRemoteWrite) == soft::KeyFault::None);
    return mapped_.emplace(rkey, std::move(fresh)).first->second;
  }
  void drop(uint32_t ours) {
    std::erase_if(mapped_, [&](const auto& entry) { return entry.second.rkey == ours; });
  }

 private:
  RawPeer& peer_;
  std::map<uint32_t, Mapped> mapped_;
};

struct Totals {
  uint32_t sessions = 0, requests = 0, responses = 0, matched = 0, sent = 0;
};

void connect_raw(RawPeer& p, uint32_t mtu, uint32_t send_psn, uint32_t receive_psn) {
  soft::QpAttributes reset;
  CHECK(static_cast<bool>(p.qp->modify(reset)));
  ConnectOptions options;
  options.mtu = mtu;
  options.reads = 16;
  CHECK(static_cast<bool>(
      bring_up(p.node, *p.qp, address("10.0.0.2"), RawPeer::kQpn, send_psn, receive_psn, options)));
}

bool is_start(const soft::Packet& p) {
  return p.row->has(soft::kRequest) && p.row->has(soft::kBegins);
}

void as_responder(const std::string& name, const Session& session, Totals& totals) {
  const auto first = std::find_if(session.frames.begin(), session.frames.end(),
                                  [](const Frame& f) { return f.forward && is_start(f.packet); });
  if (first == session.frames.end()) return;
  RawPeer p;
  connect_raw(p, session.mtu, 100, first->packet.psn);
  Keys keys(p);
  std::vector<std::pair<uint8_t, uint32_t>> captured_reads, our_reads;
  uint32_t last_msn = 0, our_msn = 0, last_ack = 0, our_ack = 0;
  for (const Frame& frame : session.frames) {
    soft::Packet packet = frame.packet;
    if (!frame.forward) {
      if (packet.row->has(soft::kReadResponse))
        captured_reads.emplace_back(static_cast<uint8_t>(packet.row->opcode), packet.psn);
      if (packet.row->has(soft::kAeth)) last_msn = packet.aeth.msn;
      if (packet.row->has(soft::kAcknowledge)) last_ack = packet.psn;
      continue;
    }
    packet.dest_qpn = p.qp->number();
    if (packet.row->has(soft::kSend) && packet.row->has(soft::kBegins))
      CHECK(p.post_receive(512 << 10, 64 << 10));
    if (packet.row->has(soft::kReth)) {
      const auto& mapped = keys.of(packet.reth.rkey, packet.reth.address);
      packet.reth.address = packet.reth.address - mapped.base + p.node.at(Keys::kSpan / 2);
      packet.reth.rkey = mapped.rkey;
    }
    if (packet.row->has(soft::kIeth))
      packet.invalidate_rkey = keys.of(packet.invalidate_rkey, 0).rkey;
    p.feed(packet);
    // A key is forgotten when it was really ended: not by a packet that came too early.
    for (const WorkCompletion& wc : p.node.poll())
      if (wc.flags == kWithInvalidate) keys.drop(wc.imm_or_rkey);
    totals.requests++;
    for (const soft::Packet& answer : p.answers()) {
      if (answer.row->has(soft::kReadResponse))
        our_reads.emplace_back(static_cast<uint8_t>(answer.row->opcode), answer.psn);
      if (answer.row->has(soft::kAeth)) our_msn = answer.aeth.msn;
      if (answer.row->has(soft::kAcknowledge)) our_ack = answer.psn;
    }
    if (p.qp->state() == State::Err) {
      test::fail(__FILE__, __LINE__,
                 name + ": " + p.qp->error_reason() + " at PSN " + std::to_string(packet.psn));
      return;
    }
  }
  totals.sessions++;
  if (!lossless(name)) return;
  CHECK(captured_reads == our_reads);
  totals.responses += static_cast<uint32_t>(our_reads.size());
  CHECK_EQ(our_ack, last_ack);
  CHECK_EQ(our_msn, last_msn);
}

// The work request whose first packet stands at `index`.
struct Message {
  Opcode opcode;
  uint32_t length = 0;
};
Message message_at(const std::vector<Frame>& frames, size_t index) {
  const soft::Packet& first = frames[index].packet;
  Message message{first.row->has(soft::kReadRequest) ? Opcode::RdmaRead
                  : first.row->has(soft::kWrite)     ? Opcode::RdmaWrite
                                                     : Opcode::Send};
  if (message.opcode != Opcode::Send) {
    message.length = first.reth.length;
    return message;
  }
  for (size_t i = index; i < frames.size(); i++) {
    const soft::Packet& packet = frames[i].packet;
    if (!frames[i].forward) continue;
    message.length += packet.payload_length;
    if (!packet.row->has(soft::kEnds)) continue;
    if (packet.row->has(soft::kIeth)) message.opcode = Opcode::SendWithInvalidate;
    break;
  }
  return message;
}

void as_requester(const std::string& name, const Session& session, Totals& totals) {
  const auto& frames = session.frames;
  size_t index = 0;
  while (index < frames.size() && !(frames[index].forward && is_start(frames[index].packet)))
    index++;
  if (index == frames.size()) return;
  soft::TransportConfig config;
  config.receive_window_bytes = 16 << 20;
  RawPeer p({}, config);
  connect_raw(p, session.mtu, frames[index].packet.psn, 0);
  uint32_t posted = 0, completed = 0;
  std::vector<std::pair<uint8_t, uint32_t>> expected, sent;
  for (; index < frames.size(); index++) {
    soft::Packet packet = frames[index].packet;
    if (frames[index].forward) {
      // Our long WRITEs leave as WRITEs of one packet (requester.cc).
      const auto expected_name =
          packet.row->has(soft::kWrite) ? soft::PacketOpcode::WriteOnly : packet.row->opcode;
      expected.emplace_back(static_cast<uint8_t>(expected_name), packet.psn);
      if (!is_start(packet)) continue;
      const Message message = message_at(frames, index);
      CHECK(p.post(message.opcode, 0, message.length));
      posted++;
      for (const soft::Packet& out : p.answers())
        sent.emplace_back(static_cast<uint8_t>(out.row->opcode), out.psn);
    } else {
      packet.dest_qpn = p.qp->number();
      p.feed(packet);
      for (const WorkCompletion& wc : p.node.poll()) {
        CHECK(wc.status == Status::Success);
        completed++;
      }
    }
    if (p.qp->state() == State::Err) {
      test::fail(__FILE__, __LINE__, name + ": " + p.qp->error_reason());
      return;
    }
  }
  CHECK(sent == expected);
  // The kernel may end a session with a request that nobody answers any more.
  CHECK(completed + 2 >= posted && completed > 0);
  totals.matched += completed;
  totals.sent += static_cast<uint32_t>(sent.size());
}

}  // namespace

TEST(our_responder_accepts_what_kernels_send) {
  Totals totals;
  for (const std::string& name : capture_names()) {
    if (name == "verbs-v4") continue;  // has atomics, which we refuse
    for (const Session& session : sessions_of(name)) as_responder(name, session, totals);
  }
  std::printf("  %u sessions, %u requests, %u READ responses alike\n", totals.sessions,
              totals.requests, totals.responses);
  CHECK(totals.sessions >= 20);
  CHECK(totals.requests > 1000);
  CHECK(totals.responses > 100);
}

TEST(our_requester_sends_what_kernels_send_and_takes_their_answers) {
  Totals totals;
  for (const std::string& name : capture_names())
    if (lossless(name))
      for (const Session& session : sessions_of(name)) as_requester(name, session, totals);
  std::printf("  %u packets alike, %u work requests completed\n", totals.sent, totals.matched);
  CHECK(totals.matched > 200);
}

TEST_MAIN
