// The ICRC; see icrc.h. All arithmetic is on the reflected CRC-32 register, in which feeding a byte
// b is: register ^= b, then eight steps. The register's bits are the coefficients of a polynomial
// modulo P, highest power in bit 0, and a step multiplies by x.
#include "rdma/soft/icrc.h"

#include <isa-l.h>

#include <bit>
#include <cstring>

#include "rdma/soft/flow.h"
#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320;
constexpr unsigned kLrhBytes = 8, kV4Bytes = 20, kV6Bytes = 40, kUdpBytes = 8;
constexpr unsigned kV4Prefix = kLrhBytes + kV4Bytes + kUdpBytes;
constexpr unsigned kV6Prefix = kLrhBytes + kV6Bytes + kUdpBytes;
constexpr unsigned kV4TotalLengthAt = kLrhBytes + 2, kV4IdAt = kLrhBytes + 4;
constexpr unsigned kV4FlagsAt = kLrhBytes + 6, kV4UdpLengthAt = kLrhBytes + kV4Bytes + 4;
constexpr unsigned kV6LengthAt = kLrhBytes + 4, kV6UdpLengthAt = kLrhBytes + kV6Bytes + 4;
constexpr unsigned kBthMaskedAt = 4;

constexpr uint32_t step_bit(uint32_t s) {
  return s & 1 ? s >> 1 ^ kPolynomial : s >> 1;
}
constexpr uint32_t unstep_bit(
    uint32_t s) {  // P's highest power is bit 31, so the step can be undone
  return s >> 31 ? (s ^ kPolynomial) << 1 | 1 : s << 1;
}
constexpr uint32_t step_zero_bytes(uint32_t s, unsigned count) {
  for (unsigned i = 0; i < 8 * count; i++) s = step_bit(s);
  return s;
}

// What two bytes at offset `at` of a prefix of `prefix` bytes contribute to the register at its
// end: linear in the bytes, so [0][first byte] ^ [1][second byte].
struct FieldTable {
  uint32_t of[2][256];
  constexpr uint32_t operator()(uint32_t value) const {
    return of[0][value >> 8 & 0xff] ^ of[1][value & 0xff];
  }
};
constexpr FieldTable make_field(unsigned at, unsigned prefix) {
  FieldTable table{};
  for (unsigned which = 0; which < 2; which++) {
    uint32_t bits[8] = {};
    for (unsigned bit = 0; bit < 8; bit++)
      bits[bit] = step_zero_bytes(1u << bit, prefix - at - which);
    for (unsigned value = 0; value < 256; value++)
      for (unsigned bit = 0; bit < 8; bit++)
        if (value >> bit & 1) table.of[which][value] ^= bits[bit];
  }
  return table;
}
constexpr FieldTable combine(const FieldTable& a, const FieldTable& b) {
  FieldTable table{};
  for (unsigned which = 0; which < 2; which++)
    for (unsigned value = 0; value < 256; value++)
      table.of[which][value] = a.of[which][value] ^ b.of[which][value];
  return table;
}
constexpr FieldTable kV4TotalLength = make_field(kV4TotalLengthAt, kV4Prefix);
constexpr FieldTable kV4UdpLength = make_field(kV4UdpLengthAt, kV4Prefix);
constexpr FieldTable kV4Id = make_field(kV4IdAt, kV4Prefix);
constexpr uint16_t kDontFragment = 0x4000;
constexpr FieldTable kV4Flags = make_field(kV4FlagsAt, kV4Prefix);
constexpr uint32_t kV4DontFragment = kV4Flags(kDontFragment);
// IPv6 carries one and the same length twice.
constexpr FieldTable kV6Length =
    combine(make_field(kV6LengthAt, kV6Prefix), make_field(kV6UdpLengthAt, kV6Prefix));

// The change of the register before BTH byte 0 that acts like a change of byte 4: the masked byte
// is never written, because a one-byte store before the wide loads of the CRC would stall them.
constexpr std::array<uint32_t, 256> make_masked_byte() {
  std::array<uint32_t, 256> table{};
  for (uint32_t value = 0; value < 256; value++) {
    uint32_t s = value;
    for (unsigned i = 0; i < 8 * kBthMaskedAt; i++) s = unstep_bit(s);
    table[value] = s;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kMaskedByte = make_masked_byte();

// x^(-8k): multiplying with it undoes k zero bytes.
constexpr unsigned kInversePowers = 4224;
constexpr std::array<uint32_t, kInversePowers> make_inverse_powers() {
  std::array<uint32_t, kInversePowers> table{};
  uint32_t s = 1u << 31;  // the polynomial 1
  for (unsigned k = 0; k < kInversePowers; k++) {
    table[k] = s;
    for (unsigned bit = 0; bit < 8; bit++) s = unstep_bit(s);
  }
  return table;
}
constexpr std::array<uint32_t, kInversePowers> kInversePower = make_inverse_powers();

uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    product ^= b & (0u - (a >> 31));
    b = b >> 1 ^ (kPolynomial & (0u - (b & 1)));
  }
  return product;
}
uint32_t undo_zero_bytes(uint32_t s, uint32_t count) {
  for (; count >= kInversePowers; count -= kInversePowers - 1)
    s = multiply(kInversePower[kInversePowers - 1], s);
  return multiply(kInversePower[count], s);
}

// isa-l takes and gives the register inverted; the differences and contributions above are the same
// in both forms.
uint32_t crc(uint32_t state, const uint8_t* bytes, uint64_t length) {
  return crc32_gzip_refl(state, bytes, length);
}

// Of the packet at `position` of a message whose first header was seen.
uint16_t first_guess(const SeenHeader& seen, uint16_t position) {
  return static_cast<uint16_t>(seen.identification +
                               (seen.of == SeenHeader::Of::FirstOfMessage ? position : 0));
}
bool explains(const SeenHeader& seen, uint16_t position, uint16_t id, uint16_t flags) {
  const auto one = [&](uint16_t its_id, uint16_t its_flags) {
    if (flags != its_flags) return false;
    if (id == its_id) return true;
    return seen.of == SeenHeader::Of::FirstOfMessage &&
           (id == static_cast<uint16_t>(its_id + position) || (seen.restarts && id < position));
  };
  return one(seen.identification, seen.flags) || one(seen.other_identification, seen.other_flags);
}

uint32_t get32le(const uint8_t* p) {
  return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 |
         static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24;
}

}  // namespace

uint32_t icrc_base(const sockaddr_storage& source, const sockaddr_storage& destination) {
  uint8_t prefix[kV6Prefix];
  std::memset(prefix, 0xff, sizeof prefix);  // the LRH's place and every masked field
  unsigned ip;
  if (source.ss_family == AF_INET6) {
    const auto& from = reinterpret_cast<const sockaddr_in6&>(source);
    const auto& to = reinterpret_cast<const sockaddr_in6&>(destination);
    prefix[kLrhBytes] = 0x6f;
    put16(prefix + kV6LengthAt, 0);
    prefix[kLrhBytes + 6] = IPPROTO_UDP;
    std::memcpy(prefix + kLrhBytes + 8, &from.sin6_addr, 16);
    std::memcpy(prefix + kLrhBytes + 24, &to.sin6_addr, 16);
    ip = kV6Bytes;
  } else {
    const auto& from = reinterpret_cast<const sockaddr_in&>(source);
    const auto& to = reinterpret_cast<const sockaddr_in&>(destination);
    prefix[kLrhBytes] = 0x45;
    put16(prefix + kV4TotalLengthAt, 0);
    put16(prefix + kV4IdAt, 0);
    put16(prefix + kV4FlagsAt, 0x4000);
    prefix[kLrhBytes + 9] = IPPROTO_UDP;
    std::memcpy(prefix + kLrhBytes + 12, &from.sin_addr, 4);
    std::memcpy(prefix + kLrhBytes + 16, &to.sin_addr, 4);
    ip = kV4Bytes;
  }
  uint8_t* udp = prefix + kLrhBytes + ip;
  put16(udp, port_of(source));
  put16(udp + 2, port_of(destination));
  put16(udp + 4, 0);
  return crc(0, prefix, kLrhBytes + ip + kUdpBytes) ^ kMaskedByte[0xff];
}

uint32_t icrc_seed_v4(uint32_t base, uint32_t udp_payload_bytes, uint16_t ip_id) {
  return base ^ kV4TotalLength(udp_payload_bytes + kUdpBytes + kV4Bytes) ^
         kV4UdpLength(udp_payload_bytes + kUdpBytes) ^ kV4Id(ip_id);
}

uint32_t icrc_seed_v6(uint32_t base, uint32_t udp_payload_bytes) {
  return base ^ kV6Length(udp_payload_bytes + kUdpBytes);
}

uint32_t icrc_update(uint32_t seed, const uint8_t* bytes, uint64_t length) {
  return crc(seed, bytes, length);
}

void icrc_append(const Flow& flow, uint8_t* bytes, uint32_t total_bytes, uint16_t ip_id) {
  uint32_t value = crc(icrc_seed(flow, total_bytes, ip_id) ^ kMaskedByte[bytes[kBthMaskedAt]],
                       bytes, total_bytes - kIcrcBytes);
  if (std::endian::native == std::endian::big) value = __builtin_bswap32(value);
  std::memcpy(bytes + total_bytes - kIcrcBytes, &value, sizeof value);
}

// The words of the key stay in registers: an array that is filled word by word and then compared by
// vectors waits for its own stores.
uint32_t IcrcReceiver::base_of(const sockaddr_storage& source,
                               const sockaddr_storage& destination) {
  const auto word = [](const void* from, size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, from, bytes);
    return value;
  };
  const uint64_t ports = static_cast<uint64_t>(source.ss_family) << 32 |
                         static_cast<uint64_t>(port_of(source)) << 16 | port_of(destination);
  uint64_t from_high = 0, from_low, to_high = 0, to_low;
  if (source.ss_family == AF_INET6) {
    const auto& from = reinterpret_cast<const sockaddr_in6&>(source).sin6_addr;
    const auto& to = reinterpret_cast<const sockaddr_in6&>(destination).sin6_addr;
    from_high = word(from.s6_addr, 8);
    from_low = word(from.s6_addr + 8, 8);
    to_high = word(to.s6_addr, 8);
    to_low = word(to.s6_addr + 8, 8);
  } else {
    from_low = reinterpret_cast<const sockaddr_in&>(source).sin_addr.s_addr;
    to_low = reinterpret_cast<const sockaddr_in&>(destination).sin_addr.s_addr;
  }
  const uint64_t mixed =
      (ports ^ from_low * 3 ^ to_low * 5 ^ from_high * 7 ^ to_high * 11) * 0x9e3779b97f4a7c15u;
  Entry& entry = cache_[mixed >> 58];
  const bool same = entry.used && entry.ports == ports && entry.from_low == from_low &&
                    entry.to_low == to_low && entry.from_high == from_high &&
                    entry.to_high == to_high;
  if (!same)
    entry = {ports, from_high, from_low, to_high, to_low, icrc_base(source, destination), true};
  return entry.base;
}

IcrcVerdict IcrcReceiver::check(const Arrival& arrival, uint16_t expected_id) {
  const sockaddr_storage *source = arrival.source, *destination = arrival.destination;
  sockaddr_storage plain_source, plain_destination;
  if (source->ss_family == AF_INET6 &&
      IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6*>(source)->sin6_addr)) {
    plain_source = unmapped(*source);
    plain_destination = unmapped(*destination);
    source = &plain_source;
    destination = &plain_destination;
  }
  if (arrival.length < kBthBytes + kIcrcBytes) return {};
  if (source->ss_family != destination->ss_family) return {};
  const bool v4 = source->ss_family == AF_INET;
  const SeenHeader& seen = arrival.seen;
  const bool header = v4 && seen.of != SeenHeader::Of::Nothing;
  const uint16_t ip_id = header               ? first_guess(seen, expected_id)
                         : arrival.ip_id >= 0 ? static_cast<uint16_t>(arrival.ip_id)
                                              : expected_id;
  const bool dont_fragment = !header || (seen.flags & kDontFragment) != 0;
  const uint32_t base = base_of(*source, *destination);
  const uint32_t seed =
      (v4 ? icrc_seed_v4(base, arrival.length, ip_id) : icrc_seed_v6(base, arrival.length)) ^
      (header ? kV4Flags(seen.flags ^ kDontFragment) : 0) ^
      kMaskedByte[arrival.bytes[kBthMaskedAt]];
  const uint32_t covered = arrival.length - kIcrcBytes;
  const uint32_t wire = get32le(arrival.bytes + covered);
  const uint32_t difference = crc(seed, arrival.bytes, covered) ^ wire;
  // Each verdict is made where it is returned: one that is filled in field by field and then loaded
  // as a whole waits for its own stores, behind those of the payload.
  const IcrcVerdict bad{false, false, ip_id, dont_fragment};
  if (difference == 0) return {true, false, ip_id, dont_fragment};
  if (!v4) return bad;
  if (!header && arrival.ip_id >= 0) {  // all is known but the flags
    const bool good = crc(seed ^ kV4DontFragment, arrival.bytes, covered) == wire;
    return {good, false, ip_id, !good};
  }
  // Which identification (and flags) would explain the difference? Undone to where the
  // identification is fed, it must be those bytes and nothing above them (PROTOCOL.md 2.3).
  const uint32_t fields = undo_zero_bytes(difference, kV4Prefix - kV4IdAt + covered);
  const uint32_t flags = fields >> 16;  // in wire order: 0x0040 is DF
  const auto id = static_cast<uint16_t>(ip_id ^ ((fields & 0xff) << 8 | (fields >> 8 & 0xff)));
  if (header) {
    const auto its_flags =
        static_cast<uint16_t>(seen.flags ^ ((flags & 0xff) << 8 | (flags >> 8 & 0xff)));
    if (!explains(seen, expected_id, id, its_flags)) return bad;
    return {true, false, id, (its_flags & kDontFragment) != 0};
  }
  if (flags != 0 && flags != 0x0040) return bad;
  return {true, true, id, flags == 0};
}

}  // namespace nvmeof::rdma::soft
