// For tests with real sockets: loopback addresses that no other test run uses, and network
// namespaces of their own where the user may make them.
#pragma once
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>

namespace nvmeof::test {

inline sockaddr_storage ipv4(uint32_t host) {
  sockaddr_storage address{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(host);
  return address;
}
inline sockaddr_storage ipv6_loopback() {
  sockaddr_storage address{};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  return address;
}
// A new address of 127.0.0.0/8 with every call: two bytes from the process id, one counted.
inline sockaddr_storage next_loopback() {
  static unsigned count = 0;
  const auto pid = static_cast<unsigned>(getpid());
  const unsigned n = count++;
  return ipv4(0x7f000000u | (1 + (pid >> 8 & 0x7f) + (n / 250) % 100) << 16 | (pid & 0xff) << 8 |
              (2 + n % 250));
}

// Runs `function` on a thread of its own in a fresh network namespace with its loopback interface
// up, at the MTU given. False when namespaces are not permitted here: the test says so and skips.
template <typename F>
bool in_network_namespace(int loopback_mtu, F&& function) {
  bool permitted = true;
  std::thread([&] {
    permitted = unshare(CLONE_NEWNET) == 0;
    if (!permitted) return;
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_mtu = loopback_mtu;
    permitted = ioctl(fd, SIOCSIFMTU, &request) == 0;
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    permitted = permitted && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    close(fd);
    if (permitted) function();
  }).join();
  if (!permitted) std::fprintf(stderr, "skipped: network namespaces are not permitted here\n");
  return permitted;
}

}  // namespace nvmeof::test
