// What the tests of clients over shared memory use: a server with fake lanes on reactors of its
// own behind a socket in a temporary folder, and a client written by hand that breaks rules.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "attach/client/client_server.h"
#include "client/client_internal.h"
#include "support/fake_lane.h"
#include "support/run_on.h"

namespace nvmeof::test {

// Waits until the condition holds, ten seconds at most.
template <typename F>
bool eventually(F&& condition) {
  const reactor::TimeNs end = reactor::monotonic_now() + 10'000'000'000;
  while (!condition()) {
    if (reactor::monotonic_now() > end) return false;
    usleep(200);
  }
  return true;
}

class ClientRig {
 public:
  explicit ClientRig(unsigned lanes_wanted = 1, reactor::TimeNs spin = 50'000) {
    char folder[] = "/tmp/nvmeof-client-XXXXXX";
    folder_ = mkdtemp(folder);
    path = folder_ + "/socket";
    std::vector<attach::LaneOnReactor> places;
    for (unsigned i = 0; i < lanes_wanted; i++) {
      reactor::Options options;
      options.spin = spin;
      auto started = reactor::Reactor::start(i, options);
      if (!started) std::abort();
      reactors.push_back(std::move(*started));
      lanes.push_back(std::make_unique<FakeLane>(kBytes));
      places.push_back({reactors[i].get(), lanes[i].get()});
    }
    auto begun = attach::ClientServer::start(path, places, &counters);
    if (!begun) std::abort();
    server = std::move(*begun);
  }
  ~ClientRig() {
    server->begin_stop();
    server->wait_stopped();
    rmdir(folder_.c_str());
  }

  template <typename F>
  void on_lane(unsigned index, F&& work) {
    run_on(*reactors[index], [&] { work(*lanes[index]); });
  }
  // A lane belongs to its reactor's thread: whoever counts asks there.
  size_t held(unsigned index) {
    size_t count = 0;
    on_lane(index, [&](FakeLane& lane) { count = lane.held.size(); });
    return count;
  }
  size_t seen(unsigned index) {
    size_t count = 0;
    on_lane(index, [&](FakeLane& lane) { count = lane.seen.size(); });
    return count;
  }

  static constexpr uint64_t kBytes = 1 << 20;

  std::string path;
  std::vector<std::unique_ptr<reactor::Reactor>> reactors;
  std::vector<std::unique_ptr<FakeLane>> lanes;
  attach::ClientCounters counters;
  std::unique_ptr<attach::ClientServer> server;

 private:
  std::string folder_;
};

// The library's client, with its inside open.
class LibraryClient {
 public:
  explicit LibraryClient(const std::string& path, uint32_t entries = 64, uint64_t data = 1 << 20,
                         uint32_t spin_us = 0) {
    const nvmeof_client_options options{entries, data, spin_us};
    error = nvmeof_connect(path.c_str(), &options, &client, why);
  }
  ~LibraryClient() { nvmeof_close(client); }
  LibraryClient(const LibraryClient&) = delete;
  LibraryClient& operator=(const LibraryClient&) = delete;

  int queue(nvmeof_operation operation, uint64_t offset, uint32_t length, void* data = nullptr,
            uint64_t user_data = 0, bool fua = false) {
    const nvmeof_io io{operation, fua, length, offset, data, user_data};
    return nvmeof_queue(client, &io);
  }
  // One request and its end: 0, or an errno value.
  int run(nvmeof_operation operation, uint64_t offset, uint32_t length, void* data = nullptr) {
    if (const int refused = queue(operation, offset, length, data)) return -refused;
    nvmeof_submit(client);
    nvmeof_completion done{};
    const int count = nvmeof_wait(client, &done, 1, 1, nullptr);
    return count == 1 ? done.error : -count;
  }

  nvmeof_client* client = nullptr;
  int error = 0;
  char why[NVMEOF_WHY_BYTES] = {};
};

}  // namespace nvmeof::test
