// Parsing and encoding of RoCEv2 headers; see packet.h.
#include "rdma/soft/packet.h"

#include <array>
#include <type_traits>

namespace nvmeof::rdma::soft {
namespace {

constexpr std::array<uint32_t, 32> kRnrTimerUs = {
    655360, 10,    20,    30,    40,    60,     80,     120,    160,    240,   320,
    480,    640,   960,   1280,  1920,  2560,   3840,   5120,   7680,   10240, 15360,
    20480,  30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520};

constexpr const char* kFaultNames[kPacketFaults] = {
    "none",
    "too short",
    "unknown opcode",
    "transport version",
    "queue pair number 0",
    "partition key",
    "pad longer than payload",
    "payload and pad not a multiple of 4",
    "payload behind an opcode without one",
};

void parse_extensions(const uint8_t* p, const OpcodeRow& row, Packet& packet) {
  if (row.reth != 0)
    packet.reth = {get64(p + row.reth), get32(p + row.reth + 8), get32(p + row.reth + 12)};
  if (row.aeth != 0) packet.aeth = {p[row.aeth], get24(p + row.aeth + 1)};
  if (row.immdt != 0) packet.immediate = get32(p + row.immdt);
  if (row.ieth != 0) packet.invalidate_rkey = get32(p + row.ieth);
  if (row.deth != 0) packet.deth = {get32(p + row.deth), get24(p + row.deth + 5)};
  if (row.atomic_eth != 0) {
    const uint8_t* a = p + row.atomic_eth;
    packet.atomic = {get64(a), get64(a + 12), get64(a + 20), get32(a + 8)};
  }
  if (row.atomic_ack_eth != 0) packet.atomic_original = get64(p + row.atomic_ack_eth);
}

void write_extensions(uint8_t* p, const OpcodeRow& row, const Packet& packet) {
  if (row.reth != 0)
    write_reth(p + row.reth, packet.reth.address, packet.reth.rkey, packet.reth.length);
  if (row.aeth != 0) write_aeth(p + row.aeth, packet.aeth.syndrome, packet.aeth.msn);
  if (row.immdt != 0) write_immdt(p + row.immdt, packet.immediate);
  if (row.ieth != 0) write_ieth(p + row.ieth, packet.invalidate_rkey);
  if (row.deth != 0) write_deth(p + row.deth, packet.deth.qkey, packet.deth.source_qpn);
  if (row.atomic_eth != 0)
    write_atomic_eth(p + row.atomic_eth, packet.atomic.address, packet.atomic.rkey,
                     packet.atomic.swap_or_add, packet.atomic.compare);
  if (row.atomic_ack_eth != 0) put64(p + row.atomic_ack_eth, packet.atomic_original);
  if (row.has(kReserved16)) std::memset(p + kBthBytes, 0, kCnpReservedBytes);
}

}  // namespace

uint64_t rnr_timer_ns(uint8_t code) {
  return uint64_t{kRnrTimerUs[code & 0x1f]} * 1000;
}

uint8_t rnr_timer_code(uint64_t ns) {
  for (uint8_t code = 1; code < 32; code++)
    if (rnr_timer_ns(code) >= ns) return code;
  return 0;  // 655.36 ms, the longest
}

const char* to_string(PacketFault fault) {
  return kFaultNames[static_cast<uint8_t>(fault)];
}

PacketFault parse(std::span<const uint8_t> bytes, Packet& packet) {
  const uint8_t* p = bytes.data();
  if (bytes.size() < kBthBytes + kIcrcBytes) return PacketFault::TooShort;
  const OpcodeRow& row = kOpcodeTable[p[0]];
  if (row.name == nullptr) return PacketFault::UnknownOpcode;
  if (bytes.size() < static_cast<size_t>(row.header_bytes) + kIcrcBytes)
    return PacketFault::TooShort;
  if ((p[1] & 0x0f) != 0) return PacketFault::TransportVersion;
  // In place: a whole object that is built elsewhere and then copied waits for its own stores.
  static_assert(std::is_trivially_copyable_v<Packet>);
  std::memset(static_cast<void*>(&packet), 0, sizeof packet);
  packet.dest_qpn = get24(p + 5);
  if (packet.dest_qpn == 0) return PacketFault::QpnZero;
  packet.pkey = get16(p + 2);
  // The low 15 bits are the partition; we are a full member, so the peer's membership does not
  // matter.
  if ((packet.pkey & 0x7fff) != (kDefaultPKey & 0x7fff)) return PacketFault::PKey;
  packet.pad = (p[1] >> 4) & 3;
  const uint32_t body = static_cast<uint32_t>(bytes.size()) - row.header_bytes - kIcrcBytes;
  if (packet.pad > body) return PacketFault::PadTooLong;
  if (body > 0 && !row.has(kPayload)) return PacketFault::UnexpectedPayload;
  if ((body & 3) != 0) return PacketFault::Misaligned;
  packet.solicited = (p[1] & 0x80) != 0;
  packet.migration_request = (p[1] & 0x40) != 0;
  packet.fecn = (p[4] & 0x80) != 0;
  packet.becn = (p[4] & 0x40) != 0;
  packet.ack_request = (p[8] & 0x80) != 0;
  packet.psn = get24(p + 9);
  parse_extensions(p, row, packet);
  packet.payload = p + row.header_bytes;
  packet.payload_length = body - packet.pad;
  packet.row = &row;
  return PacketFault::None;
}

uint32_t encode(const Packet& packet, std::span<uint8_t> out) {
  const OpcodeRow& row = *packet.row;
  uint8_t* p = out.data();
  const uint32_t pad = pad_bytes(packet.payload_length);
  write_bth(p, row,
            {packet.dest_qpn, packet.psn, static_cast<uint8_t>(pad), packet.solicited,
             packet.ack_request});
  if (packet.migration_request) p[1] |= 0x40;
  put16(p + 2, packet.pkey);
  p[4] = static_cast<uint8_t>((packet.fecn ? 0x80 : 0) | (packet.becn ? 0x40 : 0));
  write_extensions(p, row, packet);
  uint8_t* at = p + row.header_bytes;
  if (packet.payload_length > 0) std::memcpy(at, packet.payload, packet.payload_length);
  write_pad(at + packet.payload_length, pad);
  return row.header_bytes + packet.payload_length + pad;
}

void write_cnp(uint8_t* p, uint32_t dest_qpn) {
  write_bth(p, row_of(PacketOpcode::CongestionNotification), {.dest_qpn = dest_qpn});
  p[4] = 0x40;  // BECN
  std::memset(p + kBthBytes, 0, kCnpReservedBytes);
}

}  // namespace nvmeof::rdma::soft
