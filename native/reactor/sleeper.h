// Where a reactor sleeps: ppoll over its descriptors and an eventfd, with a deadline in
// nanoseconds. Not epoll: a descriptor in an epoll set runs a callback under a lock for every
// packet that arrives or leaves, also while the reactor spins and asks nobody. Descriptors beyond
// the first sixty-four do go into an epoll set, so that a sleep does not walk a thousand of them.
// wake() may come from any thread, the rest belongs to the reactor's thread. When to sleep, and how
// no wake-up is lost, is reactor.cc's business.
#pragma once
#include <poll.h>

#include "reactor/reactor.h"
#include "reactor/result.h"

namespace nvmeof::reactor {

class Sleeper {
 public:
  Sleeper() = default;
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper();

  Result<void> open();
  bool add_fd(int fd);
  void remove_fd(int fd);
  // Returns when a descriptor is readable, wake() was called or the deadline has passed.
  void sleep(TimeNs now, TimeNs deadline);
  void wake();  // any thread

 private:
  static constexpr nfds_t kPolled = 64;
  static constexpr nfds_t kWake = 0, kEpoll = 1, kFirst = 2;  // places in polled_

  bool add_to_epoll(int fd);

  pollfd polled_[kFirst + kPolled];
  nfds_t polled_count_ = kFirst;
  int wake_fd_ = -1;
  int epoll_fd_ = -1;  // of the descriptors beyond kPolled; -1: none were
};

}  // namespace nvmeof::reactor
