// Clients over shared memory: the library against the server, on real sockets and threads, over a
// namespace in memory. Round trips, waking up, many clients, the ends of either side.
#include "support/client_rig.h"
#include "test.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <random>
#include <thread>

using namespace nvmeof;
using namespace nvmeof::test;

TEST(data_area_gives_pages_and_joins_what_is_freed) {
  std::vector<uint8_t> memory(nvmeof_ring_layout_of(4, 16 * 4096).total);
  nvmeof_client client{};
  nvmeof_use_memory(&client, memory.data(), 4, 16 * 4096);
  REQUIRE(nvmeof_area_begin(&client) == 0);
  std::vector<void*> pages;
  for (int i = 0; i < 16; i++) pages.push_back(nvmeof_alloc(&client, 1 + static_cast<size_t>(i)));
  for (int i = 0; i < 16; i++) CHECK(pages[static_cast<size_t>(i)] == client.data + i * 4096);
  CHECK(nvmeof_alloc(&client, 1) == nullptr);
  // Freed in an order that joins to the left, to the right and on both sides.
  for (const size_t i : {0u, 2u, 1u, 5u, 4u, 3u}) nvmeof_free(&client, pages[i]);
  void* const six = nvmeof_alloc(&client, 6 * 4096);
  CHECK(six == pages[0]);
  CHECK(nvmeof_alloc(&client, 4096) == nullptr);
  nvmeof_free(&client, six);
  nvmeof_free(&client, six);  // not allocated: ignored
  for (size_t i = 6; i < 16; i++) nvmeof_free(&client, pages[i]);
  CHECK(nvmeof_alloc(&client, 16 * 4096 + 1) == nullptr);
  CHECK(nvmeof_alloc(&client, 16 * 4096) == pages[0]);
  nvmeof_area_end(&client);
}

TEST(every_operation_does_what_it_says) {
  ClientRig rig;
  LibraryClient client(rig.path);
  REQUIRE(client.error == 0);
  const nvmeof_geometry& geometry = *nvmeof_get_geometry(client.client);
  CHECK_EQ(geometry.size_bytes, uint64_t{2048} * 512);
  CHECK_EQ(geometry.block_bytes, 512u);
  CHECK_EQ(geometry.transfer_max, 128u * 1024);
  CHECK(!geometry.read_only && geometry.write_cache && geometry.can_trim &&
        geometry.can_write_zeroes);
  auto* const out = static_cast<uint8_t*>(nvmeof_alloc(client.client, 8192));
  auto* const in = static_cast<uint8_t*>(nvmeof_alloc(client.client, 8192));
  for (int i = 0; i < 8192; i++) out[i] = static_cast<uint8_t>(i * 7 + 3);
  CHECK_EQ(client.run(NVMEOF_WRITE, 4096, 8192, out), 0);
  CHECK_EQ(client.run(NVMEOF_READ, 4096, 8192, in), 0);
  CHECK(std::memcmp(in, out, 8192) == 0);
  CHECK_EQ(client.run(NVMEOF_TRIM, 4096, 512), 0);
  CHECK_EQ(client.run(NVMEOF_WRITE_ZEROES, 4608, 512), 0);
  CHECK_EQ(client.run(NVMEOF_FLUSH, 0, 0), 0);
  CHECK_EQ(client.run(NVMEOF_READ, 4096, 8192, in), 0);
  for (int i = 0; i < 1024; i++) CHECK_EQ(in[i], 0);
  CHECK(std::memcmp(in + 1024, out + 1024, 8192 - 1024) == 0);
}

TEST(requests_that_make_no_sense_end_with_their_errors) {
  ClientRig rig;
  LibraryClient client(rig.path);
  REQUIRE(client.error == 0);
  void* const data = nvmeof_alloc(client.client, 4096);
  uint8_t outside[512];
  const uint64_t size = nvmeof_get_geometry(client.client)->size_bytes;
  CHECK_EQ(client.run(NVMEOF_READ, 0, 512, outside), EINVAL);  // refused by the library
  CHECK_EQ(client.run(NVMEOF_READ, 100, 512, data), EINVAL);
  CHECK_EQ(client.run(NVMEOF_READ, 0, 100, data), EINVAL);
  CHECK_EQ(client.run(NVMEOF_READ, 0, 0, data), EINVAL);
  CHECK_EQ(client.run(NVMEOF_READ, size, 512, data), ENOSPC);
  CHECK_EQ(client.run(NVMEOF_READ, ~uint64_t{511}, 512, data), ENOSPC);
  CHECK_EQ(client.run(NVMEOF_READ, size - 512, 512, data), 0);
  rig.on_lane(0, [](FakeLane& lane) { lane.shape.can_deallocate = false; });
  CHECK_EQ(client.run(NVMEOF_TRIM, 0, 512), EOPNOTSUPP);
  rig.on_lane(0, [](FakeLane& lane) { lane.shape.read_only = true; });
  CHECK_EQ(client.run(NVMEOF_WRITE, 0, 512, data), EROFS);
  CHECK_EQ(client.run(NVMEOF_FLUSH, 0, 0), 0);
}

TEST(the_status_of_a_failed_command_comes_through) {
  ClientRig rig;
  LibraryClient client(rig.path);
  REQUIRE(client.error == 0);
  void* const data = nvmeof_alloc(client.client, 4096);
  rig.on_lane(0, [](FakeLane& lane) { lane.hold = true; });
  for (uint64_t i = 0; i < 3; i++) CHECK_EQ(client.queue(NVMEOF_READ, 0, 512, data, i), 0);
  nvmeof_submit(client.client);
  REQUIRE(eventually([&] { return rig.held(0) == 3; }));
  rig.on_lane(0, [](FakeLane& lane) {
    lane.end = attach::IoEnd::Failed;
    lane.status = 0x281;
    lane.release(1);
    lane.end = attach::IoEnd::TimedOut;
    lane.release(1);
    lane.end = attach::IoEnd::Disconnected;
    lane.release(1);
  });
  nvmeof_completion done[3];
  CHECK_EQ(nvmeof_wait(client.client, done, 3, 3, nullptr), 3);
  CHECK_EQ(done[0].error, EIO);
  CHECK_EQ(done[0].status, 0x281);
  CHECK_EQ(done[1].error, ETIMEDOUT);
  CHECK_EQ(done[1].status, 0);
  CHECK_EQ(done[2].error, ENOTCONN);
  CHECK_EQ(done[2].user_data, 2u);
}

TEST(no_more_than_the_entries_are_outstanding) {
  ClientRig rig;
  LibraryClient client(rig.path, 3);  // rounded up
  REQUIRE(client.error == 0);
  CHECK_EQ(nvmeof_entries(client.client), 4u);
  for (int round = 0; round < 100; round++) {
    for (uint64_t i = 0; i < 4; i++) CHECK_EQ(client.queue(NVMEOF_FLUSH, 0, 0, nullptr, i), 0);
    CHECK_EQ(client.queue(NVMEOF_FLUSH, 0, 0), -EAGAIN);
    nvmeof_submit(client.client);
    nvmeof_completion done[4];
    CHECK_EQ(nvmeof_wait(client.client, done, 4, 4, nullptr), 4);
    for (uint64_t i = 0; i < 4; i++) CHECK_EQ(done[i].user_data, i);
  }
}

TEST(waiting_ends_with_its_time) {
  ClientRig rig;
  LibraryClient client(rig.path);
  REQUIRE(client.error == 0);
  rig.on_lane(0, [](FakeLane& lane) { lane.hold = true; });
  CHECK_EQ(client.queue(NVMEOF_FLUSH, 0, 0), 0);
  nvmeof_submit(client.client);
  nvmeof_completion done;
  const timespec limit{0, 20'000'000};
  const reactor::TimeNs begin = reactor::monotonic_now();
  CHECK_EQ(nvmeof_wait(client.client, &done, 1, 1, &limit), 0);
  CHECK(reactor::monotonic_now() - begin >= 20'000'000);
  CHECK_EQ(nvmeof_outstanding(client.client), 1u);
  rig.on_lane(0, [](FakeLane& lane) {
    lane.hold = false;
    lane.release();
  });
  CHECK_EQ(nvmeof_wait(client.client, &done, 1, 1, nullptr), 1);
}

// Both ends sleep after every request: each round takes two doorbells, and a lost one would hang.
TEST(nobody_misses_a_doorbell) {
  ClientRig rig(1, 0);
  LibraryClient client(rig.path);
  REQUIRE(client.error == 0);
  std::minstd_rand random(7);
  for (int i = 0; i < 20'000; i++) {
    client.client->spin_us = static_cast<uint32_t>(random() % 3);
    CHECK_EQ(client.queue(NVMEOF_FLUSH, 0, 0, nullptr, static_cast<uint64_t>(i)), 0);
    nvmeof_submit(client.client);
    nvmeof_completion done{};
    const timespec limit{10, 0};
    const int count = nvmeof_wait(client.client, &done, 1, 1, &limit);
    CHECK_EQ(count, 1);
    if (count != 1) break;
    CHECK_EQ(done.user_data, static_cast<uint64_t>(i));
  }
}

TEST(an_idle_client_costs_no_processor_time) {
  ClientRig rig;
  LibraryClient client(rig.path);
  REQUIRE(client.error == 0);
  CHECK_EQ(client.run(NVMEOF_FLUSH, 0, 0), 0);
  const auto iterations = [&] { return rig.reactors[0]->counters().iterations.load(); };
  usleep(50'000);  // let it fall asleep
  const uint64_t before = iterations();
  usleep(200'000);
  CHECK(iterations() - before < 10);
  CHECK_EQ(client.run(NVMEOF_FLUSH, 0, 0), 0);
}

TEST(many_clients_on_several_lanes_each_see_their_own) {
  ClientRig rig(2);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint32_t n = 0; n < 6; n++) {
    threads.emplace_back([&, n] {
      LibraryClient client(rig.path, 32, 1 << 20, n % 2 * 20);
      if (client.error != 0) {
        wrong++;
        return;
      }
      // Blocks of its own, in either lane's namespace.
      std::minstd_rand random(n);
      std::vector<uint8_t*> buffers;
      for (int i = 0; i < 8; i++)
        buffers.push_back(static_cast<uint8_t*>(nvmeof_alloc(client.client, 4096)));
      for (int round = 0; round < 300; round++) {
        nvmeof_completion done[8];
        for (uint32_t i = 0; i < 8; i++) {
          std::memset(buffers[i], static_cast<int>(random() & 0xFF), 4096);
          client.queue(NVMEOF_WRITE, (n * 8 + i) * uint64_t{4096}, 4096, buffers[i], i);
        }
        nvmeof_submit(client.client);
        for (int got = 0; got < 8;) {
          const int more = nvmeof_wait(client.client, done, 1, 8, nullptr);
          if (more <= 0) {
            wrong++;
            return;
          }
          for (int i = 0; i < more; i++) wrong += done[i].error != 0;
          got += more;
        }
        const uint32_t which = static_cast<uint32_t>(random()) % 8;
        const uint8_t expected = buffers[which][0];
        std::memset(buffers[which], 0, 4096);
        if (client.run(NVMEOF_READ, (n * 8 + which) * uint64_t{4096}, 4096, buffers[which]) != 0 ||
            buffers[which][4095] != expected)
          wrong++;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK(eventually([&] { return rig.counters.live == 0; }));
  for (unsigned lane = 0; lane < 2; lane++) CHECK(rig.seen(lane) > 0);
}

TEST(a_client_that_dies_is_waited_for) {
  ClientRig rig;
  rig.on_lane(0, [](FakeLane& lane) { lane.hold = true; });
  const pid_t child = fork();
  if (child == 0) {
    LibraryClient client(rig.path);
    void* const data = nvmeof_alloc(client.client, 4096);
    for (int i = 0; i < 5; i++) client.queue(NVMEOF_WRITE, 0, 4096, data);
    nvmeof_submit(client.client);
    usleep(20'000);
    kill(getpid(), SIGKILL);
  }
  REQUIRE(child > 0);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(eventually([&] { return rig.held(0) == 5; }));
  usleep(20'000);  // many looks at the socket
  CHECK_EQ(rig.lanes[0]->regions.load(), 1);
  CHECK_EQ(rig.counters.live.load(), 1u);
  rig.on_lane(0, [](FakeLane& lane) { lane.release(); });
  CHECK(eventually([&] { return rig.counters.live == 0; }));
  CHECK_EQ(rig.lanes[0]->regions.load(), 0);
  CHECK_EQ(rig.counters.sent_away.load(), 0u);
  rig.on_lane(0, [](FakeLane& lane) { lane.hold = false; });
  LibraryClient next(rig.path);
  CHECK_EQ(next.run(NVMEOF_FLUSH, 0, 0), 0);
}

TEST(a_server_that_closes_says_why) {
  ClientRig rig(2);
  LibraryClient sleeping(rig.path), polling(rig.path), waiting(rig.path);
  REQUIRE(sleeping.error == 0 && polling.error == 0 && waiting.error == 0);
  rig.on_lane(0, [](FakeLane& lane) { lane.hold = true; });
  CHECK_EQ(sleeping.queue(NVMEOF_FLUSH, 0, 0), 0);  // the first client: the first lane
  nvmeof_submit(sleeping.client);
  REQUIRE(eventually([&] { return rig.held(0) == 1; }));
  rig.server->begin_stop();
  nvmeof_completion done;
  CHECK_EQ(nvmeof_wait(sleeping.client, &done, 1, 1, nullptr), -EPIPE);
  CHECK(std::string(nvmeof_why(sleeping.client)) == "the namespace was detached");
  int polled = 0;
  CHECK(eventually([&] {
    for (int i = 0; i < 10'000 && polled == 0; i++) polled = nvmeof_poll(polling.client, &done, 1);
    return polled != 0;
  }));
  CHECK_EQ(polled, -EPIPE);
  CHECK_EQ(polling.queue(NVMEOF_FLUSH, 0, 0), -EPIPE);
  CHECK(eventually([&] { return rig.counters.live == 1; }));  // one request is in flight
  CHECK_EQ(rig.lanes[0]->regions.load(), 1);
  rig.on_lane(0, [](FakeLane& lane) { lane.release(); });
  rig.server->wait_stopped();
  CHECK_EQ(rig.counters.live.load(), 0u);
  CHECK_EQ(rig.lanes[0]->regions.load(), 0);
  LibraryClient late(rig.path);
  CHECK_EQ(late.error, -ENOENT);
}

TEST(connecting_says_what_is_wrong) {
  char why[NVMEOF_WHY_BYTES];
  nvmeof_client* client = nullptr;
  CHECK_EQ(nvmeof_connect("/tmp/nvmeof-no-such-socket", nullptr, &client, why), -ENOENT);
  CHECK(std::strstr(why, "attach") != nullptr);
  CHECK_EQ(nvmeof_connect(std::string(200, 'x').c_str(), nullptr, &client, why), -ENAMETOOLONG);
  ClientRig rig;
  const nvmeof_client_options many{5000, 4096, 0}, large{1, NVMEOF_RING_DATA_MAX + 1, 0};
  CHECK_EQ(nvmeof_connect(rig.path.c_str(), &many, &client, why), -EINVAL);
  CHECK(std::strstr(why, "entries") != nullptr);
  CHECK_EQ(nvmeof_connect(rig.path.c_str(), &large, &client, why), -EINVAL);
  CHECK(std::strstr(why, "data_bytes") != nullptr);
  rig.on_lane(0, [](FakeLane& lane) { lane.refuse_memory = true; });
  CHECK_EQ(nvmeof_connect(rig.path.c_str(), nullptr, &client, why), -ENOMEM);
  CHECK(client == nullptr);
}

TEST(clients_beyond_the_limit_are_refused_in_words) {
  ClientRig rig;
  std::vector<std::unique_ptr<LibraryClient>> clients;
  for (uint32_t i = 0; i < attach::kClientsMax; i++) {
    clients.push_back(std::make_unique<LibraryClient>(rig.path, 1, 4096));
    REQUIRE(clients.back()->error == 0);
  }
  LibraryClient extra(rig.path, 1, 4096);
  CHECK_EQ(extra.error, -EUSERS);
  CHECK(std::strstr(extra.why, "64 clients") != nullptr);
  clients.pop_back();
  CHECK(eventually([&] { return rig.counters.live == attach::kClientsMax - 1; }));
  LibraryClient instead(rig.path, 1, 4096);
  CHECK_EQ(instead.error, 0);
}

// The rings without sockets, over one mapping: here the thread sanitizer sees both ends.
TEST(the_rings_under_two_threads) {
  constexpr uint32_t kEntries = 16, kRequests = 200'000;
  const nvmeof_ring_layout layout = nvmeof_ring_layout_of(kEntries, 4096);
  void* const memory = std::aligned_alloc(4096, layout.total);
  std::memset(memory, 0, layout.total);
  nvmeof_client client{};
  client.socket = -1;
  nvmeof_use_memory(&client, memory, kEntries, 4096);
  attach::ServerRings rings(static_cast<uint8_t*>(memory), layout, kEntries);
  std::thread server([&] {
    for (uint32_t served = 0; served < kRequests;) {
      const uint32_t count = rings.submitted();
      if (count == 0) std::this_thread::yield();
      for (uint32_t i = 0; i < count; i++) {
        const nvmeof_ring_entry entry = rings.take();
        // What the client wrote into the data area is seen with the entry.
        nvmeof_ring_completion completion{};
        completion.user_data = entry.user_data;
        completion.end = NVMEOF_RING_FAILED;
        completion.status = client.data[entry.user_data % 16];
        rings.put(completion);
      }
      rings.publish();
      served += count;
    }
  });
  uint32_t wrong = 0, taken = 0;
  uint64_t next = 0;
  std::vector<nvmeof_completion> done(kEntries);
  while (taken < kRequests) {
    for (; next < kRequests; next++) {
      if (nvmeof_outstanding(&client) == kEntries) break;
      client.data[next % 16] = static_cast<uint8_t>(next * 3);
      const nvmeof_io io{NVMEOF_READ, false, 512, next * 512, client.data, next};
      if (nvmeof_queue(&client, &io) != 0) wrong++;
    }
    nvmeof_submit(&client);
    client.empty_polls = 0;  // it has no socket to look at
    const int count = nvmeof_poll(&client, done.data(), kEntries);
    if (count == 0) std::this_thread::yield();
    for (int i = 0; i < count; i++) {
      const nvmeof_completion& completion = done[static_cast<size_t>(i)];
      wrong += completion.user_data != taken ||
               completion.status != static_cast<uint8_t>(completion.user_data * 3);
      taken++;
    }
  }
  server.join();
  CHECK_EQ(wrong, 0u);
  std::free(memory);
}

TEST_MAIN
