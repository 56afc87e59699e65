// The header in front of received datagrams; see grh.h.
#include "rdma/soft/grh.h"

#include <netinet/in.h>

#include <cstring>

#include "rdma/provider.h"
#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {

namespace {

constexpr uint32_t kIpv4Bytes = 20, kIpv6Bytes = 40, kUdpBytes = 8;
constexpr uint8_t kUdpProtocol = 17;
// The hop limit on arrival, which a socket does not show: what senders begin with.
constexpr uint8_t kHopLimit = 64;

// The header checksum of IPv4 (RFC 1071): consumers tell the IP version by it.
uint16_t ipv4_checksum(const uint8_t* header) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < kIpv4Bytes; i += 2) sum += get16(header + i);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

static_assert(kGrhBytes == kIpv6Bytes);

}  // namespace

void write_grh(uint8_t* grh, const Arrival& arrival) {
  std::memset(grh, 0, kGrhBytes);
  const auto udp_bytes = static_cast<uint16_t>(kUdpBytes + arrival.length);
  if (arrival.source->ss_family == AF_INET6) {
    const auto& from = reinterpret_cast<const sockaddr_in6&>(*arrival.source);
    const auto& to = reinterpret_cast<const sockaddr_in6&>(*arrival.destination);
    put32(grh, 6u << 28 | static_cast<uint32_t>(arrival.traffic_class) << 20);
    put16(grh + 4, udp_bytes);
    grh[6] = kUdpProtocol;
    grh[7] = kHopLimit;
    std::memcpy(grh + 8, from.sin6_addr.s6_addr, 16);
    std::memcpy(grh + 24, to.sin6_addr.s6_addr, 16);
    return;
  }
  const auto& from = reinterpret_cast<const sockaddr_in&>(*arrival.source);
  const auto& to = reinterpret_cast<const sockaddr_in&>(*arrival.destination);
  uint8_t* const ip = grh + kGrhBytes - kIpv4Bytes;
  ip[0] = 0x45;
  ip[1] = arrival.traffic_class;
  put16(ip + 2, static_cast<uint16_t>(kIpv4Bytes + udp_bytes));
  put16(ip + 4, arrival.ip_id < 0 ? uint16_t{0} : static_cast<uint16_t>(arrival.ip_id));
  put16(ip + 6, 0x4000);  // do not fragment
  ip[8] = kHopLimit;
  ip[9] = kUdpProtocol;
  std::memcpy(ip + 12, &from.sin_addr, 4);
  std::memcpy(ip + 16, &to.sin_addr, 4);
  put16(ip + 10, ipv4_checksum(ip));
}

}  // namespace nvmeof::rdma::soft
