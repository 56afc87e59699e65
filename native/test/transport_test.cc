// One transport and its peer over a simulated network without faults: every operation, addressing,
// checks of arriving packets, timers, shared resources.
#include <algorithm>
#include <utility>

#include "rdma/soft/transport.h"

#include "sim/network.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test::sim;

namespace {

constexpr TimeNs kMs = 1'000'000;
constexpr TimeNs kAckTimeout = 4096u << 8;  // of connect()

struct Pair {
  explicit Pair(const ConnectOptions& options = {}, const soft::TransportConfig& config = {},
                const char* ip_a = "10.0.0.1", const char* ip_b = "10.0.0.2")
      : network(1), a(network, ip_a, 11, config), b(network, ip_b, 22, config) {
    qa = a.make_qp();
    qb = b.make_qp();
    CHECK(connect(a, *qa, b, *qb, options));
    for (size_t i = 0; i < a.memory.size(); i++)
      a.memory[i] = static_cast<uint8_t>(i * 7 + i / 256);
  }
  SendWorkRequest request(Opcode opcode, const Sge* sges, uint8_t count, uint64_t remote = 0) {
    SendWorkRequest wr{};
    wr.wr_id = ++last_id;
    wr.opcode = opcode;
    wr.flags = kSignaled;
    wr.sg_list = sges;
    wr.num_sge = count;
    wr.remote_address = b.at(remote);
    wr.rkey = b.region->rkey();
    return wr;
  }
  bool post(const SendWorkRequest& wr) { return static_cast<bool>(qa->post_send({&wr, 1})); }
  void receive(uint64_t offset, uint32_t length, uint64_t id) {
    const Sge sge = b.sge(offset, length);
    const ReceiveWorkRequest wr{id, 1, &sge};
    CHECK(qb->post_receive({&wr, 1}));
  }
  void settle() { network.run_for(2000 * kMs); }
  bool same(uint64_t at_a, uint64_t at_b, size_t length) const {
    return std::memcmp(&a.memory[at_a], &b.memory[at_b], length) == 0;
  }

  Network network;
  Node a, b;
  std::unique_ptr<soft::QueuePair> qa, qb;
  uint64_t last_id = 0;
};

}  // namespace

TEST(send_arrives_and_completes_on_both_sides) {
  Pair p;
  p.receive(4096, 8192, 77);
  const Sge sges[] = {p.a.sge(10, 1500), p.a.sge(5000, 0), p.a.sge(9000, 1501)};
  CHECK(p.post(p.request(Opcode::Send, sges, 3)));
  p.settle();
  const auto sent = p.a.poll(), received = p.b.poll();
  REQUIRE(sent.size() == 1 && received.size() == 1);
  CHECK(sent[0].status == Status::Success && sent[0].opcode == Opcode::Send && !sent[0].receive);
  CHECK_EQ(sent[0].qp_num, p.qa->number());
  CHECK(sent[0].qp_context == &p.a);
  CHECK(received[0].receive && received[0].status == Status::Success);
  CHECK_EQ(received[0].wr_id, 77u);
  CHECK_EQ(received[0].byte_length, 3001u);
  CHECK(p.same(10, 4096, 1500) && p.same(9000, 5596, 1501));
  CHECK_EQ(p.b.memory[4096 + 3001], 0);
  CHECK_EQ(p.b.established.size(), 1u);
  CHECK_EQ(p.a.established.size(), 0u);
  CHECK_EQ(p.qa->outstanding_sends(), 0u);
}

TEST(write_read_and_immediates_at_every_mtu_and_both_families) {
  for (const bool v6 : {false, true})
    for (const uint32_t mtu : {256u, 512u, 1024u, 2048u, 4096u})
      for (const uint32_t length : {0u, 1u, 255u, 256u, 4096u, 4097u, 70000u}) {
        ConnectOptions options;
        options.mtu = mtu;
        Pair p(options, {}, v6 ? "fd00::1" : "10.0.0.1", v6 ? "fd00::2" : "10.0.0.2");
        const Sge source = p.a.sge(3, length), sink = p.a.sge(500000, length);
        CHECK(p.post(p.request(Opcode::RdmaWrite, &source, 1, 200001)));
        p.receive(0, 16, 5);
        SendWorkRequest imm = p.request(Opcode::RdmaWriteWithImm, &source, 1, 300001);
        imm.imm_or_rkey = 0xcafe0001;
        CHECK(p.post(imm));
        p.receive(100, 70000, 6);
        imm = p.request(Opcode::SendWithImm, &source, 1);
        imm.imm_or_rkey = 0xcafe0002;
        CHECK(p.post(imm));
        CHECK(p.post(p.request(Opcode::RdmaRead, &sink, 1, 200001)));
        p.settle();
        const auto sent = p.a.poll(), received = p.b.poll();
        REQUIRE(sent.size() == 4 && received.size() == 2);
        for (const auto& wc : sent) CHECK(wc.status == Status::Success);
        CHECK_EQ(sent[3].byte_length, length);
        CHECK(received[0].opcode == Opcode::RdmaWriteWithImm);
        CHECK(received[0].flags == kWithImm && received[0].imm_or_rkey == 0xcafe0001);
        CHECK_EQ(received[0].byte_length, length);
        CHECK(received[1].flags == kWithImm && received[1].imm_or_rkey == 0xcafe0002);
        CHECK(p.same(3, 200001, length) && p.same(3, 300001, length) && p.same(3, 100, length));
        CHECK(p.same(500000, 200001, length));
        CHECK_EQ(p.a.transport.counters().timeouts, 0u);
        CHECK_EQ(p.b.transport.counters().naks_sent, 0u);
        CHECK_EQ(p.a.transport.read_bytes_outstanding(), 0u);
      }
}

TEST(window_is_bound_used_and_invalidated_by_the_peer) {
  Pair p;
  auto window = std::move(p.b.pd->allocate_window().value());
  SendWorkRequest bind{};
  bind.opcode = Opcode::BindMemoryWindow;
  bind.flags = kSignaled;
  bind.bind = {window.get(), p.b.region.get(),    p.b.at(8192),
               4096,         window->next_rkey(), kRemoteWrite | kRemoteRead};
  CHECK(p.qb->post_send({&bind, 1}));
  p.settle();
  auto done = p.b.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == Status::Success && done[0].opcode == Opcode::BindMemoryWindow);
  const uint32_t rkey = bind.bind.rkey;
  p.receive(0, 64, 1);
  const Sge source = p.a.sge(0, 4096), capsule = p.a.sge(0, 16);
  SendWorkRequest write = p.request(Opcode::RdmaWrite, &source, 1, 8192);
  write.rkey = rkey;
  SendWorkRequest send = p.request(Opcode::SendWithInvalidate, &capsule, 1);
  send.imm_or_rkey = rkey;
  CHECK(p.post(write) && p.post(send));
  p.settle();
  CHECK(p.same(0, 8192, 4096));
  done = p.b.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].flags == kWithInvalidate && done[0].imm_or_rkey == rkey);
  CHECK(done[0].opcode == Opcode::SendWithInvalidate);
  // The key is dead now.
  CHECK(p.a.poll().size() == 2);
  CHECK(p.post(write));
  p.settle();
  const auto failed = p.a.poll();
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].status == Status::RemoteAccessError);
  CHECK(p.qa->state() == State::Err && p.qb->state() == State::Err);
  CHECK(p.a.errors.size() == 1 && p.b.errors.size() == 1);
}

TEST(local_invalidate_ends_a_key_after_what_was_posted_before) {
  Pair p;
  auto window = std::move(p.a.pd->allocate_window().value());
  SendWorkRequest wr{};
  wr.opcode = Opcode::BindMemoryWindow;
  wr.bind = {window.get(), p.a.region.get(), p.a.at(0), 4096, window->next_rkey(), kRemoteRead};
  const uint32_t rkey = wr.bind.rkey;
  CHECK(p.post(wr));
  const Sge source = p.a.sge(0, 3000);
  CHECK(p.post(p.request(Opcode::RdmaWrite, &source, 1, 0)));
  SendWorkRequest end{};
  end.opcode = Opcode::LocalInvalidate;
  end.flags = kSignaled;
  end.imm_or_rkey = rkey;
  CHECK(p.post(end));
  p.settle();
  auto done = p.a.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].opcode == Opcode::RdmaWrite && done[1].opcode == Opcode::LocalInvalidate);
  CHECK(done[1].status == Status::Success);
}

TEST(local_invalidate_of_a_key_that_the_peer_ended_first_succeeds) {
  Pair p;
  auto window = std::move(p.a.pd->allocate_window().value());
  SendWorkRequest bind{};
  bind.opcode = Opcode::BindMemoryWindow;
  bind.bind = {window.get(), p.a.region.get(), p.a.at(0), 4096, window->next_rkey(), kRemoteRead};
  const uint32_t rkey = bind.bind.rkey;
  CHECK(p.post(bind));
  p.settle();
  // The peer's SEND with Invalidate arrives while the local one waits behind an RDMA WRITE.
  const Sge own{p.a.at(0), 64, p.a.region->lkey()};
  const ReceiveWorkRequest receive{1, 1, &own};
  CHECK(p.qa->post_receive({&receive, 1}));
  const Sge source = p.a.sge(0, 3000), capsule = p.b.sge(0, 16);
  SendWorkRequest end{};
  end.opcode = Opcode::LocalInvalidate;
  end.flags = kSignaled;
  end.imm_or_rkey = rkey;
  SendWorkRequest send{};
  send.opcode = Opcode::SendWithInvalidate;
  send.flags = kSignaled;
  send.num_sge = 1;
  send.sg_list = &capsule;
  send.imm_or_rkey = rkey;
  CHECK(p.post(p.request(Opcode::RdmaWrite, &source, 1, 0)));
  CHECK(p.qb->post_send({&send, 1}));
  CHECK(p.post(end));
  p.settle();
  auto done = p.a.poll();
  REQUIRE(done.size() == 3);
  for (const auto& wc : done) CHECK(wc.status == Status::Success);
  CHECK(done[0].receive && done[0].flags == kWithInvalidate);
  CHECK(done[2].opcode == Opcode::LocalInvalidate);
  CHECK(p.qa->state() == State::Rts);
}

TEST(local_invalidate_of_a_key_that_never_was_the_queue_pairs_fails) {
  enum Wrong { NeverBound, Region, OtherQueuePair, FreedWindow, WindowBefore };
  for (const Wrong wrong : {NeverBound, Region, OtherQueuePair, FreedWindow, WindowBefore}) {
    Pair p;
    const auto other = p.a.make_qp();
    auto window = std::move(p.a.pd->allocate_window().value());
    uint32_t rkey = window->next_rkey();
    soft::KeyTable& keys = p.a.transport.keys();
    const auto& region = static_cast<const soft::SoftMemoryRegion&>(*p.a.region);
    const auto bind_and_end = [&](uint32_t qpn) {
      const uint32_t bound = window->next_rkey(), domain = p.qa->domain();
      auto& soft_window = static_cast<soft::SoftMemoryWindow&>(*window);
      CHECK(keys.bind(soft_window, region, domain, qpn, p.a.at(0), 64, bound, kRemoteRead) ==
            soft::KeyFault::None);
      CHECK(keys.invalidate(bound, domain, qpn) == soft::KeyFault::None);
    };
    if (wrong == Region) rkey = p.a.region->rkey();
    if (wrong == OtherQueuePair) bind_and_end(other->number());
    if (wrong == FreedWindow || wrong == WindowBefore) bind_and_end(p.qa->number());
    if (wrong == FreedWindow) window.reset();
    if (wrong == WindowBefore) {  // the slot has another owner
      window.reset();
      window = std::move(p.a.pd->allocate_window().value());
    }
    SendWorkRequest end{};
    end.opcode = Opcode::LocalInvalidate;
    end.flags = kSignaled;
    end.imm_or_rkey = rkey;
    CHECK(p.post(end));
    p.settle();
    const auto done = p.a.poll();
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == Status::LocalQpOperationError);
    CHECK(p.qa->state() == State::Err);
  }
}

TEST(inline_data_may_change_after_the_post) {
  Pair p;
  p.receive(0, 64, 1);
  uint8_t capsule[16] = {1, 2, 3};
  const Sge sge{reinterpret_cast<uint64_t>(capsule), 16, 0};
  SendWorkRequest wr = p.request(Opcode::Send, &sge, 1);
  wr.flags = kSignaled | kInline;
  CHECK(p.post(wr));
  std::memset(capsule, 0, sizeof capsule);
  p.settle();
  CHECK(p.b.memory[0] == 1 && p.b.memory[1] == 2 && p.b.memory[2] == 3);
  const Sge large = p.a.sge(0, 65);
  wr = p.request(Opcode::Send, &large, 1);
  wr.flags = kInline;
  CHECK(!p.post(wr));
}

TEST(unsignaled_requests_complete_silently_and_fence_waits_for_reads) {
  Pair p;
  const Sge sink = p.a.sge(500000, 9000), source = p.a.sge(500000, 9000);
  for (size_t i = 0; i < 9000; i++) p.b.memory[i] = static_cast<uint8_t>(i * 3 + 1);
  SendWorkRequest read = p.request(Opcode::RdmaRead, &sink, 1, 0);
  read.flags = 0;
  SendWorkRequest write = p.request(Opcode::RdmaWrite, &source, 1, 100000);
  write.flags = kSignaled | kFence;
  CHECK(p.post(read) && p.post(write));
  p.settle();
  CHECK_EQ(p.a.poll().size(), 1u);
  CHECK(std::memcmp(&p.b.memory[0], &p.b.memory[100000], 9000) == 0);
}

TEST(shared_receive_queue_serves_several_queue_pairs) {
  Network network(3);
  Node a(network, "10.0.0.1", 1), b(network, "10.0.0.2", 2);
  soft::SharedReceiveQueue srq(b.pd.get(), 16, 1);
  std::vector<std::unique_ptr<soft::QueuePair>> as, bs;
  for (int i = 0; i < 4; i++) {
    as.push_back(a.make_qp());
    bs.push_back(b.make_qp(16, 1, &srq));
    CHECK(connect(a, *as.back(), b, *bs.back()));
  }
  for (uint32_t i = 0; i < 8; i++) {
    const Sge sge = b.sge(i * 256, 256);
    const ReceiveWorkRequest wr{i, 1, &sge};
    CHECK(srq.post_receive({&wr, 1}));
  }
  for (uint8_t i = 0; i < 8; i++) {
    a.memory[i] = static_cast<uint8_t>(i + 1);
    const Sge sge = a.sge(i, 1);
    SendWorkRequest wr{};
    wr.opcode = Opcode::Send;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    CHECK(as[i % 4]->post_send({&wr, 1}));
  }
  network.run_for(100 * kMs);
  const auto done = b.poll();
  REQUIRE(done.size() == 8);
  unsigned sum = 0;
  for (const auto& wc : done) sum += b.memory[wc.wr_id * 256];
  CHECK_EQ(sum, 36u);
  CHECK_EQ(done[0].wr_id, 7u);  // posted last: its buffer is in the cache, if any is
  const ReceiveWorkRequest own{1, 0, nullptr};
  CHECK(!bs[0]->post_receive({&own, 1}));
  // In ERR the shared receives stay.
  const Sge sge = b.sge(0, 256);
  const ReceiveWorkRequest wr{99, 1, &sge};
  CHECK(srq.post_receive({&wr, 1}));
  bs[0]->to_error();
  CHECK_EQ(b.poll().size(), 0u);
  CHECK_EQ(srq.ring().count(), 1u);
}

TEST(rnr_waits_for_a_receive_and_costs_little) {
  Pair p;
  const Sge sge = p.a.sge(0, 100);
  CHECK(p.post(p.request(Opcode::Send, &sge, 1)));
  p.network.run_for(1 * kMs);
  CHECK(p.b.transport.counters().rnr_sent > 3);
  p.receive(0, 100, 9);
  const TimeNs before = p.network.now;
  CHECK(p.network.run([&] { return p.a.cq.waiting() == 1; }, p.network.now + 100 * kMs));
  CHECK(p.network.now - before < 200'000);
  CHECK(p.same(0, 0, 100));
  CHECK_EQ(p.a.transport.counters().timeouts, 0u);
  const uint64_t again = p.qa->counters()->retransmits_not_ready;
  CHECK(again > 3);
  CHECK_EQ(p.a.transport.counters().retransmits_not_ready, again);
  CHECK_EQ(p.a.transport.counters().retransmits, again);
}

TEST(data_of_a_read_are_placed_only_while_its_lease_holds) {
  for (const bool late : {false, true}) {
    Pair p;
    const std::vector<uint8_t> before(p.a.memory.begin(), p.a.memory.begin() + 20'000);
    reactor::Lease lease;
    const TimeNs now = reactor::Lease::clock();
    CHECK(late ? lease.set(1, now - 1000) : lease.set(reactor::kNever, now));
    const Sge sge = p.a.sge(0, 20'000);
    SendWorkRequest read = p.request(Opcode::RdmaRead, &sge, 1, 200'000);
    read.lease = &lease;
    CHECK(p.post(read));
    p.settle();
    const auto done = p.a.poll();
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == (late ? Status::LocalAccessError : Status::Success));
    CHECK_EQ(p.same(0, 200'000, 20'000), !late);
    CHECK_EQ(std::equal(before.begin(), before.end(), p.a.memory.begin()), late);
  }
}

// A process that is stopped between two messages finds that the second came too late.
TEST(the_lease_of_a_read_is_looked_at_for_each_message) {
  Pair p;
  reactor::Lease lease;
  const Sge sge = p.a.sge(0, 190'000);
  SendWorkRequest read = p.request(Opcode::RdmaRead, &sge, 1, 200'000);
  read.lease = &lease;
  CHECK(p.post(read));
  CHECK(p.network.run([&] { return p.same(0, 200'000, 512); }, p.network.now + 100 * kMs));
  CHECK(!p.same(0, 200'000, 190'000));
  CHECK(lease.set(1, reactor::Lease::clock() - 1000));
  p.settle();
  CHECK(!p.same(0, 200'000, 190'000));
  const auto done = p.a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == Status::LocalAccessError);
}

TEST(a_queue_pair_counts_what_its_peer_and_it_sent) {
  Pair p;
  const auto other_a = p.a.make_qp(), other_b = p.b.make_qp();
  REQUIRE(connect(p.a, *other_a, p.b, *other_b));
  const Sge sge = p.a.sge(0, 70'000);
  CHECK(p.post(p.request(Opcode::RdmaWrite, &sge, 1, 200'000)));
  p.settle();
  CHECK_EQ(p.a.poll().size(), 1u);
  CHECK(p.post(p.request(Opcode::RdmaRead, &sge, 1, 200'000)));
  p.settle();
  CHECK_EQ(p.a.poll().size(), 1u);
  const QueuePairCounters& a = *p.qa->counters();
  const QueuePairCounters& b = *p.qb->counters();
  CHECK(a.tx_packets > 17 && b.tx_packets > 17);
  CHECK_EQ(a.tx_packets, b.rx_packets);
  CHECK_EQ(b.tx_packets, a.rx_packets);
  CHECK_EQ(a.tx_packets, p.a.transport.counters().tx_packets);
  CHECK(b.acks_sent > 0);
  CHECK_EQ(b.acks_sent, a.acks_received);
  CHECK_EQ(a.acks_sent, 0u);
  CHECK_EQ(p.a.transport.counters().retransmits, 0u);
  CHECK_EQ(other_a->counters()->tx_packets, 0u);
  CHECK_EQ(other_b->counters()->rx_packets, 0u);
}

TEST(rnr_retries_are_counted_unless_seven) {
  ConnectOptions options;
  options.rnr_retry = 3;
  Pair p(options);
  const Sge sge = p.a.sge(0, 100);
  CHECK(p.post(p.request(Opcode::Send, &sge, 1)) && p.post(p.request(Opcode::Send, &sge, 1)));
  p.settle();
  const auto done = p.a.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == Status::RnrRetryExceeded && done[1].status == Status::FlushError);
  CHECK_EQ(p.b.transport.counters().rnr_sent, 4u);
}

TEST(write_with_immediate_without_receive_is_not_ready_and_placed_once) {
  Pair p;
  const Sge sge = p.a.sge(0, 5000);
  SendWorkRequest wr = p.request(Opcode::RdmaWriteWithImm, &sge, 1, 0);
  CHECK(p.post(wr));
  p.network.run_for(1 * kMs);
  CHECK(p.b.transport.counters().rnr_sent > 0);
  CHECK(p.qb->state() == State::Rts);
  p.receive(900000, 0, 3);
  p.settle();
  const auto done = p.b.poll();
  REQUIRE(done.size() == 1);
  CHECK_EQ(done[0].byte_length, 5000u);
  CHECK(p.same(0, 0, 5000));
}

TEST(dead_peer_ends_in_retry_exceeded) {
  Pair p;
  p.network.filter = [](Node&, std::vector<uint8_t>&) { return false; };
  const Sge sge = p.a.sge(0, 100);
  CHECK(p.post(p.request(Opcode::RdmaWrite, &sge, 1)) && p.post(p.request(Opcode::Send, &sge, 1)));
  const TimeNs before = p.network.now;
  p.settle();
  const auto done = p.a.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == Status::RetryExceeded && done[1].status == Status::FlushError);
  CHECK_EQ(p.a.transport.counters().timeouts, 8u);
  // The eighth was one too many.
  CHECK_EQ(p.a.transport.counters().retransmits_timeout, 7u);
  CHECK_EQ(p.qa->counters()->retransmits_timeout, 7u);
  // Once the timeout, once twice, then three times.
  const TimeNs waited = p.network.now - before;
  CHECK(waited >= 21 * kAckTimeout && waited < 22 * kAckTimeout);
  CHECK_EQ(p.a.errors.size(), 1u);
}

TEST(large_packets_that_vanish_name_the_path_mtu) {
  for (const bool read : {false, true}) {
    ConnectOptions options;
    options.mtu = 4096;
    Pair p(options);
    p.network.filter = [](Node&, std::vector<uint8_t>& bytes) { return bytes.size() < 1500; };
    const Sge small = p.a.sge(0, 1024), large = p.a.sge(0, 4096);
    const Opcode opcode = read ? Opcode::RdmaRead : Opcode::RdmaWrite;
    CHECK(p.post(p.request(opcode, &small, 1)));
    p.settle();
    CHECK_EQ(p.a.poll().size(), 1u);
    CHECK(p.post(p.request(opcode, &large, 1)));
    p.settle();
    REQUIRE(p.a.errors.size() == 1);
    CHECK(p.a.errors[0].find("path MTU") != std::string::npos);
  }
}

TEST(small_packets_without_answer_do_not_blame_the_path_mtu) {
  ConnectOptions options;
  options.mtu = 4096;
  Pair p(options);
  p.network.filter = [](Node&, std::vector<uint8_t>&) { return false; };
  const Sge sges[] = {p.a.sge(0, 64), p.a.sge(0, 4096)};
  CHECK(p.post(p.request(Opcode::RdmaWrite, &sges[0], 1)));
  CHECK(p.post(p.request(Opcode::RdmaWrite, &sges[1], 1)));
  p.settle();
  REQUIRE(p.a.errors.size() == 1);
  CHECK(p.a.errors[0].find("path MTU") == std::string::npos);
}

// A peer whose answers take twice as long as eight plain timeouts: slow, not dead.
TEST(slow_peer_is_waited_for_and_not_flooded) {
  Pair p;
  p.network.faults.latency = 8 * kAckTimeout;
  const Sge sge = p.a.sge(0, 100);
  for (int i = 0; i < 3; i++) {
    CHECK(p.post(p.request(Opcode::RdmaWrite, &sge, 1)));
    p.settle();
    const auto done = p.a.poll();
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == Status::Success);
    CHECK_EQ(p.a.transport.counters().timeouts, 6u * (i + 1));  // after 1, 3, 6, 9, 12 and 15
  }
  CHECK(p.qa->state() == State::Rts);
}

TEST(progress_ends_the_back_off) {
  Pair p;
  p.network.faults.latency = 8 * kAckTimeout;
  const Sge sge = p.a.sge(0, 100);
  CHECK(p.post(p.request(Opcode::RdmaWrite, &sge, 1)));
  p.settle();
  CHECK_EQ(p.a.poll().size(), 1u);
  p.network.faults.latency = 5'000;
  bool lose = true;
  p.network.filter = [&](Node&, std::vector<uint8_t>&) { return !std::exchange(lose, false); };
  const TimeNs before = p.network.now;
  CHECK(p.post(p.request(Opcode::RdmaWrite, &sge, 1)));
  CHECK(p.network.run([&] { return p.a.poll().size() == 1; }, before + 100 * kMs));
  const TimeNs waited = p.network.now - before;
  CHECK(waited >= kAckTimeout && waited < 2 * kAckTimeout);
}

TEST(probe_finds_a_dead_peer_and_is_silent_with_a_living_one) {
  Pair p;
  CHECK(p.qa->probe());
  CHECK(!p.qa->probe());
  p.settle();
  CHECK(p.a.poll().empty() && p.qa->state() == State::Rts);
  p.network.filter = [](Node&, std::vector<uint8_t>&) { return false; };
  CHECK(p.qa->probe());
  p.settle();
  CHECK(p.a.poll().empty() && p.qa->state() == State::Err && p.a.errors.size() == 1);
}

TEST(a_probe_takes_no_room_from_the_user) {
  Pair p;
  for (int round = 0; round < 2; round++) {
    p.network.filter = [](Node&, std::vector<uint8_t>&) { return false; };
    CHECK(p.qa->probe());
    const Sge sge = p.a.sge(0, 100);
    uint32_t posted = 0;
    while (p.post(p.request(Opcode::RdmaWrite, &sge, 1))) posted++;
    CHECK_EQ(posted, 128u);  // the depth
    p.network.filter = nullptr;
    p.settle();
    CHECK_EQ(p.a.poll().size(), 128u);
  }
}

TEST(unreachable_port_fails_the_queue_pair_named_and_forgeries_do_nothing) {
  Pair p;
  p.network.filter = [](Node&, std::vector<uint8_t>&) { return false; };
  uint32_t psn = 0;
  p.network.filter = [&](Node&, std::vector<uint8_t>& bytes) {
    psn = soft::get24(&bytes[9]);
    return false;
  };
  const Sge sge = p.a.sge(0, 100);
  p.a.transport.report_unreachable(p.qb->number(), 5, p.b.self);
  CHECK(p.post(p.request(Opcode::RdmaWrite, &sge, 1)));
  p.network.run_for(1000);
  p.a.transport.report_unreachable(p.qb->number() ^ 1, psn, p.b.self);
  p.a.transport.report_unreachable(p.qb->number(), (psn + 1) & 0xffffff, p.b.self);
  p.a.transport.report_unreachable(p.qb->number(), (psn - 1) & 0xffffff, p.b.self);
  p.a.transport.report_unreachable(p.qb->number(), psn, p.a.self);
  CHECK(p.qa->state() == State::Rts);
  CHECK_EQ(p.a.transport.counters().unreachable_ignored, 5u);
  p.a.transport.report_unreachable(p.qb->number(), psn, p.b.self);
  CHECK(p.qa->state() == State::Err);
  const auto done = p.a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == Status::RetryExceeded);
}

TEST(reads_stay_within_the_receive_window_of_all_queue_pairs) {
  soft::TransportConfig config;
  config.receive_window_bytes = 64 << 10;
  Pair p({}, config);
  auto qa2 = p.a.make_qp(), qb2 = p.b.make_qp();
  CHECK(connect(p.a, *qa2, p.b, *qb2));
  for (size_t i = 0; i < 400000; i++) p.b.memory[i] = static_cast<uint8_t>(i * 5 + i / 1000);
  uint32_t most = 0;
  p.network.filter = [&](Node&, std::vector<uint8_t>&) {
    most = std::max(most, p.a.transport.read_bytes_outstanding());
    return true;
  };
  const Sge first = p.a.sge(0, 400000), second = p.a.sge(500000, 300000);
  SendWorkRequest wr = p.request(Opcode::RdmaRead, &first, 1, 0);
  CHECK(p.post(wr));
  wr = p.request(Opcode::RdmaRead, &second, 1, 0);
  CHECK(qa2->post_send({&wr, 1}));
  p.settle();
  const auto done = p.a.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == Status::Success && done[1].status == Status::Success);
  CHECK(p.same(0, 0, 400000) && p.same(500000, 0, 300000));
  CHECK(most > 40000 && most <= 64 << 10);
  CHECK_EQ(p.a.transport.read_bytes_outstanding(), 0u);
  qa2.reset();
}

TEST(initiator_depth_bounds_the_read_requests_outstanding) {
  ConnectOptions options;
  options.reads = 2;
  Pair p(options);
  int outstanding = 0, most = 0;
  p.network.filter = [&](Node& from, std::vector<uint8_t>& bytes) {
    if (&from == &p.a && bytes[0] == 0x0c) most = std::max(most, ++outstanding);
    if (&from == &p.b && (bytes[0] == 0x0f || bytes[0] == 0x10)) outstanding--;
    return true;
  };
  for (uint32_t i = 0; i < 20; i++) {
    const Sge sge = p.a.sge(i * 3000, 3000);
    CHECK(p.post(p.request(Opcode::RdmaRead, &sge, 1, i * 3000)));
  }
  p.settle();
  CHECK_EQ(p.a.poll().size(), 20u);
  CHECK_EQ(most, 2);
  CHECK(p.qa->state() == State::Rts);
}

TEST(read_without_initiator_depth_fails_locally) {
  ConnectOptions options;
  options.reads = 0;
  Pair p(options);
  const Sge sge = p.a.sge(0, 100);
  CHECK(p.post(p.request(Opcode::RdmaRead, &sge, 1)));
  p.settle();
  const auto done = p.a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == Status::LocalQpOperationError);
}

TEST(acknowledgements_are_coalesced_and_leave_after_data) {
  Pair p;
  for (uint64_t i = 0; i < 32; i++) p.receive(i * 64, 64, i);
  const Sge sge = p.a.sge(0, 64);
  for (int i = 0; i < 32; i++) CHECK(p.post(p.request(Opcode::Send, &sge, 1)));
  p.settle();
  CHECK_EQ(p.a.poll().size(), 32u);
  CHECK(p.b.transport.counters().acks_sent <= 4);
  p.b.poll();
  // An answer that is ready when the request came in goes first, the acknowledgement behind it.
  std::vector<uint8_t> opcodes;
  p.network.filter = [&](Node& from, std::vector<uint8_t>& bytes) {
    if (&from == &p.b) opcodes.push_back(bytes[0]);
    return true;
  };
  p.receive(0, 64, 1);
  CHECK(p.post(p.request(Opcode::Send, &sge, 1)));
  const Sge answer = p.b.sge(0, 64);
  p.b.process = [&] {
    if (p.b.poll().empty()) return;
    SendWorkRequest wr{};
    wr.opcode = Opcode::RdmaWrite;
    wr.sg_list = &answer;
    wr.num_sge = 1;
    wr.remote_address = p.a.at(0);
    wr.rkey = p.a.region->rkey();
    CHECK(p.qb->post_send({&wr, 1}));
  };
  p.settle();
  REQUIRE(opcodes.size() == 2);
  CHECK(opcodes[0] == 0x0a && opcodes[1] == 0x11);
}

TEST(datagrams_reach_queue_pair_one_with_the_right_key_only) {
  Pair p;
  const soft::Flow flow =
      soft::make_flow(soft::with_port(p.a.self, 0xc000), soft::with_port(p.b.self, 4791));
  std::vector<uint8_t> mad(256, 7);
  p.a.transport.send_ud(flow, mad);
  p.a.transport.transmit(p.network.now);
  p.settle();
  REQUIRE(p.b.datagrams.size() == 1);
  CHECK(p.b.datagrams[0] == mad);
  CHECK_EQ(p.b.transport.counters().rx_ud, 1u);
}

TEST(packets_of_another_reactor_are_handed_over) {
  Network network(1);
  Node a(network, "10.0.0.1", 1), b(network, "10.0.0.2", 2, {}, 1 << 16, 64, 5);
  auto qa = a.make_qp(), qb = b.make_qp();
  CHECK_EQ(soft::reactor_of(qb->number()), 5u);
  CHECK_EQ(soft::reactor_of(qa->number()), 0u);
  CHECK(bring_up(a, *qa, b.self, (qb->number() & soft::kQpnRandomMask) | 3u << 18, 1, 2, {}));
  const Sge sge = a.sge(0, 1);
  SendWorkRequest wr{};
  wr.opcode = Opcode::Send;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  CHECK(qa->post_send({&wr, 1}));
  network.run_for(100'000);
  REQUIRE(!b.foreign.empty());
  CHECK_EQ(b.foreign[0], 3u);
}

TEST(numbers_do_not_come_back_soon_and_late_packets_find_no_one) {
  Network network(1);
  Node a(network, "10.0.0.1", 1);
  std::vector<uint32_t> seen;
  std::vector<std::unique_ptr<soft::QueuePair>> alive;
  for (int i = 0; i < 200; i++) {
    alive.push_back(a.make_qp(4, 1));
    seen.push_back(alive.back()->number());
    if (alive.size() > 40) alive.erase(alive.begin() + i % 37);
  }
  std::sort(seen.begin(), seen.end());
  CHECK(std::unique(seen.begin(), seen.end()) == seen.end());
  CHECK_EQ(a.transport.queue_pairs(), alive.size());
  Pair p;
  const Sge sge = p.a.sge(0, 1);
  CHECK(p.post(p.request(Opcode::Send, &sge, 1)));
  p.qb.reset();
  p.settle();
  CHECK(p.b.transport.counters().unknown_qp > 0);
  CHECK(p.a.poll()[0].status == Status::RetryExceeded);
}

TEST(a_completion_queue_keeps_order_and_room_however_it_is_emptied) {
  soft::CompletionQueue cq(5);
  WorkCompletion out[8];
  uint64_t pushed = 0, polled = 0;
  for (unsigned round = 0; round < 1000; round++) {
    for (unsigned i = 0; i < round % 6 && cq.waiting() < cq.depth(); i++) {
      WorkCompletion completion{};
      completion.wr_id = pushed++;
      CHECK(cq.push(completion));
    }
    const int count = cq.poll({out, round % 4 == 0 ? 8u : round % 3});
    for (int i = 0; i < count; i++) CHECK_EQ(out[i].wr_id, polled++);
    CHECK_EQ(cq.waiting(), pushed - polled);
    CHECK_EQ(cq.arm(), pushed == polled);
  }
  CHECK(pushed > 1000 && !cq.overflowed());
}

TEST(completion_queue_overflow_ends_the_queue_pair) {
  Network network(1);
  Node a(network, "10.0.0.1", 1, {}, 1 << 16, 4), b(network, "10.0.0.2", 2, {}, 1 << 16);
  auto qa = a.make_qp(), qb = b.make_qp();
  CHECK(connect(a, *qa, b, *qb));
  const Sge sge = a.sge(0, 1);
  SendWorkRequest wr{};
  wr.opcode = Opcode::RdmaWrite;
  wr.flags = kSignaled;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.remote_address = b.at(0);
  wr.rkey = b.region->rkey();
  for (int i = 0; i < 6; i++) CHECK(qa->post_send({&wr, 1}));
  network.run_for(100 * kMs);
  CHECK(qa->state() == State::Err && a.cq.overflowed());
  CHECK_EQ(a.poll().size(), 4u);
  CHECK(a.errors.size() == 1);
  CHECK(a.transport.counters().cq_overflows > 0);
}

TEST_MAIN
