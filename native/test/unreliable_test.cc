// UC and UD queue pairs: their states, what they send, what they take and what they drop. Nothing
// here is ever acknowledged.
#include "sim/raw_peer.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test::sim;
using enum soft::PacketOpcode;

namespace {

constexpr uint32_t kPsn = RawPeer::kPsn;
constexpr uint32_t kQKey = ConnectOptions{}.qkey;

struct UcPeer : RawPeer {
  explicit UcPeer(const ConnectOptions& options = {}) : RawPeer(options) {
    renew(options, nullptr, QpType::Uc);
  }
};

struct UdPeer : RawPeer {
  UdPeer() {
    renew({}, nullptr, QpType::Ud);
    to = std::make_unique<soft::AddressHandle>(node.flows.back().get());
  }
  SendWorkRequest request(const Sge& sge, Opcode opcode = Opcode::Send) {
    SendWorkRequest wr{};
    wr.wr_id = 8;
    wr.opcode = opcode;
    wr.flags = kSignaled;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.datagram = {to.get(), 0x77, 0x1234};
    return wr;
  }
  soft::Packet datagram(size_t length, soft::PacketOpcode opcode = UdSendOnly) {
    soft::Packet p = send(5, length, opcode);
    p.deth = {kQKey, 0x99};
    return p;
  }
  std::unique_ptr<soft::AddressHandle> to;
};

soft::QpAttributes move_to(State state, uint32_t mask = 0) {
  soft::QpAttributes a;
  a.state = state;
  a.mask = mask;
  return a;
}

uint64_t dropped(const RawPeer& p) {
  return p.node.transport.counters().unreliable_dropped;
}

}  // namespace

// ---- States

TEST(each_service_has_its_own_required_attributes) {
  const soft::Flow flow = soft::make_flow(address("10.0.0.1"), address("10.0.0.2"));
  const std::pair<State, State> steps[] = {
      {State::Reset, State::Init}, {State::Init, State::Rtr}, {State::Rtr, State::Rts}};
  int moves = 0;
  for (const QpType type : {QpType::Rc, QpType::Uc, QpType::Ud})
    for (const auto& [from, to] : steps) {
      soft::QpAttributes a = move_to(to, soft::required_attributes(type, from, to));
      a.flow = &flow;
      a.path_mtu = 1024;
      a.destination_qpn = 77;
      CHECK(static_cast<bool>(soft::check_move(type, from, a)));
      for (uint32_t bit = 1; bit <= soft::kQKey; bit <<= 1) {
        if ((a.mask & bit) == 0) continue;
        soft::QpAttributes less = a;
        less.mask &= ~bit;
        CHECK(!soft::check_move(type, from, less));
      }
      moves++;
    }
  CHECK_EQ(moves, 9);
  CHECK_EQ(soft::required_attributes(QpType::Ud, State::Init, State::Rtr), 0u);
  CHECK((soft::required_attributes(QpType::Uc, State::Init, State::Rtr) & soft::kMaxDestReads) ==
        0);
  // A UD queue pair has no peer, an RC queue pair no Q_Key and no SQE.
  CHECK(!soft::check_move(QpType::Ud, State::Init, move_to(State::Rtr, soft::kAddressVector)));
  CHECK(!soft::check_move(QpType::Rc, State::Rts, move_to(State::Rts, soft::kQKey)));
  CHECK(!soft::check_move(QpType::Rc, State::Sqe, move_to(State::Rts)));
  CHECK(static_cast<bool>(soft::check_move(QpType::Uc, State::Sqe, move_to(State::Rts))));
  CHECK(static_cast<bool>(soft::check_move(QpType::Ud, State::Sqe, move_to(State::Reset))));
}

TEST(each_service_takes_its_own_operations) {
  struct Row {
    Opcode opcode;
    bool rc, uc, ud;
  };
  constexpr Row rows[] = {{Opcode::Send, true, true, true},
                          {Opcode::SendWithImm, true, true, true},
                          {Opcode::SendWithInvalidate, true, false, false},
                          {Opcode::RdmaWrite, true, true, false},
                          {Opcode::RdmaWriteWithImm, true, true, false},
                          {Opcode::RdmaRead, true, false, false},
                          {Opcode::LocalInvalidate, true, true, false},
                          {Opcode::AtomicFetchAdd, true, false, false},
                          {Opcode::AtomicCompareSwap, true, false, false}};
  RawPeer rc;
  UcPeer uc;
  UdPeer ud;
  for (const Row& row : rows) {
    const auto taken = [&](RawPeer& p) {
      const Sge sge = p.node.sge(0, 8);
      SendWorkRequest wr = ud.request(sge, row.opcode);
      const Result<void> posted = p.qp->post_send({&wr, 1});
      return posted ? 0 : posted.error().code;
    };
    CHECK_EQ(taken(rc), row.rc ? 0 : EINVAL);
    CHECK_EQ(taken(uc), row.uc ? 0 : EINVAL);
    CHECK_EQ(taken(ud), row.ud ? 0 : EINVAL);
  }
}

TEST(a_failed_send_stops_the_send_queue_only) {
  UcPeer p;
  CHECK(p.post_receive(5000, 100));
  const Sge bad{p.node.at(0), 10, 0xbad};
  SendWorkRequest wr{};
  wr.wr_id = 1;
  wr.sg_list = &bad;
  wr.num_sge = 1;
  CHECK(static_cast<bool>(p.qp->post_send({&wr, 1})));
  CHECK(p.post(Opcode::Send, 0, 10));
  CHECK(p.answers().empty());
  CHECK(p.qp->state() == State::Sqe);
  auto done = p.node.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == Status::LocalProtectionError && done[1].status == Status::FlushError);
  CHECK(p.post(Opcode::Send, 0, 10));  // flushed at once
  done = p.node.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == Status::FlushError && p.node.errors.empty());
  p.feed(p.send(kPsn, 20, UcSendOnly));
  CHECK_EQ(p.node.poll().size(), 1u);
  CHECK(static_cast<bool>(p.qp->modify(move_to(State::Rts))));
  CHECK(p.post(Opcode::Send, 0, 10));
  CHECK_EQ(p.answers().size(), 1u);
  CHECK_EQ(p.node.poll().size(), 1u);
}

// ---- UC

TEST(uc_sends_complete_when_they_have_left) {
  UcPeer p;
  CHECK(p.post(Opcode::RdmaWrite, 0, 2500));
  CHECK(p.post(Opcode::SendWithImm, 0, 10, kSignaled | kSolicited));
  const auto packets = p.answers();
  REQUIRE(packets.size() == 4);
  const soft::PacketOpcode expected[] = {UcWriteFirst, UcWriteMiddle, UcWriteLast, UcSendOnlyImm};
  for (uint32_t i = 0; i < 4; i++) {
    CHECK(packets[i].row->opcode == expected[i]);
    CHECK_EQ(packets[i].psn, 100 + i);
    CHECK(!packets[i].ack_request);
  }
  CHECK(packets[0].reth.length == 2500 && packets[3].solicited);
  CHECK_EQ(p.node.poll().size(), 2u);
  CHECK_EQ(p.qp->outstanding_sends(), 0u);
  // Nothing waits for an answer: no timer, no probe, no retransmission.
  CHECK_EQ(p.node.transport.next_deadline(), reactor::kNever);
  CHECK(!p.qp->probe());
  // An answer is none of this service's packets.
  p.feed(p.ack(100, soft::syndrome_nak(soft::NakCode::PsnSequenceError)));
  CHECK_EQ(p.node.transport.counters().wrong_service, 1u);
}

TEST(uc_messages_are_placed) {
  UcPeer p;
  CHECK(p.post_receive(5000, 3000, 11) && p.post_receive(9000, 100, 12));
  p.feed(p.send(kPsn, 1024, UcSendFirst));
  p.feed(p.send(kPsn + 1, 1024, UcSendMiddle));
  soft::Packet last = p.send(kPsn + 2, 100, UcSendLastImm);
  last.immediate = 0xabcd;
  last.ack_request = true;  // means nothing here
  p.feed(last);
  p.feed(p.write(kPsn + 3, UcWriteFirst, 20000, 1030, 1024));
  soft::Packet tail = p.write(kPsn + 4, UcWriteLastImm, 0, 0, 6);
  tail.immediate = 5;
  p.feed(tail);
  const auto done = p.node.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].wr_id == 11 && done[0].byte_length == 2148 && done[0].imm_or_rkey == 0xabcd);
  CHECK(done[1].wr_id == 12 && done[1].opcode == Opcode::RdmaWriteWithImm &&
        done[1].byte_length == 1030 && done[1].imm_or_rkey == 5);
  CHECK(p.node.memory[5000] == 0xab && p.node.memory[7147] == 0xab && p.node.memory[21029] == 0xcd);
  CHECK(p.answers().empty());
  CHECK_EQ(dropped(p), 0u);
}

TEST(a_gap_costs_uc_its_message_and_no_receive) {
  UcPeer p;
  CHECK(p.post_receive(5000, 4000, 11));
  p.feed(p.send(kPsn, 1024, UcSendFirst));
  p.feed(p.send(kPsn + 2, 1024, UcSendMiddle));  // one is missing
  p.feed(p.send(kPsn + 3, 10, UcSendLast));
  CHECK(p.node.poll().empty());
  CHECK_EQ(dropped(p), 2u);
  // The next message takes the receive, from its start, whatever its PSN.
  p.feed(p.send(kPsn + 900, 20, UcSendOnly));
  const auto done = p.node.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 11 && done[0].byte_length == 20 && done[0].status == Status::Success);
  CHECK(p.answers().empty() && p.qp->state() == State::Rts);
}

TEST(a_new_uc_message_ends_an_unfinished_one) {
  UcPeer p;
  CHECK(p.post_receive(5000, 4000, 11));
  p.feed(p.send(kPsn, 1024, UcSendFirst));
  p.feed(p.send(kPsn + 1, 1024, UcSendFirst));
  p.feed(p.send(kPsn + 2, 7, UcSendLast));
  const auto done = p.node.poll();
  REQUIRE(done.size() == 1);
  CHECK_EQ(done[0].byte_length, 1031u);
}

TEST(what_uc_may_not_do_is_dropped_without_a_word) {
  ConnectOptions read_only;
  read_only.access = kLocalWrite | kRemoteRead;
  const std::function<void(UcPeer&)> wrongs[] = {
      [](UcPeer& p) { p.feed(p.send(kPsn, 20, UcSendOnly)); },  // no receive
      [](UcPeer& p) {                                           // receive too small
        CHECK(p.post_receive(5000, 10));
        p.feed(p.send(kPsn, 20, UcSendOnly));
      },
      [](UcPeer& p) { p.feed(p.send(kPsn, 1000, UcWriteFirst)); },  // first not full
      [](UcPeer& p) {                                               // outside of the region
        p.feed(p.write(kPsn, UcWriteOnly, p.node.memory.size() - 10, 20, 20));
      },
      [](UcPeer& p) { p.feed(p.write(kPsn, UcWriteOnly, 0, 21, 20)); },     // length does not fit
      [](UcPeer& p) { p.feed(p.write(kPsn, UcWriteOnlyImm, 0, 20, 20)); },  // no receive
      [](UcPeer& p) { p.feed(p.send(kPsn, 20, UcSendLast)); },
      [](UcPeer& p) { p.feed(p.send(kPsn, 1024, UcWriteMiddle)); }};
  for (const auto& wrong : wrongs) {
    UcPeer p;
    const std::vector<uint8_t> before = p.node.memory;
    wrong(p);
    CHECK_EQ(dropped(p), 1u);
    CHECK(p.node.memory == before && p.answers().empty() && p.node.poll().empty());
    CHECK(p.qp->state() == State::Rts);
  }
  UcPeer p(read_only);
  p.feed(p.write(kPsn, UcWriteOnly, 0, 20, 20));
  CHECK_EQ(dropped(p), 1u);
}

TEST(a_bad_receive_of_our_own_fails_the_uc_queue_pair) {
  UcPeer p;
  const Sge sge{p.node.at(0), 100, 0xbad};
  const ReceiveWorkRequest wr{4, 1, &sge};
  CHECK(static_cast<bool>(p.qp->post_receive({&wr, 1})));
  p.feed(p.send(kPsn, 10, UcSendOnly));
  const auto done = p.node.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == Status::LocalProtectionError && p.qp->state() == State::Err);
  CHECK(p.answers().empty());
}

// ---- UD

TEST(datagrams_leave_to_the_address_and_queue_pair_of_the_request) {
  UdPeer p;
  const Sge sge = p.node.sge(100, 11);
  SendWorkRequest wr = p.request(sge, Opcode::SendWithImm);
  wr.imm_or_rkey = 0xfeed;
  CHECK(static_cast<bool>(p.qp->post_send({&wr, 1})));
  wr = p.request(sge);
  wr.datagram.remote_qkey = 0x80010000;  // stands for the queue pair's own
  CHECK(static_cast<bool>(p.qp->post_send({&wr, 1})));
  const auto packets = p.answers();
  REQUIRE(packets.size() == 2);
  CHECK(packets[0].row->opcode == UdSendOnlyImm && packets[0].immediate == 0xfeed);
  CHECK(packets[0].dest_qpn == 0x77 && packets[0].deth.qkey == 0x1234 &&
        packets[0].deth.source_qpn == p.qp->number());
  CHECK(packets[0].payload_length == 11 &&
        std::memcmp(packets[0].payload, &p.node.memory[100], 11) == 0);
  CHECK(packets[1].row->opcode == UdSendOnly);
  CHECK_EQ(packets[1].deth.qkey, kQKey);
  const auto done = p.node.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == Status::Success && done[0].wr_id == 8);
}

TEST(a_datagram_needs_an_address_and_fits_the_path_mtu) {
  UdPeer p;
  const Sge whole = p.node.sge(0, 4096), more = p.node.sge(0, 4097);
  SendWorkRequest wr = p.request(whole);
  CHECK(static_cast<bool>(p.qp->post_send({&wr, 1})));
  CHECK_EQ(p.answers().size(), 1u);
  wr = p.request(more);
  CHECK(p.qp->post_send({&wr, 1}).error().code == EINVAL);
  wr = p.request(whole);
  wr.datagram.address = nullptr;
  CHECK(p.qp->post_send({&wr, 1}).error().code == EINVAL);
  for (const uint32_t qpn : {0u, 0xffffffu, 0x1000001u}) {
    wr = p.request(whole);
    wr.datagram.remote_qpn = qpn;
    CHECK(p.qp->post_send({&wr, 1}).error().code == EINVAL);
  }
}

TEST(datagrams_arrive_behind_an_ipv4_header) {
  UdPeer p;
  CHECK(p.post_receive(5000, 200, 3));
  soft::Packet packet = p.datagram(21, UdSendOnlyImm);
  packet.immediate = 9;
  const auto length = static_cast<uint16_t>(p.bytes_of(packet).size());
  p.feed(packet);
  const auto done = p.node.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 3 && done[0].byte_length == kGrhBytes + 21);
  CHECK(done[0].flags == (kWithImm | kWithGrh) && done[0].imm_or_rkey == 9);
  CHECK_EQ(done[0].source_qp, 0x99u);
  const uint8_t* const ip = &p.node.memory[5020];
  CHECK(ip[0] == 0x45 && ip[9] == 17);
  CHECK_EQ(soft::get16(ip + 2), static_cast<uint16_t>(28 + length));
  const uint8_t addresses[] = {10, 0, 0, 2, 10, 0, 0, 1};
  CHECK(std::memcmp(ip + 12, addresses, 8) == 0);
  uint32_t sum = 0;  // with its checksum, a header adds up to all ones
  for (int i = 0; i < 20; i += 2) sum += soft::get16(ip + i);
  CHECK_EQ((sum & 0xffff) + (sum >> 16), 0xffffu);
  CHECK(p.node.memory[5040] == 0xab && p.node.memory[5060] == 0xab &&
        p.node.memory[5061] == static_cast<uint8_t>(5061 * 13));
  CHECK(p.answers().empty());
}

TEST(datagrams_arrive_behind_an_ipv6_header) {
  Network network(3);
  Node first(network, "fd00::1", 1), second(network, "fd00::2", 2);
  auto qa = first.make_qp(8, 1, nullptr, QpType::Ud),
       qb = second.make_qp(8, 1, nullptr, QpType::Ud);
  REQUIRE(connect(first, *qa, second, *qb));
  const Sge in = second.sge(0, 2000);
  const ReceiveWorkRequest receive{1, 1, &in};
  REQUIRE(static_cast<bool>(qb->post_receive({&receive, 1})));
  const soft::AddressHandle to(first.flows.back().get());
  const Sge out = first.sge(0, 1000);
  std::fill(first.memory.begin(), first.memory.begin() + 1000, uint8_t{0x5a});
  SendWorkRequest wr{};
  wr.sg_list = &out;
  wr.num_sge = 1;
  wr.datagram = {&to, qb->number(), kQKey};
  REQUIRE(static_cast<bool>(qa->post_send({&wr, 1})));
  network.run_for(1'000'000);
  const auto done = second.poll();
  REQUIRE(done.size() == 1);
  CHECK_EQ(done[0].byte_length, kGrhBytes + 1000);
  CHECK_EQ(done[0].source_qp, qa->number());
  const uint8_t* const ip = second.memory.data();
  CHECK(ip[0] == 0x60 && ip[6] == 17 && ip[8] == 0xfd && ip[23] == 1 && ip[24] == 0xfd &&
        ip[39] == 2);
  CHECK_EQ(soft::get16(ip + 4), 8 + 12 + 8 + 1000 + 4);
  CHECK(second.memory[40] == 0x5a && second.memory[1039] == 0x5a && second.memory[1040] == 0);
}

TEST(a_datagram_needs_the_q_key_a_receive_and_room) {
  UdPeer p;
  p.feed(p.datagram(20));  // no receive
  CHECK_EQ(dropped(p), 1u);
  CHECK(p.post_receive(5000, kGrhBytes + 20, 3));
  soft::Packet wrong = p.datagram(20);
  wrong.deth.qkey ^= 1;
  p.feed(wrong);
  CHECK_EQ(p.node.transport.counters().bad_qkey, 1u);
  p.feed(p.datagram(24));  // longer than the receive
  CHECK_EQ(dropped(p), 2u);
  CHECK(p.node.poll().empty());
  p.feed(p.send(kPsn, 20, SendOnly));
  p.feed(p.send(kPsn, 20, UcSendOnly));
  CHECK_EQ(p.node.transport.counters().wrong_service, 2u);
  p.feed(p.datagram(20));
  CHECK_EQ(p.node.poll().size(), 1u);
  CHECK(p.qp->state() == State::Rts && p.answers().empty());
}

// From anyone, in any order, and before RTS.
TEST(a_ud_queue_pair_hears_every_address_once_it_is_ready) {
  UdPeer p;
  CHECK(p.post_receive(5000, 200) && p.post_receive(6000, 200));
  p.source = soft::with_port(address("10.0.0.77"), 0xd000);
  p.feed(p.datagram(20));
  CHECK_EQ(p.node.poll().size(), 1u);
  CHECK(p.node.memory[5020 + 15] == 77);
  p.qp->to_error();
  p.node.poll();
  p.feed(p.datagram(20));
  CHECK_EQ(p.node.transport.counters().wrong_state, 1u);
  CHECK(static_cast<bool>(p.qp->modify(move_to(State::Reset))));
  p.feed(p.datagram(20));
  CHECK_EQ(p.node.transport.counters().wrong_state, 2u);
}

// A datagram longer than the port's MTU, which only a stranger sends.
TEST(an_oversized_datagram_is_dropped) {
  soft::TransportConfig config;
  config.port_mtu = 1024;
  RawPeer p({}, config);
  p.renew({}, nullptr, QpType::Ud);
  CHECK(p.post_receive(5000, 4000));
  soft::Packet packet = p.send(1, 1028, UdSendOnly);
  packet.deth = {kQKey, 1};
  p.feed(packet);
  CHECK_EQ(dropped(p), 1u);
  packet = p.send(1, 1024, UdSendOnly);
  packet.deth = {kQKey, 1};
  p.feed(packet);
  CHECK_EQ(p.node.poll().size(), 1u);
}

TEST_MAIN
