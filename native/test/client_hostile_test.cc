// Clients over shared memory that break every rule there is: wrong hellos, random bytes in the
// rings and their indices, floods of messages, descriptors nobody asked for. Only the sender may
// suffer. Random cases are seeded, and a good client runs beside them.
#include <dirent.h>

#include <random>
#include <thread>

#include "support/raw_client.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::test;

namespace {

size_t open_descriptors() {
  size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) count++;
  closedir(folder);
  return count;
}

bool works(const std::string& path) {
  LibraryClient client(path);
  return client.error == 0 && client.run(NVMEOF_FLUSH, 0, 0) == 0;
}

}  // namespace

TEST(wrong_hellos_are_refused_with_their_field) {
  ClientRig rig;
  struct Wrong {
    void (*change)(nvmeof_ring_hello& hello);
    int error;
    const char* word;
  };
  const Wrong all[] = {
      {[](auto& hello) { hello.magic++; }, EPROTO, "hello"},
      {[](auto& hello) { hello.version = 9; }, EPROTO, "version 9"},
      {[](auto& hello) { hello.entries = 0; }, EINVAL, "entries"},
      {[](auto& hello) { hello.entries = 3; }, EINVAL, "entries"},
      {[](auto& hello) { hello.entries = 8192; }, EINVAL, "entries"},
      {[](auto& hello) { hello.reserved = 1; }, EPROTO, "reserved"},
      {[](auto& hello) { hello.data_bytes = 0; }, EINVAL, "data_bytes"},
      {[](auto& hello) { hello.data_bytes = 4097; }, EINVAL, "data_bytes"},
      {[](auto& hello) { hello.data_bytes = ~uint64_t{4095}; }, EINVAL, "data_bytes"},
  };
  for (const Wrong& wrong : all) {
    RawClient client(rig.path);
    nvmeof_ring_hello hello = RawClient::good_hello();
    wrong.change(hello);
    client.say(&hello, sizeof hello);
    const auto answer = client.hear();
    CHECK_EQ(answer.error, static_cast<uint32_t>(wrong.error));
    CHECK(std::strstr(answer.reason, wrong.word) != nullptr);
    CHECK(client.at_end());
  }
  for (const size_t length : {1u, 23u, 25u, 100u, 60'000u}) {
    RawClient client(rig.path);
    const std::vector<uint8_t> bytes(length);
    client.say(bytes.data(), length);
    CHECK_EQ(client.hear().error, static_cast<uint32_t>(EPROTO));
    CHECK(client.at_end());
  }
  CHECK(works(rig.path));
  CHECK(eventually([&] { return rig.counters.live == 0; }));
}

TEST(a_client_without_hello_is_sent_away) {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  FakeLane lane(ClientRig::kBytes);
  attach::ClientCounters counters;
  attach::ClientSession session(ends[0], &lane, &counters, 1000);
  CHECK_EQ(session.take(1001), 0);
  CHECK_EQ(session.next_deadline(), 1000 + attach::ClientSession::kGreetingLimit);
  session.take(session.next_deadline());
  CHECK(session.state() == attach::ClientSession::State::Over);
  nvmeof_ring_answer answer;
  CHECK_EQ(recv(ends[1], &answer, sizeof answer, 0), ssize_t{sizeof answer});
  CHECK_EQ(answer.error, static_cast<uint32_t>(ETIMEDOUT));
  close(ends[1]);
}

TEST(the_memory_cannot_be_made_shorter) {
  ClientRig rig;
  RawClient client(rig.path);
  REQUIRE(client.join());
  CHECK_EQ(ftruncate(client.memory_fd, 4096), -1);
  CHECK_EQ(errno, EPERM);
  CHECK_EQ(ftruncate(client.memory_fd, 1 << 30), -1);
  // A hole is only zeroes.
  CHECK_EQ(fallocate(client.memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                     static_cast<off_t>(client.layout.total)),
           0);
  CHECK(works(rig.path));
}

TEST(an_index_that_jumps_costs_the_client_its_connection) {
  ClientRig rig;
  for (const uint32_t tail : {RawClient::kEntries + 1, 0x8000'0000u, ~0u}) {
    RawClient client(rig.path);
    REQUIRE(client.join());
    client.set_tail(tail);
    client.ring();
    const auto goodbye = client.hear();
    CHECK_EQ(goodbye.message, static_cast<uint32_t>(NVMEOF_RING_GOODBYE));
    CHECK(std::strstr(goodbye.reason, "outstanding") != nullptr);
    CHECK(client.at_end());
  }
  CHECK(eventually([&] { return rig.counters.live == 0; }));
  CHECK_EQ(rig.counters.sent_away.load(), 3u);
  CHECK(works(rig.path));
}

TEST(a_message_that_is_no_doorbell_ends_the_connection) {
  ClientRig rig;
  RawClient client(rig.path);
  REQUIRE(client.join());
  const nvmeof_ring_hello again = RawClient::good_hello();
  client.say(&again, sizeof again);
  CHECK(std::strstr(client.hear().reason, "doorbell") != nullptr);
  CHECK(works(rig.path));
}

TEST(descriptors_that_a_client_passes_are_not_kept) {
  ClientRig rig;
  CHECK(works(rig.path));
  CHECK(eventually([&] { return rig.counters.live == 0; }));
  const size_t before = open_descriptors();
  for (int i = 0; i < 50; i++) {
    RawClient client(rig.path);
    REQUIRE(client.join());
    client.say_with_descriptor(STDERR_FILENO);
    client.say_with_descriptor(STDERR_FILENO);
  }
  CHECK(eventually([&] { return rig.counters.live == 0; }));
  CHECK_EQ(open_descriptors(), before);
}

// It asks to be woken for every completion and never listens: its socket fills.
TEST(a_client_that_does_not_listen_blocks_nobody) {
  ClientRig rig;
  RawClient client(rig.path);
  REQUIRE(client.join());
  for (uint32_t i = 0; i < 5000; i++) {
    __atomic_store_n(&client.words->client_sleeping, 1, __ATOMIC_SEQ_CST);
    client.put_entry({NVMEOF_RING_FLUSH, 0, 0, 0, 0, 0, i});
    client.set_tail(i + 1);
    client.ring();
    REQUIRE(eventually([&] {
      return __atomic_load_n(&client.words->completion_tail, __ATOMIC_ACQUIRE) == i + 1;
    }));
  }
  CHECK(works(rig.path));
}

TEST(random_bytes_in_the_rings_harm_nobody_else) {
  ClientRig rig(1, 1000);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, rounds{0};
  std::thread good([&] {
    LibraryClient client(rig.path, 8, 64 << 10);
    auto* const data = static_cast<uint8_t*>(nvmeof_alloc(client.client, 4096));
    // The last blocks are its own: what the others write lies below (random_entry).
    const uint64_t mine = 2040 * 512;
    while (!stop || rounds < 10) {
      const auto fill = static_cast<uint8_t>(rounds++);
      std::memset(data, fill, 4096);
      if (client.run(NVMEOF_WRITE, mine, 4096, data) != 0) wrong++;
      std::memset(data, ~fill, 4096);
      if (client.run(NVMEOF_READ, mine, 4096, data) != 0 || data[0] != fill || data[4095] != fill)
        wrong++;
    }
  });
  std::minstd_rand random(20'240'601);
  const auto below = [&](uint64_t limit) { return static_cast<uint64_t>(random()) % limit; };
  int dropped = 0;
  for (int round = 0; round < 150; round++) {
    RawClient client(rig.path);
    REQUIRE(client.join());
    uint32_t tail = 0;
    for (int step = 0; step < 60 && !client.was_dropped(); step++) {
      const auto count = static_cast<uint32_t>(below(RawClient::kEntries) + 1);
      for (uint32_t i = 0; i < count; i++) {
        nvmeof_ring_entry entry;
        auto* const bytes = reinterpret_cast<uint8_t*>(&entry);
        for (size_t b = 0; b < sizeof entry; b++) bytes[b] = static_cast<uint8_t>(random());
        if (below(4) != 0) {  // nearly right
          entry.opcode = static_cast<uint8_t>(below(6));
          entry.flags = static_cast<uint8_t>(below(8) == 0);
          entry.reserved = 0;
          entry.offset = below(2048) * 512;
          entry.length = static_cast<uint32_t>(below(40) * 512);
          entry.data = below(RawClient::kData + 4096);
        }
        // Not into the good client's blocks.
        if (entry.offset / 512 + entry.length / 512 > 2040) entry.offset = ~uint64_t{0};
        client.put_entry(entry, tail + i);
      }
      tail += count;
      if (below(64) == 0) tail = static_cast<uint32_t>(random());
      client.set_tail(tail);
      if (below(2) == 0) client.ring();
      if (below(4) == 0) client.scribble_words(random);
      if (below(16) == 0) client.wait_for(tail);
    }
    dropped += client.was_dropped();
  }
  stop = true;
  good.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK(dropped > 0);
  CHECK(eventually([&] { return rig.counters.live == 0; }));
  rig.on_lane(0, [](FakeLane& lane) {
    CHECK_EQ(lane.in_flight(), 0u);
    CHECK_EQ(lane.regions.load(), 0);
  });
  CHECK(works(rig.path));
}

TEST_MAIN
