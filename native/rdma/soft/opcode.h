// The opcode table (IBTA 9.2.1, C9-5; PROTOCOL.md 1.2): one row per BTH opcode that we understand.
// Code that handles packets asks the row for its properties and never compares opcodes. The top
// three bits of an opcode name the transport service, so a queue pair takes the rows of one service
// alone. Pure data, any thread.
#pragma once
#include <array>
#include <cstdint>

namespace nvmeof::rdma::soft {

enum class PacketOpcode : uint8_t {
  SendFirst = 0x00,
  SendMiddle = 0x01,
  SendLast = 0x02,
  SendLastImm = 0x03,
  SendOnly = 0x04,
  SendOnlyImm = 0x05,
  WriteFirst = 0x06,
  WriteMiddle = 0x07,
  WriteLast = 0x08,
  WriteLastImm = 0x09,
  WriteOnly = 0x0a,
  WriteOnlyImm = 0x0b,
  ReadRequest = 0x0c,
  ReadResponseFirst = 0x0d,
  ReadResponseMiddle = 0x0e,
  ReadResponseLast = 0x0f,
  ReadResponseOnly = 0x10,
  Acknowledge = 0x11,
  AtomicAcknowledge = 0x12,
  CompareSwap = 0x13,
  FetchAdd = 0x14,
  SendLastInvalidate = 0x16,
  SendOnlyInvalidate = 0x17,
  UcSendFirst = 0x20,
  UcSendMiddle = 0x21,
  UcSendLast = 0x22,
  UcSendLastImm = 0x23,
  UcSendOnly = 0x24,
  UcSendOnlyImm = 0x25,
  UcWriteFirst = 0x26,
  UcWriteMiddle = 0x27,
  UcWriteLast = 0x28,
  UcWriteLastImm = 0x29,
  UcWriteOnly = 0x2a,
  UcWriteOnlyImm = 0x2b,
  UdSendOnly = 0x64,
  UdSendOnlyImm = 0x65,
  CongestionNotification = 0x81,
};

// Properties of a row (bit set).
enum OpcodeFlags : uint32_t {
  kSend = 1u << 0,  // SEND of any kind and service
  kWrite = 1u << 1,
  kReadRequest = 1u << 2,
  kReadResponse = 1u << 3,
  kAcknowledge = 1u << 4,
  kAtomicRequest = 1u << 5,
  kAtomicAcknowledge = 1u << 6,
  kCongestion = 1u << 7,
  kRequest = 1u << 8,    // goes to a responder
  kResponse = 1u << 9,   // goes to a requester
  kReliable = 1u << 10,  // RC
  kDatagram = 1u << 11,  // UD
  kFirst = 1u << 12,     // exactly path MTU of payload
  kMiddle = 1u << 13,    // exactly path MTU of payload
  kLast = 1u << 14,      // 1 .. path MTU
  kOnly = 1u << 15,      // 0 .. path MTU
  kPayload = 1u << 16,   // may carry payload
  kReth = 1u << 17,
  kAeth = 1u << 18,
  kImmdt = 1u << 19,
  kIeth = 1u << 20,
  kDeth = 1u << 21,
  kAtomicEth = 1u << 22,
  kAtomicAckEth = 1u << 23,
  kReserved16 = 1u << 24,  // the 16 zero bytes of a CNP
  kUnreliable = 1u << 25,  // UC
  kCompares = 1u << 26,    // an atomic that writes only where it finds what it expects

  kBegins = kFirst | kOnly,  // starts a message
  kEnds = kLast | kOnly,     // ends a message
  kServices = kReliable | kUnreliable | kDatagram,
};

inline constexpr uint8_t kBthBytes = 12, kRethBytes = 16, kAethBytes = 4, kImmdtBytes = 4,
                         kIethBytes = 4, kDethBytes = 8, kAtomicEthBytes = 28,
                         kAtomicAckEthBytes = 8, kCnpReservedBytes = 16, kIcrcBytes = 4;

struct OpcodeRow {
  const char* name = nullptr;  // nullptr: not an opcode that we know
  uint32_t flags = 0;
  PacketOpcode opcode{};
  uint8_t header_bytes = 0;  // BTH and all extension headers
  // Offsets from the start of the BTH; 0: the packet has none.
  uint8_t reth = 0, aeth = 0, immdt = 0, ieth = 0, deth = 0, atomic_eth = 0, atomic_ack_eth = 0;

  constexpr bool has(uint32_t any_of) const { return (flags & any_of) != 0; }
};

namespace detail {

// Extension headers in the order in which they follow the BTH (no opcode uses two orders).
constexpr OpcodeRow make_row(PacketOpcode opcode, const char* name, uint32_t flags) {
  OpcodeRow row;
  row.name = name;
  row.flags = flags;
  row.opcode = opcode;
  uint8_t at = kBthBytes;
  const auto take = [&](uint32_t flag, uint8_t bytes) -> uint8_t {
    if ((flags & flag) == 0) return 0;
    const uint8_t offset = at;
    at = static_cast<uint8_t>(at + bytes);
    return offset;
  };
  row.deth = take(kDeth, kDethBytes);
  row.reth = take(kReth, kRethBytes);
  row.aeth = take(kAeth, kAethBytes);
  row.immdt = take(kImmdt, kImmdtBytes);
  row.ieth = take(kIeth, kIethBytes);
  row.atomic_eth = take(kAtomicEth, kAtomicEthBytes);
  row.atomic_ack_eth = take(kAtomicAckEth, kAtomicAckEthBytes);
  take(kReserved16, kCnpReservedBytes);
  row.header_bytes = at;
  return row;
}

constexpr std::array<OpcodeRow, 256> make_opcode_table() {
  using enum PacketOpcode;
  constexpr uint32_t request = kReliable | kRequest, response = kReliable | kResponse;
  constexpr uint32_t send = request | kSend | kPayload, write = request | kWrite | kPayload;
  constexpr uint32_t uc = kUnreliable | kRequest | kPayload, uc_send = uc | kSend,
                     uc_write = uc | kWrite;
  constexpr uint32_t read = response | kReadResponse | kPayload;
  constexpr uint32_t datagram = kDatagram | kRequest | kSend | kOnly | kPayload | kDeth;
  const OpcodeRow rows[] = {
      make_row(SendFirst, "SEND first", send | kFirst),
      make_row(SendMiddle, "SEND middle", send | kMiddle),
      make_row(SendLast, "SEND last", send | kLast),
      make_row(SendLastImm, "SEND last with immediate", send | kLast | kImmdt),
      make_row(SendOnly, "SEND only", send | kOnly),
      make_row(SendOnlyImm, "SEND only with immediate", send | kOnly | kImmdt),
      make_row(WriteFirst, "RDMA WRITE first", write | kFirst | kReth),
      make_row(WriteMiddle, "RDMA WRITE middle", write | kMiddle),
      make_row(WriteLast, "RDMA WRITE last", write | kLast),
      make_row(WriteLastImm, "RDMA WRITE last with immediate", write | kLast | kImmdt),
      make_row(WriteOnly, "RDMA WRITE only", write | kOnly | kReth),
      make_row(WriteOnlyImm, "RDMA WRITE only with immediate", write | kOnly | kReth | kImmdt),
      make_row(ReadRequest, "RDMA READ request", request | kReadRequest | kOnly | kReth),
      make_row(ReadResponseFirst, "RDMA READ response first", read | kFirst | kAeth),
      make_row(ReadResponseMiddle, "RDMA READ response middle", read | kMiddle),
      make_row(ReadResponseLast, "RDMA READ response last", read | kLast | kAeth),
      make_row(ReadResponseOnly, "RDMA READ response only", read | kOnly | kAeth),
      make_row(Acknowledge, "acknowledge", response | kAcknowledge | kOnly | kAeth),
      make_row(AtomicAcknowledge, "atomic acknowledge",
               response | kAtomicAcknowledge | kOnly | kAeth | kAtomicAckEth),
      make_row(CompareSwap, "compare and swap",
               request | kAtomicRequest | kCompares | kOnly | kAtomicEth),
      make_row(FetchAdd, "fetch and add", request | kAtomicRequest | kOnly | kAtomicEth),
      make_row(SendLastInvalidate, "SEND last with invalidate", send | kLast | kIeth),
      make_row(SendOnlyInvalidate, "SEND only with invalidate", send | kOnly | kIeth),
      make_row(UcSendFirst, "UC SEND first", uc_send | kFirst),
      make_row(UcSendMiddle, "UC SEND middle", uc_send | kMiddle),
      make_row(UcSendLast, "UC SEND last", uc_send | kLast),
      make_row(UcSendLastImm, "UC SEND last with immediate", uc_send | kLast | kImmdt),
      make_row(UcSendOnly, "UC SEND only", uc_send | kOnly),
      make_row(UcSendOnlyImm, "UC SEND only with immediate", uc_send | kOnly | kImmdt),
      make_row(UcWriteFirst, "UC RDMA WRITE first", uc_write | kFirst | kReth),
      make_row(UcWriteMiddle, "UC RDMA WRITE middle", uc_write | kMiddle),
      make_row(UcWriteLast, "UC RDMA WRITE last", uc_write | kLast),
      make_row(UcWriteLastImm, "UC RDMA WRITE last with immediate", uc_write | kLast | kImmdt),
      make_row(UcWriteOnly, "UC RDMA WRITE only", uc_write | kOnly | kReth),
      make_row(UcWriteOnlyImm, "UC RDMA WRITE only with immediate",
               uc_write | kOnly | kReth | kImmdt),
      make_row(UdSendOnly, "UD SEND only", datagram),
      make_row(UdSendOnlyImm, "UD SEND only with immediate", datagram | kImmdt),
      make_row(CongestionNotification, "congestion notification", kCongestion | kReserved16),
  };
  std::array<OpcodeRow, 256> table{};
  for (const OpcodeRow& row : rows) table[static_cast<uint8_t>(row.opcode)] = row;
  return table;
}

}  // namespace detail

inline constexpr std::array<OpcodeRow, 256> kOpcodeTable = detail::make_opcode_table();

inline constexpr const OpcodeRow& row_of(PacketOpcode opcode) {
  return kOpcodeTable[static_cast<uint8_t>(opcode)];
}

static_assert(row_of(PacketOpcode::WriteOnlyImm).header_bytes == 32);
static_assert(row_of(PacketOpcode::WriteOnlyImm).immdt == 28);
static_assert(row_of(PacketOpcode::UcWriteOnlyImm).immdt == 28);
static_assert(row_of(PacketOpcode::UdSendOnlyImm).immdt == 20);
static_assert(row_of(PacketOpcode::AtomicAcknowledge).header_bytes == 24);
static_assert(row_of(PacketOpcode::CongestionNotification).header_bytes == 28);
static_assert(kOpcodeTable[0x15].name == nullptr);

}  // namespace nvmeof::rdma::soft
