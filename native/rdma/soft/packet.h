// RoCEv2 packet headers (IBTA 9.2 to 9.7, PROTOCOL.md 1): parsing untrusted bytes into a Packet,
// and writers that put headers into a buffer the caller owns. Also the small vocabularies of those
// headers: AETH syndromes, PSN arithmetic, RNR timer codes, path MTU codes. Pure, any thread, no
// allocation. The ICRC is icrc.h's business; what a queue pair makes of a packet is the
// transport's.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "rdma/soft/opcode.h"

namespace nvmeof::rdma::soft {

inline constexpr uint16_t kUdpPort = 4791;
inline constexpr uint16_t kDefaultPKey = 0xffff;
inline constexpr uint32_t kQpnGsi = 1;                  // QP1: connection management
inline constexpr uint32_t kQKeyGsi = 0x80010000;        // its Q_Key
inline constexpr uint32_t kMask24 = 0xffffff;           // QPN, PSN, MSN
inline constexpr uint32_t kMessageBytesMax = 1u << 31;  // RETH length limit

// ---- Bytes of the wire, big-endian
inline uint16_t get16(const uint8_t* p) {
  return static_cast<uint16_t>(p[0] << 8 | p[1]);
}
inline uint32_t get24(const uint8_t* p) {
  return static_cast<uint32_t>(p[0]) << 16 | static_cast<uint32_t>(p[1]) << 8 | p[2];
}
inline uint32_t get32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return std::endian::native == std::endian::little ? __builtin_bswap32(v) : v;
}
inline uint64_t get64(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof v);
  return std::endian::native == std::endian::little ? __builtin_bswap64(v) : v;
}
inline void put16(uint8_t* p, uint16_t v) {
  p[0] = static_cast<uint8_t>(v >> 8);
  p[1] = static_cast<uint8_t>(v);
}
inline void put24(uint8_t* p, uint32_t v) {
  p[0] = static_cast<uint8_t>(v >> 16);
  p[1] = static_cast<uint8_t>(v >> 8);
  p[2] = static_cast<uint8_t>(v);
}
inline void put32(uint8_t* p, uint32_t v) {
  if (std::endian::native == std::endian::little) v = __builtin_bswap32(v);
  std::memcpy(p, &v, sizeof v);
}
inline void put64(uint8_t* p, uint64_t v) {
  if (std::endian::native == std::endian::little) v = __builtin_bswap64(v);
  std::memcpy(p, &v, sizeof v);
}

// ---- PSN arithmetic, modulo 2^24
inline constexpr uint32_t psn_add(uint32_t psn, uint32_t count) {
  return (psn + count) & kMask24;
}
inline constexpr uint32_t psn_sub(uint32_t psn, uint32_t count) {
  return (psn - count) & kMask24;
}
// Signed distance a - b in -2^23 .. 2^23-1: negative when a comes before b.
inline constexpr int32_t psn_diff(uint32_t a, uint32_t b) {
  return static_cast<int32_t>((a - b) << 8) >> 8;
}
inline constexpr bool psn_before(uint32_t a, uint32_t b) {
  return psn_diff(a, b) < 0;
}
// How many packets a message of `length` bytes takes: at least one.
inline constexpr uint32_t packets_of(uint64_t length, uint32_t path_mtu) {
  return length == 0 ? 1 : static_cast<uint32_t>((length + path_mtu - 1) / path_mtu);
}

// ---- AETH syndrome (IBTA 9.7.5.2, PROTOCOL.md 1.4)
enum class AethType : uint8_t { Ack = 0, RnrNak = 1, Reserved = 2, Nak = 3 };
enum class NakCode : uint8_t {
  PsnSequenceError = 0,
  InvalidRequest = 1,
  RemoteAccessError = 2,
  RemoteOperationalError = 3,
  InvalidRdRequest = 4,
};
inline constexpr uint8_t kSyndromeAck = 0x1f;  // ACK, end-to-end credits not used
inline constexpr uint8_t syndrome_rnr(uint8_t timer_code) {
  return static_cast<uint8_t>(0x20 | (timer_code & 0x1f));
}
inline constexpr uint8_t syndrome_nak(NakCode code) {
  return static_cast<uint8_t>(0x60 | static_cast<uint8_t>(code));
}
inline constexpr AethType aeth_type(uint8_t syndrome) {
  return static_cast<AethType>((syndrome >> 5) & 3);  // the top bit is reserved
}
inline constexpr uint8_t aeth_code(uint8_t syndrome) {
  return syndrome & 0x1f;
}

// RNR NAK timer codes (IBTA table 45): the delay before the request may be repeated.
uint64_t rnr_timer_ns(uint8_t code);
// The smallest code whose delay is at least `ns` (the largest when none is).
uint8_t rnr_timer_code(uint64_t ns);

// ---- Path MTU: codes 1..5 are 256..4096 bytes
inline constexpr uint32_t mtu_bytes(uint8_t code) {
  return code >= 1 && code <= 5 ? 128u << code : 0;  // 0: no such code
}
inline constexpr uint8_t mtu_code(uint32_t bytes) {  // the largest MTU that is not above `bytes`
  uint8_t code = 0;
  while (code < 5 && mtu_bytes(static_cast<uint8_t>(code + 1)) <= bytes) code++;
  return code;  // 0: below 256
}
// The path MTU that fits an interface's MTU: IP, UDP, BTH, the longest extension headers and the
// ICRC take 96 bytes at most (as the kernel's CM computes it). 0: too small for 256.
inline constexpr uint32_t path_mtu_of_interface(uint32_t interface_mtu) {
  return interface_mtu > 96 ? mtu_bytes(mtu_code(interface_mtu - 96)) : 0;
}

// ---- Parsing
enum class PacketFault : uint8_t {
  None,
  TooShort,  // less than BTH + ICRC, or than the opcode's headers + pad + ICRC
  UnknownOpcode,
  TransportVersion,   // TVer is not 0
  QpnZero,            // destination QPN 0 (subnet management) has no place in RoCE
  PKey,               // not the default partition
  PadTooLong,         // more pad than payload
  Misaligned,         // payload and pad are not a multiple of four bytes
  UnexpectedPayload,  // payload behind an opcode that has none
};
inline constexpr unsigned kPacketFaults = 9;
const char* to_string(PacketFault fault);

struct Packet {
  const OpcodeRow* row = nullptr;  // set when parse() succeeded
  // BTH
  uint32_t dest_qpn = 0;
  uint32_t psn = 0;
  uint16_t pkey = kDefaultPKey;
  bool solicited = false;
  bool migration_request = false;  // meaningless for RoCE, kept because the ICRC covers it
  bool ack_request = false;
  bool fecn = false, becn = false;
  uint8_t pad = 0;
  // Extension headers; what the row does not have stays 0.
  struct {
    uint64_t address = 0;
    uint32_t rkey = 0;
    uint32_t length = 0;
  } reth;
  struct {
    uint8_t syndrome = 0;
    uint32_t msn = 0;
  } aeth;
  uint32_t immediate = 0;        // the four bytes read as big-endian
  uint32_t invalidate_rkey = 0;  // IETH
  struct {
    uint32_t qkey = 0;
    uint32_t source_qpn = 0;
  } deth;
  struct {
    uint64_t address = 0, swap_or_add = 0, compare = 0;
    uint32_t rkey = 0;
  } atomic;
  uint64_t atomic_original = 0;
  // Without pad; points into the parsed bytes.
  const uint8_t* payload = nullptr;
  uint32_t payload_length = 0;
};

// `bytes`: UDP payload, BTH .. ICRC. The ICRC is not looked at. Reserved bits are ignored.
PacketFault parse(std::span<const uint8_t> bytes, Packet& packet);

// The destination QPN alone, for steering; the caller checked length >= 12.
inline uint32_t peek_dest_qpn(const uint8_t* bytes) {
  return get24(bytes + 5);
}

// ---- Writing
inline constexpr uint32_t pad_bytes(uint32_t payload_length) {
  return (0u - payload_length) & 3;
}
// BTH .. ICRC.
inline constexpr uint32_t packet_bytes(const OpcodeRow& row, uint32_t payload_length) {
  return row.header_bytes + payload_length + pad_bytes(payload_length) + kIcrcBytes;
}

struct BthFields {
  uint32_t dest_qpn = 0;
  uint32_t psn = 0;
  uint8_t pad = 0;
  bool solicited = false;
  bool ack_request = false;
};
// Byte 4 is written as 0 (FECN, BECN).
inline void write_bth(uint8_t* p, const OpcodeRow& row, const BthFields& bth) {
  p[0] = static_cast<uint8_t>(row.opcode);
  p[1] = static_cast<uint8_t>((bth.solicited ? 0x80 : 0) | bth.pad << 4);
  p[2] = p[3] = 0xff;
  put32(p + 4, bth.dest_qpn & kMask24);
  put32(p + 8, (bth.ack_request ? 1u << 31 : 0) | (bth.psn & kMask24));
}
// The extension headers go to `packet + row.<header>`; each of these takes that pointer.
inline void write_reth(uint8_t* p, uint64_t address, uint32_t rkey, uint32_t length) {
  put64(p, address);
  put32(p + 8, rkey);
  put32(p + 12, length);
}
inline void write_aeth(uint8_t* p, uint8_t syndrome, uint32_t msn) {
  put32(p, static_cast<uint32_t>(syndrome) << 24 | (msn & kMask24));
}
inline void write_immdt(uint8_t* p, uint32_t immediate) {
  put32(p, immediate);
}
inline void write_ieth(uint8_t* p, uint32_t rkey) {
  put32(p, rkey);
}
inline void write_deth(uint8_t* p, uint32_t qkey, uint32_t source_qpn) {
  put32(p, qkey);
  put32(p + 4, source_qpn & kMask24);
}
inline void write_atomic_eth(uint8_t* p, uint64_t address, uint32_t rkey, uint64_t swap_or_add,
                             uint64_t compare) {
  put64(p, address);
  put32(p + 8, rkey);
  put64(p + 12, swap_or_add);
  put64(p + 20, compare);
}
inline void write_pad(uint8_t* p, uint32_t pad) {
  for (uint32_t i = 0; i < pad; i++) p[i] = 0;
}

// All of a packet from its fields but the ICRC: headers, payload, pad. `out` holds at least
// packet_bytes(row, payload_length). Returns the bytes written. For control packets and tests; the
// data path uses the writers above.
uint32_t encode(const Packet& packet, std::span<uint8_t> out);

// A congestion notification packet to `dest_qpn` (PROTOCOL.md 1.5), without its ICRC; 28 bytes.
void write_cnp(uint8_t* p, uint32_t dest_qpn);

}  // namespace nvmeof::rdma::soft
