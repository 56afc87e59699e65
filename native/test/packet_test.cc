// The packet parser and encoder against every captured packet, a naive second codec, truncation at
// every length and damaged headers; the small vocabularies of the headers.
#include "rdma/soft/packet.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "support/naive_codec.h"
#include "support/pcap_reader.h"
#include "test.h"

using namespace nvmeof::rdma::soft;
using namespace nvmeof::test;

namespace {

std::map<std::string, uint64_t> fields_of(const Packet& p) {
  std::map<std::string, uint64_t> f = {
      {"opcode", static_cast<uint8_t>(p.row->opcode)},
      {"solicited", p.solicited},
      {"migreq", p.migration_request},
      {"pkey", p.pkey},
      {"fecn", p.fecn},
      {"becn", p.becn},
      {"qpn", p.dest_qpn},
      {"ackreq", p.ack_request},
      {"psn", p.psn},
  };
  if (p.row->has(kReth)) {
    f["reth.va"] = p.reth.address;
    f["reth.rkey"] = p.reth.rkey;
    f["reth.length"] = p.reth.length;
  }
  if (p.row->has(kAeth)) {
    f["aeth.syndrome"] = p.aeth.syndrome;
    f["aeth.msn"] = p.aeth.msn;
  }
  if (p.row->has(kImmdt)) f["imm"] = p.immediate;
  if (p.row->has(kIeth)) f["ieth"] = p.invalidate_rkey;
  if (p.row->has(kDeth)) {
    f["deth.qkey"] = p.deth.qkey;
    f["deth.qpn"] = p.deth.source_qpn;
  }
  if (p.row->has(kAtomicEth)) {
    f["atomic.va"] = p.atomic.address;
    f["atomic.rkey"] = p.atomic.rkey;
    f["atomic.swap"] = p.atomic.swap_or_add;
    f["atomic.compare"] = p.atomic.compare;
  }
  if (p.row->has(kAtomicAckEth)) f["atomic.original"] = p.atomic_original;
  return f;
}

Bytes payload_of(const Packet& p) {
  return Bytes(p.payload, p.payload + p.payload_length);
}

// A packet of the given opcode with random fields, as bytes by the naive encoder (ICRC zero).
Bytes random_packet(std::mt19937_64& random, unsigned opcode) {
  const OpcodeRow& row = kOpcodeTable[opcode];
  std::map<std::string, uint64_t> f;
  for (const char* one : {"solicited", "migreq", "fecn", "becn", "ackreq"}) f[one] = random() & 1;
  for (const char* name : {"reth.va", "reth.rkey", "reth.length", "aeth.syndrome", "aeth.msn",
                           "imm", "ieth", "deth.qkey", "deth.qpn", "atomic.va", "atomic.rkey",
                           "atomic.swap", "atomic.compare", "atomic.original", "psn"})
    f[name] = random();
  f["opcode"] = opcode;
  f["pkey"] = random() & 1 ? 0xffff : 0x7fff;
  f["qpn"] = 1 + random() % 0xffffff;
  Bytes payload;
  if (row.has(kPayload)) payload.resize(random() % 200);
  for (uint8_t& byte : payload) byte = static_cast<uint8_t>(random());
  Bytes bytes = naive_encode(f, payload);
  bytes.resize(bytes.size() + 4);
  return bytes;
}

}  // namespace

TEST(captured_packets_parse_and_encode_to_the_same_bytes) {
  size_t count = 0;
  std::map<std::string, int> kinds;
  for (const CapturedPacket& captured : all_captured()) {
    Packet packet;
    const PacketFault fault = parse(captured.udp, packet);
    if (fault != PacketFault::None) {
      fail(__FILE__, __LINE__,
           captured.file + " " + std::to_string(captured.number) + ": " + to_string(fault));
      continue;
    }
    Bytes again(packet_bytes(*packet.row, packet.payload_length));
    const uint32_t written = encode(packet, again);
    CHECK_EQ(written + 4, captured.udp.size());
    CHECK(std::equal(again.begin(), again.end() - 4, captured.udp.begin(), captured.udp.end() - 4));
    kinds[packet.row->name]++;
    count++;
  }
  CHECK_EQ(count, size_t{3964});
  CHECK(kinds.size() >= 18);
}

TEST(naive_codec_agrees_on_captures_and_random_packets) {
  std::vector<Bytes> all;
  for (const CapturedPacket& captured : all_captured()) all.push_back(captured.udp);
  std::mt19937_64 random(1);
  for (unsigned opcode = 0; opcode < 256; opcode++)
    for (int i = 0; kOpcodeTable[opcode].name != nullptr && i < 200; i++)
      all.push_back(random_packet(random, opcode));
  for (const Bytes& bytes : all) {
    Packet packet;
    REQUIRE(parse(bytes, packet) == PacketFault::None);
    Bytes payload;
    const auto fields = naive_decode(bytes, payload);
    CHECK(!fields.empty());
    CHECK(fields == fields_of(packet));
    CHECK(payload == payload_of(packet));
    Bytes real(packet_bytes(*packet.row, packet.payload_length));
    real.resize(encode(packet, real));
    CHECK(real == naive_encode(fields, payload));
  }
}

TEST(naive_codec_agrees_on_damaged_headers) {
  std::mt19937_64 random(2);
  int refused = 0, taken = 0;
  for (int i = 0; i < 200000; i++) {
    unsigned opcode;
    do opcode = static_cast<unsigned>(random() & 0xff);
    while (kOpcodeTable[opcode].name == nullptr);
    Bytes bytes = random_packet(random, opcode);
    for (uint64_t n = 1 + random() % 3; n > 0; n--)
      bytes[random() % std::min<size_t>(bytes.size(), 12)] ^=
          static_cast<uint8_t>(1u << random() % 8);
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    Packet packet;
    Bytes payload;
    const bool real = parse(bytes, packet) == PacketFault::None;
    const auto fields = naive_decode(bytes, payload);
    if (real != !fields.empty())
      fail(__FILE__, __LINE__, "codecs disagree, case " + std::to_string(i));
    if (real && !fields.empty())
      CHECK(fields == fields_of(packet) && payload == payload_of(packet));
    (real ? taken : refused)++;
  }
  CHECK(refused > 10000);
  CHECK(taken > 10000);
}

TEST(every_truncation_is_refused_or_another_whole_packet) {
  std::map<unsigned, Bytes> one_of_each;
  for (const CapturedPacket& captured : all_captured())
    one_of_each.emplace(captured.udp[0], captured.udp);
  std::mt19937_64 random(3);
  for (unsigned opcode = 0; opcode < 256; opcode++)
    if (kOpcodeTable[opcode].name != nullptr)
      one_of_each.emplace(opcode, random_packet(random, opcode));
  CHECK(one_of_each.size() == 38);
  for (const auto& [opcode, whole] : one_of_each) {
    const OpcodeRow& row = kOpcodeTable[opcode];
    for (size_t length = 0; length < whole.size(); length++) {
      // An exact-size heap copy, so that ASan sees any read beyond the end.
      const std::vector<uint8_t> cut(whole.begin(), whole.begin() + static_cast<long>(length));
      Packet packet;
      const PacketFault fault = parse(cut, packet);
      if (length < size_t{row.header_bytes} + 4) CHECK(fault == PacketFault::TooShort);
      if (length % 4 != row.header_bytes % 4u) CHECK(fault != PacketFault::None);
      if (fault == PacketFault::None)
        CHECK(packet.payload + packet.payload_length + packet.pad + 4 == cut.data() + cut.size());
    }
  }
}

TEST(each_fault_has_its_reason) {
  std::mt19937_64 random(4);
  const auto fault_of = [](const Bytes& bytes) {
    Packet packet;
    return parse(bytes, packet);
  };
  const Bytes ack = [&] {
    Bytes bytes = random_packet(random, 0x11);
    bytes[1] = 0;
    return bytes;
  }();
  const auto with = [&](Bytes bytes, size_t at, uint8_t value) {
    bytes[at] = value;
    return bytes;
  };
  CHECK(fault_of({}) == PacketFault::TooShort);
  CHECK(fault_of(with(ack, 0, 0x15)) == PacketFault::UnknownOpcode);
  CHECK(fault_of(with(ack, 0, 0x2c)) == PacketFault::UnknownOpcode);
  CHECK(fault_of(with(ack, 1, 0x01)) == PacketFault::TransportVersion);
  CHECK(fault_of(with(ack, 2, 0x00)) == PacketFault::PKey);
  CHECK(fault_of(with(ack, 2, 0x7f)) == PacketFault::None);
  CHECK(fault_of(with(with(with(ack, 5, 0), 6, 0), 7, 0)) == PacketFault::QpnZero);
  CHECK(fault_of(with(ack, 1, 0x10)) == PacketFault::PadTooLong);
  Bytes longer = ack;
  longer.resize(longer.size() + 4);
  CHECK(fault_of(longer) == PacketFault::UnexpectedPayload);
  Bytes send = random_packet(random, 0x04);
  send.resize(12 + 5 + 4);
  send[1] = 0;
  CHECK(fault_of(send) == PacketFault::Misaligned);
}

TEST(congestion_notification_is_what_hardware_sends) {
  // ConnectX-4 Lx (PROTOCOL.md 1.5), BTH on.
  const Bytes expected = {0x81, 0, 0xff, 0xff, 0x40, 0, 0x01, 0x18, 0, 0, 0, 0, 0, 0,
                          0,    0, 0,    0,    0,    0, 0,    0,    0, 0, 0, 0, 0, 0};
  Bytes written(28);
  write_cnp(written.data(), 0x118);
  CHECK(written == expected);
  written.resize(32);
  Packet packet;
  REQUIRE(parse(written, packet) == PacketFault::None);
  CHECK(packet.becn && packet.dest_qpn == 0x118 && packet.row->has(kCongestion));
}

TEST(psn_arithmetic_wraps) {
  CHECK_EQ(psn_add(0xffffff, 1), 0u);
  CHECK_EQ(psn_sub(0, 1), 0xffffffu);
  CHECK_EQ(psn_diff(0, 0xffffff), 1);
  CHECK_EQ(psn_diff(0xffffff, 0), -1);
  CHECK_EQ(psn_diff(0x7fffff, 0), 0x7fffff);
  CHECK_EQ(psn_diff(0x800000, 0), -0x800000);
  CHECK(psn_before(0xfffff0, 0x10));
  CHECK(!psn_before(5, 5));
  CHECK_EQ(packets_of(0, 1024), 1u);
  CHECK_EQ(packets_of(1024, 1024), 1u);
  CHECK_EQ(packets_of(1025, 1024), 2u);
  CHECK_EQ(packets_of(1ull << 31, 256), 1u << 23);
}

TEST(syndromes_timers_and_mtu_codes) {
  CHECK(aeth_type(kSyndromeAck) == AethType::Ack);
  CHECK(aeth_type(syndrome_rnr(31)) == AethType::RnrNak && aeth_code(syndrome_rnr(31)) == 31);
  CHECK(syndrome_nak(NakCode::RemoteAccessError) == 0x62);
  CHECK(aeth_type(0x62) == AethType::Nak);
  CHECK(rnr_timer_ns(0) == 655'360'000 && rnr_timer_ns(1) == 10'000 &&
        rnr_timer_ns(31) == 491'520'000);
  CHECK_EQ(int{rnr_timer_code(10'000)}, 1);
  CHECK_EQ(int{rnr_timer_code(10'001)}, 2);
  CHECK_EQ(int{rnr_timer_code(500'000'000)}, 0);
  for (uint8_t code = 1; code < 32; code++)
    CHECK_EQ(int{rnr_timer_code(rnr_timer_ns(code))}, int{code});
  CHECK(mtu_bytes(1) == 256 && mtu_bytes(5) == 4096 && mtu_bytes(0) == 0 && mtu_bytes(6) == 0);
  CHECK(mtu_code(4096) == 5 && mtu_code(4095) == 4 && mtu_code(255) == 0 &&
        mtu_code(1u << 20) == 5);
  CHECK(path_mtu_of_interface(1500) == 1024 && path_mtu_of_interface(9000) == 4096);
  CHECK(path_mtu_of_interface(4192) == 4096 && path_mtu_of_interface(4191) == 2048);
  CHECK(path_mtu_of_interface(65536) == 4096 && path_mtu_of_interface(300) == 0);
}

TEST_MAIN
