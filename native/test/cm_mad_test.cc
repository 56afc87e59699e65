// The connection management codec: every captured datagram decodes and encodes to the same bytes;
// random fields survive; bad frames are refused.
#include "rdma/soft/cm/mad.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "rdma/soft/packet.h"
#include "support/pcap_reader.h"
#include "test.h"

using namespace nvmeof::rdma::soft;
using namespace nvmeof::rdma::soft::cm;
using namespace nvmeof::test;

namespace {

std::vector<MadBytes> captured_mads() {
  std::vector<MadBytes> mads;
  for (const CapturedPacket& captured : all_captured()) {
    Packet packet;
    if (parse(captured.udp, packet) != PacketFault::None || packet.dest_qpn != kQpnGsi) continue;
    CHECK_EQ(packet.payload_length, uint32_t{kMadBytes});
    CHECK(packet.deth.qkey == kQKeyGsi && packet.deth.source_qpn == kQpnGsi);
    MadBytes mad;
    std::copy_n(packet.payload, kMadBytes, mad.begin());
    mads.push_back(mad);
  }
  return mads;
}

}  // namespace

TEST(captured_datagrams_decode_and_encode_to_the_same_bytes) {
  std::map<size_t, int> kinds;
  int count = 0;
  for (const MadBytes& bytes : captured_mads()) {
    Mad mad;
    REQUIRE(decode(bytes, mad) == MadFault::None);
    CHECK(encode(mad) == bytes);
    kinds[mad.message.index()]++;
    count++;
  }
  CHECK(count > 100);
  CHECK_EQ(kinds.size(), size_t{6});  // REQ, REP, RTU, REJ, DREQ, DREP
}

TEST(golden_request_has_the_documented_fields) {
  Mad mad;
  for (const CapturedPacket& captured : captured("main-v4")) {
    Packet packet;
    if (parse(captured.udp, packet) != PacketFault::None || packet.dest_qpn != 1) continue;
    REQUIRE(decode({packet.payload, packet.payload_length}, mad) == MadFault::None);
    break;
  }
  const Req* req = std::get_if<Req>(&mad.message);
  REQUIRE(req != nullptr);
  CHECK_EQ(req->service_id, service_id_of_port(4420));
  CHECK(is_rdma_tcp_service(req->service_id));
  CHECK(req->transport_type == 0 && req->end_to_end_flow && req->pkey == 0xffff);
  CHECK_EQ(int{req->path_mtu}, 3);
  CHECK(req->retry_count == 7 && req->rnr_retry_count == 7 && req->max_cm_retries == 15);
  CHECK_EQ(int{req->primary.ack_timeout}, 17);
  CHECK(req->responder_resources == 128 && req->initiator_depth == 0);
  IpHeader header;
  REQUIRE(decode_ip_header(req->private_data, header));
  CHECK(to_string(header.source) == "10.9.0.2" && to_string(header.destination) == "10.9.0.1");
  CHECK(gid_of(header.source) == req->primary.local_gid);
  CHECK_EQ(req->primary.flow_label, (header.source_port * 31u + 4420u) & 0xfffff);
  std::array<uint8_t, 92> again = req->private_data;
  std::fill_n(again.begin(), kIpHeaderBytes, uint8_t{0xee});
  encode_ip_header(header, again);
  CHECK(again == req->private_data);
}

// Every kind with random bodies: decode, encode, decode again gives the same bytes as the first
// encoding (reserved bits are dropped once, fields never).
TEST(random_bodies_are_stable) {
  std::mt19937_64 random(9);
  for (const int attribute : {0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18}) {
    size_t differing = 0;
    for (int i = 0; i < 300; i++) {
      MadBytes bytes{1, 7, 2, 3};
      for (size_t at = 8; at < kMadBytes; at++) bytes[at] = static_cast<uint8_t>(random());
      bytes[16] = 0;
      bytes[17] = static_cast<uint8_t>(attribute);
      bytes[18] = bytes[19] = 0;
      Mad first, second;
      REQUIRE(decode(bytes, first) == MadFault::None);
      const MadBytes once = encode(first);
      REQUIRE(decode(once, second) == MadFault::None);
      CHECK(encode(second) == once);
      for (size_t at = 0; at < kMadBytes; at++) differing += once[at] != bytes[at];
    }
    CHECK(differing <= 300 * 16);  // only the reserved bytes
  }
}

TEST(bad_frames_are_refused) {
  const MadBytes good = captured_mads().front();
  Mad mad;
  for (size_t length = 0; length < kMadBytes; length++) {
    const std::vector<uint8_t> cut(good.begin(), good.begin() + static_cast<long>(length));
    CHECK(decode(cut, mad) == MadFault::Length);
  }
  std::vector<uint8_t> longer(good.begin(), good.end());
  longer.push_back(0);
  CHECK(decode(longer, mad) == MadFault::Length);
  for (const size_t at : {0, 1, 2}) {
    MadBytes bad = good;
    bad[at] ^= 0x10;
    CHECK(decode(bad, mad) == MadFault::Version);
  }
  MadBytes bad = good;
  bad[3] = 0x81;
  CHECK(decode(bad, mad) == MadFault::Method);
  for (const int attribute : {0x00, 0x01, 0x0f, 0x19, 0x1a, 0xff}) {
    bad = good;
    bad[17] = static_cast<uint8_t>(attribute);
    CHECK(decode(bad, mad) == MadFault::Attribute);
  }
  bad = good;
  bad[16] = 1;
  CHECK(decode(bad, mad) == MadFault::Attribute);
}

TEST(ip_headers_of_both_families) {
  IpHeader header;
  std::array<uint8_t, 92> data{};
  CHECK(!decode_ip_header(data, header));  // IP version 0
  data[1] = 0x40;
  CHECK(decode_ip_header(data, header) && header.source.ss_family == AF_INET);
  data[0] = 1;
  CHECK(!decode_ip_header(data, header));
  data[0] = 0;
  data[1] = 0x60;
  data[4] = 0xfd;
  data[19] = 7;
  data[35] = 9;
  CHECK(decode_ip_header(data, header) && to_string(header.source) == "fd00::7");
  std::array<uint8_t, 92> again{};
  encode_ip_header(header, again);
  CHECK(again == data);
  CHECK(!decode_ip_header(std::span(data).first(35), header));
}

TEST_MAIN
