// Serves an attached namespace to clients over shared memory: takes connections of a listening
// socket on the first lane's reactor and gives them to the lanes in turn.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attach/client/client_hub.h"
#include "attach/namespace_lane.h"
#include "reactor/reactor.h"

namespace nvmeof::attach {

inline constexpr uint32_t kClientsMax = 64;

class ClientServer final : public reactor::Poller {
 public:
  struct Place {
    reactor::Reactor* reactor;
    NamespaceLane* lane;
  };
  // A client has gone: why it was sent away, or nothing when it left. Any of the reactors' threads.
  using Ended = std::function<void(const std::string& reason)>;

  // `listener`: a listening SOCK_SEQPACKET socket with O_NONBLOCK, owned. The lanes outlive the
  // server; there is at least one. Call from no reactor.
  ClientServer(int listener, const std::vector<Place>& places, Ended ended);
  ~ClientServer() override;  // after `closed`, from no reactor

  // Sends everybody away with this reason. `closed` is called once, on the first reactor's thread,
  // when nothing of any client is left. From no reactor.
  void close(int error, const std::string& reason, std::function<void()> closed);

  uint32_t clients() const { return clients_.load(std::memory_order_relaxed); }  // any thread

  // The first reactor's loop.
  int poll(reactor::TimeNs now) override;
  bool arm() override;
  reactor::TimeNs next_deadline() const override;

 private:
  struct Seat {
    Place place;
    std::unique_ptr<ClientHub> hub;
    bool told = false;  // to close
  };

  int accept_some();
  void seat(int socket);
  void tell_to_close();

  static constexpr reactor::TimeNs kLookEvery = 2'000'000;
  static constexpr reactor::TimeNs kClosingLook = 200'000;

  int listener_;
  std::vector<Seat> seats_;
  size_t next_seat_ = 0;
  std::atomic<uint32_t> clients_{0};
  bool armed_ = false;
  reactor::TimeNs next_look_ = 0;
  reactor::TimeNs looked_ = 0;
  // While closing.
  std::function<void()> closed_;
  int close_error_ = 0;
  std::string close_reason_;
};

}  // namespace nvmeof::attach
