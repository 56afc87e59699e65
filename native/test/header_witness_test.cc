// The full ICRC check on real sockets, in a network namespace of its own with the rights that raw
// sockets need: what is accepted and refused, with headers of strangers, and the refusal without
// those rights.
#include "rdma/soft/header_witness.h"

#include <sys/syscall.h>

#include "rdma/soft/transport.h"
#include "support/link_end.h"

using namespace nvmeof;
using namespace nvmeof::test;

namespace {

constexpr uint32_t kBuffer = 4 << 20;

sockaddr_storage host(uint8_t last) {
  return ipv4(0x7f000000u | last);
}

// Runs in a namespace; true where that is not permitted, which in_network_namespace() has said.
template <typename F>
bool privileged(F&& function) {
  return in_network_namespace(65536, function) || getuid() != 0;
}

struct FullEnd : End {
  explicit FullEnd(uint8_t last) : End(host(last), kBuffer, nullptr, true) {}
  uint64_t without_header() const { return link->counters().rx_without_header.load(); }
};

// A datagram with an IPv4 header made by hand, as rdma_rxe and hardware number theirs.
constexpr uint16_t kNoChecksum = 0, kWrongChecksum = 0xbad;
void send_raw(const Flow& flow, const std::vector<uint8_t>& payload, uint16_t id, uint16_t flags,
              uint16_t checksum = kNoChecksum) {
  const int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
  REQUIRE(fd >= 0);
  std::vector<uint8_t> packet(28 + payload.size());
  packet[0] = 0x45;
  put16(&packet[2], static_cast<uint16_t>(packet.size()));
  put16(&packet[4], id);
  put16(&packet[6], flags);
  packet[8] = 64;
  packet[9] = IPPROTO_UDP;
  std::memcpy(&packet[12], &reinterpret_cast<const sockaddr_in&>(flow.local).sin_addr, 4);
  std::memcpy(&packet[16], &reinterpret_cast<const sockaddr_in&>(flow.remote).sin_addr, 4);
  put16(&packet[20], port_of(flow.local));
  put16(&packet[22], port_of(flow.remote));
  put16(&packet[24], static_cast<uint16_t>(8 + payload.size()));
  put16(&packet[26], checksum);  // a wrong one is seen by the raw socket alone
  std::copy(payload.begin(), payload.end(), packet.begin() + 28);
  CHECK(sendto(fd, packet.data(), packet.size(), 0, reinterpret_cast<const sockaddr*>(&flow.remote),
               sizeof(sockaddr_in)) == static_cast<ssize_t>(packet.size()));
  close(fd);
}

// A datagram with IP options, which RoCEv2 goes without: the receive socket takes it, the raw one
// does not.
void send_unseen(const Flow& flow, const std::vector<uint8_t>& payload) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  CHECK(bind(fd, reinterpret_cast<const sockaddr*>(&flow.local), sizeof(sockaddr_in)) == 0);
  const uint8_t no_operation[4] = {1, 1, 1, 1};
  CHECK(setsockopt(fd, IPPROTO_IP, IP_OPTIONS, no_operation, sizeof no_operation) == 0);
  CHECK(sendto(fd, payload.data(), payload.size(), 0,
               reinterpret_cast<const sockaddr*>(&flow.remote),
               sizeof(sockaddr_in)) == static_cast<ssize_t>(payload.size()));
  close(fd);
}

// Damages three bytes of the one packet of a train until the check without a header lets it pass.
bool damage_luckily(const Flow& flow, std::vector<uint8_t>& bytes) {
  IcrcReceiver receiver;
  const std::vector<uint8_t> intact = bytes;
  const Arrival arrival{
      &flow.local, &flow.remote, bytes.data(), static_cast<uint32_t>(bytes.size()), -1, 0};
  for (uint32_t damage = 1; damage < 1u << 20; damage++) {
    for (unsigned i = 0; i < 3; i++)
      bytes[40 + i] = static_cast<uint8_t>(intact[40 + i] ^ damage >> (8 * i));
    if (receiver.check(arrival).good) return true;
  }
  return false;
}

}  // namespace

TEST(damage_that_passes_by_luck_is_refused_by_the_full_check_alone) {
  CHECK(privileged([] {
    End from(host(2)), lenient(host(3));
    FullEnd strict(4);
    for (End* const to : {&lenient, static_cast<End*>(&strict)}) {
      const Flow flow = from.flow_to(to->address);
      TrainBuffer train(flow, 1, 256, 256);
      REQUIRE(damage_luckily(flow, train.bytes));
      send(from, train.train);
      to->drain();
      REQUIRE(to->packets.size() == 1);
      CHECK_EQ(to->packets[0].verdict.good, to == &lenient);
    }
    CHECK(lenient.packets[0].verdict.recovered);
    CHECK_EQ(strict.without_header(), uint64_t{0});
  }));
}

TEST(trains_of_our_own_senders_check_in_full) {
  CHECK(privileged([] {
    End from(host(2));
    FullEnd to(3);
    const Flow flow = from.flow_to(to.address);
    std::vector<TrainBuffer> sent;
    std::vector<Train> trains;
    for (unsigned i = 0; i < 60; i++)
      sent.emplace_back(flow, 1 + i % 20, 1056, i % 3 == 0 ? 1056 : 64, 0x42, i * 32);
    for (const TrainBuffer& buffer : sent) trains.push_back(buffer.train);
    from.link->send(trains);
    to.drain();
    CHECK_EQ(to.packets.size(), size_t{3 * 210});
    for (const Received& packet : to.packets) {
      CHECK(packet.verdict.good && !packet.verdict.recovered);
      CHECK_EQ(packet.verdict.ip_id, packet.expected_id);
    }
    CHECK_EQ(to.without_header(), uint64_t{0});
  }));
}

TEST(headers_of_strangers_are_seen) {
  CHECK(privileged([] {
    FullEnd to(3);
    const Flow flow = make_flow(with_port(host(9), 0xc001), with_port(to.address, kUdpPort));
    std::vector<uint8_t> bytes = TrainBuffer(flow, 1, 256, 256).bytes;
    icrc_append(flow, bytes.data(), 256, 0x718c);
    struct {
      uint16_t id, flags;
      bool good;
    } const sent[] = {
        {0x718c, 0x4000, true},
        {0x718d, 0x4000, false},  // not the one that its ICRC covers
        {0x718c, 0, false},       // may be fragmented: the ICRC says no
        {0x718c, 0x4000, true},
    };
    for (size_t i = 0; i < std::size(sent); i++) {
      send_raw(flow, bytes, sent[i].id, sent[i].flags);
      to.drain();
      REQUIRE(to.packets.size() == i + 1);
      CHECK_EQ(to.packets[i].verdict.good, sent[i].good);
    }
    CHECK(!to.packets[0].verdict.recovered);
  }));
}

TEST(a_message_whose_header_was_not_seen_is_dropped_and_counted) {
  CHECK(privileged([] {
    FullEnd to(3);
    const Flow flow = make_flow(with_port(host(9), 0xc001), with_port(to.address, kUdpPort));
    const std::vector<uint8_t> bytes = TrainBuffer(flow, 1, 256, 256).bytes;
    send_unseen(flow, bytes);
    to.drain();
    CHECK_EQ(to.packets.size(), size_t{0});
    CHECK_EQ(to.without_header(), uint64_t{1});
  }));
}

TEST(a_message_may_come_a_while_after_its_header) {
  CHECK(privileged([] {
    FullEnd to(3);
    const Flow flow = make_flow(with_port(host(9), 0xc001), with_port(to.address, kUdpPort));
    std::vector<uint8_t> first = TrainBuffer(flow, 1, 256, 256).bytes, second = first;
    put24(&second[9], 0x101);
    icrc_append(flow, first.data(), 256, 0x200);
    icrc_append(flow, second.data(), 256, 0x201);
    // The sending CPU stands still between the raw socket and the other: its header is read along
    // with the first message's.
    const auto first_and_header_of_second = [&] {
      send_raw(flow, first, 0x200, 0x4000);
      send_raw(flow, second, 0x201, 0x4000, kWrongChecksum);
      to.drain();  // which finds the receive socket empty in the end
    };
    first_and_header_of_second();
    send_unseen(flow, second);
    to.drain();
    CHECK_EQ(to.packets.size(), size_t{2});
    for (const Received& packet : to.packets) CHECK(packet.verdict.good);
    CHECK_EQ(to.without_header(), uint64_t{0});
    // But not for ever.
    first_and_header_of_second();
    to.now += 20'000'000;
    to.drain();
    send_unseen(flow, second);
    to.drain();
    CHECK_EQ(to.without_header(), uint64_t{1});
  }));
}

TEST(headers_whose_messages_were_lost_do_not_stand_in_for_others) {
  CHECK(privileged([] {
    FullEnd to(3);
    const Flow flow = make_flow(with_port(host(9), 0xc001), with_port(to.address, kUdpPort));
    std::vector<uint8_t> bytes = TrainBuffer(flow, 1, 256, 256).bytes;
    // The same packet comes again and again, each time numbered anew; the first was lost.
    send_raw(flow, bytes, 0x100, 0x4000, kWrongChecksum);
    for (uint16_t id = 0x101; id < 0x108; id++) {
      icrc_append(flow, bytes.data(), 256, id);
      send_raw(flow, bytes, id, 0x4000);
      to.drain();
      REQUIRE(to.packets.size() == id - 0x100u);
      CHECK(to.packets.back().verdict.good);
      CHECK_EQ(to.packets.back().verdict.ip_id, id);
    }
    // More lost messages than headers are kept: a few more are lost, then all goes on.
    for (uint32_t i = 0; i < 600; i++) {
      put24(&bytes[9], i);
      send_raw(flow, bytes, 0, 0x4000, kWrongChecksum);
    }
    to.packets.clear();
    for (uint32_t i = 0; i < 40; i++) {
      put24(&bytes[9], 1000 + i);
      icrc_append(flow, bytes.data(), 256, 0);
      send_raw(flow, bytes, 0, 0x4000);
    }
    for (int i = 0; i < 40; i++) to.drain();  // which ends at messages without packets
    CHECK(to.packets.size() >= 10);
    CHECK_EQ(to.packets.size() + to.without_header(), uint64_t{40});
    for (const Received& packet : to.packets) CHECK(packet.verdict.good);
  }));
}

TEST(each_reactor_sees_the_headers_of_its_own_packets) {
  CHECK(privileged([] {
    const sockaddr_storage address = host(3);
    auto group = open_receive_group(address, 2);
    REQUIRE(group);
    std::atomic<bool> gso{true};
    std::unique_ptr<UdpLink> links[2];
    for (unsigned i = 0; i < 2; i++) {
      UdpLinkOptions options;
      options.address = address;
      options.receive_fd = (*group)[i];
      options.gso = &gso;
      options.full_icrc = true;
      options.index = i;
      options.reactors = 2;
      auto opened = UdpLink::open(options);
      REQUIRE(opened);
      links[i] = std::move(*opened);
    }
    End from(host(2));
    const Flow flow = from.flow_to(address);
    const uint32_t qpns[] = {1, 0x42, 1u << kQpnReactorShift | 7, 5u << kQpnReactorShift | 7};
    for (const uint32_t qpn : qpns) {
      const TrainBuffer train(flow, 3, 256, 256, qpn);
      send(from, train.train);
    }
    struct Good final : LinkEvents {
      void on_packet(const Arrival& arrival, uint16_t expected_id) override {
        good += icrc.check(arrival, expected_id).good;
      }
      void on_fault(const ErrorReport&) override {}
      IcrcReceiver icrc;
      unsigned good = 0;
    };
    const unsigned expected[] = {9, 3};  // QP1 and reactors that do not exist go to the first
    for (unsigned i = 0; i < 2; i++) {
      Good events;
      for (int round = 0; round < 8; round++) links[i]->receive(1, events);
      CHECK_EQ(events.good, expected[i]);
      CHECK_EQ(links[i]->counters().rx_without_header.load(), uint64_t{0});
    }
  }));
}

TEST(without_the_right_the_error_says_what_to_do) {
  CHECK(in_network_namespace(65536,
                             [] {
                               // Of this thread alone; glibc's setresuid() would change all.
                               REQUIRE(syscall(SYS_setresuid, 65534, 65534, 65534) == 0);
                               const auto refused = HeaderWitness::open({host(3), 0, 1, kBuffer});
                               REQUIRE(!refused);
                               CHECK_EQ(refused.error().code, EPERM);
                               for (const char* const part : {"CAP_NET_RAW", "setcap", "recovered"})
                                 CHECK(refused.error().message.find(part) != std::string::npos);
                             }) ||
        getuid() != 0);
}

TEST_MAIN
