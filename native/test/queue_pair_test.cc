// One queue pair against a peer made by hand: state moves, what each wrong packet gets, duplicates,
// replays, retries. Nothing a peer sends may touch memory it has no right to.
#include "rdma/soft/queue_pair.h"

#include <functional>

#include "sim/raw_peer.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test::sim;
using soft::NakCode;
using enum soft::PacketOpcode;

namespace {

constexpr uint32_t kPsn = RawPeer::kPsn;

soft::QpAttributes full(State state, uint32_t mask, const soft::Flow* flow) {
  soft::QpAttributes a;
  a.state = state;
  a.mask = mask;
  a.flow = flow;
  a.path_mtu = 1024;
  a.destination_qpn = 77;
  a.max_reads = a.max_dest_reads = 4;
  return a;
}

}  // namespace

// ---- States

TEST(moves_follow_the_table_of_verbs) {
  const soft::Flow flow = soft::make_flow(address("10.0.0.1"), address("10.0.0.2"));
  const State all[] = {State::Reset, State::Init, State::Rtr, State::Rts,
                       State::Sqd,   State::Sqe,  State::Err};
  int legal = 0;
  for (const State from : all)
    for (const State to : all) {
      uint32_t mask = 0;
      if (from == State::Reset && to == State::Init) mask = soft::kInitAttributes;
      if (from == State::Init && to == State::Rtr) mask = soft::kRtrAttributes;
      if (from == State::Rtr && to == State::Rts) mask = soft::kRtsAttributes;
      const Result<void> moved = soft::check_move(QpType::Rc, from, full(to, mask, &flow));
      legal += static_cast<bool>(moved);
      if (!moved) CHECK_EQ(moved.error().code, EINVAL);
      if (from == State::Sqe || to == State::Sqe) CHECK(!moved);
      if (to == State::Reset && from != State::Sqe) CHECK(static_cast<bool>(moved));
    }
  CHECK_EQ(legal, 19);
  // Every required attribute is required, and no other is taken.
  const std::pair<State, std::pair<State, uint32_t>> steps[] = {
      {State::Reset, {State::Init, soft::kInitAttributes}},
      {State::Init, {State::Rtr, soft::kRtrAttributes}},
      {State::Rtr, {State::Rts, soft::kRtsAttributes}}};
  for (const auto& [from, step] : steps)
    for (uint32_t bit = 1; bit <= 1u << 14; bit <<= 1) {
      const uint32_t required = step.second;
      if ((required & bit) != 0)
        CHECK(!soft::check_move(QpType::Rc, from, full(step.first, required & ~bit, &flow)));
      const bool optional =
          (from == State::Init && (bit & (soft::kAccessFlags | soft::kPkeyIndex))) ||
          (from == State::Rtr && (bit & (soft::kAccessFlags | soft::kMinRnrTimer)));
      if ((required & bit) == 0)
        CHECK(static_cast<bool>(soft::check_move(
                  QpType::Rc, from, full(step.first, required | bit, &flow))) == optional);
    }
}

TEST(attributes_out_of_range_are_refused) {
  const soft::Flow flow = soft::make_flow(address("10.0.0.1"), address("10.0.0.2"));
  const std::function<void(soft::QpAttributes&)> spoilers[] = {
      [](auto& a) { a.path_mtu = 0; },
      [](auto& a) { a.path_mtu = 1500; },
      [](auto& a) { a.path_mtu = 8192; },
      [](auto& a) { a.destination_qpn = 0; },
      [](auto& a) { a.destination_qpn = 1; },
      [](auto& a) { a.destination_qpn = 0xffffff; },
      [](auto& a) { a.destination_qpn = 1 << 24; },
      [](auto& a) { a.receive_psn = 1 << 24; },
      [](auto& a) { a.flow = nullptr; },
      [](auto& a) { a.min_rnr_timer = 32; }};
  for (const auto& spoil : spoilers) {
    soft::QpAttributes a = full(State::Rtr, soft::kRtrAttributes, &flow);
    CHECK(static_cast<bool>(soft::check_move(QpType::Rc, State::Init, a)));
    spoil(a);
    CHECK(!soft::check_move(QpType::Rc, State::Init, a));
  }
  const std::function<void(soft::QpAttributes&)> later[] = {
      [](auto& a) { a.timeout = 32; }, [](auto& a) { a.retry_count = 8; },
      [](auto& a) { a.rnr_retry = 8; }, [](auto& a) { a.send_psn = 1 << 24; }};
  for (const auto& spoil : later) {
    soft::QpAttributes a = full(State::Rts, soft::kRtsAttributes, &flow);
    spoil(a);
    CHECK(!soft::check_move(QpType::Rc, State::Rtr, a));
  }
}

TEST(posting_obeys_the_state) {
  RawPeer p;
  auto fresh = p.node.make_qp(2, 1);
  SendWorkRequest wr{};
  const ReceiveWorkRequest receive{1, 0, nullptr};
  CHECK(!fresh->post_send({&wr, 1}) && !fresh->post_receive({&receive, 1}));
  CHECK(static_cast<bool>(fresh->modify(full(State::Init, soft::kInitAttributes, nullptr))));
  CHECK(!fresh->post_send({&wr, 1}));
  CHECK(static_cast<bool>(fresh->post_receive({&receive, 1})));
  fresh->to_error();
  const auto flushed = p.node.poll();
  REQUIRE(flushed.size() == 1);
  CHECK(flushed[0].status == Status::FlushError && flushed[0].receive);
  CHECK(static_cast<bool>(fresh->post_send({&wr, 1})));  // accepted and flushed, also unsignaled
  CHECK(static_cast<bool>(fresh->post_receive({&receive, 1})));
  CHECK_EQ(p.node.poll().size(), 2u);
  CHECK(static_cast<bool>(fresh->modify(full(State::Reset, 0, nullptr))));
  CHECK(fresh->state() == State::Reset);
  // Too many, and malformed.
  const SendWorkRequest many[65]{};
  const Result<void> refused = p.qp->post_send(many);
  CHECK(!refused && refused.error().code == ENOMEM);
  CHECK_EQ(p.qp->outstanding_sends(), 64u);
  RawPeer q;
  SendWorkRequest bad{};
  bad.num_sge = 5;
  Sge sges[5]{};
  bad.sg_list = sges;
  CHECK(q.qp->post_send({&bad, 1}).error().code == EINVAL);
  bad.num_sge = 2;
  sges[0].length = sges[1].length = 0x7fffffff;
  CHECK(q.qp->post_send({&bad, 1}).error().code == EINVAL);
  bad = {};
  bad.opcode = static_cast<Opcode>(10);
  CHECK(q.qp->post_send({&bad, 1}).error().code == EINVAL);
}

TEST(drained_queue_finishes_what_it_began_and_goes_on_later) {
  RawPeer p;
  CHECK(p.post(Opcode::RdmaWrite, 0, 100));
  CHECK_EQ(p.answers().size(), 1u);
  CHECK(static_cast<bool>(p.qp->modify(full(State::Sqd, 0, nullptr))));
  CHECK(p.post(Opcode::RdmaWrite, 0, 100));
  CHECK_EQ(p.answers().size(), 0u);
  p.feed(p.ack(100));
  CHECK_EQ(p.node.poll().size(), 1u);
  CHECK_EQ(p.answers().size(), 0u);
  CHECK(static_cast<bool>(p.qp->modify(full(State::Rts, 0, nullptr))));
  CHECK_EQ(p.answers().size(), 1u);
}

// ---- What wrong requests get

TEST(each_wrong_request_gets_its_nak_and_touches_nothing) {
  struct Wrong {
    const char* name;
    std::function<soft::Packet(RawPeer&)> make;
    NakCode code;
    bool receive = false;  // a receive of 100 bytes is posted
    uint8_t access = kLocalWrite | kRemoteWrite | kRemoteRead;
  };
  const auto edge = [](RawPeer& p) { return p.node.memory.size(); };
  const Wrong wrongs[] = {
      {"SEND middle first", [](RawPeer& p) { return p.send(kPsn, 1024, SendMiddle); },
       NakCode::InvalidRequest, true},
      {"SEND last first", [](RawPeer& p) { return p.send(kPsn, 4, SendLast); },
       NakCode::InvalidRequest, true},
      {"WRITE middle first", [](RawPeer& p) { return p.send(kPsn, 1024, WriteMiddle); },
       NakCode::InvalidRequest},
      {"WRITE last first", [](RawPeer& p) { return p.send(kPsn, 4, WriteLast); },
       NakCode::InvalidRequest},
      {"SEND first too short", [](RawPeer& p) { return p.send(kPsn, 1020, SendFirst); },
       NakCode::InvalidRequest, true},
      {"SEND longer than MTU", [](RawPeer& p) { return p.send(kPsn, 1028, SendOnly); },
       NakCode::InvalidRequest, true},
      {"SEND longer than the receive", [](RawPeer& p) { return p.send(kPsn, 101, SendOnly); },
       NakCode::InvalidRequest, true},
      {"WRITE RETH too long", [](RawPeer& p) { return p.write(kPsn, WriteOnly, 0, 101, 100); },
       NakCode::InvalidRequest},
      {"WRITE RETH too short", [](RawPeer& p) { return p.write(kPsn, WriteOnly, 0, 99, 100); },
       NakCode::InvalidRequest},
      {"WRITE first of one MTU",
       [](RawPeer& p) { return p.write(kPsn, WriteFirst, 0, 1024, 1024); },
       NakCode::InvalidRequest},
      {"WRITE over 2 GiB",
       [](RawPeer& p) { return p.write(kPsn, WriteFirst, 0, 0x80000001, 1024); },
       NakCode::InvalidRequest},
      {"READ over 2 GiB", [](RawPeer& p) { return p.read(kPsn, 0, 0x80000001); },
       NakCode::InvalidRequest},
      {"WRITE not allowed", [](RawPeer& p) { return p.write(kPsn, WriteOnly, 0, 4, 4); },
       NakCode::InvalidRequest, false, kLocalWrite | kRemoteRead},
      {"READ not allowed", [](RawPeer& p) { return p.read(kPsn, 0, 4); }, NakCode::InvalidRequest,
       false, kLocalWrite | kRemoteWrite},
      {"WRITE one byte too long",
       [&](RawPeer& p) { return p.write(kPsn, WriteOnly, edge(p) - 99, 100, 100); },
       NakCode::RemoteAccessError},
      {"WRITE first of a range one byte too long",
       [&](RawPeer& p) { return p.write(kPsn, WriteFirst, edge(p) - 2047, 2048, 1024); },
       NakCode::RemoteAccessError},
      {"WRITE below", [](RawPeer& p) { return p.write(kPsn, WriteOnly, ~0ull, 4, 4); },
       NakCode::RemoteAccessError},
      {"READ one byte too long", [&](RawPeer& p) { return p.read(kPsn, edge(p) - 99, 100); },
       NakCode::RemoteAccessError},
      {"READ wrapping 2^64",
       [](RawPeer& p) {
         soft::Packet packet = p.read(kPsn, 0, 4096);
         packet.reth.address = ~0ull - 100;
         return packet;
       },
       NakCode::RemoteAccessError},
      {"WRITE wrapping 2^64",
       [](RawPeer& p) {
         soft::Packet packet = p.write(kPsn, WriteOnly, 0, 1024, 1024);
         packet.reth.address = ~0ull - 100;
         return packet;
       },
       NakCode::RemoteAccessError},
      {"WRITE with a wrong key",
       [](RawPeer& p) {
         soft::Packet packet = p.write(kPsn, WriteOnly, 0, 4, 4);
         packet.reth.rkey ^= 0x100;
         return packet;
       },
       NakCode::RemoteAccessError},
      {"WRITE with key 0",
       [](RawPeer& p) {
         soft::Packet packet = p.write(kPsn, WriteOnly, 0, 4, 4);
         packet.reth.rkey = 0;
         return packet;
       },
       NakCode::RemoteAccessError},
      {"invalidate of a key that is none",
       [](RawPeer& p) {
         soft::Packet packet = p.send(kPsn, 0, SendOnlyInvalidate);
         packet.invalidate_rkey = 0x1234;
         return packet;
       },
       NakCode::RemoteAccessError, true},
      {"invalidate of a region",
       [](RawPeer& p) {
         soft::Packet packet = p.send(kPsn, 0, SendOnlyInvalidate);
         packet.invalidate_rkey = p.node.region->rkey();
         return packet;
       },
       NakCode::RemoteAccessError, true},
  };
  for (const Wrong& wrong : wrongs) {
    ConnectOptions options;
    options.access = wrong.access;
    RawPeer p(options);
    if (wrong.receive) CHECK(p.post_receive(5000, 100));
    CHECK(p.post(Opcode::RdmaWrite, 0, 4) && p.answers().size() == 1);
    const std::vector<uint8_t> before = p.node.memory;
    p.feed(wrong.make(p));
    const auto answers = p.answers();
    const bool right = answers.size() == 1 &&
                       answers[0].aeth.syndrome == soft::syndrome_nak(wrong.code) &&
                       answers[0].psn == kPsn && p.qp->state() == State::Err &&
                       p.node.memory == before && p.node.poll().size() == 1u + wrong.receive;
    if (!right)
      test::fail(__FILE__, __LINE__,
                 wrong.name + std::string(": ") + std::to_string(answers.size()));
    p.answers();
    CHECK_EQ(p.node.errors.size(), 1u);
    p.feed(p.send(kPsn, 4, SendOnly));  // ERR answers nothing
    CHECK(p.answers().empty());
  }
}

TEST(key_of_another_protection_domain_is_refused) {
  RawPeer p;
  auto other = std::move(p.node.keys->allocate_pd().value());
  auto region = std::move(
      other->register_memory(p.node.memory.data(), 4096, kRemoteWrite | kLocalWrite).value());
  soft::Packet packet = p.write(kPsn, WriteOnly, 0, 4, 4);
  packet.reth.rkey = region->rkey();
  p.feed(packet);
  const auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK_EQ(answers[0].aeth.syndrome, soft::syndrome_nak(NakCode::RemoteAccessError));
  CHECK_EQ(p.node.memory[0], 0);
}

TEST(write_whose_key_ends_between_its_packets_stops_there) {
  RawPeer p;
  auto region = std::move(
      p.node.pd->register_memory(p.node.memory.data(), 8192, kRemoteWrite | kLocalWrite).value());
  soft::Packet packet = p.write(kPsn, WriteFirst, 0, 3000, 1024);
  packet.reth.rkey = region->rkey();
  p.feed(packet);
  region.reset();
  p.feed(p.send(kPsn + 1, 1024, WriteMiddle));
  const auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK_EQ(answers[0].aeth.syndrome, soft::syndrome_nak(NakCode::RemoteAccessError));
  CHECK_EQ(answers[0].psn, (kPsn + 1) & 0xffffff);
  CHECK(p.node.memory[1023] == 0xcd && p.node.memory[1024] != 0xab);
}

TEST(read_whose_key_ends_under_it_is_refused_where_it_stops) {
  soft::TransportConfig config;
  config.burst_packets = config.transmit_packets = 2;
  RawPeer p({}, config);
  auto region = std::move(
      p.node.pd->register_memory(p.node.memory.data(), 8192, kRemoteRead | kLocalWrite).value());
  soft::Packet packet = p.read(kPsn, 0, 8192);
  packet.reth.rkey = region->rkey();
  p.feed(packet);
  CHECK_EQ(p.answers().size(), 2u);
  region.reset();
  const auto rest = p.answers();
  REQUIRE(rest.size() == 1);
  CHECK_EQ(rest[0].aeth.syndrome, soft::syndrome_nak(NakCode::RemoteAccessError));
  CHECK_EQ(rest[0].psn, (kPsn + 2) & 0xffffff);
}

TEST(receive_buffer_that_is_not_registered_is_an_operational_error) {
  RawPeer p;
  const Sge sge{p.node.at(0), 100, 0xbad};
  const ReceiveWorkRequest wr{4, 1, &sge};
  CHECK(static_cast<bool>(p.qp->post_receive({&wr, 1})));
  p.feed(p.send(kPsn, 10, SendOnly));
  const auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK_EQ(answers[0].aeth.syndrome, soft::syndrome_nak(NakCode::RemoteOperationalError));
  const auto done = p.node.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == Status::LocalProtectionError && done[0].wr_id == 4);
}

// ---- What is dropped

TEST(damaged_and_misdirected_packets_are_counted_and_dropped) {
  RawPeer p;
  CHECK(p.post_receive(5000, 100));
  const std::vector<uint8_t> good = p.bytes_of(p.send(kPsn, 20, SendOnly));
  for (size_t length = 0; length < good.size(); length++)
    p.feed_bytes({good.begin(), good.begin() + static_cast<long>(length)});
  for (size_t bit = 0; bit < good.size() * 8; bit++) {
    if (bit / 8 == 4) continue;  // not covered by the ICRC
    std::vector<uint8_t> bad = good;
    bad[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    p.feed_bytes(bad);
  }
  for (const unsigned opcode : {0x15u, 0x18u, 0x1cu, 0x1du, 0x2cu, 0x36u, 0x40u, 0xffu}) {
    std::vector<uint8_t> bad = good;
    bad[0] = static_cast<uint8_t>(opcode);
    p.seal(bad);
    p.feed_bytes(bad);
  }
  std::vector<uint8_t> bad = good;
  bad[1] |= 1;  // transport version
  p.seal(bad);
  p.feed_bytes(bad);
  soft::Packet datagram = p.packet(UdSendOnly, kPsn, {1, 2, 3, 4});
  p.feed(datagram);
  p.feed(p.send(kPsn, 20, UcSendOnly));
  CHECK_EQ(p.node.transport.counters().wrong_service, 2u);
  datagram.dest_qpn = 1;
  datagram.deth = {0x80010001, 1};
  p.feed(datagram);
  CHECK_EQ(p.node.transport.counters().bad_qkey, 1u);
  p.source = soft::with_port(address("10.0.0.3"), 0xd000);
  p.feed(p.send(kPsn, 20, SendOnly));
  CHECK_EQ(p.node.transport.counters().wrong_address, 1u);
  p.source = soft::with_port(address("10.0.0.2"), 0);  // any port is right
  CHECK(p.answers().empty() && p.node.poll().empty() && p.qp->state() == State::Rts);
  p.feed(p.send(kPsn, 20, SendOnly));
  CHECK_EQ(p.node.poll().size(), 1u);
  CHECK(p.node.transport.counters().bad_icrc > 100);
}

// ---- Order

TEST(gap_gets_one_nak_until_the_missing_packet_comes) {
  RawPeer p;
  for (int i = 0; i < 8; i++) CHECK(p.post_receive(5000, 100));
  p.feed(p.send(kPsn + 1, 4, SendOnly));
  p.feed(p.send(kPsn + 2, 4, SendOnly));
  auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].aeth.syndrome == soft::syndrome_nak(NakCode::PsnSequenceError));
  CHECK_EQ(answers[0].psn, kPsn);
  p.feed(p.send(kPsn + 3, 4, SendOnly));
  CHECK(p.answers().empty());
  soft::Packet missing = p.send(kPsn, 4, SendOnly);
  missing.ack_request = true;
  p.feed(missing);
  answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].aeth.syndrome == soft::kSyndromeAck && answers[0].psn == kPsn);
  CHECK_EQ(answers[0].aeth.msn, 1u);
  p.feed(p.send(kPsn + 4, 4, SendOnly));
  CHECK_EQ(p.answers().size(), 1u);
  CHECK_EQ(p.node.poll().size(), 1u);
}

TEST(reordering_within_a_batch_is_repaired_without_a_nak) {
  RawPeer p;
  for (int i = 0; i < 2; i++) CHECK(p.post_receive(5000, 100));
  p.feed(p.send(kPsn + 1, 4, SendOnly));
  p.feed(p.send(kPsn, 4, SendOnly));
  CHECK(p.answers().empty());
}

TEST(duplicates_are_acknowledged_not_executed) {
  RawPeer p;
  for (int i = 0; i < 4; i++) CHECK(p.post_receive(5000, 100));
  p.feed(p.send(kPsn, 4, SendOnly));
  p.feed(p.write(kPsn + 1, WriteOnly, 100, 4, 4));
  p.answers();
  std::memset(&p.node.memory[100], 0, 4);
  p.feed(p.send(kPsn, 4, SendOnly));
  p.feed(p.write(kPsn + 1, WriteOnly, 100, 4, 4));
  const auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].aeth.syndrome == soft::kSyndromeAck);
  CHECK_EQ(answers[0].psn, (kPsn + 1) & 0xffffff);
  CHECK_EQ(p.node.memory[100], 0);
  CHECK_EQ(p.node.poll().size(), 1u);
  p.feed(p.packet(FetchAdd, kPsn, {}));  // never executed, so nothing to replay
  CHECK(p.answers().empty() && p.qp->state() == State::Rts);
}

// rxe completes a READ of one packet when an ACK names its PSN, without the data.
TEST(no_acknowledgement_names_a_read) {
  RawPeer p;
  for (int i = 0; i < 4; i++) CHECK(p.post_receive(5000, 100));
  p.feed(p.send(kPsn, 4, SendOnly));
  p.feed(p.read(kPsn + 1, 0, 100));
  auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].row->opcode == ReadResponseOnly);
  p.feed(p.send(kPsn, 4, SendOnly));  // its ACK and the response may both be lost
  answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].row->opcode == Acknowledge);
  CHECK_EQ(answers[0].psn, kPsn);
  p.feed(p.write(kPsn + 2, WriteOnly, 100, 4, 4));
  p.answers();
  p.feed(p.send(kPsn, 4, SendOnly));
  answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK_EQ(answers[0].psn, kPsn + 2);
}

TEST(repeated_reads_are_answered_within_the_original_range_only) {
  RawPeer p;
  p.feed(p.read(kPsn, 0, 5000));
  CHECK_EQ(p.answers().size(), 5u);
  p.feed(p.read(kPsn + 2, 2048, 5000 - 2048));
  auto answers = p.answers();
  REQUIRE(answers.size() == 3);
  CHECK(answers[0].row->opcode == ReadResponseFirst && answers[2].row->opcode == ReadResponseLast);
  CHECK_EQ(answers[0].psn, (kPsn + 2) & 0xffffff);
  CHECK(std::memcmp(answers[0].payload, &p.node.memory[2048], 1024) == 0);
  CHECK_EQ(answers[2].aeth.msn, 1u);
  // Longer, elsewhere, of another key, of another PSN: dropped.
  p.feed(p.read(kPsn + 2, 2048, 5000 - 2047));
  p.feed(p.read(kPsn + 2, 2049, 100));
  p.feed(p.read(kPsn + 1, 0, 100));
  p.feed(p.read(kPsn - 1, 0, 5000));
  soft::Packet other = p.read(kPsn, 0, 5000);
  other.reth.rkey++;
  p.feed(other);
  CHECK(p.answers().empty());
  CHECK_EQ(p.node.transport.counters().duplicates_dropped, 5u);
  // It does not count as a new message, and going back further still works.
  p.feed(p.read(kPsn, 0, 5000));
  answers = p.answers();
  REQUIRE(answers.size() == 5);
  CHECK_EQ(answers[4].aeth.msn, 1u);
}

TEST(late_duplicate_of_a_read_whose_key_is_dead_is_no_error) {
  RawPeer p;
  auto region = std::move(
      p.node.pd->register_memory(p.node.memory.data(), 8192, kRemoteRead | kLocalWrite).value());
  soft::Packet packet = p.read(kPsn, 0, 4096);
  packet.reth.rkey = region->rkey();
  p.feed(packet);
  CHECK_EQ(p.answers().size(), 4u);
  region.reset();
  p.feed(packet);
  CHECK(p.answers().empty() && p.qp->state() == State::Rts);
}

TEST(old_duplicate_of_a_read_gives_way_to_a_new_read) {
  ConnectOptions options;
  options.reads = 1;
  RawPeer p(options);
  p.feed(p.read(kPsn, 0, 100));
  CHECK_EQ(p.answers().size(), 1u);
  p.feed(p.read(kPsn, 0, 100));
  p.feed(p.read(kPsn + 1, 0, 100));
  const auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].row->opcode == ReadResponseOnly && answers[0].psn == ((kPsn + 1) & 0xffffff));
}

TEST(more_reads_than_agreed_are_refused) {
  ConnectOptions options;
  options.reads = 2;
  RawPeer p(options);
  p.feed(p.read(kPsn, 0, 100));
  CHECK_EQ(p.answers().size(), 1u);
  p.feed(p.read(kPsn + 1, 0, 100));
  p.feed(p.read(kPsn + 2, 0, 100));
  p.feed(p.read(kPsn + 3, 0, 100));
  const auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK_EQ(answers[0].aeth.syndrome, soft::syndrome_nak(NakCode::InvalidRequest));
}

TEST(read_responses_stop_when_the_queue_pair_fails) {
  // Once the flushed completions can be polled, the memory may be used for something else. The last
  // word is the NAK, at the first response that will not come.
  for (const bool repeated : {false, true}) {
    RawPeer p;
    p.feed(p.read(kPsn, 0, 5000));
    if (repeated) {
      CHECK_EQ(p.answers().size(), 5u);
      soft::Packet rest = p.read(kPsn + 2, 2048, 5000 - 2048);
      p.feed(rest);
    }
    p.feed(p.read(kPsn + 5, 0, 100));
    soft::Packet wrong = p.read(kPsn + 6, 0, 100);
    wrong.reth.rkey++;
    p.feed(wrong);
    CHECK(p.qp->state() == State::Err);
    const auto answers = p.answers();
    REQUIRE(answers.size() == 1);
    CHECK(answers[0].row->opcode == Acknowledge);
    CHECK_EQ(answers[0].aeth.syndrome, soft::syndrome_nak(NakCode::RemoteAccessError));
    CHECK_EQ(answers[0].psn, (kPsn + (repeated ? 2 : 0)) & 0xffffff);
    p.qp->to_error();
    CHECK(p.answers().empty());
  }
}

TEST(nothing_leaves_after_the_owner_ended_the_queue_pair) {
  RawPeer p;
  p.feed(p.read(kPsn, 0, 5000));
  p.qp->to_error();
  CHECK(p.answers().empty());
}

TEST(requester_ends_at_the_nak_in_place_of_a_read_response) {
  // Two of our queue pairs: the one whose READ will not be answered learns why at once.
  Network network(1);
  Node a(network, "10.0.0.1", 1), b(network, "10.0.0.2", 2);
  const auto qa = a.make_qp(), qb = b.make_qp();
  REQUIRE(connect(a, *qa, b, *qb, {}));
  const Sge sink = a.sge(0, 100'000), source = a.sge(200'000, 64);
  SendWorkRequest requests[2] = {};
  requests[0].opcode = Opcode::RdmaRead;
  requests[1].opcode = Opcode::RdmaWrite;
  for (SendWorkRequest& request : requests) {
    request.flags = kSignaled;
    request.num_sge = 1;
    request.remote_address = b.at(0);
    request.rkey = b.region->rkey();
  }
  requests[0].sg_list = &sink;
  requests[1].sg_list = &source;
  requests[1].rkey ^= 1;
  CHECK(qa->post_send(requests));
  network.run_for(50'000'000);  // less than one timeout
  const auto done = a.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == Status::RemoteAccessError);
  CHECK(done[1].status == Status::FlushError);
  CHECK(qa->state() == State::Err && qb->state() == State::Err);
  CHECK_EQ(a.transport.counters().timeouts, 0u);
}

TEST(rnr_nak_is_short_and_repeats_on_each_try) {
  RawPeer p;
  p.feed(p.send(kPsn, 4, SendOnly));
  p.feed(p.send(kPsn + 1, 4, SendOnly));
  auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK(soft::aeth_type(answers[0].aeth.syndrome) == soft::AethType::RnrNak);
  CHECK(soft::rnr_timer_ns(soft::aeth_code(answers[0].aeth.syndrome)) <= 640'000);
  p.feed(p.send(kPsn, 4, SendOnly));
  CHECK_EQ(p.answers().size(), 1u);
  CHECK(p.post_receive(0, 4));
  p.feed(p.send(kPsn, 4, SendOnly));
  CHECK_EQ(p.node.poll().size(), 1u);
}

// ---- The requester against strange answers

TEST(answers_out_of_range_are_ignored) {
  RawPeer p;
  CHECK(p.post(Opcode::RdmaWrite, 0, 2048));
  CHECK_EQ(p.answers().size(), 2u);
  p.feed(p.ack(102));
  p.feed(p.ack(99));
  p.feed(p.ack(101 + (1 << 22)));
  p.feed(p.ack(102, soft::syndrome_nak(NakCode::RemoteAccessError)));
  p.feed(p.ack(100, 0x40));
  p.feed(p.ack(100, soft::syndrome_nak(static_cast<NakCode>(9))));
  CHECK(p.node.poll().empty() && p.qp->state() == State::Rts);
  p.feed(p.ack(100));
  CHECK(p.node.poll().empty());
  p.feed(p.ack(101));
  CHECK_EQ(p.node.poll().size(), 1u);
}

TEST(fatal_naks_become_their_status) {
  const std::pair<NakCode, Status> table[] = {
      {NakCode::InvalidRequest, Status::RemoteInvalidRequest},
      {NakCode::RemoteAccessError, Status::RemoteAccessError},
      {NakCode::RemoteOperationalError, Status::RemoteOperationError}};
  for (const auto& [code, status] : table) {
    RawPeer p;
    for (const uint8_t flags : {uint8_t{kSignaled}, uint8_t{0}, uint8_t{kSignaled}})
      CHECK(p.post(Opcode::Send, 0, 10, flags));
    CHECK(p.post_receive(0, 10));
    CHECK_EQ(p.answers().size(), 3u);
    p.feed(p.ack(101, soft::syndrome_nak(code)));
    const auto done = p.node.poll();
    REQUIRE(done.size() == 4);
    CHECK(done[0].status == Status::Success && done[0].wr_id == 1);  // acknowledged by the NAK
    CHECK(done[1].status == status && done[1].wr_id == 2);           // unsignaled, but failed
    CHECK(done[2].status == Status::FlushError && done[3].receive);
    CHECK(p.qp->state() == State::Err);
  }
}

TEST(sequence_nak_resends_from_there_once) {
  RawPeer p;
  for (int i = 0; i < 6; i++) CHECK(p.post(Opcode::RdmaWrite, 64, 4));
  CHECK_EQ(p.answers().size(), 6u);
  const soft::Packet nak = p.ack(102, soft::syndrome_nak(NakCode::PsnSequenceError));
  p.feed(nak);
  p.feed(nak);
  p.feed(nak);
  CHECK_EQ(p.node.poll().size(), 2u);
  const auto again = p.answers();
  REQUIRE(again.size() == 4);
  CHECK_EQ(again[0].psn, 102u);
  CHECK(std::memcmp(again[0].payload, &p.node.memory[64], 4) == 0);
  CHECK_EQ(p.node.transport.counters().retransmits, 1u);
  CHECK_EQ(p.node.transport.counters().retransmits_nak, 1u);
}

TEST(long_write_leaves_as_writes_of_one_packet) {
  RawPeer p;
  CHECK(p.post(Opcode::RdmaWrite, 64, 4000));
  const auto sent = p.answers();
  REQUIRE(sent.size() == 4);
  for (uint32_t i = 0; i < 4; i++) {
    CHECK(sent[i].row->opcode == WriteOnly);
    CHECK_EQ(sent[i].reth.address, sent[0].reth.address + i * 1024);
    CHECK_EQ(sent[i].reth.length, i < 3 ? 1024u : 928u);
    CHECK_EQ(sent[i].reth.rkey, sent[0].reth.rkey);
  }
  p.feed(p.ack(102, soft::syndrome_nak(NakCode::PsnSequenceError)));
  const auto again = p.answers();
  REQUIRE(again.size() == 2);
  // Each part says itself where it goes, also when it is sent again.
  CHECK_EQ(again[0].reth.address, sent[2].reth.address);
  CHECK_EQ(again[1].reth.address, sent[3].reth.address);
  CHECK(std::memcmp(again[0].payload, &p.node.memory[64 + 2048], 1024) == 0);
  CHECK(again[1].ack_request);
}

TEST(read_gap_asks_for_the_rest_and_takes_an_answer_that_begins_in_the_middle) {
  for (const bool rxe : {false, true}) {
    RawPeer p;
    CHECK(p.post(Opcode::RdmaRead, 1000, 4096));
    CHECK_EQ(p.answers().size(), 1u);
    p.feed(p.response(100, ReadResponseFirst, 1024, 1));
    p.feed(p.response(102, ReadResponseMiddle, 1024, 3));  // 101 is lost
    p.feed(p.response(103, ReadResponseLast, 1024, 4));
    const auto again = p.answers();
    REQUIRE(again.size() == 1);
    CHECK(again[0].row->opcode == ReadRequest && again[0].psn == 101);
    CHECK_EQ(again[0].reth.address, 0x10000u + 1024);
    CHECK_EQ(again[0].reth.length, 3072u);
    p.feed(p.response(101, rxe ? ReadResponseMiddle : ReadResponseFirst, 1024, 2));
    p.feed(p.response(102, ReadResponseMiddle, 1024, 3));
    p.feed(p.response(103, ReadResponseLast, 1024, 4));
    p.feed(p.response(103, ReadResponseLast, 1024, 9));  // twice
    const auto done = p.node.poll();
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == Status::Success);
    for (uint32_t i = 0; i < 4096; i++) CHECK_EQ(p.node.memory[1000 + i], i / 1024 + 1);
    CHECK_EQ(p.node.transport.read_bytes_outstanding(), 0u);
  }
}

TEST(acknowledgement_beyond_a_read_asks_for_the_read_again) {
  RawPeer p;
  CHECK(p.post(Opcode::RdmaRead, 0, 100) && p.post(Opcode::Send, 0, 10));
  CHECK_EQ(p.answers().size(), 2u);
  p.feed(p.ack(101));
  p.feed(p.ack(101));
  CHECK(p.node.poll().empty());
  const auto again = p.answers();
  REQUIRE(again.size() == 2);
  CHECK(again[0].row->opcode == ReadRequest && again[0].psn == 100);
  CHECK_EQ(p.node.transport.counters().implied_naks, 1u);
  p.feed(p.response(100, ReadResponseOnly, 100, 1));
  p.feed(p.ack(101));
  CHECK_EQ(p.node.poll().size(), 2u);
}

TEST(wrong_read_responses_end_the_queue_pair) {
  struct Wrong {
    soft::PacketOpcode opcode;
    size_t length;
  };
  for (const Wrong& wrong : {Wrong{ReadResponseFirst, 1020}, Wrong{ReadResponseOnly, 1024},
                             Wrong{ReadResponseLast, 4}, Wrong{ReadResponseFirst, 1028}}) {
    RawPeer p;
    const std::vector<uint8_t> before = p.node.memory;
    CHECK(p.post(Opcode::RdmaRead, 1000, 2048));
    CHECK_EQ(p.answers().size(), 1u);
    p.feed(p.response(100, wrong.opcode, wrong.length, 1));
    const auto done = p.node.poll();
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == Status::BadResponseError);
    CHECK(p.node.memory == before);
  }
  RawPeer p;
  CHECK(p.post(Opcode::RdmaWrite, 0, 4));
  CHECK_EQ(p.answers().size(), 1u);
  p.feed(p.response(100, ReadResponseOnly, 4, 1));
  CHECK(p.node.poll()[0].status == Status::BadResponseError);
}

TEST(local_keys_are_checked_at_each_transmission) {
  RawPeer p;
  auto region =
      std::move(p.node.pd->register_memory(p.node.memory.data(), 8192, kLocalWrite).value());
  const Sge sge{p.node.at(0), 3000, region->lkey()};
  SendWorkRequest wr{};
  wr.wr_id = 9;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  CHECK(p.post(Opcode::RdmaWrite, 0, 4));
  CHECK(static_cast<bool>(p.qp->post_send({&wr, 1})));
  CHECK_EQ(p.answers().size(), 4u);
  region.reset();
  p.feed(p.ack(102, soft::syndrome_nak(NakCode::PsnSequenceError)));
  CHECK(p.answers().empty());
  const auto done = p.node.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == Status::Success);
  CHECK(done[1].status == Status::LocalProtectionError && done[1].wr_id == 9);
}

TEST(send_window_halves_on_loss_and_grows_with_progress) {
  soft::TransportConfig config;
  config.send_window_bytes = 16 << 10;
  RawPeer p({}, config);
  CHECK_EQ(p.qp->requester().send_window_packets(), 16u);
  CHECK(p.post(Opcode::RdmaWrite, 0, 200 << 10));
  CHECK_EQ(p.answers().size(), 16u);
  p.feed(p.ack(100, soft::syndrome_nak(NakCode::PsnSequenceError)));
  CHECK_EQ(p.qp->requester().send_window_packets(), 8u);
  CHECK_EQ(p.answers().size(), 8u);
  p.feed(p.ack(107));
  CHECK_EQ(p.qp->requester().send_window_packets(), 9u);
  CHECK_EQ(p.answers().size(), 9u);
}

TEST_MAIN
