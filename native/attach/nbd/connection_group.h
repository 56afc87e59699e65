// The NBD connections of one reactor: who of them can read or write, and who has something to do.
// Reads first in a loop iteration, so that new requests leave in it, and sends after the engines,
// so that all that ended in it leaves by one call. All on the reactor's thread.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "attach/nbd/connection.h"
#include "reactor/reactor.h"

namespace nvmeof::attach::nbd {

// Written on reactors' threads, read by anyone.
struct NbdCounters {
  std::atomic<uint64_t> accepted, hung_up, requests, live_connections;
};

// What a descriptor that listens is for; see listener.h.
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  // False: there is no room for another descriptor now; asked again a little later.
  virtual bool on_acceptable() = 0;
};

class ConnectionGroup {
 public:
  static Result<std::unique_ptr<ConnectionGroup>> create(NamespaceLane* lane, const Export* served,
                                                         NbdCounters* counters);
  ~ConnectionGroup();  // after the last connection, off the reactor

  void add_to(reactor::Reactor* reactor);
  void remove_from(reactor::Reactor* reactor);

  // Takes the socket over.
  void adopt(int fd);
  // Connections, those on their way to adopt() too. Any thread.
  std::atomic<uint32_t> given{0};
  // Watches a socket that listens; -1 as `fd` ends it.
  void watch(int fd, Acceptor* acceptor);
  // Drops all connections; `stopped` follows when the last of them is gone, once.
  void begin_stop(void (*stopped)(void* context), void* context);
  bool empty() const { return connections_.empty(); }

  // What the two pollers do.
  int read(reactor::TimeNs now);
  int write();
  bool has_work() const { return !work_.empty() || (stopped_ != nullptr && empty()); }

  // For its connections.
  NamespaceLane& lane() { return *lane_; }
  const Export& served() const { return *served_; }
  void mark(Connection* connection);
  void count_request() { counters_->requests.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct Reader final : reactor::Poller {
    explicit Reader(ConnectionGroup* of) : group(of) {}
    int poll(reactor::TimeNs now) override { return group->read(now); }
    reactor::TimeNs next_deadline() const override { return group->listen_again_; }
    ConnectionGroup* const group;
  };
  struct Writer final : reactor::Poller {
    explicit Writer(ConnectionGroup* of) : group(of) {}
    int poll(reactor::TimeNs) override { return group->write(); }
    bool arm() override { return !group->has_work(); }
    ConnectionGroup* const group;
  };

  ConnectionGroup(NamespaceLane* lane, const Export* served, NbdCounters* counters, int epoll);
  void listen_for(uint32_t events);
  void update_events(Connection* connection);
  void destroy(Connection* connection);

  NamespaceLane* const lane_;
  const Export* const served_;
  NbdCounters* const counters_;
  const int epoll_;
  Reader reader_{this};
  Writer writer_{this};
  Acceptor* acceptor_ = nullptr;
  int listening_ = -1;
  reactor::TimeNs listen_again_ = reactor::kNever;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> work_, working_;
  bool stopping_ = false;
  void (*stopped_)(void* context) = nullptr;
  void* stopped_context_ = nullptr;
};

}  // namespace nvmeof::attach::nbd
