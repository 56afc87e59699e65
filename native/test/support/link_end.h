// A UdpLink on a loopback address that keeps what arrives with the verdict on its ICRC, and trains
// to send from it.
#pragma once
#include <string>
#include <vector>

#include "loopback.h"
#include "rdma/soft/flow.h"
#include "rdma/soft/packet.h"
#include "rdma/soft/steering.h"
#include "rdma/soft/udp_link.h"
#include "test.h"

namespace nvmeof::test {

using namespace nvmeof::rdma::soft;

struct Received {
  std::vector<uint8_t> bytes;
  uint16_t expected_id;
  uint8_t traffic_class;
  uint16_t source_port;
  IcrcVerdict verdict;
};

struct End : LinkEvents {
  sockaddr_storage address;
  std::atomic<bool> gso{true};
  std::unique_ptr<UdpLink> link;
  IcrcReceiver icrc;
  std::vector<Received> packets;
  std::vector<ErrorReport> faults;
  reactor::TimeNs now = 1;

  explicit End(sockaddr_storage at = next_loopback(), uint32_t buffer = 4 << 20,
               PcapWriter* pcap = nullptr, bool full_icrc = false)
      : address(at) {
    auto group = open_receive_group(address, 1);
    if (!group) {
      fail(__FILE__, __LINE__, group.error().message);
      return;
    }
    UdpLinkOptions options;
    options.address = address;
    options.receive_fd = group->front();
    options.buffer_bytes = buffer;
    options.gso = &gso;
    options.pcap = pcap;
    options.full_icrc = full_icrc;
    options.port_seed = static_cast<uint32_t>(getpid());
    auto opened = UdpLink::open(options);
    CHECK(static_cast<bool>(opened));
    link = std::move(*opened);
  }
  void on_packet(const Arrival& arrival, uint16_t expected_id) override {
    CHECK(same_address(*arrival.destination, address));
    packets.push_back({{arrival.bytes, arrival.bytes + arrival.length},
                       expected_id,
                       arrival.traffic_class,
                       port_of(*arrival.source),
                       icrc.check(arrival, expected_id)});
  }
  void on_fault(const ErrorReport& report) override { faults.push_back(report); }
  // Takes everything that has arrived.
  void drain() {
    link->expect_wake_up();
    for (int idle = 0; idle < 3; now += 1'000) idle += link->receive(now, *this) == 0;
    link->deliver_faults(*this);
  }
  Flow flow_to(const sockaddr_storage& peer, uint8_t key = 0, uint8_t traffic_class = 0) const {
    return make_flow(with_port(address, link->source_port(peer, key)), with_port(peer, kUdpPort),
                     key, traffic_class);
  }
};

// Packets of `size` bytes (the last of `last`), with ICRCs for their place in the train.
struct TrainBuffer {
  std::vector<uint8_t> bytes;
  Train train;
  TrainBuffer(const Flow& flow, unsigned count, uint32_t size, uint32_t last, uint32_t qpn = 0x42,
              uint32_t psn = 0x100)
      : bytes((count - 1) * size + last) {
    for (unsigned i = 0; i < count; i++) {
      uint8_t* const p = bytes.data() + i * size;
      const uint32_t length = i + 1 == count ? last : size;
      for (uint32_t k = 0; k < length; k++) p[k] = static_cast<uint8_t>(i + k * 7);
      p[0] = 0x04;
      p[1] = 0;
      put16(p + 2, kDefaultPKey);
      put32(p + 4, qpn);
      put32(p + 8, psn + i);
      icrc_append(flow, p, length, static_cast<uint16_t>(i));
    }
    train = {&flow, bytes.data(), static_cast<uint32_t>(bytes.size()), static_cast<uint16_t>(size),
             static_cast<uint16_t>(count)};
  }
};

inline void send(End& from, const Train& train) {
  from.link->send({&train, 1});
}

}  // namespace nvmeof::test
