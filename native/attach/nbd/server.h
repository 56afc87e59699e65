// An NBD server for one attached namespace on a Unix socket. A client stays on the reactor it was
// given to, and uses that reactor's queue; new ones go where the fewest are.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "attach/consumer.h"
#include "attach/nbd/connection_group.h"

namespace nvmeof::attach::nbd {

// Clients at one time; further ones are hung up on.
inline constexpr uint32_t kConnectionsMax = 128;

class Server final : public Consumer {
 public:
  // On a control thread, as everything here. `description`: what clients show people.
  static Result<std::unique_ptr<Server>> start(const std::string& path,
                                               std::span<const LaneOnReactor> lanes,
                                               std::string description, NbdCounters* counters);
  ~Server() override;

  // Takes the socket away and hangs up; what is in flight goes on.
  void begin_stop() override;
  // Until nothing of it is in flight.
  void wait_stopped() override;

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nvmeof::attach::nbd
