// One reactor's share of a verbs device: a mailbox for what the thread of connection management has
// to tell, and the connections of its queue pairs with their handlers. A control path: it may
// allocate and take a mutex. On the reactor's thread, except post().
#pragma once
#include <atomic>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "rdma/provider.h"

namespace nvmeof::rdma::verbs {

class Shard final : private reactor::Poller {
 public:
  using Message = std::function<void()>;

  Shard(unsigned index, reactor::Reactor* reactor) : index_(index), reactor_(reactor) {}

  void attach() { reactor_->add(this, reactor::Stage::Process); }
  void detach() {
    reactor_->remove(this);
    handlers_.clear();
  }
  unsigned index() const { return index_; }
  reactor::Reactor& reactor() const { return *reactor_; }

  // Any thread: runs `message` on the reactor, in order.
  void post(Message message);

  // Handlers by connection. take(): the connection's last event is about to be told.
  void add(ConnectionId id, ConnectionHandler* handler) { handlers_[id] = handler; }
  ConnectionHandler* find(ConnectionId id) const;
  ConnectionHandler* take(ConnectionId id);

 private:
  int poll(reactor::TimeNs) override { return read(); }
  bool arm() override { return !waiting_.load(std::memory_order_acquire); }
  int read();

  const unsigned index_;
  reactor::Reactor* const reactor_;
  std::mutex mutex_;
  std::vector<Message> mailbox_;
  std::atomic<bool> waiting_{false};
  std::unordered_map<ConnectionId, ConnectionHandler*> handlers_;
};

}  // namespace nvmeof::rdma::verbs
