// Soft devices on real reactors and sockets: connecting, moving data, ending, in one process.
// device_faults_test.cc has dead peers and other mishaps.
#include <dirent.h>

#include <ctime>

#include "support/soft_node.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test;

namespace {

constexpr uint16_t kPort = 4420;

size_t open_files() {
  size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) count++;
  closedir(folder);
  return count;
}

void fill(Endpoint& endpoint, uint32_t seed) {
  for (uint8_t& byte : endpoint.memory) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(seed >> 24);
  }
}

size_t sends_done(Endpoint& endpoint) {
  size_t count = 0;
  run_on(*endpoint.reactor, [&] { count = endpoint.sends.size(); });
  return count;
}
size_t receives_done(Endpoint& endpoint) {
  size_t count = 0;
  run_on(*endpoint.reactor, [&] { count = endpoint.receives.size(); });
  return count;
}

// SEND, WRITE and READ of `length` bytes between different places of both memories.
void check_transfer(Pair pair, size_t length, uint32_t seed) {
  Endpoint &a = *pair.active, &b = *pair.passive;
  constexpr size_t kHalf = 1 << 19;
  fill(a, seed);
  fill(b, seed + 1);
  std::vector<uint8_t> before_a(a.memory), before_b(b.memory);
  const uint64_t remote = reinterpret_cast<uint64_t>(b.memory.data());
  const uint32_t rkey = b.region->rkey();
  const size_t sent = sends_done(a), received = receives_done(b);
  run_on(*b.reactor, [&] { CHECK(static_cast<bool>(b.post_receive(7, kHalf, kHalf))); });
  run_on(*a.reactor, [&] {
    CHECK(static_cast<bool>(a.post(Opcode::RdmaWrite, 1, 0, length, remote, rkey)));
    CHECK(static_cast<bool>(a.post(Opcode::RdmaRead, 2, kHalf, length, remote + length, rkey)));
    CHECK(static_cast<bool>(a.post(Opcode::Send, 3, length, length)));
  });
  REQUIRE(eventually([&] { return sends_done(a) == sent + 3; }));
  REQUIRE(eventually([&] { return receives_done(b) == received + 1; }));
  run_on(*a.reactor, [&] {
    for (size_t i = 0; i < 3; i++) {
      CHECK(a.sends[sent + i].status == Status::Success);
      CHECK_EQ(a.sends[sent + i].wr_id, i + 1);
    }
  });
  run_on(*b.reactor, [&] {
    CHECK(b.receives.back().status == Status::Success);
    CHECK_EQ(b.receives.back().byte_length, length);
    CHECK_EQ(b.receives.back().wr_id, 7u);
  });
  CHECK(std::memcmp(b.memory.data(), before_a.data(), length) == 0);                   // WRITE
  CHECK(std::memcmp(a.memory.data() + kHalf, before_b.data() + length, length) == 0);  // READ
  CHECK(std::memcmp(b.memory.data() + kHalf, before_a.data() + length, length) == 0);  // SEND
  // Nothing beyond.
  CHECK(std::memcmp(b.memory.data() + length, before_b.data() + length, kHalf - length) == 0);
  CHECK(std::memcmp(a.memory.data() + kHalf + length, before_a.data() + kHalf + length,
                    a.memory.size() - kHalf - length) == 0);
}

}  // namespace

TEST(connecting_carries_private_data_both_ways) {
  Node target(Node::at(next_loopback())), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  Endpoint* endpoint = nullptr;
  host.on(0, [&] { endpoint = host.make_endpoint(4096); });
  const auto id = host.connect(endpoint, target.device->address(), kPort, {1, 2, 3});
  REQUIRE(eventually([&] { return host.has(ConnectionEvent::Response, id); }));
  const auto response = host.event(ConnectionEvent::Response, id);
  REQUIRE(response.data.size() >= 3);  // padded with zeros to the field's length
  CHECK(std::memcmp(response.data.data(), "yes", 3) == 0);
  const auto request = target.events().front();
  CHECK(request.kind == ConnectionEvent::Request);
  REQUIRE(request.data.size() >= 3);
  CHECK(request.data[0] == 1 && request.data[2] == 3);
  CHECK(eventually([&] { return target.has(ConnectionEvent::Established, request.id); }));
  host.on(0, [&] { CHECK(endpoint->qp->state() == State::Rts); });
  target.on(0, [&] { CHECK(target.accepted()->qp->state() == State::Rts); });
  CHECK_EQ(host.counter("soft.connections"), 1u);
  CHECK_EQ(host.counter("soft.path_mtu_bytes"), 4096u);
}

TEST(data_of_many_sizes_arrives_intact) {
  Node target(Node::at(next_loopback())), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  const Pair pair = connect_pair(host, 0, target, kPort);
  REQUIRE(pair.passive != nullptr);
  uint32_t seed = 1;
  for (const size_t length : {1u, 3u, 64u, 255u, 4095u, 4096u, 4097u, 65536u, 100'001u, 262'144u})
    check_transfer(pair, length, seed++);
  CHECK_EQ(host.counter("soft.rx.bad_icrc") + target.counter("soft.rx.bad_icrc"), 0u);
  CHECK_EQ(host.counter("socket.gso"), 1u);
}

TEST(data_without_gso_with_small_mtu_and_a_stock_buffer) {
  struct {
    uint32_t mtu, buffer;
  } const cases[] = {{256, 106'496}, {1024, 106'496}, {4096, 106'496}};
  for (const auto& entry : cases) {
    DeviceOptions options = Node::at(next_loopback());
    options.path_mtu = entry.mtu;
    options.socket_buffer_bytes = entry.buffer;  // the kernel doubles it: 212,992
    Node target(options);
    options.address = next_loopback();
    Node host(options);
    REQUIRE(target.device && host.device);
    CHECK_EQ(target.counter("socket.receive_buffer_bytes"), 212'992u);
    target.listen(kPort);
    const Pair pair = connect_pair(host, 0, target, kPort);
    REQUIRE(pair.passive != nullptr);
    for (const size_t length : {100u, 5'000u, 262'144u}) check_transfer(pair, length, entry.mtu);
  }
}

TEST(a_window_dies_by_the_peers_invalidation) {
  Node target(Node::at(next_loopback())), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  const Pair pair = connect_pair(host, 0, target, kPort);
  REQUIRE(pair.passive != nullptr);
  Endpoint &a = *pair.active, &b = *pair.passive;
  std::unique_ptr<MemoryWindow> window;
  uint32_t rkey = 0;
  run_on(*a.reactor, [&] {
    window = std::move(*a.pd->allocate_window());
    rkey = window->next_rkey();
    SendWorkRequest bind{};
    bind.wr_id = 1;
    bind.opcode = Opcode::BindMemoryWindow;
    bind.flags = kSignaled;
    bind.bind = {window.get(), a.region.get(), reinterpret_cast<uint64_t>(a.memory.data()),
                 4096,         rkey,           kRemoteWrite};
    CHECK(static_cast<bool>(a.qp->post_send({&bind, 1})));
    CHECK(static_cast<bool>(a.post_receive(2, 8192, 64)));
  });
  REQUIRE(eventually([&] { return sends_done(a) == 1; }));
  fill(b, 5);
  const uint64_t remote = reinterpret_cast<uint64_t>(a.memory.data());
  run_on(*b.reactor, [&] {
    CHECK(static_cast<bool>(b.post(Opcode::RdmaWrite, 1, 0, 4096, remote, rkey)));
    CHECK(static_cast<bool>(b.post(Opcode::SendWithInvalidate, 2, 0, 16, 0, rkey)));
  });
  REQUIRE(eventually([&] { return receives_done(a) == 1; }));
  run_on(*a.reactor, [&] {
    CHECK(a.receives[0].opcode == Opcode::SendWithInvalidate);
    CHECK((a.receives[0].flags & kWithInvalidate) != 0);
    CHECK_EQ(a.receives[0].imm_or_rkey, rkey);
  });
  CHECK(std::memcmp(a.memory.data(), b.memory.data(), 4096) == 0);
  // The key is dead: the queue pair of whoever uses it fails, and its connection ends.
  run_on(*b.reactor,
         [&] { CHECK(static_cast<bool>(b.post(Opcode::RdmaWrite, 3, 0, 16, remote, rkey))); });
  CHECK(eventually([&] { return sends_done(b) == 3; }));
  run_on(*b.reactor, [&] { CHECK(b.sends[2].status == Status::RemoteAccessError); });
  CHECK(eventually([&] { return target.has(ConnectionEvent::Disconnected, b.id); }));
  CHECK(eventually([&] { return host.has(ConnectionEvent::Disconnected, a.id); }));
  run_on(*a.reactor, [&] { window.reset(); });
}

TEST(either_side_ends_a_connection_and_both_hear_of_it_once) {
  Node target(Node::at(next_loopback())), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  for (const bool by_host : {true, false}) {
    const Pair pair = connect_pair(host, 0, target, kPort);
    REQUIRE(pair.passive != nullptr);
    Endpoint &a = *pair.active, &b = *pair.passive;
    run_on(*b.reactor, [&] { CHECK(static_cast<bool>(b.post_receive(1, 0, 64))); });
    Node& ender = by_host ? host : target;
    const ConnectionId id = by_host ? a.id : b.id;
    const reactor::TimeNs start = reactor::monotonic_now();
    ender.on(0, [&] { ender.device->disconnect(id); });
    CHECK(eventually([&] {
      return host.has(ConnectionEvent::Disconnected, a.id) &&
             target.has(ConnectionEvent::Disconnected, b.id);
    }));
    CHECK(reactor::monotonic_now() - start < 1'000'000'000);
    host.on(0, [&] { CHECK(a.qp->state() == State::Err); });
    CHECK_EQ(receives_done(b), size_t{1});
    target.on(0, [&] {
      CHECK(b.qp->state() == State::Err);
      CHECK(b.receives[0].status == Status::FlushError);
    });
    // A second end, and one from both sides, are harmless.
    host.on(0, [&] { host.device->disconnect(a.id); });
    target.on(0, [&] { target.device->disconnect(b.id); });
    host.destroy(pair.active);
    target.destroy(pair.passive);
  }
  for (Node* node : {&host, &target}) {
    for (const auto& event : node->events()) {
      if (event.kind == ConnectionEvent::Disconnected)
        CHECK_EQ(node->count(ConnectionEvent::Disconnected, event.id), 1);
    }
  }
}

TEST(both_sides_may_end_at_once) {
  Node target(Node::at(next_loopback())), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  const Pair pair = connect_pair(host, 0, target, kPort);
  REQUIRE(pair.passive != nullptr);
  host.on(0, [&] { host.device->disconnect(pair.active->id); });
  target.on(0, [&] { target.device->disconnect(pair.passive->id); });
  CHECK(eventually([&] {
    return host.has(ConnectionEvent::Disconnected, pair.active->id) &&
           target.has(ConnectionEvent::Disconnected, pair.passive->id);
  }));
}

TEST(two_reactors_own_their_queue_pairs) {
  Node target(Node::at(next_loopback()), 2), host(Node::at(next_loopback()), 2);
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  std::vector<Pair> pairs;
  for (const unsigned on : {0u, 1u}) {
    for (const unsigned from : {0u, 1u}) {
      target.accept_on = on;
      pairs.push_back(connect_pair(host, from, target, kPort));
      REQUIRE(pairs.back().passive != nullptr);
      CHECK_EQ(pairs.back().active->qp->number() >> 18, from);
      CHECK_EQ(pairs.back().passive->qp->number() >> 18, on);
      CHECK_EQ(host.event(ConnectionEvent::Response, pairs.back().active->id).thread, from);
      CHECK_EQ(target.event(ConnectionEvent::Established, pairs.back().passive->id).thread, on);
    }
  }
  uint32_t seed = 9;
  for (const Pair& pair : pairs) {
    for (const size_t length : {64u, 20'000u}) check_transfer(pair, length, seed++);
  }
  CHECK_EQ(target.counter("soft.rx.wrong_reactor") + host.counter("soft.rx.wrong_reactor"), 0u);
  // Published every few milliseconds.
  for (const char* name : {"soft.rx.packets", "soft.tx.packets", "soft.responder.acks"}) {
    CHECK(eventually([&] {
      const uint64_t first = target.counter_of(0, name), second = target.counter_of(1, name);
      return first > 0 && second > 0 && first + second == target.counter(name);
    }));
  }
  CHECK_EQ(target.counter_of(0, "soft.queue_pairs"), 2u);
  CHECK_EQ(target.counter_of(1, "soft.queue_pairs"), 2u);
  CHECK(target.device->counters_of(2).empty());
  // Ends are heard on the queue pair's reactor, whichever reactor asked.
  host.on(0, [&] { host.device->disconnect(pairs[1].active->id); });
  CHECK(eventually([&] { return host.has(ConnectionEvent::Disconnected, pairs[1].active->id); }));
  CHECK_EQ(host.event(ConnectionEvent::Disconnected, pairs[1].active->id).thread, 1u);
}

TEST(a_listener_that_closes_refuses_later_requests) {
  Node target(Node::at(next_loopback())), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  uint32_t listener = 0;
  target.on(0, [&] {
    listener = target.device->listen(kPort, &target).value();
    const auto again = target.device->listen(kPort, &target);
    CHECK(!again && again.error().code == EADDRINUSE);
  });
  CHECK(connect_pair(host, 0, target, kPort).passive != nullptr);
  target.on(0, [&] { target.device->unlisten(listener); });
  Endpoint* endpoint = nullptr;
  host.on(0, [&] { endpoint = host.make_endpoint(4096); });
  const auto id = host.connect(endpoint, target.device->address(), kPort);
  REQUIRE(eventually([&] { return host.has(ConnectionEvent::Failed, id); }));
  CHECK(host.event(ConnectionEvent::Failed, id).failure == ConnectFailure::Rejected);
  CHECK_EQ(host.event(ConnectionEvent::Failed, id).reason, 8);
  target.listen(kPort);
  CHECK(connect_pair(host, 0, target, kPort).passive != nullptr);
}

TEST(one_device_talks_to_itself_over_ipv6) {
  CHECK(in_network_namespace(65536,
                             [] {
                               // The reactors' threads belong to the namespace of the thread that
                               // starts them.
                               Node node(Node::at(ipv6_loopback()));
                               REQUIRE(node.device != nullptr);
                               node.listen(kPort);
                               const Pair pair = connect_pair(node, 0, node, kPort);
                               REQUIRE(pair.passive != nullptr);
                               for (const size_t length : {64u, 4096u, 100'000u})
                                 check_transfer(pair, length, 3);
                               CHECK_EQ(node.counter("soft.rx.bad_icrc"), 0u);
                               CHECK_EQ(node.counter("soft.rx.icrc_recovered"), 0u);
                             }) ||
        getuid() != 0);
}

TEST(a_link_local_address_with_its_zone) {
  CHECK(in_network_namespace(65536,
                             [] {
                               const int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
                               struct {
                                 in6_addr address;
                                 uint32_t prefix_length;
                                 int interface;
                               } request{};  // linux/ipv6.h: in6_ifreq
                               CHECK(inet_pton(AF_INET6, "fe80::1", &request.address) == 1);
                               request.prefix_length = 64;
                               request.interface = static_cast<int>(if_nametoindex("lo"));
                               CHECK(ioctl(fd, SIOCSIFADDR, &request) == 0);
                               sockaddr_storage address = ipv6_loopback();
                               auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
                               v6.sin6_addr = request.address;
                               v6.sin6_scope_id = static_cast<uint32_t>(request.interface);
                               // Tentative until the kernel's worker has looked at it.
                               CHECK(eventually([&] {
                                 return bind(fd, reinterpret_cast<const sockaddr*>(&address),
                                             sizeof v6) == 0;
                               }));
                               close(fd);
                               Node node(Node::at(address));
                               if (node.device == nullptr)
                                 std::fprintf(stderr, "%s\n", node.error.c_str());
                               REQUIRE(node.device != nullptr);
                               node.listen(kPort);
                               const Pair pair = connect_pair(node, 0, node, kPort);
                               REQUIRE(pair.passive != nullptr);
                               check_transfer(pair, 10'000, 4);
                             }) ||
        getuid() != 0);
}

TEST(connecting_and_ending_leaves_nothing_behind) {
  Node target(Node::at(next_loopback())), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  constexpr int kRounds = 500;
  size_t files = 0;
  for (int round = 0; round < kRounds; round++) {
    const Pair pair = connect_pair(host, 0, target, kPort, 4096);
    REQUIRE(pair.passive != nullptr);
    host.on(0, [&] { host.device->disconnect(pair.active->id); });
    REQUIRE(eventually([&] {
      return host.has(ConnectionEvent::Disconnected, pair.active->id) &&
             target.has(ConnectionEvent::Disconnected, pair.passive->id);
    }));
    host.destroy(pair.active);
    target.destroy(pair.passive);
    if (round == 0) files = open_files();
  }
  CHECK_EQ(open_files(), files);
  for (Node* node : {&host, &target}) {
    node->on(0, [] {});
    CHECK_EQ(node->counter("soft.connections"), 0u);
    CHECK_EQ(node->counter("soft.memory.regions"), 0u);
    CHECK_EQ(node->counter("soft.memory.protection_domains"), 0u);
    CHECK(eventually([&] { return node->counter("soft.queue_pairs") == 0; }));
    CHECK_EQ(node->counter("soft.cm.connected"), uint64_t{kRounds});
  }
}

TEST(opening_and_closing_leaves_no_descriptor) {
  const sockaddr_storage address = next_loopback();
  const size_t files = open_files();
  for (int i = 0; i < 10; i++) {
    Node node(Node::at(address), 2);
    CHECK(node.device != nullptr);
    node.listen(kPort);
  }
  CHECK_EQ(open_files(), files);
}

TEST(an_open_device_without_work_uses_no_processor) {
  Node node(Node::at(next_loopback()));
  REQUIRE(node.device != nullptr);
  node.listen(kPort);
  const auto cpu = [&] {
    timespec time{};
    node.on(0, [&] { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time); });
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  };
  usleep(20'000);
  const uint64_t before = cpu();
  usleep(300'000);
  CHECK(cpu() - before < 5'000'000);
}

TEST_MAIN
