// The invariant CRC of RoCEv2 (IBTA A17.3.4, PROTOCOL.md 2): CRC-32 over the IP and UDP headers
// with their variant fields masked, the BTH with byte 4 masked, and the rest of the packet.
//
// Everything before the BTH is folded into one 32-bit seed. CRC is linear, so the seed of a packet
// is the seed of its endpoints (icrc_base, computed once per flow) XOR a contribution of its length
// and one of its IPv4 identification, each from a small constant table: no per-flow tables, no
// allocation. Pure; IcrcReceiver belongs to one thread.
#pragma once
#include <array>
#include <cstdint>

#include "rdma/soft/link.h"

namespace nvmeof::rdma::soft {

// CRC state over the masked IP and UDP headers from `source` to `destination`, with length and
// identification fields zero, DF set, and BTH byte 4 made up for. Both of one family, not
// v4-mapped.
uint32_t icrc_base(const sockaddr_storage& source, const sockaddr_storage& destination);

// The seed of one packet: continue with the CRC over BTH .. pad as they stand on the wire (byte 4
// zero). `udp_payload_bytes` counts the ICRC's own four bytes too.
uint32_t icrc_seed_v4(uint32_t base, uint32_t udp_payload_bytes, uint16_t ip_id);
uint32_t icrc_seed_v6(uint32_t base, uint32_t udp_payload_bytes);
inline uint32_t icrc_seed(const Flow& flow, uint32_t udp_payload_bytes, uint16_t ip_id) {
  return flow.local.ss_family == AF_INET6 ? icrc_seed_v6(flow.icrc_base, udp_payload_bytes)
                                          : icrc_seed_v4(flow.icrc_base, udp_payload_bytes, ip_id);
}

// CRC of `length` bytes from `seed`.
uint32_t icrc_update(uint32_t seed, const uint8_t* bytes, uint64_t length);

// Computes the ICRC of bytes[0 .. total-4) (byte 4 zero) and stores it in the last four.
void icrc_append(const Flow& flow, uint8_t* bytes, uint32_t total_bytes, uint16_t ip_id);

struct IcrcVerdict {
  bool good = false;
  // Was the IPv4 identification not known, but derived from the ICRC (then the check is 16 bits
  // strong)?
  bool recovered = false;
  uint16_t ip_id = 0;
  bool dont_fragment = true;
};

// Checks arriving packets. Remembers the bases of the last endpoints it saw.
class IcrcReceiver {
 public:
  // `expected_id`: used when arrival.ip_id is -1: the position of the segment in its received
  // train, because our own senders number them so; costs nothing when it is right. Any length is
  // safe: packets shorter than BTH + ICRC are bad.
  //
  // Where the header was seen, only its identification and flags will do. Behind the first packet
  // of a message that the kernel merged, identifications may count up from the first's or be equal
  // to it (and, from a kernel that does not look at them, have begun at 0 in between).
  IcrcVerdict check(const Arrival& arrival, uint16_t expected_id = 0);

 private:
  struct Entry {
    uint64_t ports = 0, from_high = 0, from_low = 0, to_high = 0, to_low = 0;
    uint32_t base = 0;
    bool used = false;
  };
  uint32_t base_of(const sockaddr_storage& source, const sockaddr_storage& destination);
  std::array<Entry, 64> cache_{};
};

}  // namespace nvmeof::rdma::soft
