// Fuzz target: a live queue pair (RTS, registered memory, outstanding sends, posted receives)
// against whatever packets the bytes describe. Each step takes a valid packet, changes fields as
// the input says, and seals it with a right ICRC, so that the state machines see it. The first byte
// chooses the service too. The address
// sanitizer guards everything outside the registered memory; inside, bytes outside the regions the
// peer may write must never change.
#include <cstdlib>

#include "sim/raw_peer.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test::sim;

namespace {

// Input is a sequence of steps; a byte runs out as zero.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    left_--;
    return *data_++;
  }
  uint32_t word() { return static_cast<uint32_t>(byte() << 8 | byte()); }

 private:
  const uint8_t* data_;
  size_t left_;
};

constexpr uint32_t kAllowed = 64 << 10;  // the peer's key covers this much from the start
constexpr uint32_t kMemory = 80 << 10;

ConnectOptions options(uint8_t flavour) {
  ConnectOptions o;
  if ((flavour & 16) != 0) o.access = kLocalWrite;
  o.mtu = (flavour & 1) != 0 ? 256 : 1024;
  o.reads = (flavour & 2) != 0 ? 1 : 4;
  o.retry_count = o.rnr_retry = (flavour & 4) != 0 ? 7 : 1;
  return o;
}

// Made once: only the queue pair and its memory are new for each input.
RawPeer& shared_peer() {
  static RawPeer* const peer = [] {
    soft::TransportConfig config;
    config.receive_window_bytes = 8 << 10;
    config.transmit_packets = 64;
    return new RawPeer({}, config, kMemory);
  }();
  return *peer;
}

QpType type_of(uint8_t flavour) {
  constexpr QpType types[] = {QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud};
  return types[flavour >> 5 & 3];
}

struct Session {
  explicit Session(uint8_t flavour)
      : srq(nullptr, 32, 2), peer(shared_peer()), agreed(options(flavour)), type(type_of(flavour)) {
    peer.renew(agreed, (flavour & 8) != 0 ? &srq : nullptr, type);
    address = std::make_unique<soft::AddressHandle>(peer.node.flows.back().get());
    register_allowed();
  }
  ~Session() { peer.qp.reset(); }
  void register_allowed() {
    allowed.reset();
    allowed =
        std::move(peer.node.pd
                      ->register_memory(peer.node.memory.data(), kAllowed,
                                        kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic)
                      .value());
  }
  // Beyond what the peer may touch, memory is as RawPeer filled it.
  bool untouched() const {
    for (size_t i = kAllowed; i < kMemory; i++)
      if (peer.node.memory[i] != static_cast<uint8_t>(i * 13)) return false;
    return true;
  }

  soft::SharedReceiveQueue srq;
  RawPeer& peer;
  ConnectOptions agreed;
  QpType type;
  std::unique_ptr<soft::AddressHandle> address;
  std::unique_ptr<MemoryRegion> allowed;
  uint32_t next_psn = RawPeer::kPsn;  // of the peer's requests
  std::vector<soft::Packet> seen;     // what left last
};

void post_local_work(Session& s, Input& in) {
  Sge sge{s.peer.node.at(in.word() & 0x7fff), in.word() & 0x3fff, s.allowed->lkey()};
  const uint8_t kind = in.byte();
  if (kind >= 0xc0) {
    const ReceiveWorkRequest wr{kind, 1, &sge};
    if ((kind & 1) != 0)
      (void)s.srq.post_receive({&wr, 1});
    else
      (void)s.peer.qp->post_receive({&wr, 1});
    return;
  }
  SendWorkRequest wr{};
  wr.opcode = static_cast<Opcode>(kind % 6);
  if (kind >= 0xb0) {
    wr.opcode = (kind & 1) != 0 ? Opcode::AtomicFetchAdd : Opcode::AtomicCompareSwap;
    sge.length = 8;
    wr.atomic = {kind, in.word()};
  }
  if (s.type == QpType::Ud) wr.datagram = {s.address.get(), RawPeer::kQpn, in.word()};
  wr.flags = static_cast<uint8_t>(kind >> 3 & 7);
  wr.sg_list = &sge;
  wr.num_sge = 1;
  (void)s.peer.qp->post_send({&wr, 1});
}

// A request or an answer, right but for what the input changes. True: the next step comes before
// the queue pair can answer.
bool feed_packet(Session& s, Input& in) {
  const soft::PacketOpcode opcodes[] = {
      soft::PacketOpcode::SendFirst,          soft::PacketOpcode::SendMiddle,
      soft::PacketOpcode::SendLast,           soft::PacketOpcode::SendOnly,
      soft::PacketOpcode::SendOnlyInvalidate, soft::PacketOpcode::WriteFirst,
      soft::PacketOpcode::WriteMiddle,        soft::PacketOpcode::WriteLast,
      soft::PacketOpcode::WriteOnly,          soft::PacketOpcode::WriteLastImm,
      soft::PacketOpcode::ReadRequest,        soft::PacketOpcode::ReadResponseFirst,
      soft::PacketOpcode::ReadResponseMiddle, soft::PacketOpcode::ReadResponseLast,
      soft::PacketOpcode::ReadResponseOnly,   soft::PacketOpcode::Acknowledge};
  const soft::PacketOpcode atomics[] = {
      soft::PacketOpcode::FetchAdd, soft::PacketOpcode::CompareSwap,
      soft::PacketOpcode::AtomicAcknowledge, soft::PacketOpcode::FetchAdd};
  const uint8_t pick = in.byte();
  soft::PacketOpcode opcode = pick >= 0xe0 ? atomics[pick & 3] : opcodes[pick & 15];
  // The same packet of an unreliable service, where there is one.
  if (s.type == QpType::Uc) {
    const auto same = static_cast<soft::PacketOpcode>(static_cast<uint8_t>(opcode) | 0x20);
    if (soft::row_of(same).name != nullptr) opcode = same;
  } else if (s.type == QpType::Ud) {
    opcode = (pick & 1) != 0 ? soft::PacketOpcode::UdSendOnlyImm : soft::PacketOpcode::UdSendOnly;
  }
  if (pick >= 0xf0) {
    const auto any = static_cast<soft::PacketOpcode>(in.byte());
    if (soft::row_of(any).name != nullptr) opcode = any;
  }
  const soft::OpcodeRow& row = soft::row_of(opcode);
  const uint32_t mtu = s.peer.qp->mtu();
  const uint8_t shape = in.byte();
  uint32_t length = row.has(soft::kPayload) ? ((shape & 1) != 0 ? mtu : shape & 0x7cu) : 0;
  if (row.has(soft::kPayload) && shape >= 0xf0) length = in.word() & 0xfff;
  soft::Packet p = s.peer.packet(opcode, 0, std::vector<uint8_t>(length, shape));
  if (row.has(soft::kRequest)) {
    p.psn =
        (s.next_psn + ((shape & 2) != 0 ? static_cast<uint32_t>(in.byte()) - 128 : 0)) & 0xffffff;
    if (p.psn == (s.next_psn & 0xffffff)) s.next_psn++;
  } else {
    const uint32_t base = s.seen.empty() ? 100 : s.seen.front().psn;
    p.psn = (base + ((shape & 2) != 0 ? static_cast<uint32_t>(in.byte()) - 64 : 0)) & 0xffffff;
  }
  p.ack_request = (shape & 0x80) != 0;
  p.aeth.syndrome = row.has(soft::kAcknowledge) ? in.byte() : soft::kSyndromeAck;
  p.reth = {s.peer.node.at(in.word()), s.allowed->rkey(), length};
  if (row.has(soft::kAtomicRequest))
    p.atomic = {s.peer.node.at(in.word() & 0xfff8u), in.byte(), in.byte(), s.allowed->rkey()};
  p.deth = {ConnectOptions{}.qkey, shape};
  const uint8_t change = in.byte();
  if ((change & 1) != 0) p.reth.length = in.word();
  if ((change & 2) != 0) p.reth.rkey = p.atomic.rkey ^= in.byte();
  if ((change & 128) != 0 && row.has(soft::kAtomicRequest))
    p.atomic.address = s.peer.node.at(kAllowed - 16 + in.byte());
  if ((change & 128) != 0 && row.has(soft::kDeth)) p.deth.qkey ^= in.byte();
  if ((change & 4) != 0) p.reth.address += static_cast<uint64_t>(in.byte()) << 56;
  if ((change & 8) != 0) p.reth.length = in.word() << 16;
  if (row.has(soft::kReadRequest) && p.reth.length <= kAllowed && p.psn + 1 == s.next_psn)
    s.next_psn += soft::packets_of(p.reth.length, mtu) - 1;
  p.invalidate_rkey = in.byte();
  std::vector<uint8_t> bytes = s.peer.bytes_of(p);
  if ((change & 16) != 0) {
    bytes[in.byte() % bytes.size()] ^= in.byte();
    s.peer.seal(bytes);
  }
  if ((change & 32) != 0) bytes.resize(in.word() % (bytes.size() + 1));
  s.peer.feed_bytes(bytes);
  return (change & 64) != 0;
}

void move_state(Session& s, Input& in) {
  soft::QpAttributes a;
  const uint8_t kind = in.byte() % 8;
  if (kind == 0) a.state = State::Sqd;
  if (kind == 1) a.state = State::Rts;
  if (kind == 2) s.peer.qp->to_error();
  if (kind < 2) (void)s.peer.qp->modify(a);
  if (kind == 3) (void)s.peer.qp->probe();
  if (kind == 4) s.register_allowed();  // the old key is dead
  if (kind == 5)
    s.peer.node.transport.report_unreachable(RawPeer::kQpn, in.word(), address("10.0.0.2"));
  if (kind == 6) {  // the same queue pair for another connection
    a.state = State::Reset;
    (void)s.peer.qp->modify(a);
    (void)bring_up(s.peer.node, *s.peer.qp, address("10.0.0.2"), RawPeer::kQpn, 100, RawPeer::kPsn,
                   s.agreed);
    s.next_psn = RawPeer::kPsn;
    s.seen.clear();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 4096) return 0;
  Input in(data, size);
  Session s(in.byte());
  while (!in.empty()) {
    const uint8_t what = in.byte();
    if (what < 0xa0) {
      if (feed_packet(s, in)) continue;
    } else if (what < 0xd0) {
      post_local_work(s, in);
    } else if (what < 0xf0) {
      s.peer.network.now += static_cast<TimeNs>(in.byte()) * 100'000;
    } else {
      move_state(s, in);
    }
    auto answers = s.peer.answers();
    for (const soft::Packet& p : answers)
      if (p.row == nullptr) std::abort();  // we never send what we could not parse
    if (!answers.empty()) s.seen = std::move(answers);
    s.peer.node.poll();
  }
  if (!s.untouched()) std::abort();
  return 0;
}
