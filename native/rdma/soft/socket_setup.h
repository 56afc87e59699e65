// Makes the sockets of the soft provider with the options that RoCEv2 needs (PROTOCOL.md 2.2, 2.3),
// and answers what the interface behind an address can do. Set-up only, any thread.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "reactor/result.h"

namespace nvmeof::rdma::soft {

bool set_option(int fd, int level, int name, int value);  // errno says why not

// Bound to the address and port 4791; `reuse_port` for all members of a group but the first.
Result<int> open_receive_socket(const sockaddr_storage& address, bool reuse_port);

// Bound to the address and the first free source port from `port` on (0xC000 .. 0xFFFF, round and
// round); not connected, so that its IPv4 identification is 0. It receives nothing but errors.
struct SendSocket {
  int fd = -1;
  uint16_t port = 0;
};
Result<SendSocket> open_send_socket(const sockaddr_storage& address, uint16_t port);

// Asks for a receive (or send) buffer, beyond the limit of the system where we may, and returns
// what the kernel granted, in its own accounting: about twice the payload that fits.
uint32_t request_receive_buffer(int fd, uint32_t bytes);
uint32_t request_send_buffer(int fd, uint32_t bytes);

struct Interface {
  std::string name;  // empty: not found
  uint32_t mtu = 1500;
  bool transmit_checksums = true;  // GSO before Linux 6.11 fails without them
};
Interface interface_of(const sockaddr_storage& address);

// Whether UDP_SEGMENT works: the kernel knows it, lets us use it, and the interface can.
bool gso_usable(const sockaddr_storage& address, const Interface& interface);

bool kernel_at_least(unsigned major, unsigned minor);
socklen_t address_length(const sockaddr_storage& address);

}  // namespace nvmeof::rdma::soft
