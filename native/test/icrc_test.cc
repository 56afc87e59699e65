// The ICRC against every captured packet, a bit-by-bit second implementation, and damage.
#include "rdma/soft/icrc.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "rdma/soft/copy.h"
#include "rdma/soft/flow.h"
#include "rdma/soft/packet.h"
#include "support/naive_codec.h"
#include "support/pcap_reader.h"
#include "test.h"

using namespace nvmeof::rdma::soft;
using namespace nvmeof::test;

namespace {

Arrival arrival_of(const CapturedPacket& p, const Bytes& bytes, int32_t ip_id) {
  return {&p.source, &p.destination, bytes.data(), static_cast<uint32_t>(bytes.size()),
          ip_id,     p.traffic_class};
}

sockaddr_storage address(const char* gid_tail, bool v6, uint16_t port) {
  Gid gid{};
  if (!v6) gid[10] = gid[11] = 0xff;
  for (size_t i = 0; i < 4; i++) gid[12 + i] = static_cast<uint8_t>(gid_tail[i]);
  if (v6) gid[0] = 0xfd;
  return address_of(gid, port);
}

// The IP packet as the wire would show it, for the naive implementation.
Bytes ip_packet(const Flow& flow, const Bytes& udp, uint16_t id) {
  const Gid from = gid_of(flow.local), to = gid_of(flow.remote);
  const size_t n = udp.size() + 8;
  Bytes p;
  if (flow.local.ss_family == AF_INET) {
    const size_t total = n + 20;
    p = {0x45,
         0x02,
         static_cast<uint8_t>(total >> 8),
         static_cast<uint8_t>(total),
         static_cast<uint8_t>(id >> 8),
         static_cast<uint8_t>(id),
         0x40,
         0,
         63,
         17,
         0x12,
         0x34};
    p.insert(p.end(), from.begin() + 12, from.end());
    p.insert(p.end(), to.begin() + 12, to.end());
  } else {
    p = {0x61, 0x23, 0x45, 0x67, static_cast<uint8_t>(n >> 8), static_cast<uint8_t>(n), 17, 61};
    p.insert(p.end(), from.begin(), from.end());
    p.insert(p.end(), to.begin(), to.end());
  }
  for (const size_t v :
       {size_t{port_of(flow.local)}, size_t{port_of(flow.remote)}, n, size_t{0xabcd}}) {
    p.push_back(static_cast<uint8_t>(v >> 8));
    p.push_back(static_cast<uint8_t>(v));
  }
  p.insert(p.end(), udp.begin(), udp.end());
  return p;
}

}  // namespace

TEST(captured_packets_check_with_their_true_identification) {
  IcrcReceiver receiver;
  for (const CapturedPacket& p : all_captured()) {
    const IcrcVerdict verdict = receiver.check(arrival_of(p, p.udp, p.ip_id));
    CHECK(verdict.good && !verdict.recovered);
    CHECK_EQ(naive_icrc(p.ip), uint32_t{p.udp.end()[-4]} | uint32_t{p.udp.end()[-3]} << 8 |
                                   uint32_t{p.udp.end()[-2]} << 16 |
                                   uint32_t{p.udp.end()[-1]} << 24);
  }
}

TEST(captured_packets_give_their_identification_away) {
  IcrcReceiver receiver;
  for (const CapturedPacket& p : all_captured()) {
    if (p.ip_id < 0) continue;
    for (const uint16_t guess : {uint16_t{0}, uint16_t{77}}) {
      const IcrcVerdict verdict = receiver.check(arrival_of(p, p.udp, -1), guess);
      CHECK(verdict.good && verdict.dont_fragment);
      CHECK_EQ(int{verdict.ip_id}, p.ip_id);
    }
  }
}

TEST(damage_is_rejected) {
  IcrcReceiver receiver;
  std::mt19937_64 random(5);
  size_t tried = 0, missed_full = 0, missed_recovered = 0;
  for (const CapturedPacket& p : all_captured()) {
    for (int round = 0; round < 4; round++) {
      Bytes bytes = p.udp;
      for (uint64_t n = 1 + random() % 4; n > 0; n--)
        bytes[random() % bytes.size()] ^= static_cast<uint8_t>(1 + random() % 255);
      bytes[4] = p.udp[4];  // not covered
      if (bytes == p.udp) continue;
      tried++;
      missed_full += receiver.check(arrival_of(p, bytes, p.ip_id)).good;
      if (p.ip_id >= 0) missed_recovered += receiver.check(arrival_of(p, bytes, -1)).good;
    }
    // A single bit is always found, also by recovery (up to 4.2 KB, PROTOCOL.md 2.3).
    Bytes bytes = p.udp;
    const size_t at = random() % (bytes.size() - 1);
    bytes[at < 4 ? at : at + 1] ^= static_cast<uint8_t>(1u << random() % 8);
    CHECK(!receiver.check(arrival_of(p, bytes, p.ip_id)).good);
    if (p.ip_id >= 0) CHECK(!receiver.check(arrival_of(p, bytes, -1)).good);
  }
  CHECK(tried > 15000);
  CHECK_EQ(missed_full, size_t{0});
  CHECK(missed_recovered <= 3);  // two chances in 65536 each: 0.4 expected
}

TEST(damaged_addresses_ports_and_lengths_are_rejected) {
  IcrcReceiver receiver;
  const CapturedPacket& p = all_captured().front();
  sockaddr_storage other = p.source;
  reinterpret_cast<sockaddr_in&>(other).sin_addr.s_addr ^= htonl(1);
  Arrival arrival = arrival_of(p, p.udp, p.ip_id);
  arrival.source = &other;
  CHECK(!receiver.check(arrival).good);
  other = with_port(p.source, static_cast<uint16_t>(port_of(p.source) ^ 1));
  CHECK(!receiver.check(arrival).good);
  arrival = arrival_of(p, p.udp, p.ip_id ^ 0x100);
  CHECK(!receiver.check(arrival).good);
  for (uint32_t length = 0; length < p.udp.size(); length++) {
    const Bytes cut(p.udp.begin(), p.udp.begin() + length);
    CHECK(!receiver.check(arrival_of(p, cut, p.ip_id)).good);
  }
  // Families that do not belong together.
  sockaddr_storage v6 = address("\1\2\3\4", true, 1);
  arrival = arrival_of(p, p.udp, -1);
  arrival.source = &v6;
  CHECK(!receiver.check(arrival).good);
}

TEST(random_packets_agree_with_the_naive_icrc) {
  std::mt19937_64 random(6);
  IcrcReceiver receiver;
  for (int i = 0; i < 400; i++) {
    const bool v6 = i % 2 == 1;
    const Flow flow = make_flow(address("\12\0\1\2", v6, static_cast<uint16_t>(random())),
                                address("\12\0\1\3", v6, 4791));
    Bytes udp(16 + 4 * (random() % 1050));
    for (uint8_t& byte : udp) byte = static_cast<uint8_t>(random());
    if (i % 4 < 2) udp[4] = 0;  // else FECN, BECN and reserved bits are set, which must not matter
    const uint16_t id = static_cast<uint16_t>(random());
    icrc_append(flow, udp.data(), static_cast<uint32_t>(udp.size()), id);
    const uint32_t expected = naive_icrc(ip_packet(flow, udp, id));
    const uint32_t written = uint32_t{udp.end()[-4]} | uint32_t{udp.end()[-3]} << 8 |
                             uint32_t{udp.end()[-2]} << 16 | uint32_t{udp.end()[-1]} << 24;
    CHECK_EQ(expected, written);
    const Arrival arrival{
        &flow.local, &flow.remote, udp.data(), static_cast<uint32_t>(udp.size()), -1, 0};
    const IcrcVerdict verdict = receiver.check(arrival, static_cast<uint16_t>(id + (i % 8 == 0)));
    CHECK(verdict.good);
    if (!v6) CHECK_EQ(verdict.ip_id, id);
    CHECK_EQ(verdict.recovered, !v6 && i % 8 == 0);
  }
}

TEST(hardware_cnp_checks_and_flags_zero_is_recovered) {
  const Bytes cnp = {0x81, 0, 0xff, 0xff, 0x40, 0, 0x01, 0x18, 0, 0, 0, 0, 0,    0,    0, 0,
                     0,    0, 0,    0,    0,    0, 0,    0,    0, 0, 0, 0, 0x82, 0xfd, 0, 0x2a};
  const sockaddr_storage from = address("\x0a\x00\x11\x01", false, 0);
  const sockaddr_storage to = address("\x0a\x00\x12\x01", false, 4791);
  IcrcReceiver receiver;
  Arrival arrival{&from, &to, cnp.data(), 32, 0x718c, 0xc2};
  CHECK(receiver.check(arrival).good);
  arrival.ip_id = -1;
  IcrcVerdict verdict = receiver.check(arrival, 3);
  CHECK(verdict.good && verdict.recovered && verdict.ip_id == 0x718c);
  // The same packet sent without DF.
  Bytes ip = ip_packet(make_flow(from, to), cnp, 0x4321);
  ip[6] = 0;
  const uint32_t crc = naive_icrc(ip);
  Bytes loose = cnp;
  for (size_t i = 0; i < 4; i++) loose[28 + i] = static_cast<uint8_t>(crc >> (8 * i));
  arrival.bytes = loose.data();
  verdict = receiver.check(arrival);
  CHECK(verdict.good && !verdict.dont_fragment && verdict.ip_id == 0x4321);
  arrival.ip_id = 0x4321;
  verdict = receiver.check(arrival);
  CHECK(verdict.good && !verdict.dont_fragment && !verdict.recovered);
}

TEST(mapped_addresses_count_as_ipv4) {
  const sockaddr_storage from = address("\x0a\x00\x11\x01", false, 50000);
  const sockaddr_storage to = address("\x0a\x00\x12\x01", false, 4791);
  const auto mapped = [](const sockaddr_storage& v4) {
    sockaddr_storage storage{};
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port_of(v4));
    const Gid gid = gid_of(v4);
    std::memcpy(&v6.sin6_addr, gid.data(), 16);
    return storage;
  };
  const sockaddr_storage mapped_from = mapped(from), mapped_to = mapped(to);
  Bytes bytes(64, 7);
  icrc_append(make_flow(mapped_from, mapped_to), bytes.data(), 64, 5);
  IcrcReceiver receiver;
  CHECK(receiver.check({&from, &to, bytes.data(), 64, 5, 0}).good);
  CHECK(receiver.check({&mapped_from, &mapped_to, bytes.data(), 64, -1, 0}, 5).good);
  CHECK(same_address(mapped_from, from) && !same_address(from, to));
  CHECK(to_string(address_of(gid_of(from))) == "10.0.17.1");
}

TEST(source_ports_of_flow_labels) {
  CHECK_EQ(int{source_port_of_label(0x255c9)}, 0xd5c0);  // captured pair
  CHECK_EQ(int{source_port_of_label(0)}, 0xc000);
}

TEST(copies_are_exact_at_every_length_and_offset) {
  std::vector<uint8_t> from(4600), to(4600);
  for (size_t i = 0; i < from.size(); i++) from[i] = static_cast<uint8_t>(i * 7 + i / 256);
  for (size_t length : {0, 1, 3, 63, 64, 65, 127, 128, 129, 512, 1000, 4095, 4096, 4104})
    for (size_t offset : {0, 1, 12, 28, 63, 64})
      for (const auto copy : {copy_payload, copy_payload_streaming}) {
        std::fill(to.begin(), to.end(), uint8_t{0xee});
        copy(to.data() + offset, from.data() + 3, length);
        CHECK(std::equal(from.begin() + 3, from.begin() + 3 + static_cast<long>(length),
                         to.begin() + static_cast<long>(offset)));
        CHECK(offset == 0 || to[offset - 1] == 0xee);
        CHECK(to[offset + length] == 0xee);
      }
  alignas(64) static uint8_t aligned[4096 + 64];
  std::memset(aligned, 0xee, sizeof aligned);
  copy_payload_streaming(aligned, from.data() + 5, 4096);
  CHECK(std::memcmp(aligned, from.data() + 5, 4096) == 0 && aligned[4096] == 0xee);
}

// ---- with the header seen

namespace {

// A packet whose ICRC covers `id`, and what is seen of the header it came with.
struct Witnessed {
  explicit Witnessed(uint16_t id) : bytes(300) {
    for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(i * 11);
    bytes[4] = 0;
    icrc_append(flow, bytes.data(), static_cast<uint32_t>(bytes.size()), id);
  }
  bool good(SeenHeader seen, uint16_t position = 0) {
    Arrival arrival{
        &flow.local, &flow.remote, bytes.data(), static_cast<uint32_t>(bytes.size()), -1, 0, seen};
    const IcrcVerdict verdict = receiver.check(arrival, position);
    CHECK(!verdict.recovered);
    return verdict.good;
  }
  bool recovered() {
    Arrival arrival{
        &flow.local, &flow.remote, bytes.data(), static_cast<uint32_t>(bytes.size()), -1, 0};
    const IcrcVerdict verdict = receiver.check(arrival);
    return verdict.good && verdict.recovered;
  }
  Flow flow = make_flow(address("\12\0\1\2", false, 0xc123), address("\12\0\1\3", false, 4791));
  Bytes bytes;
  IcrcReceiver receiver;
};

constexpr SeenHeader own(uint16_t id, uint16_t flags = 0x4000) {
  return {SeenHeader::Of::ThisPacket, false, id, flags, id, flags};
}
constexpr SeenHeader first(uint16_t id, bool restarts = false) {
  return {SeenHeader::Of::FirstOfMessage, restarts, id, 0x4000, id, 0x4000};
}

}  // namespace

TEST(a_seen_header_must_be_the_one_that_the_icrc_covers) {
  Witnessed packet(0x1234);
  CHECK(packet.good(own(0x1234)));
  CHECK(packet.good(own(0x1234), 5));  // the position means nothing then
  for (unsigned bit = 0; bit < 16; bit++) {
    CHECK(!packet.good(own(static_cast<uint16_t>(0x1234 ^ 1u << bit))));
    CHECK(!packet.good(own(0x1234, static_cast<uint16_t>(0x4000 ^ 1u << bit))));
  }
  SeenHeader either = own(0x777, 0);
  either.other_identification = 0x1234;
  CHECK(!packet.good(either));  // the identification of one with the flags of the other
  either.other_flags = 0x4000;
  CHECK(packet.good(either));
  CHECK(packet.recovered());  // without the header any identification will do
}

TEST(behind_the_first_of_a_merged_message_identifications_count_up_or_stay) {
  Witnessed packet(0x1234);
  CHECK(packet.good(first(0x1231), 3));
  CHECK(packet.good(first(0x1234), 3));
  for (const int other : {0x1230, 0x1232, 0x1233, 0x1235, 0})
    CHECK(!packet.good(first(static_cast<uint16_t>(other)), 3));
  Witnessed wrapped(1);
  CHECK(wrapped.good(first(0xfffe), 3));
  // A second train that a kernel merged behind the first.
  CHECK(!wrapped.good(first(0), 4));
  CHECK(wrapped.good(first(0, true), 4));
  CHECK(!packet.good(first(0, true), 4));
}

TEST(damage_that_an_unknown_identification_explains_is_seen_with_the_header) {
  Witnessed packet(0);
  unsigned passed = 0;
  for (uint32_t damage = 1; damage < 1u << 18; damage++) {
    Witnessed damaged = packet;
    for (unsigned i = 0; i < 3; i++)
      damaged.bytes[100 + i] ^= static_cast<uint8_t>(damage >> (8 * i));
    if (!damaged.recovered()) continue;
    passed++;
    CHECK(!damaged.good(own(0)));
    for (uint16_t position = 1; position < 8; position++) CHECK(!damaged.good(first(0), position));
  }
  CHECK(passed > 0);  // about one in 32768
}

TEST_MAIN
