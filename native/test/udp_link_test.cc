// UdpLink on real sockets: trains and their identifications, plain datagrams, errors of dead peers
// and small MTUs, GSO taken away, strangers, captures.
#include "rdma/soft/udp_link.h"

#include <poll.h>

#include <cstdio>
#include <string>
#include <vector>

#include "rdma/soft/flow.h"
#include "rdma/soft/packet.h"
#include "rdma/soft/steering.h"
#include "support/link_end.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma::soft;
using nvmeof::test::End;
using nvmeof::test::next_loopback;
using nvmeof::test::Received;
using nvmeof::test::send;
using nvmeof::test::TrainBuffer;

namespace {

void check_train_arrives(sockaddr_storage a, sockaddr_storage b) {
  End from(a), to(b);
  const Flow flow = from.flow_to(b, 3, 0x68);
  const TrainBuffer sent(flow, 12, 4128, 300);
  send(from, sent.train);
  to.drain();
  REQUIRE(to.packets.size() == 12);
  for (uint16_t i = 0; i < 12; i++) {
    const Received& packet = to.packets[i];
    CHECK_EQ(packet.bytes.size(), i == 11 ? size_t{300} : size_t{4128});
    CHECK(std::memcmp(packet.bytes.data(), sent.bytes.data() + i * 4128u, packet.bytes.size()) ==
          0);
    CHECK(packet.verdict.good);
    CHECK_EQ(packet.expected_id, i);
    if (a.ss_family == AF_INET) CHECK_EQ(packet.verdict.ip_id, i);
    CHECK_EQ(packet.traffic_class, 0x68);
    CHECK_EQ(packet.source_port, port_of(flow.local));
    CHECK(packet.source_port >= 0xC000);
  }
  CHECK_EQ(to.link->counters().rx_messages.load(), 1u);
  CHECK_EQ(from.link->counters().tx_trains.load(), 1u);
  CHECK_EQ(from.link->counters().tx_packets.load(), 12u);
}

}  // namespace

TEST(a_train_arrives_whole_with_identifications_that_its_icrc_covers) {
  check_train_arrives(next_loopback(), next_loopback());
}

TEST(a_train_over_ipv6) {
  CHECK(nvmeof::test::in_network_namespace(
            65536,
            [] {
              const sockaddr_storage self = nvmeof::test::ipv6_loopback();
              End end(self);
              const Flow flow = end.flow_to(self);
              const TrainBuffer sent(flow, 5, 2080, 2080);
              send(end, sent.train);
              end.drain();
              CHECK_EQ(end.packets.size(), size_t{5});
              for (const Received& packet : end.packets) CHECK(packet.verdict.good);
              CHECK(!end.packets.empty() && !end.packets[0].verdict.recovered);
            }) ||
        getuid() != 0);
}

TEST(many_trains_and_datagrams_in_one_call_keep_their_order) {
  End from, to;
  const Flow flow = from.flow_to(to.address);
  std::vector<TrainBuffer> sent;
  std::vector<Train> trains;
  for (unsigned i = 0; i < 100; i++)
    sent.emplace_back(flow, 1 + i % 3, 1056, i % 3 == 0 ? 1056 : 64, 0x42, i * 16);
  for (const TrainBuffer& buffer : sent) trains.push_back(buffer.train);
  from.link->send(trains);
  to.drain();
  CHECK_EQ(to.packets.size(), size_t{199});
  uint32_t last = 0;
  for (const Received& packet : to.packets) {
    CHECK(packet.verdict.good);
    const uint32_t psn = get24(packet.bytes.data() + 9);
    CHECK(psn >= last);
    last = psn;
  }
  CHECK(from.link->counters().tx_calls.load() <= 4);
  // A flood is taken in batches.
  CHECK(to.link->counters().rx_calls.load() < 60);
}

TEST(different_destination_reactors_have_different_source_ports) {
  End end;
  const sockaddr_storage peer = next_loopback();
  for (uint8_t key = 0; key + 1u < UdpLink::kSendSockets; key++)
    CHECK(end.link->source_port(peer, key) !=
          end.link->source_port(peer, static_cast<uint8_t>(key + 1)));
}

TEST(without_gso_every_packet_is_a_train_of_its_own) {
  End from, to;
  from.gso.store(false);
  CHECK_EQ(from.link->segments_max(), 1);
  const Flow flow = from.flow_to(to.address);
  const TrainBuffer one(flow, 1, 4128, 4128);
  send(from, one.train);
  to.drain();
  REQUIRE(to.packets.size() == 1);
  CHECK(to.packets[0].verdict.good);
  // A train that was built before: the first packet is right, the rest would not be.
  const TrainBuffer five(flow, 5, 500, 500);
  send(from, five.train);
  to.drain();
  CHECK_EQ(to.packets.size(), size_t{2});
  CHECK(to.packets.back().verdict.good);
  CHECK_EQ(from.link->counters().tx_dropped_gso.load(), 4u);
}

TEST(a_device_that_refuses_gso_gets_datagrams_from_then_on) {
  End from, to;
  CHECK_EQ(from.link->segments_max(), 64);
  // The kernel answers EINVAL to a train of a socket without checksums.
  for (const int fd : from.link->descriptors()) CHECK(set_option(fd, SOL_SOCKET, SO_NO_CHECK, 1));
  const Flow flow = from.flow_to(to.address);
  const TrainBuffer five(flow, 5, 500, 500);
  send(from, five.train);
  CHECK_EQ(from.link->segments_max(), 1);
  to.drain();
  REQUIRE(to.packets.size() == 1);
  CHECK(to.packets[0].verdict.good);
  CHECK_EQ(from.link->counters().tx_dropped_gso.load(), 4u);
}

TEST(a_dead_peer_is_reported_and_the_living_get_their_packets) {
  End from, living;
  const sockaddr_storage dead = next_loopback();
  const Flow to_dead = from.flow_to(dead);
  // The same send socket for both.
  const Flow to_living = make_flow(to_dead.local, with_port(living.address, kUdpPort));
  std::vector<TrainBuffer> sent;
  std::vector<Train> trains;
  for (unsigned i = 0; i < 20; i++)
    sent.emplace_back(i % 2 == 0 ? to_dead : to_living, 3, 600, 600, i % 2 == 0 ? 0xabcdef : 0x42,
                      i * 4);
  for (const TrainBuffer& buffer : sent) trains.push_back(buffer.train);
  from.link->send(trains);
  from.drain();
  living.drain();
  CHECK_EQ(living.packets.size(), size_t{30});
  for (unsigned i = 0; i < 2; i++) send(from, trains[i]);  // one by one: the second meets the error
  from.drain();
  living.drain();
  CHECK_EQ(living.packets.size(), size_t{33});
  CHECK(!from.faults.empty());
  for (const ErrorReport& fault : from.faults) {
    CHECK(fault.fault == SendFault::PortUnreachable);
    CHECK(same_address(fault.peer, dead));
    CHECK(fault.has_bth);
    CHECK_EQ(fault.dest_qpn, 0xabcdefu);
    CHECK_EQ(fault.psn % 8, 0u);
  }
  CHECK(from.link->counters().sends_repeated.load() > 0);
  CHECK_EQ(from.link->counters().tx_dropped_error.load(), 0u);
}

TEST(a_dead_ipv6_peer_is_reported) {
  CHECK(nvmeof::test::in_network_namespace(
            65536,
            [] {
              End from(nvmeof::test::ipv6_loopback());
              // ::1 is ours; ::1 at another port stands for the dead.
              const Flow flow =
                  make_flow(with_port(from.address, from.link->source_port(from.address, 0)),
                            with_port(from.address, 4792));
              const TrainBuffer one(flow, 1, 600, 600, 0x123456, 0x777);
              send(from, one.train);
              from.drain();
              REQUIRE(from.faults.size() == 1);
              CHECK(from.faults[0].fault == SendFault::PortUnreachable);
              CHECK_EQ(from.faults[0].dest_qpn, 0x123456u);
              CHECK_EQ(from.faults[0].psn, 0x777u);
            }) ||
        getuid() != 0);
}

TEST(packets_larger_than_the_mtu_are_reported_and_nothing_else_suffers) {
  CHECK(nvmeof::test::in_network_namespace(
            1500,
            [] {
              End from, to;
              CHECK_EQ(path_mtu_of_interface(interface_of(from.address).mtu), 1024u);
              const Flow flow = from.flow_to(to.address);
              const TrainBuffer small(flow, 4, 1056, 1056), one(flow, 1, 2080, 2080),
                  large(flow, 3, 2080, 2080, 0x99, 0x5);
              const Train trains[] = {one.train, small.train, large.train, small.train};
              from.link->send(trains);
              from.drain();
              to.drain();
              CHECK_EQ(to.packets.size(), size_t{8});
              for (const Received& packet : to.packets) CHECK(packet.verdict.good);
              CHECK(from.faults.size() >= 2);
              for (const ErrorReport& fault : from.faults)
                CHECK(fault.fault == SendFault::MtuTooLarge);
              CHECK_EQ(from.link->counters().tx_dropped_too_large.load() +
                               from.link->counters().tx_dropped_gso.load() >=
                           4,
                       true);
              CHECK_EQ(from.link->segments_max(), 64);  // not mistaken for a device without GSO
            }) ||
        getuid() != 0);
}

TEST(a_full_socket_drops_and_the_sender_does_not_wait) {
  End from, to(next_loopback(), 1);  // the smallest buffer the kernel allows
  const Flow flow = from.flow_to(to.address);
  const TrainBuffer train(flow, 15, 4128, 4128);
  for (int i = 0; i < 200; i++) send(from, train.train);
  to.drain();
  CHECK(to.packets.size() < 200 * 15);
  for (const Received& packet : to.packets) CHECK(packet.verdict.good);
}

TEST(the_granted_buffer_is_read_back) {
  End small(next_loopback(), 64 << 10), large;
  CHECK_EQ(small.link->receive_buffer_bytes(), 128u << 10);  // the kernel doubles it
  CHECK(large.link->receive_buffer_bytes() >= 212'992);
}

TEST(strangers_cannot_wake_a_send_socket) {
  End end;
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const sockaddr_storage target = with_port(end.address, end.link->source_port(next_loopback(), 0));
  CHECK(sendto(fd, "junk", 4, 0, reinterpret_cast<const sockaddr*>(&target),
               address_length(target)) == 4);
  close(fd);
  for (const int own : end.link->descriptors()) {
    pollfd entry{own, POLLIN, 0};
    CHECK_EQ(poll(&entry, 1, 20), 0);
  }
}

TEST(packets_of_any_length_arrive) {
  End to;
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const sockaddr_storage target = with_port(to.address, kUdpPort);
  uint8_t bytes[64] = {};
  for (size_t length = 0; length <= sizeof bytes; length++)
    CHECK(sendto(fd, bytes, length, 0, reinterpret_cast<const sockaddr*>(&target),
                 address_length(target)) == static_cast<ssize_t>(length));
  close(fd);
  to.drain();
  to.drain();
  CHECK_EQ(to.packets.size(), size_t{64});  // the empty one has nothing to hand on
  for (const Received& packet : to.packets) CHECK(!packet.verdict.good);
}

TEST(a_capture_holds_every_packet_as_it_stood_on_the_wire) {
  const std::string path = "/tmp/udp_link_test." + std::to_string(getpid()) + ".pcap";
  auto pcap = PcapWriter::open(path);
  REQUIRE(pcap);
  {
    End from(next_loopback(), 4 << 20, pcap->get()), to(next_loopback(), 4 << 20, pcap->get());
    const Flow flow = from.flow_to(to.address);
    const TrainBuffer train(flow, 7, 1056, 99);
    send(from, train.train);
    to.drain();
    CHECK_EQ(to.packets.size(), size_t{7});
  }
  CHECK_EQ((*pcap)->packets(), 14u);
  pcap->reset();
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  REQUIRE(file != nullptr);
  std::vector<uint8_t> bytes(64 << 10);
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
  std::fclose(file);
  unlink(path.c_str());
  unsigned ids[7] = {};
  for (size_t at = 24; at + 16 <= bytes.size();) {  // record header: 16 bytes, little-endian
    uint32_t length;
    std::memcpy(&length, &bytes[at + 8], sizeof length);
    const uint16_t id = get16(&bytes[at + 16 + 4]);
    REQUIRE(id < 7);
    ids[id]++;
    at += 16 + length;
  }
  for (const unsigned count : ids) CHECK_EQ(count, 2u);  // sent and received
}

TEST_MAIN
