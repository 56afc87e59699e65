#include "attach/client/client_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace nvmeof::attach {

namespace {

constexpr int kAcceptsPerPoll = 16;
// How often the socket is looked at while the reactor does not sleep.
constexpr reactor::TimeNs kLookEvery = 2'000'000;

}  // namespace

Result<std::unique_ptr<ClientServer>> ClientServer::start(const std::string& path,
                                                          std::span<const LaneOnReactor> lanes,
                                                          ClientCounters* counters) {
  auto listener = UnixListener::open(path, SOCK_SEQPACKET);
  if (!listener) return listener.error();
  std::unique_ptr<ClientServer> server(new ClientServer(std::move(*listener), lanes, counters));
  ClientServer* const raw = server.get();
  raw->seats_[0].reactor->run_and_wait([raw] {
    raw->watch(true);
    raw->seats_[0].reactor->add(raw, reactor::Stage::Receive);
  });
  return server;
}

ClientServer::ClientServer(std::unique_ptr<UnixListener> listener,
                           std::span<const LaneOnReactor> lanes, ClientCounters* counters)
    : listener_(std::move(listener)), counters_(counters) {
  for (const LaneOnReactor& each : lanes) {
    seats_.push_back({each.reactor, std::make_unique<ClientHub>(each.reactor, each.lane, counters,
                                                                [this](const std::string& reason) {
                                                                  client_ended(reason);
                                                                })});
  }
}

ClientServer::~ClientServer() = default;

void ClientServer::begin_stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stop_begun_, true)) return;
  }
  seats_[0].reactor->run_and_wait([this] {
    seats_[0].reactor->remove(this);
    watch(false);
  });
  listener_.reset();
  // Behind the last socket that was handed over.
  for (Seat& seat : seats_) {
    seat.reactor->run_and_wait(
        [&seat] { seat.hub->close(ESHUTDOWN, "the namespace was detached"); });
  }
}

// Each hub goes on its own thread: the last of its work may not have returned yet.
void ClientServer::wait_stopped() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return clients_ == 0; });
  }
  for (Seat& seat : seats_) {
    seat.reactor->run_and_wait([&seat] { seat.hub.reset(); });
  }
}

int ClientServer::poll(reactor::TimeNs now) {
  if (!std::exchange(armed_, false) && now < next_look_) return 0;
  next_look_ = now + kLookEvery;
  int accepted = 0;
  int socket = 0;
  while (accepted < kAcceptsPerPoll && (socket = listener_->accept()) >= 0) {
    seat(socket);
    accepted++;
  }
  // Without a descriptor for it, who waits there would end every sleep.
  watch(socket >= 0 || errno == EAGAIN);
  return accepted;
}

void ClientServer::watch(bool wanted) {
  if (watched_ == wanted) return;
  watched_ = wanted;
  reactor::Reactor* const reactor = seats_[0].reactor;
  wanted ? reactor->add_fd(listener_->fd()) : reactor->remove_fd(listener_->fd());
}

reactor::TimeNs ClientServer::next_deadline() const {
  return watched_ ? reactor::kNever : next_look_;
}

bool ClientServer::arm() {
  armed_ = true;
  return true;
}

void ClientServer::seat(int socket) {
  {
    const std::lock_guard lock(mutex_);
    if (clients_ == kClientsMax) return refuse(socket);
    clients_++;
  }
  counters_->accepted.fetch_add(1, std::memory_order_relaxed);
  counters_->live.fetch_add(1, std::memory_order_relaxed);
  Seat& seat = seats_[next_seat_];
  next_seat_ = (next_seat_ + 1) % seats_.size();
  const reactor::Task task{
      [](void* hub, uint64_t fd) { static_cast<ClientHub*>(hub)->add(static_cast<int>(fd)); },
      seat.hub.get(), static_cast<uint64_t>(socket)};
  if (seat.reactor->post(task)) return;
  close(socket);
  client_ended("the reactor has no time for newcomers");
}

void ClientServer::refuse(int socket) {
  counters_->sent_away.fetch_add(1, std::memory_order_relaxed);
  nvmeof_ring_answer answer{};
  answer.magic = NVMEOF_RING_MAGIC;
  answer.version = NVMEOF_RING_VERSION;
  answer.message = NVMEOF_RING_WELCOME;
  answer.error = EUSERS;
  const std::string reason =
      std::to_string(kClientsMax) + " clients are connected already: no more are taken";
  reason.copy(answer.reason, sizeof answer.reason - 1);
  send(socket, &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL);
  close(socket);
}

// Any of the reactors' threads.
void ClientServer::client_ended(const std::string& reason) {
  if (!reason.empty()) counters_->sent_away.fetch_add(1, std::memory_order_relaxed);
  counters_->live.fetch_sub(1, std::memory_order_relaxed);
  // Notified under the lock: the waiter may take all this away right after.
  const std::lock_guard lock(mutex_);
  clients_--;
  changed_.notify_all();
}

}  // namespace nvmeof::attach
