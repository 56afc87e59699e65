// NBD connections of one group over a lane in memory: whole conversations through a socket pair,
// without a reactor, so that each step is the test's.
#include <fcntl.h>

#include <algorithm>

#include "attach/nbd/connection_group.h"
#include "support/fake_lane.h"
#include "support/nbd_client.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::attach;
using namespace nvmeof::attach::nbd;
using namespace nvmeof::test;

namespace {

constexpr uint64_t kBytes = 64ull << 20;

struct Peer {
  int fd = -1;
  Bytes got;
  bool ended = false;
};

struct Rig {
  explicit Rig(uint64_t bytes = kBytes) : lane(bytes) {
    for (size_t i = 0; i < lane.memory.size(); i += 8) {
      const uint64_t word = i * 0x9E3779B97F4A7C15;
      std::memcpy(&lane.memory[i], &word, 8);
    }
    make();
  }
  ~Rig() {
    for (auto& peer : peers) shut(*peer);
    lane.hold = false;
    lane.release();
    turn(20);
    CHECK(group->empty());
    CHECK_EQ(counters.live_connections.load(), 0u);
    CHECK_EQ(group->given.load(), 0u);
    CHECK_EQ(lane.regions.load(), 0);
    CHECK_EQ(lane.in_flight(), 0u);
  }
  void make() {
    served = Export::of(lane.shape, "a test");
    auto made = ConnectionGroup::create(&lane, &served, &counters);
    if (!made) std::abort();
    group = std::move(*made);
  }

  // Before the handshake.
  Peer& connect() {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) std::abort();
    group->given++;
    group->adopt(pair[0]);
    peers.push_back(std::make_unique<Peer>());
    peers.back()->fd = pair[1];
    return *peers.back();
  }
  Peer& open(bool structured = false) {
    Peer& peer = connect();
    say(peer, opening(structured));
    turn(8);
    CHECK_EQ(take(peer).size(), opening_answers(structured));
    return peer;
  }
  void shut(Peer& peer) {
    if (peer.fd >= 0) ::close(peer.fd);
    peer.fd = -1;
  }
  // Loop iterations; what peers are told meanwhile is kept.
  void turn(int rounds = 4) {
    for (int i = 0; i < rounds; i++) {
      group->read(1);
      group->write();
    }
  }
  void listen_to(Peer& peer) {
    uint8_t bytes[65536];
    for (;;) {
      const ssize_t got = recv(peer.fd, bytes, sizeof bytes, 0);
      if (got == 0) peer.ended = true;
      if (got < 0 && errno != EAGAIN) peer.ended = true;
      if (got <= 0) return;
      peer.got.insert(peer.got.end(), bytes, bytes + got);
    }
  }
  Bytes take(Peer& peer) {
    listen_to(peer);
    return std::move(peer.got);
  }
  // Sends all of it, with the server taking its part.
  void say(Peer& peer, const Bytes& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(peer.fd, &bytes[at], bytes.size() - at, MSG_NOSIGNAL);
      if (sent > 0) {
        at += static_cast<size_t>(sent);
      } else if (errno != EAGAIN) {
        return;
      }
      turn(1);
      listen_to(peer);
    }
  }
  bool ended(Peer& peer) {
    turn();
    listen_to(peer);
    return peer.ended;
  }
  // Of the one simple reply that came, with nothing behind it.
  uint32_t simple_error(Peer& peer, uint64_t cookie) {
    turn();
    const Bytes got = take(peer);
    if (got.size() != 16 || get32(&got[0]) != kSimpleReplyMagic || get64(&got[8]) != cookie) {
      fail(__FILE__, __LINE__, "no simple reply, but " + std::to_string(got.size()) + " bytes");
      return ~0u;
    }
    return get32(&got[4]);
  }

  FakeLane lane;
  NbdCounters counters{};
  Export served;
  std::unique_ptr<ConnectionGroup> group;
  std::vector<std::unique_ptr<Peer>> peers;
};

Bytes pattern(size_t length, uint8_t seed) {
  Bytes bytes(length);
  for (size_t i = 0; i < length; i++) bytes[i] = static_cast<uint8_t>(i * 31 + (i >> 8) + seed);
  return bytes;
}

}  // namespace

TEST(reads_with_simple_replies) {
  Rig rig;
  Peer& peer = rig.open();
  rig.say(peer, request_bytes(command::kRead, 7, 8192, 4096));
  rig.turn();
  const Bytes got = rig.take(peer);
  REQUIRE(got.size() == 16 + 4096);
  CHECK_EQ(get32(&got[0]), kSimpleReplyMagic);
  CHECK_EQ(get32(&got[4]), 0u);
  CHECK_EQ(get64(&got[8]), 7u);
  CHECK(std::memcmp(&got[16], &rig.lane.memory[8192], 4096) == 0);
  rig.say(peer, request_bytes(command::kRead, 8, 0, 0));
  CHECK_EQ(rig.simple_error(peer, 8), 0u);
}

TEST(reads_with_structured_replies) {
  Rig rig;
  Peer& peer = rig.open(true);
  rig.say(peer, request_bytes(command::kRead, 9, 512, 1024, command_flag::kDontFragment));
  rig.turn();
  Bytes got = rig.take(peer);
  REQUIRE(got.size() == 28 + 1024);
  CHECK_EQ(get32(&got[0]), kStructuredReplyMagic);
  CHECK_EQ(get32(&got[16]), 1032u);
  CHECK_EQ(get64(&got[20]), 512u);
  CHECK(std::memcmp(&got[28], &rig.lane.memory[512], 1024) == 0);
  rig.lane.end = IoEnd::Failed;
  rig.lane.status = 0x281;
  rig.say(peer, request_bytes(command::kRead, 10, 512, 1024));
  rig.turn();
  got = rig.take(peer);
  REQUIRE(got.size() == 26);
  CHECK_EQ(get16(&got[6]), chunk::kError);
  CHECK_EQ(get32(&got[20]), error::kIo);
  rig.lane.end = IoEnd::Ok;
  rig.say(peer, request_bytes(command::kRead, 11, 0, 0));
  rig.turn();
  CHECK_EQ(rig.take(peer).size(), size_t{20});
}

TEST(writes_in_any_cut) {
  for (const size_t step : {size_t{1}, size_t{13}, size_t{4096}, size_t{1} << 20}) {
    Rig rig(1 << 20);
    Peer& peer = rig.open();
    Bytes bytes;
    for (uint8_t i = 0; i < 4; i++) {
      add(bytes, request_bytes(command::kWrite, i, i * 8192u, 1024));
      add(bytes, pattern(1024, i));
    }
    for (size_t at = 0; at < bytes.size(); at += step) {
      const auto begin = bytes.begin() + static_cast<ptrdiff_t>(at);
      const auto length = static_cast<ptrdiff_t>(std::min(step, bytes.size() - at));
      rig.say(peer, Bytes(begin, begin + length));
      rig.turn(1);
    }
    rig.turn();
    CHECK_EQ(rig.take(peer).size(), size_t{4 * 16});
    for (uint8_t i = 0; i < 4; i++) {
      const Bytes expected = pattern(1024, i);
      CHECK(std::memcmp(&rig.lane.memory[i * 8192u], expected.data(), 1024) == 0);
    }
    CHECK_EQ(rig.lane.seen.size(), size_t{4});
  }
}

TEST(the_largest_requests) {
  Rig rig;
  Peer& peer = rig.open();
  const Bytes data = pattern(kPayloadMax, 3);
  Bytes bytes = request_bytes(command::kWrite, 1, 512, kPayloadMax, command_flag::kFua);
  add(bytes, data);
  // Waits for the buffer of the first.
  add(bytes, request_bytes(command::kRead, 2, 512, kPayloadMax));
  rig.say(peer, bytes);
  for (int i = 0; i < 2000 && peer.got.size() < 32 + size_t{kPayloadMax}; i++) {
    rig.turn(1);
    rig.listen_to(peer);
  }
  REQUIRE(peer.got.size() == 32 + size_t{kPayloadMax});
  CHECK(std::equal(data.begin(), data.end(), peer.got.begin() + 32));
  CHECK(rig.lane.seen[0].fua);
  peer.got.clear();
  // One more is too many; the payload is passed over.
  bytes = request_bytes(command::kWrite, 3, 0, kPayloadMax + 512);
  bytes.resize(bytes.size() + kPayloadMax + 512);
  rig.say(peer, bytes);
  CHECK_EQ(rig.simple_error(peer, 3), error::kInvalid);
  CHECK_EQ(rig.lane.seen.size(), size_t{2});
}

TEST(other_commands) {
  Rig rig;
  Peer& peer = rig.open();
  rig.say(peer, request_bytes(command::kFlush, 1, 0, 0));
  CHECK_EQ(rig.simple_error(peer, 1), 0u);
  rig.say(peer, request_bytes(command::kTrim, 2, 4096, 8192));
  CHECK_EQ(rig.simple_error(peer, 2), 0u);
  rig.say(peer, request_bytes(command::kWriteZeroes, 3, 0, 512));
  CHECK_EQ(rig.simple_error(peer, 3), 0u);
  rig.say(peer, request_bytes(command::kWriteZeroes, 4, 512, 512,
                              command_flag::kNoHole | command_flag::kFua));
  CHECK_EQ(rig.simple_error(peer, 4), 0u);
  // Made durable by a flush behind it.
  rig.say(peer, request_bytes(command::kTrim, 5, 4096, 8192, command_flag::kFua));
  CHECK_EQ(rig.simple_error(peer, 5), 0u);
  const auto& seen = rig.lane.seen;
  REQUIRE(seen.size() == 6);
  CHECK(seen[0].operation == Operation::Flush);
  CHECK(seen[1].operation == Operation::Discard && seen[1].offset == 4096);
  CHECK_EQ(seen[1].length, 8192u);
  CHECK(seen[2].operation == Operation::WriteZeroes && seen[2].deallocate && !seen[2].fua);
  CHECK(seen[3].operation == Operation::WriteZeroes && !seen[3].deallocate && seen[3].fua);
  CHECK(seen[4].operation == Operation::Discard);
  CHECK(seen[5].operation == Operation::Flush);
  CHECK_EQ(rig.counters.requests.load(), 5u);
}

TEST(refusals_are_answered_and_cost_nothing_else) {
  Rig rig;
  Peer& peer = rig.open();
  Bytes bytes = request_bytes(command::kWrite, 1, kBytes, 512);  // beyond the end
  add(bytes, Bytes(512));
  rig.say(peer, bytes);
  CHECK_EQ(rig.simple_error(peer, 1), error::kNoSpace);
  bytes = request_bytes(command::kWrite, 2, 100, 100);
  add(bytes, Bytes(100));
  rig.say(peer, bytes);
  CHECK_EQ(rig.simple_error(peer, 2), error::kInvalid);
  rig.say(peer, request_bytes(command::kRead, 3, kBytes, 512));
  CHECK_EQ(rig.simple_error(peer, 3), error::kInvalid);
  rig.say(peer, request_bytes(99, 4, 0, 0));
  CHECK_EQ(rig.simple_error(peer, 4), error::kInvalid);
  rig.say(peer, request_bytes(command::kWrite, 5, 0, 0));
  CHECK_EQ(rig.simple_error(peer, 5), 0u);
  rig.say(peer, request_bytes(command::kWrite, 6, 1, 0));
  CHECK_EQ(rig.simple_error(peer, 6), error::kInvalid);
  CHECK_EQ(rig.lane.seen.size(), size_t{1});
}

TEST(read_only_namespaces_refuse_writes) {
  Rig rig(1 << 20);
  rig.lane.shape.read_only = true;
  rig.make();
  Peer& peer = rig.open();
  Bytes bytes = request_bytes(command::kWrite, 1, 0, 512);
  add(bytes, Bytes(512));
  rig.say(peer, bytes);
  CHECK_EQ(rig.simple_error(peer, 1), error::kPermission);
  rig.say(peer, request_bytes(command::kTrim, 2, 0, 512));
  CHECK_EQ(rig.simple_error(peer, 2), error::kPermission);
  CHECK_EQ(rig.lane.seen.size(), size_t{0});
}

TEST(a_lost_namespace_is_a_shutdown) {
  Rig rig;
  Peer& peer = rig.open();
  rig.lane.hold = true;
  rig.say(peer, request_bytes(command::kRead, 1, 0, 4096));
  rig.lane.end = IoEnd::Disconnected;
  rig.lane.release();
  CHECK_EQ(rig.simple_error(peer, 1), error::kShutdown);
}

TEST(more_requests_than_slots_wait_in_the_socket) {
  Rig rig(1 << 20);
  Peer& peer = rig.open();
  rig.lane.hold = true;
  constexpr uint32_t kCount = 5 * Connection::kSlots + 3;
  Bytes bytes;
  for (uint32_t i = 0; i < kCount; i++) {
    add(bytes, request_bytes(command::kRead, i, (i % 2048) * 512ull, 512));
  }
  REQUIRE(::send(peer.fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  rig.turn(20);
  CHECK_EQ(rig.lane.in_flight(), Connection::kSlots);
  rig.lane.hold = false;
  rig.lane.release();
  Bytes got;
  for (int i = 0; i < 40; i++) {
    rig.turn(1);
    add(got, rig.take(peer));
  }
  REQUIRE(got.size() == size_t{kCount} * (16 + 512));
  for (uint32_t i = 0; i < kCount; i++) CHECK_EQ(get64(&got[i * size_t{528} + 8]), i);
}

TEST(a_client_that_reads_nothing_holds_up_nobody) {
  Rig rig;
  Peer& deaf = rig.open();
  Peer& other = rig.open();
  Bytes bytes;
  for (uint32_t i = 0; i < 2000; i++) add(bytes, request_bytes(command::kRead, i, 0, 1 << 20));
  ssize_t sent = 0;
  for (int i = 0; i < 200; i++) {
    const ssize_t more = ::send(deaf.fd, bytes.data() + sent,
                                bytes.size() - static_cast<size_t>(sent), MSG_NOSIGNAL);
    if (more > 0) sent += more;
    rig.turn(1);
  }
  const size_t asked = rig.lane.seen.size();
  CHECK(asked <= 33 + Connection::kSlots);  // what its buffers hold, and its socket
  for (uint64_t i = 0; i < 10; i++) {
    rig.say(other, request_bytes(command::kRead, i, 512, 512));
    rig.turn();
    CHECK_EQ(rig.take(other).size(), size_t{528});
  }
  CHECK_EQ(rig.lane.seen.size(), asked + 10);
  // And nothing spins for it: no event is wanted that is there.
  CHECK_EQ(rig.group->read(1), 0);
  CHECK(!rig.group->has_work());
  rig.shut(deaf);
  rig.turn();
  CHECK_EQ(rig.counters.live_connections.load(), 1u);
}

TEST(replies_leave_when_the_client_reads_again) {
  Rig rig;
  Peer& peer = rig.open();
  constexpr uint32_t kCount = 300, kLength = 64 * 1024;
  Bytes bytes;
  for (uint32_t i = 0; i < kCount; i++) {
    add(bytes, request_bytes(command::kRead, i, uint64_t{i} * kLength, kLength));
  }
  REQUIRE(::send(peer.fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  rig.turn(50);
  Bytes got;
  for (int i = 0; i < 5000 && got.size() < size_t{kCount} * (16 + kLength); i++) {
    add(got, rig.take(peer));
    rig.turn(2);
  }
  REQUIRE(got.size() == size_t{kCount} * (16 + kLength));
  for (uint32_t i = 0; i < kCount; i++) {
    const uint8_t* const at = &got[i * size_t{16 + kLength}];
    CHECK_EQ(get64(at + 8), i);
    CHECK(std::memcmp(at + 16, &rig.lane.memory[uint64_t{i} * kLength], kLength) == 0);
  }
}

TEST(goodbye_waits_for_what_is_in_flight) {
  Rig rig;
  Peer& peer = rig.open();
  rig.lane.hold = true;
  Bytes bytes = request_bytes(command::kRead, 1, 0, 512);
  add(bytes, request_bytes(command::kDisconnect, 0, 0, 0));
  add(bytes, request_bytes(command::kRead, 2, 0, 512));  // too late
  rig.say(peer, bytes);
  CHECK(!rig.ended(peer));
  rig.lane.release();
  rig.turn();
  CHECK_EQ(rig.take(peer).size(), size_t{528});
  CHECK(rig.ended(peer));
  CHECK_EQ(rig.lane.seen.size(), size_t{1});
}

TEST(an_aborted_handshake_ends_in_good_order) {
  Rig rig;
  Peer& peer = rig.connect();
  Bytes bytes;
  add32(bytes, 3);
  add(bytes, option_bytes(option::kAbort));
  rig.say(peer, bytes);
  CHECK(rig.ended(peer));
  CHECK_EQ(peer.got.size(), size_t{18 + 20});
}

TEST(nonsense_costs_its_sender_only) {
  Rig rig;
  Peer& other = rig.open();
  {
    Peer& peer = rig.connect();
    rig.say(peer, pattern(5000, 1));
    CHECK(rig.ended(peer));
  }
  Peer& peer = rig.open();
  rig.lane.hold = true;
  rig.say(peer, request_bytes(command::kRead, 1, 0, 4096));
  rig.say(peer, pattern(100, 1));
  CHECK(rig.ended(peer));
  // What it had in flight goes on to its end.
  CHECK_EQ(rig.counters.live_connections.load(), 2u);
  rig.lane.hold = false;
  rig.lane.release();
  rig.turn();
  CHECK_EQ(rig.counters.live_connections.load(), 1u);
  rig.say(other, request_bytes(command::kRead, 1, 0, 512));
  rig.turn();
  CHECK_EQ(rig.take(other).size(), size_t{528});
}

TEST(a_client_that_dies_in_the_middle_of_a_write_writes_nothing) {
  Rig rig;
  Peer& peer = rig.open();
  Bytes bytes = request_bytes(command::kWrite, 1, 0, 1 << 20);
  add(bytes, pattern(500'000, 9));
  rig.say(peer, bytes);
  rig.shut(peer);
  rig.turn();
  CHECK_EQ(rig.lane.seen.size(), size_t{0});
  CHECK(rig.group->empty());
  // In the middle of a payload that is passed over, and of a handshake.
  Peer& second = rig.open();
  bytes = request_bytes(command::kWrite, 1, kBytes, 1 << 20);
  add(bytes, pattern(5000, 9));
  rig.say(second, bytes);
  rig.shut(second);
  Peer& third = rig.connect();
  rig.say(third, {0, 0});
  rig.shut(third);
  rig.turn();
  CHECK(rig.group->empty());
}

TEST(a_client_that_dies_while_it_is_stalled_is_seen) {
  Rig rig;
  Peer& peer = rig.open();
  rig.lane.hold = true;
  Bytes bytes;
  for (uint32_t i = 0; i < 200; i++) add(bytes, request_bytes(command::kRead, i, 0, 512));
  rig.say(peer, bytes);
  rig.turn();
  CHECK_EQ(rig.group->read(1), 0);
  rig.shut(peer);
  rig.turn();
  rig.lane.release(1);
  rig.turn();
  CHECK_EQ(rig.counters.live_connections.load(), 1u);  // the others are in flight
  rig.lane.release();
  rig.turn();
  CHECK(rig.group->empty());
}

TEST(without_memory_the_client_is_hung_up_on) {
  Rig rig;
  rig.lane.refuse_memory = true;
  Peer& peer = rig.connect();
  rig.say(peer, opening(false));
  CHECK(rig.ended(peer));
}

TEST(stop_drops_all_and_waits_for_what_is_in_flight) {
  Rig rig;
  Peer& busy = rig.open();
  rig.open();
  rig.connect();
  rig.lane.hold = true;
  rig.say(busy, request_bytes(command::kRead, 1, 0, 512));
  rig.turn();
  int stopped = 0;
  rig.group->begin_stop([](void* count) { ++*static_cast<int*>(count); }, &stopped);
  CHECK(rig.group->has_work());
  rig.turn();
  CHECK_EQ(rig.counters.live_connections.load(), 1u);
  CHECK(rig.ended(busy));
  CHECK_EQ(stopped, 0);
  rig.lane.release();
  rig.turn();
  CHECK_EQ(stopped, 1);
  Peer& late = rig.connect();
  CHECK(rig.ended(late));
}

TEST(stop_of_an_empty_group) {
  Rig rig;
  int stopped = 0;
  rig.group->begin_stop([](void* count) { ++*static_cast<int*>(count); }, &stopped);
  CHECK(rig.group->has_work());
  rig.turn();
  CHECK_EQ(stopped, 1);
  CHECK(!rig.group->has_work());
}

TEST_MAIN
