// Reads a UDP socket's error queue (IP_RECVERR, IPV6_RECVERR): what ICMP and our own kernel say
// about packets we sent, with the beginning of the packet that they concern. A pending error also
// fails the next send or receive of that socket, whomever it goes to: its caller drains the queue
// and repeats. On the thread of the reactor that owns the socket.
#pragma once
#include <sys/socket.h>

#include <cstdint>

namespace nvmeof::rdma::soft {

enum class SendFault : uint8_t {
  PortUnreachable,  // ICMP: nobody listens there
  Unreachable,      // ICMP: host or network unreachable, prohibited, ...
  MtuTooLarge,      // EMSGSIZE, from our kernel or from a router
  Other,
};

struct ErrorReport {
  SendFault fault = SendFault::Other;
  sockaddr_storage peer{};  // where the packet was going
  // What stands in the returned bytes of the packet; `has_bth` false: too few of them.
  bool has_bth = false;
  uint32_t dest_qpn = 0;
  uint32_t psn = 0;
  uint32_t mtu = 0;  // MtuTooLarge: what would have fitted, 0 if not known
};

// The next report, without blocking. False when the queue is empty.
bool read_error_queue(int fd, ErrorReport* report);

}  // namespace nvmeof::rdma::soft
