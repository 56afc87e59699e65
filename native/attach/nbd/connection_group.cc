#include "attach/nbd/connection_group.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace nvmeof::attach::nbd {

namespace {
constexpr int kEventsPerPoll = 64;
constexpr reactor::TimeNs kListenPause = 100'000'000;
}  // namespace

Result<std::unique_ptr<ConnectionGroup>> ConnectionGroup::create(NamespaceLane* lane,
                                                                 const Export* served,
                                                                 NbdCounters* counters) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return Error{errno, std::string("NBD: epoll: ") + std::strerror(errno)};
  return std::unique_ptr<ConnectionGroup>(new ConnectionGroup(lane, served, counters, epoll));
}

ConnectionGroup::ConnectionGroup(NamespaceLane* lane, const Export* served, NbdCounters* counters,
                                 int epoll)
    : lane_(lane), served_(served), counters_(counters), epoll_(epoll) {}

ConnectionGroup::~ConnectionGroup() {
  close(epoll_);
}

void ConnectionGroup::add_to(reactor::Reactor* reactor) {
  reactor->add(&reader_, reactor::Stage::Receive);
  reactor->add(&writer_, reactor::Stage::Block);
  reactor->add_fd(epoll_);
}

void ConnectionGroup::remove_from(reactor::Reactor* reactor) {
  reactor->remove_fd(epoll_);
  reactor->remove(&reader_);
  reactor->remove(&writer_);
}

void ConnectionGroup::watch(int fd, Acceptor* acceptor) {
  if (listening_ >= 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, listening_, nullptr);
  listening_ = fd;
  listen_again_ = reactor::kNever;
  acceptor_ = acceptor;
  if (fd < 0) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void ConnectionGroup::listen_for(uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = nullptr;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, listening_, &event);
}

void ConnectionGroup::adopt(int fd) {
  auto made = std::make_unique<Connection>(this, fd);
  Connection* const connection = made.get();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = connection;
  if (stopping_ || epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    given.fetch_sub(1, std::memory_order_relaxed);
    return;  // which closes it
  }
  connection->set_events(event.events);
  connections_.push_back(std::move(made));
  work_.reserve(connections_.size());
  working_.reserve(connections_.size());
  counters_->live_connections.fetch_add(1, std::memory_order_relaxed);
  mark(connection);  // the greeting
}

void ConnectionGroup::begin_stop(void (*stopped)(void* context), void* context) {
  stopping_ = true;
  stopped_ = stopped;
  stopped_context_ = context;
  for (const auto& connection : connections_) connection->drop();
}

void ConnectionGroup::mark(Connection* connection) {
  if (connection->marked) return;
  connection->marked = true;
  work_.push_back(connection);
}

int ConnectionGroup::read(reactor::TimeNs now) {
  if (now >= listen_again_) {
    listen_again_ = reactor::kNever;
    listen_for(EPOLLIN);
  }
  epoll_event events[kEventsPerPoll];
  const int count = epoll_wait(epoll_, events, kEventsPerPoll, 0);
  for (int i = 0; i < count; i++) {
    auto* const connection = static_cast<Connection*>(events[i].data.ptr);
    if (connection == nullptr) {
      if (acceptor_ == nullptr || acceptor_->on_acceptable()) continue;
      listen_for(0);
      listen_again_ = now + kListenPause;
      continue;
    }
    const uint32_t what = events[i].events;
    // Errors and hang-ups come unasked for: reading finds out what they are, unless it must wait,
    // and then nobody is left to wait for.
    if ((what & (EPOLLERR | EPOLLHUP)) != 0 && (connection->wanted_events() & EPOLLIN) == 0) {
      connection->drop();
      continue;
    }
    if ((what & EPOLLOUT) != 0) connection->on_writable();
    if ((what & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) connection->on_readable();
    mark(connection);
  }
  return std::max(count, 0);
}

int ConnectionGroup::write() {
  // What is marked meanwhile has its turn in the next iteration.
  working_.swap(work_);
  const auto handled = static_cast<int>(working_.size());
  for (Connection* connection : working_) {
    connection->marked = false;
    if (connection->service()) {
      destroy(connection);
    } else {
      update_events(connection);
    }
  }
  working_.clear();
  if (stopped_ != nullptr && connections_.empty()) {
    auto* const stopped = stopped_;
    stopped_ = nullptr;
    stopped(stopped_context_);
  }
  return handled;
}

void ConnectionGroup::update_events(Connection* connection) {
  const uint32_t wanted = connection->wanted_events();
  if (connection->fd() < 0 || wanted == connection->events()) return;
  epoll_event event{};
  event.events = wanted;
  event.data.ptr = connection;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection->fd(), &event);
  connection->set_events(wanted);
}

void ConnectionGroup::destroy(Connection* connection) {
  // service() may have marked it anew.
  std::erase(work_, connection);
  std::erase_if(connections_, [connection](const auto& each) { return each.get() == connection; });
  counters_->live_connections.fetch_sub(1, std::memory_order_relaxed);
  given.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace nvmeof::attach::nbd
