// The NBD server on real reactors and a real socket file: clients on threads, the file's rights and
// owners, and an end in good order while clients are busy.
#include <sys/stat.h>

#include <thread>

#include "attach/attachment.h"
#include "attach/nbd/server.h"
#include "attach/unix_listener.h"
#include "support/fake_lane.h"
#include "support/nbd_client.h"
#include "support/run_on.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::attach;
using namespace nvmeof::attach::nbd;
using namespace nvmeof::test;

namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/nbd_server_test.XXXXXX";
    if (mkdtemp(name) == nullptr) std::abort();
    path = name;
  }
  ~Folder() {
    CHECK_EQ(rmdir(path.c_str()), 0);  // nothing is left in it
  }
  std::string socket() const { return path + "/nbd"; }
  std::string path;
};

struct Rig {
  explicit Rig(uint32_t reactors = 2) {
    for (uint32_t i = 0; i < reactors; i++) {
      reactor::Options options;
      options.name = "nbd-" + std::to_string(i);
      auto started = reactor::Reactor::start(i, options);
      if (!started) std::abort();
      sides.push_back(std::move(*started));
      lanes.push_back(std::make_unique<FakeLane>(1 << 20));
      on.push_back({sides.back().get(), lanes.back().get()});
    }
    auto made = Server::start(folder.socket(), on, "a test", &counters);
    if (!made) fail(__FILE__, __LINE__, made.error().message);
    server = std::move(*made);
  }
  ~Rig() { stop(); }
  void stop() {
    if (!server) return;
    server->begin_stop();
    server->wait_stopped();
    server.reset();
    sides.clear();
    CHECK_EQ(counters.live_connections.load(), 0u);
    for (const auto& lane : lanes) CHECK_EQ(lane->in_flight(), 0u);
  }
  void set_hold(bool hold) {
    for (size_t i = 0; i < lanes.size(); i++) {
      run_on(*sides[i], [&] {
        lanes[i]->hold = hold;
        if (!hold) lanes[i]->release();
      });
    }
  }

  Folder folder;
  NbdCounters counters{};
  std::vector<std::unique_ptr<reactor::Reactor>> sides;
  std::vector<std::unique_ptr<FakeLane>> lanes;
  std::vector<LaneOnReactor> on;
  std::unique_ptr<Server> server;
};

}  // namespace

TEST(clients_are_served_on_all_reactors) {
  Rig rig;
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (uint32_t t = 0; t < 8; t++) {
    threads.emplace_back([&rig, &good, t] {
      NbdClient client(rig.folder.socket(), t % 2 == 0);
      if (!client.connected) return;
      for (uint32_t i = 0; i < 200; i++) {
        Bytes bytes = request_bytes(command::kWrite, i, t * 65536, 4096);
        bytes.resize(bytes.size() + 4096, static_cast<uint8_t>(t * 16 + i));
        add(bytes, request_bytes(command::kRead, i, t * 65536, 4096));
        client.send(bytes);
        if (client.receive(16).size() != 16) return;
        const size_t head = t % 2 == 0 ? 28 : 16;
        const Bytes got = client.receive(head + 4096);
        if (got.size() != head + 4096 || got.back() != static_cast<uint8_t>(t * 16 + i)) return;
      }
      client.send(request_bytes(command::kDisconnect, 0, 0, 0));
      if (client.hung_up()) good++;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(good.load(), 8);
  rig.stop();  // the lanes are their reactors' until these have ended
  for (const auto& lane : rig.lanes) CHECK(lane->seen.size() >= 400);
  CHECK_EQ(rig.counters.accepted.load(), 8u);
}

TEST(a_stopped_server_waits_for_the_last_request) {
  Rig rig;
  NbdClient first(rig.folder.socket()), second(rig.folder.socket()), idle(rig.folder.socket());
  REQUIRE(first.connected && second.connected && idle.connected);
  rig.set_hold(true);
  first.send(request_bytes(command::kRead, 1, 0, 4096));
  second.send(request_bytes(command::kRead, 1, 0, 4096));
  while (rig.counters.requests.load() < 2) std::this_thread::yield();
  rig.server->begin_stop();
  CHECK(first.hung_up() && second.hung_up() && idle.hung_up());
  CHECK(!NbdClient(rig.folder.socket()).connected);
  std::atomic<bool> over{false};
  std::thread waiter([&] {
    rig.server->wait_stopped();
    over = true;
  });
  run_on(*rig.sides[0], [] {});
  CHECK(!over.load());
  rig.set_hold(false);
  waiter.join();
  rig.server.reset();
}

TEST(too_many_clients_are_hung_up_on) {
  Rig rig(1);
  std::vector<std::unique_ptr<NbdClient>> clients;
  for (uint32_t i = 0; i < kConnectionsMax; i++) {
    clients.push_back(std::make_unique<NbdClient>(rig.folder.socket()));
    REQUIRE(clients.back()->connected);
  }
  CHECK(!NbdClient(rig.folder.socket()).connected);
  CHECK_EQ(rig.counters.hung_up.load(), 1u);
  clients.pop_back();
  while (rig.counters.live_connections.load() == kConnectionsMax) std::this_thread::yield();
  CHECK(NbdClient(rig.folder.socket()).connected);
}

TEST(the_file_is_its_owners_alone) {
  Rig rig(1);
  struct stat found {};
  REQUIRE(stat(rig.folder.socket().c_str(), &found) == 0);
  CHECK(S_ISSOCK(found.st_mode));
  CHECK_EQ(found.st_mode & 0777, 0600u);
  // Held by a live process: this one.
  auto second = Server::start(rig.folder.socket(), rig.on, "", &rig.counters);
  REQUIRE(!second);
  CHECK_EQ(second.error().code, EADDRINUSE);
  CHECK(NbdClient(rig.folder.socket()).connected);
  rig.stop();
  CHECK(stat(rig.folder.socket().c_str(), &found) != 0);
}

TEST(a_stale_file_is_taken_over) {
  Folder folder;
  const int dead = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  folder.socket().copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(bind(dead, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  ::close(dead);
  auto listener = UnixListener::open(folder.socket(), SOCK_STREAM);
  REQUIRE(bool(listener));
  // Somebody put another in its place: that one is left alone.
  REQUIRE(rename(folder.socket().c_str(), (folder.path + "/old").c_str()) == 0);
  auto next = UnixListener::open(folder.socket(), SOCK_STREAM);
  REQUIRE(bool(next));
  (*listener).reset();
  struct stat found {};
  CHECK(stat(folder.socket().c_str(), &found) == 0);
  CHECK_EQ(unlink((folder.path + "/old").c_str()), 0);
}

TEST(paths_that_do_not_serve) {
  Folder folder;
  const auto code = [](const std::string& path) {
    auto opened = UnixListener::open(path, SOCK_STREAM);
    return opened ? 0 : opened.error().code;
  };
  CHECK_EQ(code(""), ENAMETOOLONG);
  CHECK_EQ(code("/tmp/" + std::string(200, 'x')), ENAMETOOLONG);
  CHECK_EQ(code(std::string("/tmp/a\0b", 8)), ENAMETOOLONG);
  CHECK_EQ(code(folder.path + "/none/nbd"), ENOENT);
  CHECK_EQ(code(folder.path), EEXIST);
}

TEST_MAIN
