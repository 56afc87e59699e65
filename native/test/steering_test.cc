// Receive groups on real sockets: which member gets a packet, and who may open an address.
#include "rdma/soft/steering.h"

#include <sys/wait.h>

#include "loopback.h"
#include "rdma/soft/flow.h"
#include "rdma/soft/packet.h"
#include "rdma/soft/port_owner.h"
#include "rdma/soft/socket_setup.h"
#include "rdma/soft/transport.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma::soft;
using nvmeof::test::next_loopback;

namespace {

struct Group {
  sockaddr_storage address;
  std::vector<int> sockets;
  explicit Group(unsigned members, sockaddr_storage at = next_loopback()) : address(at) {
    auto result = open_receive_group(address, members);
    CHECK(static_cast<bool>(result));
    if (result) sockets = *result;
  }
  ~Group() {
    for (const int fd : sockets) close(fd);
  }
  int waiting(size_t member) const {
    char bytes[64];
    int count = 0;
    while (recv(sockets[member], bytes, sizeof bytes, MSG_DONTWAIT) >= 0) count++;
    return count;
  }
};

void send_to(const sockaddr_storage& to, uint32_t qpn, size_t length = 16) {
  uint8_t bytes[16] = {};
  put24(bytes + 5, qpn);
  const int fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const sockaddr_storage destination = with_port(to, kUdpPort);
  CHECK(sendto(fd, bytes, length, 0, reinterpret_cast<const sockaddr*>(&destination),
               address_length(destination)) == static_cast<ssize_t>(length));
  close(fd);
}

// Runs in a child process; true when it returned true there.
template <typename F>
bool in_child(F&& function) {
  const pid_t pid = fork();
  if (pid == 0) _exit(function() ? 0 : 1);
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST(packets_reach_the_reactor_of_their_queue_pair) {
  for (unsigned members = 2; members <= 5; members++) {
    const Group group(members);
    REQUIRE(group.sockets.size() == members);
    for (unsigned i = 0; i < members; i++) {
      for (unsigned n = 0; n <= i; n++) send_to(group.address, i << kQpnReactorShift | (n + 77));
    }
    for (unsigned i = 0; i < members; i++) CHECK_EQ(group.waiting(i), static_cast<int>(i + 1));
  }
}

TEST(everything_that_names_no_reactor_reaches_the_first) {
  const Group group(3);
  REQUIRE(group.sockets.size() == 3);
  send_to(group.address, kQpnGsi);
  send_to(group.address, 3u << kQpnReactorShift);
  send_to(group.address, 0xffffff);
  send_to(group.address, 0, 3);  // too short to have a QPN
  CHECK_EQ(group.waiting(0), 4);
  CHECK_EQ(group.waiting(1) + group.waiting(2), 0);
}

TEST(one_reactor_needs_no_group) {
  const Group group(1);
  REQUIRE(group.sockets.size() == 1);
  send_to(group.address, 5u << kQpnReactorShift);
  CHECK_EQ(group.waiting(0), 1);
}

TEST(an_open_address_is_refused_to_others_with_the_name_of_its_holder) {
  for (const unsigned members : {1u, 2u}) {
    const Group group(members);
    REQUIRE(group.sockets.size() == members);
    const auto again = open_receive_group(group.address, members);
    REQUIRE(!again);
    CHECK_EQ(again.error().code, EADDRINUSE);
    CHECK(again.error().message.find("this process") != std::string::npos);
    const std::string holder = "process " + std::to_string(getpid()) + " (";
    CHECK(in_child([&] {
      for (const int fd : group.sockets) close(fd);  // the child holds nothing itself
      const auto other = open_receive_group(group.address, members);
      return !other && other.error().code == EADDRINUSE &&
             other.error().message.find(holder) != std::string::npos &&
             other.error().message.find(program_invocation_short_name) != std::string::npos &&
             other.error().message.find(to_string(group.address)) != std::string::npos;
    }));
    const Group other(members);  // another address is free
    CHECK_EQ(other.sockets.size(), size_t{members});
  }
}

TEST(a_closed_address_is_free_again) {
  const sockaddr_storage address = next_loopback();
  for (int i = 0; i < 20; i++) {
    const Group group(2, address);
    CHECK_EQ(group.sockets.size(), size_t{2});
  }
}

TEST(an_address_of_another_machine_is_refused) {
  const auto result = open_receive_group(nvmeof::test::ipv4(0xc0000201), 1);  // 192.0.2.1
  REQUIRE(!result);
  CHECK_EQ(result.error().code, EADDRNOTAVAIL);
  CHECK(result.error().message.find("192.0.2.1 is not an address of this machine") !=
        std::string::npos);
}

TEST(a_wildcard_holder_is_found) {
  CHECK(nvmeof::test::in_network_namespace(
            65536,
            [] {
              const int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
              sockaddr_in6 any{};
              any.sin6_family = AF_INET6;
              any.sin6_port = htons(kUdpPort);
              CHECK(bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0);
              const auto refused = open_receive_group(nvmeof::test::ipv4(0x7f000009), 1);
              REQUIRE(!refused);
              CHECK(refused.error().message.find("this process") != std::string::npos);
              close(fd);
            }) ||
        getuid() != 0);
}

TEST(interfaces_are_found) {
  const Interface loopback = interface_of(next_loopback());
  CHECK(loopback.name == "lo");
  CHECK(loopback.mtu >= 16384);
  CHECK(path_mtu_of_interface(loopback.mtu) == 4096);
  CHECK(interface_of(nvmeof::test::ipv6_loopback()).name == "lo");
  CHECK(interface_of(nvmeof::test::ipv4(0xc0000201)).name.empty());
}

TEST_MAIN
