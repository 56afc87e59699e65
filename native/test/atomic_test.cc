// Atomic operations of RC queue pairs: what a responder does with each request, that it executes
// each once however often it is repeated, and what a requester makes of the answers.
#include <array>
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
constexpr uint64_t kWord = 4096;  // where the word of these tests lies

uint64_t word_of(const RawPeer& p, uint64_t offset = kWord) {
  uint64_t value;
  std::memcpy(&value, &p.node.memory[offset], sizeof value);
  return value;
}
void set_word(RawPeer& p, uint64_t value, uint64_t offset = kWord) {
  std::memcpy(&p.node.memory[offset], &value, sizeof value);
}

bool post_atomic(RawPeer& p, Opcode opcode, uint64_t compare_add, uint64_t swap, uint64_t result_at,
                 uint8_t flags = kSignaled) {
  const Sge sge = p.node.sge(result_at, 8);
  SendWorkRequest wr{};
  wr.wr_id = ++p.posted;
  wr.opcode = opcode;
  wr.flags = flags;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.remote_address = 0x10008;
  wr.rkey = 0x55;
  wr.atomic = {compare_add, swap};
  return static_cast<bool>(p.qp->post_send({&wr, 1}));
}

}  // namespace

// ---- Responder

TEST(fetch_add_and_compare_swap_change_the_word_and_answer_what_was_there) {
  RawPeer p;
  set_word(p, 0xfffffffffffffffe);
  p.feed(p.atomic(kPsn, FetchAdd, kWord, 5));
  CHECK_EQ(word_of(p), 3u);  // wraps
  p.feed(p.atomic(kPsn + 1, CompareSwap, kWord, 0x0123456789abcdef, 3));
  CHECK_EQ(word_of(p), 0x0123456789abcdefu);
  p.feed(p.atomic(kPsn + 2, CompareSwap, kWord, 1, 3));  // no longer 3
  CHECK_EQ(word_of(p), 0x0123456789abcdefu);
  const auto answers = p.answers();
  REQUIRE(answers.size() == 3);
  const uint64_t originals[] = {0xfffffffffffffffe, 3, 0x0123456789abcdef};
  for (uint32_t i = 0; i < 3; i++) {
    CHECK(answers[i].row->opcode == AtomicAcknowledge);
    CHECK_EQ(answers[i].psn, (kPsn + i) & 0xffffff);
    CHECK_EQ(answers[i].aeth.syndrome, soft::kSyndromeAck);
    CHECK_EQ(answers[i].aeth.msn, i + 1);
    CHECK_EQ(answers[i].atomic_original, originals[i]);
  }
  CHECK_EQ(p.node.transport.counters().atomics, 3u);
  // Around the word nothing changed.
  CHECK_EQ(p.node.memory[kWord - 1], static_cast<uint8_t>((kWord - 1) * 13));
  CHECK_EQ(p.node.memory[kWord + 8], static_cast<uint8_t>((kWord + 8) * 13));
}

TEST(wrong_atomics_get_their_nak_and_change_nothing) {
  struct Wrong {
    const char* name;
    std::function<soft::Packet(RawPeer&)> make;
    NakCode code;
    ConnectOptions options = {};
  };
  const auto edge = [](RawPeer& p) { return p.node.memory.size(); };
  ConnectOptions no_right, no_reads;
  no_right.access = kLocalWrite | kRemoteWrite | kRemoteRead;
  no_reads.reads = 0;
  const Wrong wrongs[] = {
      {"not aligned", [](RawPeer& p) { return p.atomic(kPsn, FetchAdd, kWord + 4, 1); },
       NakCode::InvalidRequest},
      {"queue pair without the right",
       [](RawPeer& p) { return p.atomic(kPsn, FetchAdd, kWord, 1); }, NakCode::InvalidRequest,
       no_right},
      {"no responder resources", [](RawPeer& p) { return p.atomic(kPsn, CompareSwap, kWord, 1); },
       NakCode::InvalidRequest, no_reads},
      {"behind the region", [&](RawPeer& p) { return p.atomic(kPsn, FetchAdd, edge(p), 1); },
       NakCode::RemoteAccessError},
      {"before the region", [](RawPeer& p) { return p.atomic(kPsn, FetchAdd, uint64_t(-8), 1); },
       NakCode::RemoteAccessError},
      {"near the end of the address space",
       [](RawPeer& p) {
         soft::Packet packet = p.atomic(kPsn, FetchAdd, 0, 1);
         packet.atomic.address = ~uint64_t{7};
         return packet;
       },
       NakCode::RemoteAccessError},
      {"wrong key",
       [](RawPeer& p) {
         soft::Packet packet = p.atomic(kPsn, CompareSwap, kWord, 1);
         packet.atomic.rkey ^= 1;
         return packet;
       },
       NakCode::RemoteAccessError},
      {"in the middle of a message",
       [](RawPeer& p) {
         p.feed(p.write(kPsn, WriteFirst, 0, 2000, 1024));
         p.answers();
         return p.atomic(kPsn + 1, FetchAdd, kWord, 1);
       },
       NakCode::InvalidRequest},
  };
  for (const Wrong& wrong : wrongs) {
    RawPeer p(wrong.options);
    REQUIRE(p.ready);
    const soft::Packet packet = wrong.make(p);
    const std::vector<uint8_t> before = p.node.memory;
    p.feed(packet);
    const auto answers = p.answers();
    if (answers.size() != 1 || answers[0].aeth.syndrome != soft::syndrome_nak(wrong.code) ||
        p.qp->state() != State::Err || p.node.memory != before)
      test::fail(__FILE__, __LINE__, wrong.name);
  }
}

// A key with every right but that of atomics.
TEST(a_region_must_grant_atomics) {
  RawPeer p;
  auto region = std::move(p.node.pd
                              ->register_memory(p.node.memory.data(), p.node.memory.size(),
                                                kLocalWrite | kRemoteWrite | kRemoteRead)
                              .value());
  soft::Packet packet = p.atomic(kPsn, FetchAdd, kWord, 1);
  packet.atomic.rkey = region->rkey();
  p.feed(packet);
  const auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK_EQ(answers[0].aeth.syndrome, soft::syndrome_nak(NakCode::RemoteAccessError));
  CHECK(!p.node.pd->register_memory(p.node.memory.data(), 64, kRemoteAtomic));  // no local write
}

TEST(a_window_can_grant_atomics) {
  RawPeer p;
  auto window = std::move(p.node.pd->allocate_window().value());
  const uint32_t rkey = window->next_rkey();
  SendWorkRequest bind{};
  bind.opcode = Opcode::BindMemoryWindow;
  bind.flags = kSignaled;
  bind.bind = {window.get(), p.node.region.get(), p.node.at(kWord), 8, rkey, kRemoteAtomic};
  REQUIRE(static_cast<bool>(p.qp->post_send({&bind, 1})));
  p.answers();
  REQUIRE(p.node.poll().size() == 1);
  set_word(p, 40);
  soft::Packet packet = p.atomic(kPsn, FetchAdd, kWord, 2);
  packet.atomic.rkey = rkey;
  p.feed(packet);
  CHECK_EQ(word_of(p), 42u);
  packet = p.atomic(kPsn + 1, FetchAdd, kWord + 8, 2);
  packet.atomic.rkey = rkey;
  p.feed(packet);
  CHECK(p.qp->state() == State::Err);
}

TEST(a_repeated_atomic_is_answered_from_what_was_kept) {
  RawPeer p;
  set_word(p, 100);
  p.feed(p.atomic(kPsn, FetchAdd, kWord, 1));
  CHECK_EQ(p.answers().size(), 1u);
  set_word(p, 7);  // someone else changed it since
  for (int i = 0; i < 3; i++) {
    p.feed(p.atomic(kPsn, FetchAdd, kWord, 1));
    const auto answers = p.answers();
    REQUIRE(answers.size() == 1);
    CHECK(answers[0].row->opcode == AtomicAcknowledge);
    CHECK_EQ(answers[0].atomic_original, 100u);
    CHECK_EQ(answers[0].aeth.msn, 1u);
  }
  CHECK_EQ(word_of(p), 7u);
  CHECK_EQ(p.node.transport.counters().atomics, 1u);
  CHECK_EQ(p.node.transport.counters().atomic_replays, 3u);
  // The next request is a new one.
  p.feed(p.atomic(kPsn + 1, FetchAdd, kWord, 1));
  CHECK_EQ(word_of(p), 8u);
}

TEST(results_are_kept_for_as_many_as_may_be_outstanding) {
  ConnectOptions options;
  options.reads = 4;
  RawPeer p(options);
  set_word(p, 0);
  for (uint32_t i = 0; i < 5; i++) {
    p.feed(p.atomic(kPsn + i, FetchAdd, kWord, 1));
    CHECK_EQ(p.answers().size(), 1u);
  }
  // The first gave its place away: whoever repeats it has it complete. The others are still there.
  p.feed(p.atomic(kPsn, FetchAdd, kWord, 1));
  CHECK(p.answers().empty());
  for (uint32_t i = 1; i < 5; i++) {
    p.feed(p.atomic(kPsn + i, FetchAdd, kWord, 1));
    const auto answers = p.answers();
    REQUIRE(answers.size() == 1);
    CHECK_EQ(answers[0].atomic_original, i);
  }
  CHECK_EQ(word_of(p), 5u);
  CHECK_EQ(p.node.transport.counters().duplicates_dropped, 1u);
}

TEST(more_outstanding_than_agreed_is_an_invalid_request) {
  ConnectOptions options;
  options.reads = 2;
  RawPeer p(options);
  set_word(p, 0);
  // Nothing leaves in between: the answers are all still owed.
  p.feed(p.atomic(kPsn, FetchAdd, kWord, 1));
  p.feed(p.read(kPsn + 1, 0, 100));
  p.feed(p.atomic(kPsn + 2, FetchAdd, kWord, 1));
  CHECK_EQ(word_of(p), 1u);
  const auto answers = p.answers();
  REQUIRE(answers.size() == 1);
  CHECK_EQ(answers[0].aeth.syndrome, soft::syndrome_nak(NakCode::InvalidRequest));
  CHECK_EQ(answers[0].psn, kPsn);  // stands for the first answer that never leaves
}

TEST(answers_leave_in_the_order_of_the_requests) {
  RawPeer p;
  CHECK(p.post_receive(60000, 100));
  set_word(p, 9);
  p.feed(p.read(kPsn, 0, 3000));                       // three packets
  p.feed(p.atomic(kPsn + 3, FetchAdd, kWord, 1));      // one
  p.feed(p.read(kPsn + 4, 0, 10));                     // one
  soft::Packet send = p.send(kPsn + 5, 20, SendOnly);  // and an acknowledgement
  send.ack_request = true;
  p.feed(send);
  const auto answers = p.answers();
  REQUIRE(answers.size() == 6);
  const soft::PacketOpcode expected[] = {ReadResponseFirst, ReadResponseMiddle, ReadResponseLast,
                                         AtomicAcknowledge, ReadResponseOnly,   Acknowledge};
  for (uint32_t i = 0; i < 6; i++) {
    CHECK(answers[i].row->opcode == expected[i]);
    CHECK_EQ(answers[i].psn, (kPsn + i) & 0xffffff);
  }
}

// A repeated READ whose PSN is an atomic's, and the other way round: neither is what it repeats.
TEST(a_repetition_of_another_kind_is_dropped) {
  RawPeer p;
  set_word(p, 1);
  p.feed(p.atomic(kPsn, FetchAdd, kWord, 1));
  p.feed(p.read(kPsn + 1, 0, 8));
  CHECK_EQ(p.answers().size(), 2u);
  p.feed(p.read(kPsn, kWord, 8));
  p.feed(p.atomic(kPsn + 1, FetchAdd, kWord, 1));
  CHECK(p.answers().empty());
  CHECK_EQ(word_of(p), 2u);
  CHECK(p.qp->state() == State::Rts);
}

// ---- Requester

TEST(posted_atomics_become_packets_and_their_answers_completions) {
  RawPeer p;
  CHECK(post_atomic(p, Opcode::AtomicFetchAdd, 5, 0, 0));
  CHECK(post_atomic(p, Opcode::AtomicCompareSwap, 3, 9, 8));
  const auto requests = p.answers();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].row->opcode == FetchAdd && requests[1].row->opcode == CompareSwap);
  CHECK(requests[0].atomic.swap_or_add == 5 && requests[0].atomic.compare == 0);
  CHECK(requests[1].atomic.swap_or_add == 9 && requests[1].atomic.compare == 3);
  CHECK(requests[0].atomic.address == 0x10008 && requests[0].atomic.rkey == 0x55);
  CHECK(requests[0].ack_request && requests[0].psn == 100 && requests[1].psn == 101);
  p.feed(p.atomic_ack(100, 0x1122334455667788));
  p.feed(p.atomic_ack(101, 77));
  CHECK_EQ(word_of(p, 0), 0x1122334455667788u);
  CHECK_EQ(word_of(p, 8), 77u);
  const auto done = p.node.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == Status::Success && done[0].opcode == Opcode::AtomicFetchAdd);
  CHECK(done[1].opcode == Opcode::AtomicCompareSwap && done[1].byte_length == 8);
}

TEST(an_atomic_is_of_eight_bytes_and_never_inline) {
  RawPeer p;
  for (const uint32_t length : {0u, 4u, 7u, 9u, 16u}) {
    const Sge sge = p.node.sge(0, length);
    SendWorkRequest wr{};
    wr.opcode = Opcode::AtomicFetchAdd;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    CHECK(p.qp->post_send({&wr, 1}).error().code == EINVAL);
  }
  CHECK(!post_atomic(p, Opcode::AtomicFetchAdd, 1, 0, 0, kInline));
  // In two pieces it is taken.
  const Sge halves[] = {p.node.sge(0, 3), p.node.sge(100, 5)};
  SendWorkRequest wr{};
  wr.opcode = Opcode::AtomicFetchAdd;
  wr.flags = kSignaled;
  wr.sg_list = halves;
  wr.num_sge = 2;
  CHECK(static_cast<bool>(p.qp->post_send({&wr, 1})));
  CHECK_EQ(p.answers().size(), 1u);
  p.feed(p.atomic_ack(100, 0x0807060504030201));
  const uint64_t original = 0x0807060504030201;
  uint8_t bytes[8];
  std::memcpy(bytes, &original, 8);
  CHECK(std::memcmp(&p.node.memory[0], bytes, 3) == 0 &&
        std::memcmp(&p.node.memory[100], bytes + 3, 5) == 0);
  CHECK_EQ(p.node.poll().size(), 1u);
}

TEST(atomics_and_reads_share_the_limit_of_requests_outstanding) {
  ConnectOptions options;
  options.reads = 2;
  RawPeer p(options);
  CHECK(post_atomic(p, Opcode::AtomicFetchAdd, 1, 0, 0));
  CHECK(p.post(Opcode::RdmaRead, 1000, 10));
  CHECK(post_atomic(p, Opcode::AtomicFetchAdd, 1, 0, 8));
  CHECK_EQ(p.answers().size(), 2u);
  p.feed(p.atomic_ack(100, 0));
  CHECK_EQ(p.answers().size(), 1u);
  options.reads = 0;
  RawPeer q(options);
  CHECK(post_atomic(q, Opcode::AtomicFetchAdd, 1, 0, 0));
  q.answers();
  const auto done = q.node.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == Status::LocalQpOperationError);
}

// An acknowledgement does not complete an atomic: only its own answer brings the result.
TEST(a_lost_answer_is_asked_for_again) {
  RawPeer p;
  CHECK(post_atomic(p, Opcode::AtomicFetchAdd, 1, 0, 0));
  CHECK(p.post(Opcode::Send, 0, 10));
  CHECK_EQ(p.answers().size(), 2u);
  p.feed(p.ack(101));
  CHECK(p.node.poll().empty());
  const auto again = p.answers();
  REQUIRE(again.size() == 2);
  CHECK(again[0].row->opcode == FetchAdd && again[0].psn == 100);
  p.feed(p.atomic_ack(100, 5));
  p.feed(p.atomic_ack(100, 6));  // a late second answer changes nothing
  p.feed(p.ack(101));
  CHECK_EQ(word_of(p, 0), 5u);
  CHECK_EQ(p.node.poll().size(), 2u);
  CHECK_EQ(p.node.transport.counters().implied_naks, 1u);
  CHECK_EQ(p.node.transport.counters().retransmits_implied, 1u);
  // And without any answer after the timeout.
  CHECK(post_atomic(p, Opcode::AtomicCompareSwap, 1, 2, 0));
  CHECK_EQ(p.answers().size(), 1u);
  p.network.now += 2'000'000;
  const auto timed_out = p.answers();
  REQUIRE(timed_out.size() == 1);
  CHECK(timed_out[0].row->opcode == CompareSwap && timed_out[0].psn == 102);
}

TEST(a_fence_waits_for_atomics) {
  RawPeer p;
  CHECK(post_atomic(p, Opcode::AtomicFetchAdd, 1, 0, 0));
  CHECK(p.post(Opcode::Send, 0, 10, kSignaled | kFence));
  CHECK_EQ(p.answers().size(), 1u);
  p.feed(p.atomic_ack(100, 5));
  CHECK_EQ(p.answers().size(), 1u);
}

TEST(answers_that_fit_no_atomic_are_bad_responses) {
  const std::function<void(RawPeer&)> wrongs[] = {
      [](RawPeer& p) {
        CHECK(p.post(Opcode::RdmaRead, 0, 8));
        p.answers();
        p.feed(p.atomic_ack(100, 1));
      },
      [](RawPeer& p) {
        CHECK(p.post(Opcode::Send, 0, 8));
        p.answers();
        p.feed(p.atomic_ack(100, 1));
      },
      [](RawPeer& p) {
        CHECK(post_atomic(p, Opcode::AtomicFetchAdd, 1, 0, 0));
        p.answers();
        p.feed(p.response(100, ReadResponseOnly, 8, 1));
      }};
  for (const auto& wrong : wrongs) {
    RawPeer p;
    wrong(p);
    const auto done = p.node.poll();
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == Status::BadResponseError && p.qp->state() == State::Err);
  }
}

TEST(naks_fail_the_atomic_they_name) {
  const std::pair<NakCode, Status> table[] = {
      {NakCode::InvalidRequest, Status::RemoteInvalidRequest},
      {NakCode::RemoteAccessError, Status::RemoteAccessError}};
  for (const auto& [code, status] : table) {
    RawPeer p;
    CHECK(post_atomic(p, Opcode::AtomicFetchAdd, 1, 0, 0));
    p.answers();
    p.feed(p.ack(100, soft::syndrome_nak(code)));
    const auto done = p.node.poll();
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == status && done[0].wr_id == 1);
  }
}

TEST_MAIN
