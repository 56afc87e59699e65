// How a READ of many packets is asked for: where the peer serves enough requests at a time, two
// packets each, so that all packets of the answers have the same size and share trains.
#include "sim/raw_peer.h"
#include "test.h"

using namespace nvmeof::rdma;
using namespace nvmeof::test::sim;

namespace {

soft::TransportConfig wide() {
  soft::TransportConfig config;
  config.port_mtu = 4096;
  config.max_reads = 128;
  config.receive_window_bytes = 4 << 20;
  return config;
}

ConnectOptions with(uint32_t mtu, uint8_t reads) {
  ConnectOptions options;
  options.mtu = mtu;
  options.reads = reads;
  return options;
}

}  // namespace

TEST(a_peer_that_serves_many_reads_is_asked_for_pairs_of_packets) {
  RawPeer p(with(4096, 128), wide());
  REQUIRE(p.ready);
  CHECK(p.post(Opcode::RdmaRead, 0, 11 * 4096 + 100));
  const auto asked = p.answers();
  REQUIRE(asked.size() == 6);
  for (uint32_t i = 0; i < 6; i++) {
    CHECK(asked[i].row->opcode == soft::PacketOpcode::ReadRequest);
    CHECK_EQ(asked[i].psn, 100 + 2 * i);
    CHECK_EQ(asked[i].reth.address, asked[0].reth.address + i * 8192);
    CHECK_EQ(asked[i].reth.length, i < 5 ? 8192u : 4096u + 100);
  }
}

TEST(pairs_that_are_lost_are_asked_for_as_they_were) {
  RawPeer p(with(4096, 128), wide());
  REQUIRE(p.ready);
  CHECK(p.post(Opcode::RdmaRead, 0, 4 * 4096));
  const auto asked = p.answers();
  REQUIRE(asked.size() == 2);
  p.feed(p.response(100, soft::PacketOpcode::ReadResponseFirst, 4096, 1));
  p.feed(p.response(103, soft::PacketOpcode::ReadResponseLast, 4096, 4));  // 101, 102 are lost
  const auto again = p.answers();
  REQUIRE(again.size() == 2);
  CHECK_EQ(again[0].psn, 101u);
  CHECK_EQ(again[0].reth.length, 4096u);
  CHECK_EQ(again[1].psn, 102u);
  CHECK_EQ(again[1].reth.length, 8192u);
  p.feed(p.response(101, soft::PacketOpcode::ReadResponseOnly, 4096, 2));
  p.feed(p.response(102, soft::PacketOpcode::ReadResponseFirst, 4096, 3));
  p.feed(p.response(103, soft::PacketOpcode::ReadResponseLast, 4096, 4));
  const auto done = p.node.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == Status::Success);
  for (uint32_t i = 0; i < 4 * 4096; i++) CHECK_EQ(p.node.memory[i], i / 4096 + 1);
}

TEST(a_peer_that_serves_few_reads_is_asked_for_long_answers) {
  // Two packets for each of sixteen requests would leave the way empty.
  RawPeer p(with(4096, 16), wide());
  REQUIRE(p.ready);
  CHECK(p.post(Opcode::RdmaRead, 0, 32 * 4096));
  CHECK_EQ(p.answers().size(), 1u);
}

TEST_MAIN
