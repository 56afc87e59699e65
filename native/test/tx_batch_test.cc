// Trains: packets come out complete, in order within each flow, within the limits of the link, and
// with ICRCs that fit the identification each segment will leave with.
#include "rdma/soft/tx_batch.h"

#include <algorithm>
#include <map>
#include <random>

#include "rdma/soft/flow.h"
#include "rdma/soft/icrc.h"
#include "rdma/soft/packet.h"
#include "support/naive_codec.h"
#include "test.h"

using namespace nvmeof::rdma::soft;
using nvmeof::test::Bytes;

namespace {

class RecordingLink final : public Link {
 public:
  RecordingLink(uint16_t segments, uint32_t bytes) : segments_(segments), bytes_(bytes) {}
  void send(std::span<const Train> trains) override {
    calls++;
    for (const Train& train : trains) {
      shapes.push_back({train.segment_bytes, train.segments, train.total_bytes});
      CHECK(train.segments >= 1 && train.segments <= segments_);
      CHECK(train.segments == 1 || train.total_bytes <= bytes_);
      CHECK(train.total_bytes > uint32_t{train.segment_bytes} * (train.segments - 1u));
      CHECK(train.total_bytes <= uint32_t{train.segment_bytes} * train.segments);
      uint32_t at = 0;
      for (uint16_t i = 0; i < train.segments; i++) {
        const uint32_t length = std::min<uint32_t>(train.segment_bytes, train.total_bytes - at);
        const Arrival arrival{
            &train.flow->local, &train.flow->remote, train.bytes + at, length, i, 0};
        CHECK(receiver.check(arrival).good);
        sent[train.flow].emplace_back(train.bytes + at, train.bytes + at + length);
        at += length;
      }
    }
  }
  uint16_t segments_max() const override { return segments_; }
  uint32_t train_bytes_max() const override { return bytes_; }

  struct Shape {
    uint32_t segment, segments, total;
  };
  std::vector<Shape> shapes;
  std::map<const Flow*, std::vector<Bytes>> sent;
  int calls = 0;
  IcrcReceiver receiver;

 private:
  uint16_t segments_;
  uint32_t bytes_;
};

Flow flow_to(uint8_t host) {
  Gid gid{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
  const sockaddr_storage local = address_of(gid, 0xc001);
  gid[15] = host;
  return make_flow(local, address_of(gid, kUdpPort));
}

// Writes recognisable bytes: the sequence number and a fill.
Bytes put(TxBatch& batch, const Flow& flow, uint32_t length, uint32_t sequence,
          TxShape shape = TxShape::Train) {
  const TxSlot slot = batch.reserve(flow, length, shape);
  for (uint32_t i = 0; i < length - 4; i++) slot.bytes[i] = static_cast<uint8_t>(sequence + i);
  put32(slot.bytes, sequence);
  slot.bytes[4] = 0;
  Bytes covered(slot.bytes, slot.bytes + length - 4);
  batch.commit(slot);
  return covered;
}

void check_same(const std::vector<Bytes>& sent, const std::vector<Bytes>& expected) {
  REQUIRE(sent.size() == expected.size());
  for (size_t i = 0; i < sent.size(); i++)
    CHECK(std::equal(sent[i].begin(), sent[i].end() - 4, expected[i].begin(), expected[i].end()));
}

}  // namespace

TEST(equal_packets_share_a_train_and_a_smaller_one_closes_it) {
  RecordingLink link(128, 65000);
  TxBatch batch(link);
  const Flow flow = flow_to(2);
  std::vector<Bytes> expected;
  uint32_t n = 0;
  for (const uint32_t length : {1040, 1040, 1040, 20, 20, 1040, 32, 1040})
    expected.push_back(put(batch, flow, length, n++));
  CHECK(!batch.empty());
  batch.flush();
  CHECK(batch.empty());
  CHECK_EQ(link.calls, 1);
  check_same(link.sent[&flow], expected);
  REQUIRE(link.shapes.size() == 4);
  CHECK(link.shapes[0].segments == 4 && link.shapes[0].total == 3140);
  CHECK(link.shapes[1].segments == 1 && link.shapes[1].total == 20);
  CHECK(link.shapes[2].segments == 2 && link.shapes[3].segments == 1);
  batch.flush();
  CHECK_EQ(link.calls, 1);  // nothing to send: no call
}

TEST(a_packet_for_a_train_of_its_like_ends_no_train_of_larger_ones) {
  RecordingLink link(128, 65000);
  TxBatch batch(link);
  const Flow flow = flow_to(2);
  std::vector<Bytes> expected;
  for (uint32_t i = 0; i < 3; i++) expected.push_back(put(batch, flow, 1056, i));
  for (uint32_t i = 3; i < 6; i++)
    expected.push_back(put(batch, flow, 36, i, i < 5 ? TxShape::Alike : TxShape::Train));
  expected.push_back(put(batch, flow, 20, 6));  // an acknowledgement, last
  batch.flush();
  check_same(link.sent[&flow], expected);
  REQUIRE(link.shapes.size() == 2);
  CHECK(link.shapes[0].segments == 3 && link.shapes[0].segment == 1056);
  CHECK(link.shapes[1].segments == 4 && link.shapes[1].total == 3 * 36 + 20);
}

TEST(two_flows_interleave_without_breaking_trains) {
  RecordingLink link(128, 65000);
  TxBatch batch(link);
  const Flow a = flow_to(2), b = flow_to(3);
  std::vector<Bytes> to_a, to_b;
  for (uint32_t i = 0; i < 10; i++) {
    to_a.push_back(put(batch, a, 4112, i));
    to_b.push_back(put(batch, b, 4112, 100 + i));
  }
  batch.flush();
  CHECK_EQ(link.shapes.size(), size_t{2});
  check_same(link.sent[&a], to_a);
  check_same(link.sent[&b], to_b);
}

TEST(plain_packets_go_alone) {
  RecordingLink link(128, 65000);
  TxBatch batch(link);
  const Flow flow = flow_to(2);
  std::vector<Bytes> expected;
  expected.push_back(put(batch, flow, 500, 0));
  expected.push_back(put(batch, flow, 500, 1, TxShape::Plain));
  expected.push_back(put(batch, flow, 500, 2));
  expected.push_back(put(batch, flow, 500, 3));
  batch.flush();
  check_same(link.sent[&flow], expected);
  REQUIRE(link.shapes.size() == 3);
  CHECK(link.shapes[2].segments == 2);
}

TEST(limits_of_the_link_are_kept) {
  for (const uint16_t segments : {uint16_t{1}, uint16_t{64}}) {
    for (const uint32_t bytes : {2000u, 65507u}) {
      RecordingLink link(segments, bytes);
      TxBatch batch(link);
      const Flow flow = flow_to(9);
      std::vector<Bytes> expected;
      for (uint32_t i = 0; i < 300; i++) expected.push_back(put(batch, flow, 1040, i));
      batch.flush();
      check_same(link.sent[&flow], expected);
      if (segments == 1) CHECK_EQ(link.shapes.size(), size_t{300});
      if (segments == 64 && bytes == 65507) CHECK(link.shapes.size() <= 6);
    }
  }
}

TEST(a_full_staging_area_flushes_early_and_keeps_the_order) {
  RecordingLink link(128, 65507);
  TxBatch batch(link);
  std::vector<Flow> flows;
  for (uint8_t i = 0; i < 20; i++) flows.push_back(flow_to(static_cast<uint8_t>(10 + i)));
  std::map<const Flow*, std::vector<Bytes>> expected;
  std::mt19937 random(7);
  for (uint32_t i = 0; i < 6000; i++) {
    const Flow& flow = flows[random() % 3 == 0 ? random() % 20 : random() % 4];
    const uint32_t length =
        random() % 3 == 0 ? static_cast<uint32_t>(20 + 4 * (random() % 500)) : 4176;
    expected[&flow].push_back(
        put(batch, flow, length, i, random() % 16 == 0 ? TxShape::Plain : TxShape::Train));
    if (random() % 3000 == 0) batch.flush();
  }
  put(batch, flows[0], 60000, 1);  // the largest kind of datagram
  batch.flush();
  CHECK(link.sent[&flows[0]].back().size() == 60000);
  link.sent[&flows[0]].pop_back();
  CHECK(batch.counters().early_flushes > 0);
  CHECK_EQ(batch.counters().packets, uint64_t{6001});
  CHECK_EQ(batch.counters().trains, link.shapes.size());
  for (const Flow& flow : flows) check_same(link.sent[&flow], expected[&flow]);
}

TEST_MAIN
