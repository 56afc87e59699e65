// Flows, GIDs and socket addresses; see flow.h.
#include "rdma/soft/flow.h"

#include <arpa/inet.h>

#include <cstring>

#include "rdma/soft/icrc.h"

namespace nvmeof::rdma::soft {
namespace {

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

const sockaddr_in& v4(const sockaddr_storage& a) {
  return reinterpret_cast<const sockaddr_in&>(a);
}
sockaddr_in& v4(sockaddr_storage& a) {
  return reinterpret_cast<sockaddr_in&>(a);
}
const sockaddr_in6& v6(const sockaddr_storage& a) {
  return reinterpret_cast<const sockaddr_in6&>(a);
}
sockaddr_in6& v6(sockaddr_storage& a) {
  return reinterpret_cast<sockaddr_in6&>(a);
}

}  // namespace

sockaddr_storage unmapped(const sockaddr_storage& address) {
  if (address.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6(address).sin6_addr))
    return address;
  sockaddr_storage plain{};
  v4(plain).sin_family = AF_INET;
  v4(plain).sin_port = v6(address).sin6_port;
  std::memcpy(&v4(plain).sin_addr, v6(address).sin6_addr.s6_addr + 12, 4);
  return plain;
}

// sin_port and sin6_port lie in the same place.
uint16_t port_of(const sockaddr_storage& address) {
  return ntohs(v4(address).sin_port);
}

sockaddr_storage with_port(const sockaddr_storage& address, uint16_t port) {
  sockaddr_storage changed = address;
  v4(changed).sin_port = htons(port);
  return changed;
}

Gid gid_of(const sockaddr_storage& address) {
  Gid gid{};
  if (address.ss_family == AF_INET) {
    std::memcpy(gid.data(), kMappedPrefix, sizeof kMappedPrefix);
    std::memcpy(gid.data() + 12, &v4(address).sin_addr, 4);
  } else if (address.ss_family == AF_INET6) {
    std::memcpy(gid.data(), &v6(address).sin6_addr, 16);
  }
  return gid;
}

sockaddr_storage address_of(const Gid& gid, uint16_t port) {
  sockaddr_storage address{};
  if (std::memcmp(gid.data(), kMappedPrefix, sizeof kMappedPrefix) == 0) {
    v4(address).sin_family = AF_INET;
    v4(address).sin_port = htons(port);
    std::memcpy(&v4(address).sin_addr, gid.data() + 12, 4);
  } else {
    v6(address).sin6_family = AF_INET6;
    v6(address).sin6_port = htons(port);
    std::memcpy(&v6(address).sin6_addr, gid.data(), 16);
  }
  return address;
}

bool same_address(const sockaddr_storage& a, const sockaddr_storage& b) {
  return gid_of(a) == gid_of(b);
}

bool is_unspecified(const sockaddr_storage& address) {
  const sockaddr_storage plain = unmapped(address);
  if (plain.ss_family == AF_INET) return v4(plain).sin_addr.s_addr == INADDR_ANY;
  return plain.ss_family != AF_INET6 || IN6_IS_ADDR_UNSPECIFIED(&v6(plain).sin6_addr);
}

bool is_multicast(const sockaddr_storage& address) {
  const sockaddr_storage plain = unmapped(address);
  if (plain.ss_family == AF_INET) {
    const uint32_t host_order = ntohl(v4(plain).sin_addr.s_addr);
    return IN_MULTICAST(host_order) || host_order == INADDR_BROADCAST;
  }
  return plain.ss_family == AF_INET6 && IN6_IS_ADDR_MULTICAST(&v6(plain).sin6_addr);
}

std::string to_string(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET)
    inet_ntop(AF_INET, &v4(address).sin_addr, text, sizeof text);
  else if (address.ss_family == AF_INET6)
    inet_ntop(AF_INET6, &v6(address).sin6_addr, text, sizeof text);
  return text;
}

Flow make_flow(const sockaddr_storage& local, const sockaddr_storage& remote, uint8_t train_key,
               uint8_t traffic_class) {
  Flow flow{};
  flow.local = unmapped(local);
  flow.remote = unmapped(remote);
  flow.traffic_class = traffic_class;
  flow.train_key = train_key;
  flow.icrc_base = icrc_base(flow.local, flow.remote);
  return flow;
}

uint16_t source_port_of_label(uint32_t flow_label) {
  return static_cast<uint16_t>(0xc000 | ((flow_label & 0x3fff) ^ (flow_label >> 14 & 0x3f)));
}

}  // namespace nvmeof::rdma::soft
