// Serves an attached namespace to clients over shared memory: takes the connections of a listening
// socket on the first lane's reactor and gives them to the lanes in turn.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "attach/client/client_counters.h"
#include "attach/client/client_hub.h"
#include "attach/consumer.h"
#include "attach/unix_listener.h"
#include "reactor/reactor.h"

namespace nvmeof::attach {

// At one time; further ones are refused.
inline constexpr uint32_t kClientsMax = 64;

class ClientServer final : public Consumer, private reactor::Poller {
 public:
  // On a control thread, as everything here. There is at least one lane.
  static Result<std::unique_ptr<ClientServer>> start(const std::string& path,
                                                     std::span<const LaneOnReactor> lanes,
                                                     ClientCounters* counters);
  ~ClientServer() override;

  // Takes the socket away and says goodbye; what is in flight goes on.
  void begin_stop() override;
  void wait_stopped() override;

 private:
  struct Seat {
    reactor::Reactor* reactor;
    std::unique_ptr<ClientHub> hub;
  };

  ClientServer(std::unique_ptr<UnixListener> listener, std::span<const LaneOnReactor> lanes,
               ClientCounters* counters);
  int poll(reactor::TimeNs now) override;
  bool arm() override;
  reactor::TimeNs next_deadline() const override;
  void watch(bool wanted);
  void seat(int socket);
  void refuse(int socket);
  void client_ended(const std::string& reason);

  std::unique_ptr<UnixListener> listener_;
  ClientCounters* const counters_;
  std::vector<Seat> seats_;
  std::mutex mutex_;  // of the following
  std::condition_variable changed_;
  uint32_t clients_ = 0;
  bool stop_begun_ = false;
  // The first reactor's.
  size_t next_seat_ = 0;
  bool armed_ = false;
  bool watched_ = false;  // the socket ends sleep
  reactor::TimeNs next_look_ = 0;
};

}  // namespace nvmeof::attach
