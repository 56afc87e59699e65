#include "attach/client/client_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <utility>

namespace nvmeof::attach {

namespace {

// Runs a callable on a reactor and waits for it.
template <typename Work>
void run_on(reactor::Reactor* reactor, Work work) {
  reactor->run_and_wait(
      {[](void* context, uint64_t) { (*static_cast<Work*>(context))(); }, &work, 0});
}

}  // namespace

ClientServer::ClientServer(int listener, const std::vector<Place>& places, Ended ended)
    : listener_(listener) {
  for (const Place& place : places) {
    seats_.push_back({place, std::make_unique<ClientHub>(place.reactor, place.lane,
                                                         [this, ended](const std::string& reason) {
                                                           ended(reason);
                                                           clients_.fetch_sub(1);
                                                         })});
  }
  run_on(seats_[0].place.reactor, [this] {
    seats_[0].place.reactor->add_fd(listener_);
    seats_[0].place.reactor->add(this, reactor::Stage::Receive);
  });
}

// Each hub goes on its own thread: the last of its work may not have returned yet.
ClientServer::~ClientServer() {
  assert(clients() == 0 && listener_ < 0);
  for (Seat& seat : seats_) {
    run_on(seat.place.reactor, [&seat] { seat.hub.reset(); });
  }
}

void ClientServer::close(int error, const std::string& reason, std::function<void()> closed) {
  run_on(seats_[0].place.reactor, [&] {
    seats_[0].place.reactor->remove_fd(listener_);
    ::close(std::exchange(listener_, -1));
    close_error_ = error;
    close_reason_ = reason;
    closed_ = std::move(closed);
  });
}

int ClientServer::poll(reactor::TimeNs now) {
  looked_ = now;
  if (closed_) {
    tell_to_close();
    for (const Seat& seat : seats_) {
      if (!seat.told) return 0;
    }
    if (clients_.load(std::memory_order_acquire) != 0) return 0;
    seats_[0].place.reactor->remove(this);
    std::exchange(closed_, nullptr)();  // may have this object deleted: nothing after it
    return 1;
  }
  if (!std::exchange(armed_, false) && now < next_look_) return 0;
  next_look_ = now + kLookEvery;
  return accept_some();
}

bool ClientServer::arm() {
  armed_ = true;
  return true;
}

reactor::TimeNs ClientServer::next_deadline() const {
  return closed_ ? looked_ + kClosingLook : reactor::kNever;
}

int ClientServer::accept_some() {
  int accepted = 0;
  while (accepted < 16) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) break;  // none waits, or it has gone meanwhile, or no descriptors are left
    accepted++;
    if (clients() >= kClientsMax) {
      nvmeof_ring_answer answer{};
      answer.magic = NVMEOF_RING_MAGIC;
      answer.version = NVMEOF_RING_VERSION;
      answer.message = NVMEOF_RING_WELCOME;
      answer.error = EUSERS;
      const std::string reason =
          std::to_string(kClientsMax) + " clients are connected already: no more are taken";
      reason.copy(answer.reason, sizeof answer.reason - 1);
      send(socket, &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL);
      ::close(socket);
      continue;
    }
    seat(socket);
  }
  return accepted;
}

void ClientServer::seat(int socket) {
  Seat& seat = seats_[next_seat_];
  next_seat_ = (next_seat_ + 1) % seats_.size();
  clients_.fetch_add(1);
  const reactor::Task task{
      [](void* hub, uint64_t fd) { static_cast<ClientHub*>(hub)->add(static_cast<int>(fd)); },
      seat.hub.get(), static_cast<uint64_t>(socket)};
  if (seat.place.reactor->post(task)) return;
  // Its ring of tasks is full: no time for newcomers.
  clients_.fetch_sub(1);
  ::close(socket);
}

// After every add() that was posted from here. A ring that is full is tried again.
void ClientServer::tell_to_close() {
  for (Seat& seat : seats_) {
    if (seat.told) continue;
    struct Call {
      ClientHub* hub;
      int error;
      std::string reason;
    };
    auto call = std::make_unique<Call>(Call{seat.hub.get(), close_error_, close_reason_});
    const reactor::Task task{[](void* context, uint64_t) {
                               const std::unique_ptr<Call> mine(static_cast<Call*>(context));
                               mine->hub->close(mine->error, mine->reason);
                             },
                             call.get(), 0};
    seat.told = seat.place.reactor->post(task);
    if (seat.told) static_cast<void>(call.release());
  }
}

}  // namespace nvmeof::attach
