#include "attach/nbd/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "attach/unix_listener.h"

namespace nvmeof::attach::nbd {

namespace {

constexpr int kAcceptsPerPoll = 16;

struct Side {
  reactor::Reactor* reactor;
  std::unique_ptr<ConnectionGroup> group;
};

}  // namespace

struct Server::State final : Acceptor {
  Export served;
  NbdCounters* counters = nullptr;
  std::unique_ptr<UnixListener> listener;
  std::vector<Side> sides;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop_begun = false;
  size_t groups_running = 0;

  bool on_acceptable() override;
  void hand_over(int fd);
  void group_stopped();
};

// The first reactor's thread.
bool Server::State::on_acceptable() {
  for (int i = 0; i < kAcceptsPerPoll; i++) {
    const int fd = listener->accept();
    if (fd < 0) return errno == EAGAIN;
    hand_over(fd);
  }
  return true;
}

void Server::State::hand_over(int fd) {
  const auto given = [](const Side& side) {
    return side.group->given.load(std::memory_order_relaxed);
  };
  uint32_t all = 0;
  Side* fewest = &sides[0];
  for (Side& side : sides) {
    all += given(side);
    if (given(side) < given(*fewest)) fewest = &side;
  }
  const reactor::Task task{[](void* group, uint64_t socket) {
                             static_cast<ConnectionGroup*>(group)->adopt(static_cast<int>(socket));
                           },
                           fewest->group.get(), static_cast<uint64_t>(fd)};
  if (all < kConnectionsMax && fewest->reactor->post(task)) {
    fewest->group->given.fetch_add(1, std::memory_order_relaxed);
    counters->accepted.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  counters->hung_up.fetch_add(1, std::memory_order_relaxed);
  close(fd);
}

void Server::State::group_stopped() {
  // Notified under the lock: the waiter may take all this away right after.
  const std::lock_guard lock(mutex);
  groups_running--;
  changed.notify_all();
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Server>> Server::start(const std::string& path,
                                              std::span<const LaneOnReactor> lanes,
                                              std::string description, NbdCounters* counters) {
  auto state = std::make_unique<State>();
  state->counters = counters;
  state->served = Export::of(lanes[0].lane->geometry(), std::move(description));
  for (const LaneOnReactor& each : lanes) {
    auto group = ConnectionGroup::create(each.lane, &state->served, counters);
    if (!group) return group.error();
    state->sides.push_back({each.reactor, std::move(*group)});
  }
  auto listener = UnixListener::open(path, SOCK_STREAM);
  if (!listener) return listener.error();
  state->listener = std::move(*listener);
  state->groups_running = state->sides.size();
  for (Side& side : state->sides) {
    side.reactor->run_and_wait([&side] { side.group->add_to(side.reactor); });
  }
  state->sides[0].reactor->run_and_wait(
      [&] { state->sides[0].group->watch(state->listener->fd(), state.get()); });
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

Server::~Server() = default;

void Server::begin_stop() {
  State& state = *state_;
  {
    const std::lock_guard lock(state.mutex);
    if (state.stop_begun) return;
    state.stop_begun = true;
  }
  state.sides[0].reactor->run_and_wait([&state] { state.sides[0].group->watch(-1, nullptr); });
  state.listener.reset();
  // Behind the last socket that was handed over.
  for (Side& side : state.sides) {
    side.reactor->run_and_wait([&] {
      side.group->begin_stop([](void* context) { static_cast<State*>(context)->group_stopped(); },
                             &state);
    });
  }
}

void Server::wait_stopped() {
  State& state = *state_;
  {
    std::unique_lock lock(state.mutex);
    state.changed.wait(lock, [&state] { return state.groups_running == 0; });
  }
  for (Side& side : state.sides) {
    side.reactor->run_and_wait([&side] { side.group->remove_from(side.reactor); });
  }
}

}  // namespace nvmeof::attach::nbd
