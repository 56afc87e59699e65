// The capture writer: what it writes is read back with true headers, in order, with ICRCs that
// hold.
#include "rdma/soft/pcap.h"

#include <unistd.h>

#include <cstdio>

#include "rdma/soft/flow.h"
#include "rdma/soft/icrc.h"
#include "rdma/soft/packet.h"
#include "support/naive_codec.h"
#include "support/pcap_reader.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma::soft;
using namespace nvmeof::test;

namespace {

std::string temporary_path() {
  return "/tmp/nvmeof-pcap-test-" + std::to_string(getpid());
}

uint16_t header_checksum(const Bytes& ip) {  // over a correct IPv4 header the sum is 0xffff
  uint32_t sum = 0;
  for (size_t i = 0; i < 20; i += 2) sum += static_cast<uint32_t>(ip[i] << 8 | ip[i + 1]);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

}  // namespace

TEST(captured_packets_survive_writing) {
  const std::string path = temporary_path();
  const auto& packets = all_captured();
  {
    auto writer = PcapWriter::open(path);
    REQUIRE(writer);
    for (const CapturedPacket& p : packets)
      (*writer)->received({&p.source, &p.destination, p.udp.data(),
                           static_cast<uint32_t>(p.udp.size()), p.ip_id, p.traffic_class},
                          0, p.dont_fragment);
    CHECK_EQ((*writer)->packets(), packets.size());
    CHECK(!(*writer)->failed());
  }
  const auto again = read_pcap(path);
  std::remove(path.c_str());
  REQUIRE(again.size() == packets.size());
  size_t same_bytes = 0;
  for (size_t i = 0; i < again.size(); i++) {
    // IPv4 byte for byte, header checksum included, where the sender left the UDP checksum out.
    if (again[i].ip_id >= 0) {
      if (packets[i].ip[26] == 0 && packets[i].ip[27] == 0) {
        CHECK(again[i].ip == packets[i].ip);
        same_bytes++;
      }
      CHECK_EQ(header_checksum(again[i].ip), 0xffff);
    }
    CHECK(again[i].udp == packets[i].udp);
    CHECK(same_address(again[i].source, packets[i].source));
    CHECK(same_address(again[i].destination, packets[i].destination));
  }
  CHECK(same_bytes > 3000);
}

TEST(trains_are_taken_apart_with_their_identifications) {
  const std::string path = temporary_path();
  for (const bool v6 : {false, true}) {
    Gid a{}, b{};
    if (v6)
      a[0] = b[0] = 0xfd;
    else
      a[10] = a[11] = b[10] = b[11] = 0xff;
    a[15] = 1;
    b[15] = 2;
    const Flow flow = make_flow(address_of(a, 0xc123), address_of(b, kUdpPort), 0, 0x6a);
    Bytes bytes(100 + 100 + 60);
    for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(i);
    icrc_append(flow, bytes.data(), 100, 0);
    icrc_append(flow, bytes.data() + 100, 100, 1);
    icrc_append(flow, bytes.data() + 200, 60, 2);
    {
      auto writer = PcapWriter::open(path);
      REQUIRE(writer);
      (*writer)->sent({&flow, bytes.data(), 260, 100, 3});
      (*writer)->flush();
      CHECK_EQ(read_pcap(path).size(), size_t{3});  // visible before close
    }
    const auto packets = read_pcap(path);
    std::remove(path.c_str());
    REQUIRE(packets.size() == 3);
    IcrcReceiver receiver;
    for (size_t i = 0; i < 3; i++) {
      CHECK_EQ(packets[i].udp.size(), i == 2 ? size_t{60} : size_t{100});
      CHECK_EQ(packets[i].ip_id, v6 ? -1 : static_cast<int32_t>(i));
      CHECK_EQ(int{packets[i].traffic_class}, 0x6a);
      const Bytes& udp = packets[i].udp;
      const uint32_t icrc = uint32_t{udp.end()[-4]} | uint32_t{udp.end()[-3]} << 8 |
                            uint32_t{udp.end()[-2]} << 16 | uint32_t{udp.end()[-1]} << 24;
      CHECK_EQ(naive_icrc(packets[i].ip), icrc);
    }
  }
}

TEST(files_that_cannot_be_written_are_reported) {
  const auto missing = PcapWriter::open("/nonexistent/folder/file.pcap");
  CHECK(!missing && missing.error().code == ENOENT);
  CHECK(missing.error().message.find("/nonexistent/folder/file.pcap") != std::string::npos);
  const auto full = PcapWriter::open("/dev/full");
  CHECK(!full);
}

TEST_MAIN
