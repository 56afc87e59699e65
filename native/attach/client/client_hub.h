// The clients of one lane, on its reactor. Two places in the loop: what clients submit is taken
// before the host engine runs, and what it completed is shown to them right after, so that neither
// waits for another round.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attach/client/client_counters.h"
#include "attach/client/client_session.h"
#include "attach/namespace_lane.h"
#include "reactor/reactor.h"

namespace nvmeof::attach {

class ClientHub {
 public:
  // `ended`: a client has gone; the reason when it was sent away, empty when it left. Called with
  // everything of it given back.
  using Ended = std::function<void(const std::string& reason)>;

  // All on the reactor's thread. The lane outlives the hub.
  ClientHub(reactor::Reactor* reactor, NamespaceLane* lane, ClientCounters* counters, Ended ended);
  ~ClientHub();  // empty

  void add(int socket);  // owns it
  // Sends all away; `ended` follows for each, when its last request has.
  void close(int error, const std::string& reason);
  bool empty() const { return clients_.empty(); }

 private:
  struct Intake final : reactor::Poller {
    explicit Intake(ClientHub* owner) : hub(owner) {}
    int poll(reactor::TimeNs now) override { return hub->take(now); }
    bool arm() override { return hub->arm(); }
    reactor::TimeNs next_deadline() const override { return hub->next_deadline(); }
    ClientHub* const hub;
  };
  struct Outlet final : reactor::Poller {
    explicit Outlet(ClientHub* owner) : hub(owner) {}
    int poll(reactor::TimeNs) override { return hub->publish(); }
    ClientHub* const hub;
  };
  struct Client {
    std::unique_ptr<ClientSession> session;
    bool watched = false;  // its socket ends sleep
  };

  int take(reactor::TimeNs now);
  int publish();
  bool arm();
  reactor::TimeNs next_deadline() const;
  void stop_watching(Client& client);
  void forget_gone();

  reactor::Reactor* const reactor_;
  NamespaceLane* const lane_;
  ClientCounters* const counters_;
  const Ended ended_;
  Intake intake_{this};
  Outlet outlet_{this};
  std::vector<Client> clients_;
  bool gone_ = false;  // some are over
};

}  // namespace nvmeof::attach
