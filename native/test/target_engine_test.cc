// The target engine's queues: establishment, flow, handed-up commands, exhaustion, aborts, death in
// every state, namespaces changed under load. Over the loopback provider; time moves only here.
#include "nvmf/target_engine.h"

#include <algorithm>

#include "support/target_rig.h"
#include "test.h"

using namespace nvmeof::test;
using namespace nvmeof::nvmf;
using nvmeof::block::Operation;
namespace rdma = nvmeof::rdma;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

Sqe read_of(const RawHost& host, uint16_t cid, uint32_t blocks = 8, uint32_t nsid = 1) {
  return Sqe(io::kRead, cid, nsid).range(0, blocks).keyed(host.address(), blocks * 512, host.key());
}
Sqe write_of(const RawHost& host, uint16_t cid, uint32_t blocks = 8, uint32_t nsid = 1) {
  return Sqe(io::kWrite, cid, nsid)
      .range(0, blocks)
      .keyed(host.address(), blocks * 512, host.key());
}

struct Bound {
  TargetRig rig;
  ScriptedBacking backing{1u << 20};
  RawHost host;
  explicit Bound(uint32_t depth = 16, TargetLimits limits = TargetRig::small_limits(),
                 const rdma::Capabilities& c = LoopbackFabric::full_capabilities())
      : rig(limits, c), host(&rig, 7, depth) {
    rig.add_namespace(1, &backing);
    rig.bind(host);
    rig.sink.events.clear();
  }
  ~Bound() { rig.check_idle(); }
  void expect_closed(const char* text, uint32_t queue = 7) {
    rig.settle();
    CHECK_EQ(rig.sink.count(EventKind::QueueClosed), 1u);
    const Event* closed = rig.sink.last(EventKind::QueueClosed);
    REQUIRE(closed);
    CHECK_EQ(closed->id, queue);
    if (closed->text().find(text) == std::string::npos) {
      std::fprintf(stderr, "reason: %s\n", closed->text().c_str());
      CHECK(closed->text().find(text) != std::string::npos);
    }
    CHECK_EQ(rig.engine->live_queues(), 0u);
    rig.check_idle();
  }
};

struct Flag {
  int runs = 0;
  static void set(void* context) { static_cast<Flag*>(context)->runs++; }
};

}  // namespace

// ---- establishment

TEST(a_connection_is_announced_accepted_and_established) {
  TargetRig rig;
  RawHost host(&rig, 42, 8);
  CHECK(host.connected);
  const Event* request = rig.sink.last(EventKind::ConnectRequest);
  REQUIRE(request);
  CHECK_EQ(request->first.size(), 32u);
  EventAddresses addresses;
  REQUIRE(request->second.size() == sizeof addresses);
  std::memcpy(&addresses, request->second.data(), sizeof addresses);
  CHECK(std::string(addresses.peer) == "10.0.0.2");
  CHECK(std::string(addresses.local) == "10.0.0.1");
  CHECK_EQ(rig.sink.count(EventKind::QueueEstablished), 1u);
  CHECK_EQ(rig.sink.last(EventKind::QueueEstablished)->id, 42u);
  CHECK_EQ(rig.engine->live_queues(), 1u);
}

TEST(the_first_capsule_establishes_when_the_rtu_is_lost) {
  TargetRig rig;
  rig.fabric.lose_rtu = true;
  RawHost host(&rig, 1, 8);
  CHECK_EQ(rig.sink.count(EventKind::QueueEstablished), 0u);
  host.send(Sqe(0x18, 1));
  rig.settle();
  REQUIRE(rig.sink.count(EventKind::QueueEstablished) == 1);
  REQUIRE(rig.sink.events.size() >= 2);
  CHECK(rig.sink.events.back().kind == EventKind::Capsule);  // after QueueEstablished
}

TEST(accept_refuses_what_it_cannot_serve) {
  TargetRig rig;
  for (const uint32_t depth : {0u, 1u, 16385u, 65536u})
    CHECK_EQ(rig.engine->accept(1, 99, {depth, 0, {}}).error().code, EINVAL);
  CHECK_EQ(rig.engine->accept(1, 99, {8, 8192, {}}).error().code, EINVAL);
  CHECK_EQ(rig.engine->accept(1, 99, {8, 0, {}}).error().code, ENOTCONN);  // no such connection
  CHECK_EQ(rig.engine->live_queues(), 0u);
  CHECK_EQ(rig.fabric.live_queue_pairs(), 0u);
  RawHost host(&rig, 1, 8);
  CHECK_EQ(rig.engine->accept(1, 99, {8, 0, {}}).error().code, EEXIST);
}

TEST(limits_that_cannot_work_are_refused_by_name) {
  LoopbackFabric fabric;
  auto device = fabric.open("10.0.0.1", LoopbackFabric::full_capabilities());
  EventCollector sink;
  const auto error = [&](TargetLimits limits) {
    const auto made = TargetEngine::create(device.get(), nullptr, &sink, limits);
    return made ? std::string() : made.error().message;
  };
  TargetLimits limits = TargetRig::small_limits();
  limits.shared_receives = 0;
  CHECK(error(limits).find("sharedReceives") != std::string::npos);
  limits = TargetRig::small_limits();
  limits.max_transfer_bytes = 0;
  CHECK(error(limits).find("maxTransferBytes") != std::string::npos);
  limits = TargetRig::small_limits();
  limits.arena_bytes = limits.max_transfer_bytes;
  CHECK(error(limits).find("arenaBytes") != std::string::npos);
  limits = TargetRig::small_limits();
  limits.in_capsule_bytes = 0;  // no in-capsule data at all is fine
  CHECK(error(limits).empty());
}

// ---- flow

TEST(sqhd_counts_completions_modulo_the_depth) {
  Bound b(4);
  for (unsigned i = 1; i <= 9; i++) {
    const Answer answer = b.host.ask(read_of(b.host, static_cast<uint16_t>(i)));
    CHECK_EQ(answer.sqhd, i % 4);
    CHECK_EQ(answer.sqid, 1);
    CHECK_EQ(answer.cid, i);
  }
}

TEST(without_flow_control_sqhd_is_ffff_in_connect_and_0_later) {
  TargetRig rig;
  RawHost host(&rig, 7, 4);
  host.send(Sqe(0x7F, 1, 0x01));
  rig.settle();
  const Event* connect = rig.sink.last(EventKind::Capsule);
  REQUIRE(connect);
  rig.bind(host, true);
  rig.engine->complete(7, connect->tag, 1, 0, {});
  rig.settle();
  CHECK_EQ(host.answers.back().sqhd, 0xFFFF);
  CHECK_EQ(host.ask(Sqe(io::kFlush, 2, 1)).sqhd, 0);
  // All entries may be outstanding now.
  ScriptedBacking backing(65536);
  rig.add_namespace(1, &backing);
  backing.hold = true;
  for (uint16_t cid = 0; cid < 4; cid++) host.send(read_of(host, cid, 1));
  rig.settle();
  CHECK_EQ(rig.engine->live_queues(), 1u);
  backing.release_all();
  rig.check_idle();
}

TEST(depth_minus_one_commands_may_be_outstanding) {
  Bound b(4);
  b.backing.hold = true;
  for (uint16_t cid = 0; cid < 3; cid++) b.host.send(read_of(b.host, cid));
  b.rig.settle();
  CHECK_EQ(b.backing.held(), 3u);
  CHECK_EQ(b.rig.engine->live_queues(), 1u);
  b.host.send(read_of(b.host, 3));
  b.rig.settle();
  b.backing.release_all();
  b.expect_closed("more commands than the queue's 4 entries");
}

TEST(capsules_shorter_than_64_bytes_close_the_queue) {
  for (const size_t length : {size_t{0}, size_t{1}, size_t{63}}) {
    Bound b;
    RawHost other(&b.rig, 8, 8);
    const std::vector<uint8_t> bytes(length, 0x40);
    b.host.send_bytes(bytes);
    b.rig.settle();
    CHECK_EQ(b.rig.sink.count(EventKind::QueueClosed), 1u);
    CHECK(b.rig.sink.last(EventKind::QueueClosed)->text().find("least is 64") != std::string::npos);
    CHECK(b.host.disconnected);
    // The other connection works on.
    b.rig.bind(other);
    CHECK_EQ(other.ask(read_of(other, 1)).status, 0);
  }
}

TEST(capsules_longer_than_the_receive_buffer_close_the_queue) {
  Bound b;
  const std::vector<uint8_t> bytes(64 + 4097, 0x40);
  b.host.send_bytes(bytes);
  b.expect_closed("receive failed");
}

TEST(an_sqe_alone_or_with_full_data_is_taken) {
  Bound b;
  std::vector<uint8_t> data(4096, 0x77);
  CHECK_EQ(b.host.ask(write_of(b.host, 1).in_capsule(0, 4096), data).status, 0);
  CHECK_EQ(b.host.ask(Sqe(io::kFlush, 1, 1)).status, 0);
}

// ---- data path

TEST(reads_go_out_as_a_train_of_writes_then_their_responses) {
  Bound b(16);
  b.rig.fabric.tracing = true;
  b.rig.fabric.hold(b.host.target_qp(), true);
  for (uint16_t cid = 0; cid < 4; cid++) b.host.send(read_of(b.host, cid));
  b.rig.settle();
  b.rig.fabric.trace.clear();
  const uint64_t calls = b.rig.fabric.post_send_calls;
  b.rig.fabric.hold(b.host.target_qp(), false);
  b.rig.settle();
  CHECK(b.rig.fabric.trace == "write write write write send send send send ");
  CHECK_EQ(b.rig.fabric.post_send_calls, calls);  // all were posted before
  CHECK_EQ(b.host.answers.size(), 4u);
  CHECK(b.backing.prefetches == 4);
}

TEST(invalidation_goes_to_exactly_the_commands_that_ask) {
  Bound b;
  const uint32_t key = b.host.bind_window(0, 4096);
  b.rig.settle();
  const Answer with = b.host.ask(
      Sqe(io::kRead, 1, 1).range(0, 8).keyed(b.host.address(), 4096, key, kSglKeyedInvalidate));
  CHECK_EQ(with.status, 0);
  CHECK_EQ(with.invalidated, key);
  const uint32_t second = b.host.bind_window(0, 4096);
  b.rig.settle();
  const Answer without =
      b.host.ask(Sqe(io::kRead, 2, 1).range(0, 8).keyed(b.host.address(), 4096, second));
  CHECK_EQ(without.status, 0);
  CHECK_EQ(without.invalidated, 0u);
  std::vector<uint8_t> data(512);
  CHECK_EQ(b.host.ask(write_of(b.host, 3, 1).in_capsule(0, 512), data).invalidated, 0u);
}

TEST(a_device_that_cannot_invalidate_answers_plainly) {
  rdma::Capabilities c = LoopbackFabric::full_capabilities();
  c.send_with_invalidate = false;
  c.max_inline = 0;
  c.max_sge = c.max_read_sge = 1;
  Bound b(16, TargetRig::small_limits(), c);
  const uint32_t key = b.host.bind_window(0, 256 * 1024);
  b.rig.settle();
  const Answer answer =
      b.host.ask(Sqe(io::kRead, 1, 1).range(0, 512).keyed(b.host.address(), 256 * 1024, key, 0x4F));
  CHECK_EQ(answer.status, 0);
  CHECK_EQ(answer.invalidated, 0u);
}

TEST(a_device_without_inline_data_for_an_invalidation_invalidates_from_memory) {
  rdma::Capabilities c = LoopbackFabric::full_capabilities();
  c.inline_with_invalidate = false;
  Bound b(16, TargetRig::small_limits(), c);
  const uint32_t key = b.host.bind_window(0, 4096);
  b.rig.settle();
  const Answer answer = b.host.ask(
      Sqe(io::kRead, 1, 1).range(0, 8).keyed(b.host.address(), 4096, key, kSglKeyedInvalidate));
  CHECK_EQ(answer.status, 0);
  CHECK_EQ(answer.invalidated, key);
}

TEST(without_shared_receive_queues_each_queue_has_receives_of_its_own) {
  rdma::Capabilities c = LoopbackFabric::full_capabilities();
  c.srq = false;
  Bound b(8, TargetRig::small_limits(), c);
  const uint32_t all = TargetRig::small_limits().shared_receives;
  std::vector<uint8_t> data(512);
  for (uint16_t cid = 0; cid < 50; cid++) {
    data[0] = static_cast<uint8_t>(cid);
    CHECK_EQ(b.host.ask(write_of(b.host, cid, 1).in_capsule(0, 512), data).status, 0);
    CHECK_EQ(b.backing.bytes[0], cid);
  }
  CHECK_EQ(b.rig.counter("live.targetReceives"), 0u);
  CHECK_EQ(b.rig.fabric.receiver_not_ready(), 0u);
  // What is promised to one queue is not there for another.
  AcceptOptions rest{all - 8 + 1, 0, {}};
  const auto refused = b.rig.engine->accept(99, 12345, rest);
  CHECK(!refused && refused.error().message.find("no receives left") != std::string::npos);
  b.host.disconnect();
  b.rig.settle();
  CHECK_EQ(b.rig.engine->live_queues(), 0u);
  CHECK_EQ(b.rig.counter("live.targetReceives"), 0u);
  rest.depth = all;
  const auto gone = b.rig.engine->accept(99, 12345, rest);
  CHECK(!gone && gone.error().message.find("no receives left") == std::string::npos);
}

TEST(a_completion_queue_bounds_the_queues_of_an_engine) {
  const TargetLimits limits = TargetRig::small_limits();
  rdma::Capabilities c = LoopbackFabric::full_capabilities();
  c.max_cq_entries = limits.shared_receives + 2 * 8 + 2 * 20;
  Bound b(8, limits, c);
  const auto refused = b.rig.engine->accept(99, 12345, AcceptOptions{21, 0, {}});
  CHECK(!refused &&
        refused.error().message.find("no send queue entries left") != std::string::npos);
  const auto unknown = b.rig.engine->accept(99, 12345, AcceptOptions{20, 0, {}});
  CHECK(!unknown && unknown.error().message.find("send queue entries") == std::string::npos);
  // What it took to find that out is given back.
  const auto again = b.rig.engine->accept(99, 12345, AcceptOptions{20, 0, {}});
  CHECK(!again && again.error().message == unknown.error().message);
}

TEST(a_completion_queue_must_hold_more_than_the_receives) {
  LoopbackFabric fabric;
  rdma::Capabilities c = LoopbackFabric::full_capabilities();
  const TargetLimits limits = TargetRig::small_limits();
  c.max_cq_entries = limits.shared_receives;
  const auto device = fabric.open("10.0.0.1", c);
  EventCollector sink;
  const auto engine = TargetEngine::create(device.get(), nullptr, &sink, limits);
  CHECK(!engine &&
        engine.error().message.find("sharedReceives must be below 64") != std::string::npos);
}

TEST(where_a_send_without_a_receive_kills_no_more_entries_are_promised_than_there_are) {
  rdma::Capabilities c = LoopbackFabric::full_capabilities();
  c.receiver_not_ready = false;
  Bound b(8, TargetRig::small_limits(), c);
  const AcceptOptions rest{TargetRig::small_limits().shared_receives - 8 + 1, 0, {}};
  const auto refused = b.rig.engine->accept(99, 12345, rest);
  CHECK(!refused && refused.error().message.find("no receives left") != std::string::npos);
}

TEST(responses_wait_for_send_credits) {
  // 256 send queue entries, 255 reads of two work requests each, and a peer that is silent.
  TargetLimits limits = TargetRig::small_limits();
  limits.shared_receives = 512;
  Bound b(256, limits);
  b.rig.fabric.hold(b.host.target_qp(), true);
  for (uint16_t cid = 0; cid < 255; cid++) b.host.send(read_of(b.host, cid, 1));
  b.rig.settle();
  CHECK(b.host.answers.empty());
  CHECK_EQ(b.rig.counter("live.targetCommands"), 255u);
  CHECK_EQ(b.rig.engine->live_queues(), 1u);
  b.rig.fabric.hold(b.host.target_qp(), false);
  b.rig.settle();
  CHECK_EQ(b.host.answers.size(), 255u);
  CHECK_EQ(b.rig.engine->live_queues(), 1u);
}

TEST(a_full_depth_of_large_commands_shares_a_small_pool) {
  // 2 MiB arena, 256 KiB each: 8 at a time; 63 commands in flight.
  Bound b(64);
  for (uint16_t cid = 0; cid < 63; cid++)
    b.host.send(cid % 2 ? read_of(b.host, cid, 512) : write_of(b.host, cid, 512));
  b.rig.settle();
  CHECK_EQ(b.host.answers.size(), 63u);
  for (const Answer& answer : b.host.answers) CHECK_EQ(answer.status, 0);
  CHECK(b.rig.counter("target.bufferWaits") > 0);
}

TEST(commands_wait_in_order_when_the_pool_is_empty) {
  Bound b(32);
  b.backing.hold = true;
  for (uint16_t cid = 0; cid < 8; cid++) b.host.send(read_of(b.host, cid, 512));  // all of it
  b.host.send(read_of(b.host, 8, 512));
  b.host.send(read_of(b.host, 9, 1));
  b.rig.settle();
  CHECK_EQ(b.backing.held(), 8u);
  CHECK_EQ(b.rig.counter("live.targetBuffers"), 8u);
  CHECK_EQ(b.rig.counter("live.targetBufferBytes"), 2u << 20);
  CHECK_EQ(b.rig.counter("target.buffer_bytes"), (2u << 20) + (1u << 20));  // and of control
  CHECK_EQ(b.rig.counter("target.bufferWaits"), 2u);
  b.backing.release_one();
  b.rig.settle();
  CHECK_EQ(b.backing.held(), 8u);
  CHECK_EQ(b.backing.waiting.back()->length, 512u * 512);  // the large one, not the small one
  b.backing.hold = false;
  b.backing.release_all();
  b.rig.settle();
  CHECK_EQ(b.host.answers.size(), 10u);
  CHECK_EQ(b.rig.counter("live.targetBufferBytes"), 0u);
  // The provider of this test does not count by queue pair.
  CHECK(b.rig.engine->transport(7) == nullptr);
}

TEST(connect_does_not_wait_behind_data) {
  Bound b(32);
  b.backing.hold = true;
  for (uint16_t cid = 0; cid < 20; cid++) b.host.send(read_of(b.host, cid, 512));
  RawHost newcomer(&b.rig, 9, 8);
  std::fill_n(newcomer.memory.begin(), 1024, uint8_t{0x11});
  newcomer.send(Sqe(0x7F, 1, 0x01).keyed(newcomer.address(), 1024, newcomer.key()));
  b.rig.settle();
  const Event* connect = b.rig.sink.last(EventKind::Capsule);
  REQUIRE(connect);
  CHECK_EQ(connect->second.size(), 1024u);
  b.rig.engine->complete(9, connect->tag, 0x1234, 0, {});
  b.rig.settle();
  REQUIRE(newcomer.answers.size() == 1);
  CHECK_EQ(newcomer.answers[0].result, 0x1234u);
  b.backing.hold = false;
  b.backing.release_all();
}

TEST(a_slow_acknowledgement_delays_the_next_command_but_loses_none) {
  // Responses reach the host, our completions do not: the host sends on while slots are still held.
  Bound b(4);
  for (uint16_t cid = 0; cid < 40; cid++) {
    const size_t before = b.host.answers.size();
    b.host.send(read_of(b.host, cid, 1));
    for (int i = 0; i < 4 && b.host.answers.size() == before; i++) {
      b.rig.fabric.progress();
      b.rig.engine->poll(b.rig.now);
      b.rig.fabric.progress();
      b.host.poll();
    }
    CHECK_EQ(b.host.answers.size(), before + 1);
  }
}

// ---- commands of the control plane

TEST(an_unbound_queue_hands_everything_up) {
  TargetRig rig;
  RawHost host(&rig, 7, 8);
  host.send(Sqe(io::kRead, 0x55, 1).range(0, 1).keyed(host.address(), 512, host.key()));
  rig.settle();
  const Event* up = rig.sink.last(EventKind::Capsule);
  REQUIRE(up);
  CHECK_EQ(up->id, 7u);
  CHECK_EQ(up->second.size(), 0u);
  // Answered with data: cut to the SGL's length, moved before the response.
  std::vector<uint8_t> data(1000, 0xAB);
  rig.engine->complete(7, up->tag, 5, 0, data);
  rig.settle();
  REQUIRE(host.answers.size() == 1);
  CHECK_EQ(host.answers[0].cid, 0x55);
  CHECK_EQ(host.answers[0].result, 5u);
  CHECK_EQ(host.memory[511], 0xAB);
  CHECK_EQ(host.memory[512], 0);
  rig.check_idle();
}

TEST(data_is_fetched_before_a_command_is_handed_up) {
  TargetRig rig;
  RawHost host(&rig, 7, 8);
  for (size_t i = 0; i < 128 * 1024; i++) host.memory[i] = static_cast<uint8_t>(i * 7);
  for (const uint32_t length : {1u, 1024u, 4096u, 128u * 1024}) {
    host.send(Sqe(0x7F, 1, 0x05).keyed(host.address(), length, host.key()));
    rig.settle();
    const Event* up = rig.sink.last(EventKind::Capsule);
    REQUIRE(up);
    REQUIRE(up->second.size() == length);
    CHECK(std::equal(up->second.begin(), up->second.end(), host.memory.begin()));
    rig.engine->complete(7, up->tag, 0, 0, {});
  }
  std::vector<uint8_t> data(1024, 0xCD);
  host.send(Sqe(0x7F, 2, 0x01).in_capsule(0, 1024), data);
  rig.settle();
  CHECK(rig.sink.last(EventKind::Capsule)->second == data);
  rig.engine->complete(7, rig.sink.last(EventKind::Capsule)->tag, 0, 0x4182, {});
  rig.settle();
  CHECK_EQ(host.answers.back().status, 0x4182);
  CHECK_EQ(rig.sink.count(EventKind::IoError), 0u);  // the control plane knows its own answers
  const size_t before = rig.sink.count(EventKind::Capsule);
  const Answer refused =
      host.ask(Sqe(0x7F, 3, 0x05).keyed(host.address(), 128 * 1024 + 1, host.key()));
  CHECK_EQ(refused.status, status::kSglLengthInvalid);
  CHECK_EQ(host.ask(Sqe(0x06, 4).byte(39, 0x5A)).status, status::kSglTypeInvalid);
  CHECK_EQ(host.ask(Sqe(0x06, 5).byte(1, 0)).status, status::kInvalidField);
  CHECK_EQ(rig.sink.count(EventKind::Capsule), before);
  rig.check_idle();
}

TEST(fabrics_commands_go_up_on_a_bound_queue_too) {
  Bound b;
  b.host.send(Sqe(0x7F, 1, 0x08));
  b.rig.settle();
  const Event* up = b.rig.sink.last(EventKind::Capsule);
  REQUIRE(up);
  b.rig.engine->complete(7, up->tag, 0, 0, {});
  b.rig.settle();
  CHECK_EQ(b.host.answers.size(), 1u);
}

TEST(a_queue_bound_with_qid_0_executes_nothing) {
  TargetRig rig;
  RawHost host(&rig, 7, 8);
  rig.engine->bind(7, {1, 0, 1, false});
  host.send(Sqe(0x02, 1, 1));  // Get Log Page, not Read
  rig.settle();
  CHECK_EQ(rig.sink.count(EventKind::Capsule), 1u);
}

TEST(late_and_wrong_tags_are_ignored) {
  TargetRig rig;
  RawHost host(&rig, 7, 8);
  host.send(Sqe(0x0C, 1));
  rig.settle();
  const uint32_t tag = rig.sink.last(EventKind::Capsule)->tag;
  rig.engine->complete(8, tag, 0, 0, {});
  rig.engine->complete(7, tag + 1, 0, 0, {});
  rig.engine->complete(7, tag ^ 0x10000, 0, 0, {});
  rig.engine->complete(7, 0xFFFFFFFF, 0, 0, {});
  rig.settle();
  CHECK_EQ(host.answers.size(), 0u);
  rig.engine->complete(7, tag, 0, 0, {});
  rig.engine->complete(7, tag, 0, 0, {});
  rig.settle();
  rig.engine->complete(7, tag, 0, 0, {});
  rig.settle();
  CHECK_EQ(host.answers.size(), 1u);
  host.send(Sqe(0x0C, 2));
  rig.settle();
  CHECK(rig.sink.last(EventKind::Capsule)->tag != tag);
}

TEST(large_answers_wait_for_the_control_pool) {
  TargetRig rig;  // control pool: 1 MiB
  RawHost host(&rig, 7, 16);
  rig.fabric.hold(host.target_qp(), true);
  std::vector<uint8_t> data(256 * 1024);
  std::vector<uint32_t> tags;
  for (uint16_t cid = 0; cid < 8; cid++) {
    host.send(Sqe(0x02, cid).keyed(host.address(cid * 256 * 1024), 256 * 1024, host.key()));
    rig.settle();
    tags.push_back(rig.sink.last(EventKind::Capsule)->tag);
  }
  for (size_t i = 0; i < tags.size(); i++) {
    std::fill(data.begin(), data.end(), static_cast<uint8_t>(i + 1));
    rig.engine->complete(7, tags[i], i, 0, data);
  }
  rig.settle();
  CHECK(rig.counter("target.bufferWaits") >= 4);
  rig.fabric.hold(host.target_qp(), false);
  rig.settle();
  CHECK_EQ(host.answers.size(), 8u);
  for (size_t i = 0; i < tags.size(); i++) CHECK_EQ(host.memory[(i + 1) * 256 * 1024 - 1], i + 1);
  rig.check_idle();
}

// ---- abort

TEST(abort_ends_commands_that_wait_and_marks_those_in_the_backing) {
  Bound b(32);
  b.backing.hold = true;
  for (uint16_t cid = 0; cid < 10; cid++) b.host.send(read_of(b.host, cid, 512));
  b.rig.settle();
  CHECK(!b.rig.engine->abort(7, 99));
  CHECK(!b.rig.engine->abort(6, 1));
  CHECK(b.rig.engine->abort(7, 9));  // waits for a buffer
  b.rig.settle();
  REQUIRE(b.host.answers.size() == 1);
  CHECK_EQ(b.host.answers[0].cid, 9);
  CHECK_EQ(b.host.answers[0].status, status::kAbortRequested);
  CHECK(b.rig.engine->abort(7, 0));  // in the backing
  b.rig.settle();
  CHECK_EQ(b.host.answers.size(), 1u);
  b.backing.hold = false;
  b.backing.release_all();
  b.rig.settle();
  CHECK_EQ(b.host.answers.size(), 10u);
  CHECK_EQ(b.host.answer(0)->status, status::kAbortRequested);
  CHECK_EQ(b.host.answer(1)->status, 0);
  CHECK(!b.rig.engine->abort(7, 0));
}

TEST(abort_stops_a_long_deallocation_between_its_ranges) {
  Bound b;
  b.backing.hold = true;
  std::vector<uint8_t> ranges(160);
  for (size_t i = 0; i < 10; i++) ranges[i * 16 + 4] = 1;
  b.host.send(Sqe(io::kDatasetManagement, 5, 1).in_capsule(0, 160).dword(40, 9).dword(44, 4),
              ranges);
  b.rig.settle();
  b.backing.release_one();
  CHECK(b.rig.engine->abort(7, 5));
  b.backing.release_one();
  b.rig.settle();
  CHECK_EQ(b.backing.seen.size(), 2u);
  REQUIRE(b.host.answers.size() == 1);
  CHECK_EQ(b.host.answers[0].status, status::kAbortRequested);
}

TEST(abort_of_a_posted_fetch_waits_for_it) {
  Bound b;
  b.rig.fabric.hold(b.host.target_qp(), true);
  b.host.send(write_of(b.host, 3));
  b.rig.settle();
  CHECK(b.rig.engine->abort(7, 3));
  CHECK_EQ(b.rig.counter("live.targetBuffers"), 1u);
  b.rig.fabric.hold(b.host.target_qp(), false);
  b.rig.settle();
  REQUIRE(b.host.answers.size() == 1);
  CHECK_EQ(b.host.answers[0].status, status::kAbortRequested);
  CHECK_EQ(b.backing.seen.size(), 0u);
}

// ---- death

TEST(a_queue_dies_with_commands_in_every_state) {
  // Killed by: 0 the peer's disconnect, 1 a failed WRITE, 2 close(), 3 a short capsule, 4 the
  // cable.
  for (int how = 0; how < 5; how++) {
    Bound b(64);
    b.backing.hold = true;
    uint16_t cid = 0;
    for (; cid < 8; cid++) b.host.send(read_of(b.host, cid, 512));    // executing, all buffers
    for (; cid < 12; cid++) b.host.send(write_of(b.host, cid, 512));  // waiting for a buffer
    for (; cid < 14; cid++) b.host.send(Sqe(0x7F, cid, 0x04));        // with the control plane
    std::vector<uint8_t> data(512);
    for (; cid < 16; cid++)  // executing from the capsule
      b.host.send(write_of(b.host, cid, 1).in_capsule(0, 512), data);
    b.rig.settle();
    const uint32_t tag = b.rig.sink.last(EventKind::Capsule)->tag;
    b.rig.fabric.hold(b.host.target_qp(), true);
    b.backing.release_one();  // one read is Sending; its buffer is taken by a write: nothing free
    b.backing.release_one();
    b.rig.settle();
    CHECK_EQ(b.backing.held(), 8u);
    switch (how) {
      case 0:
        b.host.disconnect();
        break;
      case 1:
        b.rig.fabric.fail_next(b.host.target_qp(), rdma::Opcode::RdmaWrite,
                               rdma::Status::RemoteAccessError);
        b.rig.fabric.hold(b.host.target_qp(), false);
        break;
      case 2:
        b.rig.engine->close(7);
        b.rig.settle();
        b.rig.now += kSecond;
        break;
      case 3:
        b.host.send_bytes(data = std::vector<uint8_t>(10));
        break;
      default:
        b.rig.fabric.cut(b.host.target_qp());
        b.rig.fabric.hold(b.host.target_qp(), false);
    }
    b.rig.settle();
    b.rig.engine->complete(7, tag, 0, 0, {});
    // The backing still holds memory: the queue may not be reported closed yet.
    CHECK_EQ(b.rig.sink.count(EventKind::QueueClosed), 0u);
    CHECK_EQ(b.rig.sink.count(EventKind::QueueQuiet), 0u);
    CHECK_EQ(b.rig.counter("live.targetCommands"), 8u);
    CHECK_EQ(b.rig.counter("live.targetReceives"), 2u);
    b.backing.release_one(EIO);
    b.rig.settle();
    CHECK_EQ(b.rig.sink.count(EventKind::QueueClosed), 0u);
    b.backing.hold = false;
    b.backing.release_all();
    b.expect_closed("");
    CHECK_EQ(b.rig.sink.count(EventKind::QueueQuiet), 1u);
    CHECK_EQ(b.rig.fabric.live_queue_pairs(), 1u);  // the host's own
  }
}

TEST(a_queue_dies_while_a_fetch_is_queued_or_posted) {
  Bound b(64);
  b.rig.fabric.hold(b.host.target_qp(), true);
  for (uint16_t cid = 0; cid < 63; cid++) b.host.send(write_of(b.host, cid, 1));
  b.rig.settle();
  CHECK_EQ(b.rig.counter("live.targetCommands"), 63u);
  b.host.disconnect();
  b.expect_closed("disconnected");
}

TEST(flushes_that_arrive_after_the_queue_are_ignored) {
  Bound b(16);
  RawHost other(&b.rig, 8, 16);
  b.rig.bind(other);
  b.rig.fabric.hold(b.host.target_qp(), true);
  for (uint16_t cid = 0; cid < 15; cid++) b.host.send(read_of(b.host, cid));
  b.rig.settle();
  b.host.disconnect();
  b.rig.fabric.progress();  // on_disconnected, and the flushes in the completion queue
  b.rig.settle();
  CHECK_EQ(b.rig.sink.count(EventKind::QueueClosed), 1u);
  for (uint16_t cid = 0; cid < 15; cid++) CHECK_EQ(other.ask(read_of(other, cid)).status, 0);
}

TEST(bad_keys_cost_only_their_own_queue) {
  for (int how = 0; how < 4; how++) {
    Bound b;
    RawHost other(&b.rig, 8, 8);
    b.rig.bind(other);
    Sqe sqe = how % 2 ? write_of(b.host, 1) : read_of(b.host, 1);
    if (how < 2)
      sqe.keyed(b.host.address(), 4096, b.host.key() + 12345);
    else
      sqe.keyed(b.host.address(b.host.memory.size() - 4095), 4096, b.host.key());
    b.host.send(sqe);
    b.rig.settle();
    REQUIRE(b.rig.sink.count(EventKind::QueueClosed) == 1);
    const std::string reason = b.rig.sink.last(EventKind::QueueClosed)->text();
    CHECK(reason.find(how % 2 ? "RDMA READ failed" : "RDMA WRITE failed") != std::string::npos);
    CHECK_EQ(b.backing.seen.size(), how % 2 ? 0u : 1u);
    CHECK_EQ(other.ask(read_of(other, 1)).status, 0);
  }
}

TEST(close_lets_answers_out_first) {
  TargetRig rig;
  RawHost host(&rig, 7, 8);
  host.send(Sqe(0x7F, 1, 0x08));
  host.send(Sqe(0x0C, 2));  // stays with the control plane: does not hold the close up
  rig.settle();
  rig.engine->complete(7, rig.sink.events[rig.sink.events.size() - 2].tag, 0, 0, {});
  rig.engine->close(7);
  rig.settle();
  REQUIRE(host.answers.size() == 1);
  CHECK_EQ(host.answers[0].cid, 1);
  CHECK_EQ(rig.sink.count(EventKind::QueueClosed), 1u);
  CHECK(rig.sink.last(EventKind::QueueClosed)->text() == "closed by the target");
  CHECK(host.disconnected);
  rig.engine->close(7);
  rig.engine->close(12345);
  rig.settle();
  CHECK_EQ(rig.sink.count(EventKind::QueueClosed), 1u);
  rig.check_idle();
}

TEST(both_ends_may_disconnect_at_once) {
  Bound b;
  b.host.disconnect();
  b.rig.engine->close(7);
  b.expect_closed("");
}

// Who fails over waits for the writes that a backing has, not for a connection that takes its time
// to end.
TEST(a_queue_is_quiet_when_no_backing_has_a_command_of_it) {
  Bound b;
  b.rig.fabric.hold_disconnects = true;
  b.backing.hold = true;
  for (uint16_t cid = 0; cid < 3; cid++) b.host.send(write_of(b.host, cid));
  b.rig.settle();
  CHECK_EQ(b.backing.held(), 3u);
  b.rig.engine->close(7);
  b.rig.settle();
  b.rig.now += kSecond;
  b.rig.settle();
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(b.rig.sink.count(EventKind::QueueQuiet), 0u);
    b.backing.release_one();
    b.rig.settle();
  }
  CHECK_EQ(b.rig.sink.count(EventKind::QueueQuiet), 1u);
  CHECK_EQ(b.rig.sink.last(EventKind::QueueQuiet)->id, 7u);
  CHECK_EQ(b.rig.sink.count(EventKind::QueueClosed), 0u);
  b.backing.hold = false;
  b.rig.now += 11 * kSecond;
  b.expect_closed("closed by the target");
  CHECK_EQ(b.rig.sink.count(EventKind::QueueQuiet), 1u);
  b.rig.fabric.hold_disconnects = false;
  b.rig.settle();
}

TEST(a_provider_that_never_reports_the_end_is_given_up) {
  Bound b;
  b.rig.fabric.hold_disconnects = true;
  b.rig.engine->close(7);
  b.rig.settle();
  CHECK_EQ(b.rig.sink.count(EventKind::QueueClosed), 0u);
  CHECK(b.rig.engine->next_deadline() != nvmeof::reactor::kNever);
  b.rig.now += 11 * kSecond;
  b.expect_closed("closed by the target");
  b.rig.fabric.hold_disconnects = false;
  b.rig.settle();
}

TEST(a_queue_is_reconnected_a_hundred_times_without_a_trace) {
  TargetRig rig;
  ScriptedBacking backing(1u << 20);
  rig.add_namespace(1, &backing);
  const size_t keys = rig.fabric.live_keys();
  for (uint32_t round = 0; round < 100; round++) {
    RawHost host(&rig, 100 + round, 8);
    rig.bind(host);
    for (uint16_t cid = 0; cid < 7; cid++) host.send(read_of(host, cid));
    if (round % 2) rig.settle();
    host.disconnect();
    rig.settle();
    CHECK_EQ(rig.engine->live_queues(), 0u);
  }
  CHECK_EQ(rig.sink.count(EventKind::QueueClosed), 100u);
  CHECK_EQ(rig.fabric.live_queue_pairs(), 0u);
  CHECK_EQ(rig.fabric.live_keys(), keys);
  rig.check_idle();
}

TEST(shared_receives_come_back_under_pressure) {
  // 64 shared receives, 96 commands from six queues, each holding its capsule.
  Bound b;
  std::vector<std::unique_ptr<RawHost>> hosts;
  for (uint32_t i = 0; i < 6; i++) {
    hosts.push_back(std::make_unique<RawHost>(&b.rig, 100 + i, 32));
    b.rig.bind(*hosts.back());
  }
  b.backing.hold = true;
  std::vector<uint8_t> data(512);
  for (uint16_t cid = 0; cid < 16; cid++)
    for (auto& host : hosts) host->send(write_of(*host, cid, 1).in_capsule(0, 512), data);
  b.rig.settle();
  CHECK_EQ(b.backing.held(), 64u);
  CHECK(b.rig.fabric.receiver_not_ready() > 0);
  b.backing.hold = false;
  b.backing.release_all();
  b.rig.settle();
  for (auto& host : hosts) CHECK_EQ(host->answers.size(), 16u);
}

// ---- namespaces

TEST(removal_waits_for_what_is_in_flight_and_new_commands_see_it_at_once) {
  Bound b;
  ScriptedBacking second(1u << 20);
  b.rig.add_namespace(2, &second);
  b.backing.hold = true;
  b.host.send(read_of(b.host, 1));
  b.host.send(write_of(b.host, 2));
  b.rig.settle();
  Flag removed;
  b.rig.engine->remove_namespace(1, 1, Flag::set, &removed);
  CHECK_EQ(b.host.ask(read_of(b.host, 3)).status, status::kInvalidNamespace);
  CHECK_EQ(b.host.ask(read_of(b.host, 4, 8, 2)).status, 0);
  CHECK_EQ(removed.runs, 0);
  b.backing.release_one();
  b.rig.settle();
  CHECK_EQ(removed.runs, 0);
  CHECK_EQ(b.backing.open_channels, 1);
  b.backing.release_one();
  b.rig.settle();
  CHECK_EQ(removed.runs, 1);
  CHECK_EQ(b.backing.open_channels, 0);
  CHECK_EQ(b.host.answer(1)->status, 0);
  CHECK_EQ(b.host.answer(2)->status, 0);
}

TEST(channels_whose_buffers_were_not_registered_are_counted) {
  Bound b(32);
  CHECK_EQ(b.rig.counter("target.unregisteredChannels"), 0u);
  ScriptedBacking second(1u << 20);
  second.refuses_buffers = true;
  b.rig.add_namespace(2, &second);
  CHECK_EQ(b.rig.counter("target.unregisteredChannels"), 1u);
  CHECK_EQ(b.host.ask(read_of(b.host, 4, 8, 2)).status, 0);
}

TEST(a_hanging_backing_is_cancelled_so_that_removal_ends) {
  Bound b(32);
  b.backing.hold = true;
  for (uint16_t cid = 0; cid < 12; cid++) b.host.send(read_of(b.host, cid, 512));
  b.rig.settle();
  Flag removed, added;
  ScriptedBacking fresh(1u << 20);
  b.rig.engine->remove_namespace(1, 1, Flag::set, &removed);
  b.rig.engine->set_namespace(1, 1, {&fresh, false, 0}, Flag::set, &added);
  b.rig.settle();
  CHECK_EQ(b.host.ask(Sqe(io::kFlush, 40, 1)).status, 0);  // of the new entry
  CHECK_EQ(fresh.seen.size(), 1u);
  CHECK_EQ(removed.runs + added.runs, 0);  // in order: the second ends after the first
  CHECK_EQ(b.backing.cancels, 0);
  CHECK(b.rig.engine->next_deadline() > b.rig.now);
  b.rig.now += kSecond;
  b.rig.settle();
  CHECK_EQ(b.backing.cancels, 1);
  CHECK_EQ(removed.runs, 1);
  CHECK_EQ(added.runs, 1);
  // Cancelled ones and those that still waited for a buffer name the reason.
  for (uint16_t cid = 0; cid < 12; cid++) {
    REQUIRE(b.host.answer(cid));
    CHECK_EQ(b.host.answer(cid)->status, status::kInvalidNamespace);
  }
}

TEST(replacing_lets_old_commands_finish_on_the_old_backing) {
  Bound b;
  ScriptedBacking larger(2u << 20);
  b.backing.hold = true;
  b.host.send(write_of(b.host, 1));
  b.rig.settle();
  Flag first, second;
  b.rig.engine->set_namespace(1, 1, {&larger, false, 0}, Flag::set, &first);
  b.rig.engine->set_namespace(1, 1, {&larger, true, 0}, Flag::set, &second);
  CHECK_EQ(b.host.ask(write_of(b.host, 2)).status, status::kNamespaceWriteProtected);
  CHECK_EQ(first.runs + second.runs, 0);
  b.backing.release_all();
  b.rig.settle();
  CHECK_EQ(first.runs, 1);
  CHECK_EQ(second.runs, 1);
  CHECK_EQ(b.host.answer(1)->status, 0);
  CHECK_EQ(b.backing.open_channels, 0);
  CHECK_EQ(larger.open_channels, 1);
}

TEST(a_replaced_backing_that_hangs_asks_the_host_to_retry) {
  Bound b;
  ScriptedBacking other(1u << 20);
  b.backing.hold = true;
  b.host.send(write_of(b.host, 1));
  b.rig.settle();
  Flag done;
  b.rig.engine->set_namespace(1, 1, {&other, false, 0}, Flag::set, &done);
  b.rig.settle();
  b.rig.now += kSecond;
  b.rig.settle();
  CHECK_EQ(done.runs, 1);
  CHECK_EQ(b.host.answer(1)->status, status::kNamespaceNotReady);
}

TEST(many_changes_under_load_end_once_each) {
  Bound b;
  ScriptedBacking second(1u << 20);
  Flag done;
  int asked = 0;
  for (int round = 0; round < 300; round++) {
    const auto cid = static_cast<uint16_t>(round);
    b.backing.hold = second.hold = round % 3 == 0;
    b.host.send(read_of(b.host, cid, 8, 1));
    b.host.send(read_of(b.host, static_cast<uint16_t>(cid + 1000), 8, 2));
    if (round % 5 == 0) b.rig.settle();
    b.rig.engine->set_namespace(1, 1, {&b.backing, round % 2 == 0, 0}, Flag::set, &done);
    if (round % 2)
      b.rig.engine->remove_namespace(1, 2, Flag::set, &done);
    else
      b.rig.engine->set_namespace(1, 2, {&second, false, 0}, Flag::set, &done);
    asked += 2;
    if (round % 7 == 0) b.rig.settle();
    b.backing.hold = second.hold = false;
    b.backing.release_all();
    second.release_all();
    b.rig.settle();
    CHECK_EQ(done.runs, asked);
  }
  CHECK_EQ(b.host.answers.size(), 600u);
  CHECK_EQ(b.backing.open_channels, 1);
  CHECK_EQ(second.open_channels, 0);
}

TEST(destroying_a_table_empties_it_and_its_queues_see_nothing) {
  Bound b;
  ScriptedBacking second(1u << 20);
  b.rig.add_namespace(9, &second);
  b.backing.hold = true;
  b.host.send(read_of(b.host, 1));
  b.rig.settle();
  Flag destroyed, late;
  b.rig.engine->destroy_table(1, Flag::set, &destroyed);
  b.rig.engine->set_namespace(1, 3, {&second, false, 0}, Flag::set, &late);
  CHECK_EQ(b.host.ask(read_of(b.host, 2)).status, status::kInvalidNamespace);
  CHECK_EQ(b.host.ask(read_of(b.host, 3, 8, 9)).status, status::kInvalidNamespace);
  CHECK_EQ(destroyed.runs, 0);
  CHECK_EQ(late.runs, 1);
  b.backing.release_all();
  b.rig.settle();
  CHECK_EQ(destroyed.runs, 1);
  CHECK_EQ(b.rig.counter("live.targetNamespaces"), 0u);
  CHECK_EQ(b.host.ask(read_of(b.host, 4)).status, status::kInvalidNamespace);
}

TEST(a_channel_that_does_not_open_is_reported_and_changes_nothing) {
  Bound b;
  ScriptedBacking bad(1u << 20);
  bad.refuses_channels = true;
  struct Report {
    TargetEngine* engine;
    std::string message;
  } report{b.rig.engine.get(), ""};
  b.rig.engine->set_namespace(
      1, 1, {&bad, false, 0},
      [](void* context) {
        auto* r = static_cast<Report*>(context);
        r->message = r->engine->change_error() ? r->engine->change_error()->message : "none";
      },
      &report);
  b.rig.settle();
  CHECK(report.message == "no channel today");
  CHECK(b.rig.engine->change_error() == nullptr);
  CHECK_EQ(b.host.ask(read_of(b.host, 1)).status, 0);  // the old entry
}

TEST_MAIN
