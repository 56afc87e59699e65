// Soft devices when things go wrong: nobody there, rejected, killed, second process, foreign
// packets, forged reports, a device without GSO.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>

#include "rdma/counter_totals.h"
#include "rdma/soft/flow.h"
#include "rdma/soft/packet.h"
#include "rdma/soft/socket_setup.h"
#include "support/soft_node.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test;

namespace {

constexpr uint16_t kPort = 4420;

// A target in a process of its own, forked before this process has threads. It opens its address
// when start() is called, which returns when it listens, and ends with its parent.
class TargetProcess {
 public:
  explicit TargetProcess(const sockaddr_storage& address) {
    int go[2], ready[2];
    CHECK(pipe(go) == 0 && pipe(ready) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      char byte;
      close(go[1]);
      close(ready[0]);
      if (read(go[0], &byte, 1) != 1) _exit(0);
      run(address, ready[1]);
    }
    close(go[0]);
    close(ready[1]);
    go_ = go[1];
    ready_ = ready[0];
  }
  ~TargetProcess() { kill_now(); }
  TargetProcess(const TargetProcess&) = delete;
  TargetProcess& operator=(const TargetProcess&) = delete;
  void start() {
    char byte = 'g';
    CHECK(write(go_, &byte, 1) == 1 && read(ready_, &byte, 1) == 1);
  }
  void kill_now() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(go_);
    close(ready_);
    pid_ = 0;
  }

 private:
  [[noreturn]] static void run(const sockaddr_storage& address, int ready) {
    Node node(Node::at(address));
    if (node.device == nullptr) _exit(1);
    node.listen(kPort);
    if (write(ready, "r", 1) != 1) _exit(1);
    for (;;) pause();
  }
  pid_t pid_ = 0;
  int go_ = -1, ready_ = -1;
};

ConnectionEvent failed_connect(Node& host, const sockaddr_storage& peer,
                               uint64_t* took_ms = nullptr) {
  Endpoint* endpoint = nullptr;
  host.on(0, [&] { endpoint = host.make_endpoint(4096); });
  const reactor::TimeNs start = reactor::monotonic_now();
  const auto id = host.connect(endpoint, peer, kPort);
  CHECK(eventually([&] { return host.has(ConnectionEvent::Failed, id); }));
  if (took_ms != nullptr) *took_ms = (reactor::monotonic_now() - start) / 1'000'000;
  const ConnectionEvent event = host.event(ConnectionEvent::Failed, id);
  host.on(0, [&] { CHECK(endpoint->qp->state() != State::Rts); });
  host.destroy(endpoint);
  CHECK_EQ(host.counter("soft.connections"), 0u);
  return event;
}

bool mentions(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(a_killed_peer_ends_the_connection_at_once) {
  const sockaddr_storage address = next_loopback();
  TargetProcess target(address);
  target.start();
  Node host(Node::at(next_loopback()));
  REQUIRE(host.device != nullptr);
  Endpoint *busy = nullptr, *idle = nullptr;
  host.on(0, [&] {
    busy = host.make_endpoint(4096);
    idle = host.make_endpoint(4096);
  });
  for (Endpoint* const endpoint : {busy, idle}) {
    const auto id = host.connect(endpoint, address, kPort);
    REQUIRE(eventually([&] { return host.has(ConnectionEvent::Response, id); }));
    CHECK(!host.has(ConnectionEvent::Failed, id));
  }
  host.on(0, [&] { CHECK(static_cast<bool>(idle->post_receive(9, 0, 64))); });
  target.kill_now();
  const reactor::TimeNs start = reactor::monotonic_now();
  host.on(0, [&] { CHECK(static_cast<bool>(busy->post(Opcode::Send, 1, 0, 64))); });
  CHECK(eventually([&] { return host.has(ConnectionEvent::Disconnected, busy->id); }));
  CHECK(reactor::monotonic_now() - start < 500'000'000);
  const std::string reason = host.event(ConnectionEvent::Disconnected, busy->id).text;
  CHECK(mentions(reason, "unreachable"));
  host.on(0, [&] {
    REQUIRE(busy->sends.size() == 1);
    CHECK(busy->sends[0].status == Status::RetryExceeded);
  });
  // Counters are published every few milliseconds.
  CHECK(eventually([&] { return host.counter("soft.requester.unreachable") >= 1; }));
  // The one that sends nothing by itself finds out by its probe.
  CHECK(eventually([&] { return host.has(ConnectionEvent::Disconnected, idle->id); }, 5'000));
  host.on(0, [&] {
    REQUIRE(idle->receives.size() == 1);
    CHECK(idle->receives[0].status == Status::FlushError);
  });
  CHECK(eventually([&] { return host.counter("soft.requester.probes") >= 1; }));
}

TEST(a_killed_peer_can_be_replaced) {
  const sockaddr_storage address = next_loopback();
  TargetProcess first(address), second(address);
  Node host(Node::at(next_loopback()));
  REQUIRE(host.device != nullptr);
  for (TargetProcess* const target : {&first, &second}) {
    target->start();
    Endpoint* endpoint = nullptr;
    host.on(0, [&] { endpoint = host.make_endpoint(4096); });
    const auto id = host.connect(endpoint, address, kPort);
    REQUIRE(eventually([&] {
      return host.has(ConnectionEvent::Response, id) || host.has(ConnectionEvent::Failed, id);
    }));
    CHECK(host.has(ConnectionEvent::Response, id));
    target->kill_now();
    // Ended without a word by us too: the peer is not there to answer.
    const reactor::TimeNs start = reactor::monotonic_now();
    host.on(0, [&] { host.device->disconnect(id); });
    CHECK(eventually([&] { return host.has(ConnectionEvent::Disconnected, id); }));
    CHECK(reactor::monotonic_now() - start < 1'000'000'000);
    host.destroy(endpoint);
  }
}

TEST(an_address_that_another_process_holds_is_refused_with_its_name) {
  const sockaddr_storage address = next_loopback();
  TargetProcess target(address);
  target.start();
  Node second(Node::at(address));
  CHECK(second.device == nullptr);
  CHECK(mentions(second.error, "is already held by process "));
  CHECK(mentions(second.error, soft::to_string(address).c_str()));
  target.kill_now();
  second.open();
  CHECK(second.device != nullptr);
}

TEST(nobody_listening_shows_at_once) {
  Node host(Node::at(next_loopback()));
  REQUIRE(host.device != nullptr);
  uint64_t took_ms = 0;
  const auto event = failed_connect(host, next_loopback(), &took_ms);
  CHECK(event.failure == ConnectFailure::PortUnreachable);
  CHECK(mentions(event.text, "4791"));
  CHECK(took_ms < 1'000);
}

TEST(a_port_without_listener_is_a_rejection) {
  Node target(Node::at(next_loopback())), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  const auto event = failed_connect(host, target.device->address());
  CHECK(event.failure == ConnectFailure::Rejected);
  CHECK_EQ(event.reason, 8);
  CHECK(!event.text.empty());
}

TEST(rejections_carry_their_reason_and_private_data) {
  Node target(Node::at(next_loopback())), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  target.accept_data = {9, 8, 7};
  for (const int reason : {28, 3}) {
    target.reject_reason = reason;
    const auto event = failed_connect(host, target.device->address());
    CHECK(event.failure == ConnectFailure::Rejected);
    CHECK_EQ(event.reason, reason);
    REQUIRE(event.data.size() >= 3);
    CHECK(event.data[0] == 9 && event.data[2] == 7);
  }
}

TEST(silence_is_bounded_by_the_timeout) {
  DeviceOptions options = Node::at(next_loopback());
  options.connect_timeout_ms = 300;
  Node host(options);
  REQUIRE(host.device != nullptr);
  // A socket that holds the port and answers nothing.
  const sockaddr_storage mute = next_loopback();
  auto silent = soft::open_receive_socket(mute, false);
  REQUIRE(silent);
  uint64_t took_ms = 0;
  const auto event = failed_connect(host, mute, &took_ms);
  CHECK(event.failure == ConnectFailure::Unreachable);
  CHECK(took_ms >= 250 && took_ms < 3'000);
  close(*silent);
}

TEST(a_wrong_icrc_explains_the_silence) {
  DeviceOptions options = Node::at(next_loopback());
  options.connect_timeout_ms = 400;
  Node host(options);
  REQUIRE(host.device != nullptr);
  // A peer whose datagrams to our QP1 are damaged on the way.
  const sockaddr_storage peer = next_loopback();
  auto socket = soft::open_receive_socket(peer, false);
  REQUIRE(socket);
  const sockaddr_storage to = soft::with_port(host.device->address(), soft::kUdpPort);
  uint8_t bytes[12 + 8 + 256 + 4] = {0x64};
  soft::put16(bytes + 2, soft::kDefaultPKey);
  soft::put32(bytes + 4, soft::kQpnGsi);
  soft::put32(bytes + 12, soft::kQKeyGsi);
  soft::put32(bytes + 16, soft::kQpnGsi);
  Endpoint* endpoint = nullptr;
  host.on(0, [&] { endpoint = host.make_endpoint(4096); });
  const auto id = host.connect(endpoint, peer, kPort);
  usleep(50'000);
  CHECK(sendto(*socket, bytes, sizeof bytes, 0, reinterpret_cast<const sockaddr*>(&to),
               soft::address_length(to)) == sizeof bytes);
  REQUIRE(eventually([&] { return host.has(ConnectionEvent::Failed, id); }));
  const auto event = host.event(ConnectionEvent::Failed, id);
  CHECK(event.failure == ConnectFailure::BadIcrc);
  CHECK(mentions(event.text, "ICRC"));
  close(*socket);
}

// The network's MTU shrinks under an open device.
TEST(packets_beyond_the_mtu_are_named_as_the_reason) {
  CHECK(
      in_network_namespace(
          9000,
          [] {
            Node target(Node::at(next_loopback())), host(Node::at(next_loopback()));
            REQUIRE(target.device && host.device);
            target.listen(kPort);
            const Pair pair = connect_pair(host, 0, target, kPort, 1 << 16);
            REQUIRE(pair.passive != nullptr);
            const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
            ifreq request{};
            std::strcpy(request.ifr_name, "lo");
            request.ifr_mtu = 1500;
            CHECK(ioctl(fd, SIOCSIFMTU, &request) == 0);
            close(fd);
            host.on(0,
                    [&] { CHECK(static_cast<bool>(pair.active->post(Opcode::Send, 1, 0, 8192))); });
            REQUIRE(eventually(
                [&] { return host.has(ConnectionEvent::Disconnected, pair.active->id); }, 30'000));
            CHECK(mentions(host.event(ConnectionEvent::Disconnected, pair.active->id).text,
                           "EMSGSIZE"));
          }) ||
      getuid() != 0);
}

TEST(a_request_that_nobody_answers_and_an_abandoned_connect_leave_nothing) {
  DeviceOptions options = Node::at(next_loopback());
  options.connect_timeout_ms = 300;
  Node host(options), target(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  target.ignore_requests = true;
  CHECK(failed_connect(host, target.device->address()).failure == ConnectFailure::Unreachable);
  Endpoint* endpoint = nullptr;
  host.on(0, [&] { endpoint = host.make_endpoint(4096); });
  const auto id = host.connect(endpoint, target.device->address(), kPort);
  host.destroy(endpoint);  // abandons
  usleep(400'000);
  CHECK(!host.has(ConnectionEvent::Failed, id));
  CHECK_EQ(host.counter("soft.connections"), 0u);
}

TEST(calls_in_the_wrong_place_are_refused) {
  Node host(Node::at(next_loopback()));
  REQUIRE(host.device != nullptr);
  CHECK(!host.device->create_cq(16));  // not on a reactor
  CHECK(!host.device->listen(1, &host));
  host.on(0, [&] {
    CHECK(!host.device->create_cq(0));
    Endpoint* const endpoint = host.make_endpoint(4096);
    const auto wrong_family =
        host.device->connect(ipv6_loopback(), kPort, endpoint->qp.get(), {}, &host);
    CHECK(!wrong_family && wrong_family.error().code == EAFNOSUPPORT);
    CHECK(!host.device->connect(ipv4(0), kPort, endpoint->qp.get(), {}, &host));
    ConnectionParameters parameters;
    const std::vector<uint8_t> long_data(57);
    parameters.private_data = long_data;
    CHECK(!host.device->connect(next_loopback(), kPort, endpoint->qp.get(), parameters, &host));
    CHECK(!host.device->accept(4711, endpoint->qp.get(), {}));
    host.device->reject(4711, 28, {});
    host.device->disconnect(4711);
    host.device->abandon(4711);
  });
}

TEST(options_that_cannot_work_are_refused_by_name) {
  auto reactor = reactor::Reactor::start(0, {});
  REQUIRE(reactor);
  reactor::Reactor* const list[] = {reactor->get()};
  const auto refused = [&](DeviceOptions options, const char* part) {
    const auto result = open_device(options, list);
    return !result && mentions(result.error().message, part);
  };
  DeviceOptions options = Node::at(next_loopback());
  options.provider = "verbs";
  // No RDMA device has a loopback address; or the libraries are not installed.
  CHECK(refused(options, "No RDMA device owns 127.") || refused(options, "install rdma-core"));
  options.provider = "tcp";
  CHECK(refused(options, "choose auto, soft or verbs"));
  options.provider = "soft";
  options.path_mtu = 1500;
  CHECK(refused(options, "1500"));
  options.path_mtu = 0;
  options.pcap_path = "/nonexistent/folder/x.pcap";
  CHECK(refused(options, "/nonexistent/folder/x.pcap"));
  CHECK(refused(Node::at(ipv4(0)), "cannot be opened"));
  CHECK(refused(Node::at(ipv4(0xc0000201)), "not an address of this machine"));
  CHECK(refused(DeviceOptions{}, "IPv4 or IPv6"));
  CHECK(in_network_namespace(1500,
                             [&] {
                               // The reactor's thread is outside, but sockets are made on this one.
                               DeviceOptions small = Node::at(next_loopback());
                               small.path_mtu = 4096;
                               CHECK(refused(small, "has 1500, which takes 1024"));
                             }) ||
        getuid() != 0);
}

// Damaged and foreign datagrams, truncated at every length, to a device with a connection.
TEST(bad_packets_cost_nobody_anything) {
  Node target(Node::at(next_loopback()), 2), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  target.accept_on = 1;
  const Pair pair = connect_pair(host, 0, target, kPort, 4096);
  REQUIRE(pair.passive != nullptr);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const sockaddr_storage to = soft::with_port(target.device->address(), soft::kUdpPort);
  const auto send = [&](const uint8_t* bytes, size_t length) {
    CHECK(sendto(fd, bytes, length, 0, reinterpret_cast<const sockaddr*>(&to),
                 soft::address_length(to)) == static_cast<ssize_t>(length));
  };
  const uint32_t numbers[] = {pair.passive->qp->number(),     soft::kQpnGsi, 0, 0xffffff,
                              pair.passive->qp->number() ^ 1, 5u << 18 | 77};
  uint32_t random = 1;
  for (const uint32_t number : numbers) {
    for (size_t length = 0; length <= 300; length++) {
      uint8_t bytes[300];
      for (uint8_t& byte : bytes) {
        random = random * 1664525 + 1013904223;
        byte = static_cast<uint8_t>(random >> 24);
      }
      if (length % 2 == 0) {  // a header that parses
        bytes[0] = number == soft::kQpnGsi ? 0x64 : 0x04;
        bytes[1] = 0;
        soft::put16(bytes + 2, soft::kDefaultPKey);
      }
      soft::put32(bytes + 4, number);
      send(bytes, length);
    }
    usleep(2'000);
  }
  close(fd);
  run_on(*pair.passive->reactor,
         [&] { CHECK(static_cast<bool>(pair.passive->post_receive(1, 0, 64))); });
  host.on(0, [&] { CHECK(static_cast<bool>(pair.active->post(Opcode::Send, 1, 0, 64))); });
  CHECK(eventually([&] {
    bool done = false;
    target.on(1, [&] { done = pair.passive->receives.size() == 1; });
    return done;
  }));
  CHECK(eventually([&] {
    return target.counter("soft.rx.malformed") > 100 &&
           target.counter("soft.rx.wrong_address") > 0 && target.counter("soft.rx.bad_icrc") > 0 &&
           target.counter("soft.rx.unknown_qp") > 0;
  }));
  CHECK_EQ(target.counter("soft.qp_errors"), 0u);
  CHECK(!target.has(ConnectionEvent::Disconnected, pair.passive->id));
}

// A packet that reaches the wrong reactor's socket is handed over: here through a train whose first
// packet is for the other one.
TEST(packets_for_another_reactor_are_handed_over) {
  Node target(Node::at(next_loopback()), 2), host(Node::at(next_loopback()));
  REQUIRE(target.device && host.device);
  target.listen(kPort);
  target.accept_on = 1;
  const Pair pair = connect_pair(host, 0, target, kPort, 4096);
  REQUIRE(pair.passive != nullptr);
  // Steering sees the first packet's QPN (reactor 0, nobody), the second is for reactor 1.
  auto sender = soft::open_send_socket(next_loopback(), 0xC000);
  REQUIRE(sender);
  uint8_t bytes[2 * 64] = {};
  for (int i = 0; i < 2; i++) {
    uint8_t* const p = bytes + i * 64;
    p[0] = 0x04;
    soft::put16(p + 2, soft::kDefaultPKey);
    soft::put32(p + 4, i == 0 ? 77 : pair.passive->qp->number());
  }
  iovec vector{bytes, sizeof bytes};
  sockaddr_storage to = soft::with_port(target.device->address(), soft::kUdpPort);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(uint16_t))] = {};
  msghdr message{};
  message.msg_name = &to;
  message.msg_namelen = soft::address_length(to);
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = IPPROTO_UDP;
  c->cmsg_type = 103;  // UDP_SEGMENT
  c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
  const uint16_t segment = 64;
  std::memcpy(CMSG_DATA(c), &segment, sizeof segment);
  CHECK(sendmsg(sender->fd, &message, 0) == static_cast<ssize_t>(sizeof bytes));
  close(sender->fd);
  CHECK(eventually([&] {
    return target.counter("soft.rx.handed_over") == 1 &&
           target.counter("soft.rx.wrong_reactor") == 1 &&
           target.counter("soft.rx.wrong_address") == 1;  // where it was judged
  }));
}

TEST(a_capture_of_a_connection_is_written) {
  const std::string path = "/tmp/device_faults_test." + std::to_string(getpid()) + ".pcap";
  {
    DeviceOptions options = Node::at(next_loopback());
    options.pcap_path = path;
    Node target(options), host(Node::at(next_loopback()));
    REQUIRE(target.device && host.device);
    target.listen(kPort);
    CHECK(connect_pair(host, 0, target, kPort, 4096).passive != nullptr);
  }
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  REQUIRE(file != nullptr);
  std::fseek(file, 0, SEEK_END);
  // REQ, REP and RTU: 28 + 12 + 8 + 256 + 4 bytes each and 16 of pcap.
  CHECK(std::ftell(file) >= 24 + 3 * (16 + 308));
  std::fclose(file);
  unlink(path.c_str());
}

TEST(a_capture_that_cannot_go_on_is_counted) {
  const std::string path = "/tmp/device_faults_test." + std::to_string(getpid()) + ".fifo";
  std::signal(SIGPIPE, SIG_IGN);
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  {
    DeviceOptions options = Node::at(next_loopback());
    options.pcap_path = path;
    Node target(options), host(Node::at(next_loopback()));
    REQUIRE(target.device && host.device);
    CHECK_EQ(target.counter("soft.pcap_failed"), 0u);
    close(reader);  // as a disk that is full
    target.listen(kPort);
    CHECK(connect_pair(host, 0, target, kPort, 4096).passive != nullptr);
    CHECK(eventually([&] { return target.counter("soft.pcap_failed") == 1; }));
    CHECK_EQ(host.counter("soft.pcap_failed"), 0u);
  }
  unlink(path.c_str());
}

TEST(totals_of_two_devices_add_events_and_show_the_smallest_limit) {
  DeviceOptions options = Node::at(next_loopback());
  options.path_mtu = 1024;
  Node small(options);
  options.address = next_loopback();
  options.path_mtu = 4096;
  options.socket_buffer_bytes = 64 << 10;
  Node large(options);
  REQUIRE(small.device && large.device);
  large.listen(kPort);
  CHECK(connect_pair(small, 0, large, kPort, 4096).passive != nullptr);
  for (const bool forwards : {true, false}) {
    CounterTotals totals;
    for (Node* node : {forwards ? &small : &large, forwards ? &large : &small})
      for (const CounterValue& value : node->device->counters())
        add_counter(totals, value.name, value);
    CHECK_EQ(totals.at("soft.path_mtu_bytes"), 1024.0);
    CHECK_EQ(totals.at("socket.gso"), static_cast<double>(std::min(small.counter("socket.gso"),
                                                                   large.counter("socket.gso"))));
    CHECK_EQ(totals.at("soft.connections"), 2.0);
    for (const char* name : {"socket.receive_buffer_bytes", "soft.receive_window_bytes"})
      CHECK_EQ(totals.at(name),
               static_cast<double>(std::min(small.counter(name), large.counter(name))));
    CHECK(small.counter("socket.receive_buffer_bytes") !=
          large.counter("socket.receive_buffer_bytes"));
  }
}

TEST_MAIN
