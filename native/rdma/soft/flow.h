// Flows and addresses: building a Flow from two endpoints, GIDs (PROTOCOL.md 1: a GID is the IP
// address, IPv4 as ::ffff:a.b.c.d), UDP source ports. Pure, any thread.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "rdma/soft/link.h"

namespace nvmeof::rdma::soft {

using Gid = std::array<uint8_t, 16>;

// Both of one family after v4-mapped IPv6 addresses became IPv4. The ports stand in the addresses.
Flow make_flow(const sockaddr_storage& local, const sockaddr_storage& remote, uint8_t train_key = 0,
               uint8_t traffic_class = 0);

// A v4-mapped IPv6 address as IPv4; anything else as it is.
sockaddr_storage unmapped(const sockaddr_storage& address);
sockaddr_storage with_port(const sockaddr_storage& address, uint16_t port);
uint16_t port_of(const sockaddr_storage& address);
// Same IP address (v4-mapped equals IPv4); ports and scopes are not compared.
bool same_address(const sockaddr_storage& a, const sockaddr_storage& b);
bool is_unspecified(const sockaddr_storage& address);
bool is_multicast(const sockaddr_storage& address);  // also IPv4 broadcast

Gid gid_of(const sockaddr_storage& address);
sockaddr_storage address_of(const Gid& gid, uint16_t port = 0);  // v4-mapped becomes AF_INET
std::string to_string(const sockaddr_storage& address);          // "10.0.0.1", "fe80::1"

// 0xC000 .. 0xFFFF from a 20-bit flow label (IBTA A17.3.1, as the kernel computes it).
uint16_t source_port_of_label(uint32_t flow_label);

}  // namespace nvmeof::rdma::soft
