#include "rdma/soft/socket_setup.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include "rdma/soft/flow.h"
#include "rdma/soft/packet.h"
#include "rdma/soft/port_owner.h"

namespace nvmeof::rdma::soft {

namespace {

constexpr int kUdpNoCheck6Rx = 102;  // linux/udp.h, which clashes with netinet/udp.h
constexpr uint16_t kSourcePortFirst = 0xC000;
constexpr unsigned kSourcePorts = 0x4000;

int get_option(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return getsockopt(fd, level, name, &value, &length) == 0 ? value : 0;
}

Error failed(const char* what, const sockaddr_storage& address) {
  const int code = errno;
  return Error{code, std::string(what) + " on " + to_string(address) +
                         " failed: " + std::strerror(code) + "."};
}

int open_socket(const sockaddr_storage& address) {
  const int fd = socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP);
  if (fd >= 0 && address.ss_family == AF_INET6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  return fd;
}

bool bind_to(int fd, const sockaddr_storage& address, uint16_t port) {
  const sockaddr_storage local = with_port(address, port);
  return bind(fd, reinterpret_cast<const sockaddr*>(&local), address_length(local)) == 0;
}

// Strangers may send to a source port of ours; nobody reads there, and a readable socket would keep
// the reactor from sleeping.
bool drop_everything(int fd) {
  sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  sock_fprog program{};
  program.len = 1;
  program.filter = code;
  return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

uint32_t request_buffer(int fd, uint32_t bytes, int forced, int ordinary) {
  const int value = static_cast<int>(bytes > 1u << 30 ? 1u << 30 : bytes);
  if (!set_option(fd, SOL_SOCKET, forced, value)) set_option(fd, SOL_SOCKET, ordinary, value);
  return static_cast<uint32_t>(get_option(fd, SOL_SOCKET, ordinary));
}

bool send_options(int fd, int family) {
  // Without fragmentation and, on IPv4, with identification 0, 1, 2 ... in a train.
  if (family == AF_INET6)
    return set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO) &&
           set_option(fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
  return set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO) &&
         set_option(fd, IPPROTO_IP, IP_RECVERR, 1);
}

}  // namespace

bool kernel_at_least(unsigned major, unsigned minor) {
  utsname name{};
  unsigned a = 0, b = 0;
  if (uname(&name) != 0 || std::sscanf(name.release, "%u.%u", &a, &b) != 2) return false;
  return a > major || (a == major && b >= minor);
}

bool set_option(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

socklen_t address_length(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

Result<int> open_receive_socket(const sockaddr_storage& address, bool reuse_port) {
  const int fd = open_socket(address);
  if (fd < 0) return failed("Opening a UDP socket", address);
  const auto fail = [&](Error error) {
    close(fd);
    return error;
  };
  if (reuse_port && !set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1))
    return fail(failed("SO_REUSEPORT", address));
  set_option(fd, IPPROTO_UDP, UDP_GRO, 1);  // kernels before 5.0 lack it: packets come one by one
  if (address.ss_family == AF_INET6) {
    // rdma_rxe and hardware send no UDP checksum, which IPv6 would drop.
    set_option(fd, IPPROTO_UDP, kUdpNoCheck6Rx, 1);
    set_option(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
  } else {
    set_option(fd, IPPROTO_IP, IP_RECVTOS, 1);
  }
  if (bind_to(fd, address, kUdpPort)) return fd;
  if (errno == EADDRINUSE) return fail(Error{EADDRINUSE, port_in_use_message(address, kUdpPort)});
  if (errno == EADDRNOTAVAIL)
    return fail(Error{EADDRNOTAVAIL, to_string(address) +
                                         " is not an address of this machine: `ip address` shows "
                                         "those it has."});
  return fail(failed("Binding UDP port 4791", address));
}

Result<SendSocket> open_send_socket(const sockaddr_storage& address, uint16_t port) {
  SendSocket result;
  result.fd = open_socket(address);
  if (result.fd < 0) return failed("Opening a UDP socket", address);
  const auto fail = [&](Error error) {
    close(result.fd);
    return error;
  };
  if (!send_options(result.fd, address.ss_family) || !drop_everything(result.fd))
    return fail(failed("Setting socket options", address));
  for (unsigned i = 0; i < kSourcePorts; i++) {
    result.port =
        static_cast<uint16_t>(kSourcePortFirst + (port - kSourcePortFirst + i) % kSourcePorts);
    if (bind_to(result.fd, address, result.port)) return result;
    if (errno != EADDRINUSE) break;
  }
  return fail(failed("Binding a source port from 49152 up", address));
}

uint32_t request_receive_buffer(int fd, uint32_t bytes) {
  return request_buffer(fd, bytes, SO_RCVBUFFORCE, SO_RCVBUF);
}
uint32_t request_send_buffer(int fd, uint32_t bytes) {
  return request_buffer(fd, bytes, SO_SNDBUFFORCE, SO_SNDBUF);
}

Interface interface_of(const sockaddr_storage& address) {
  Interface result;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return result;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != address.ss_family) continue;
    sockaddr_storage candidate{};
    std::memcpy(&candidate, entry->ifa_addr, address_length(address));
    const bool loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    // All of 127.0.0.0/8 belongs to the loopback interface, which lists 127.0.0.1 only.
    const bool in_loopback =
        loopback && address.ss_family == AF_INET &&
        (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
    bool same = same_address(candidate, address);
    if (same && address.ss_family == AF_INET6) {  // a link-local address may be on several
      const uint32_t scope = reinterpret_cast<const sockaddr_in6&>(address).sin6_scope_id;
      const uint32_t its = reinterpret_cast<const sockaddr_in6&>(candidate).sin6_scope_id;
      same = scope == 0 || its == 0 || scope == its;
    }
    if (!same && !in_loopback) continue;
    result.name = entry->ifa_name;
    break;
  }
  if (result.name.empty()) return result;
  const int fd = socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return result;
  ifreq request{};
  std::memcpy(request.ifr_name, result.name.c_str(),
              std::min(result.name.size(), sizeof request.ifr_name - 1));
  if (ioctl(fd, SIOCGIFMTU, &request) == 0 && request.ifr_mtu > 0)
    result.mtu = static_cast<uint32_t>(request.ifr_mtu);
  ethtool_value value{};
  value.cmd = ETHTOOL_GTXCSUM;
  request.ifr_data = reinterpret_cast<char*>(&value);
  if (ioctl(fd, SIOCETHTOOL, &request) == 0) result.transmit_checksums = value.data != 0;
  close(fd);
  return result;
}

bool gso_usable(const sockaddr_storage& address, const Interface& interface) {
  if (!interface.transmit_checksums && !kernel_at_least(6, 11)) return false;
  auto sender = open_send_socket(address, kSourcePortFirst);
  if (!sender) return false;
  // Two segments to ourselves, where the socket's filter drops them.
  uint8_t bytes[2 * kBthBytes] = {};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(uint16_t))] = {};
  sockaddr_storage to = with_port(address, sender->port);
  iovec vector{bytes, sizeof bytes};
  msghdr message{};
  message.msg_name = &to;
  message.msg_namelen = address_length(to);
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = IPPROTO_UDP;
  c->cmsg_type = UDP_SEGMENT;
  c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
  const uint16_t segment = kBthBytes;
  std::memcpy(CMSG_DATA(c), &segment, sizeof segment);
  const bool sent = sendmsg(sender->fd, &message, 0) == static_cast<ssize_t>(sizeof bytes);
  close(sender->fd);
  return sent;
}

}  // namespace nvmeof::rdma::soft
