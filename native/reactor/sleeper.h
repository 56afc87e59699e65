// Where a reactor sleeps: an epoll set with an eventfd in it, waited on with a deadline in
// nanoseconds. wake() may come from any thread, the rest belongs to the reactor's thread. When to
// sleep, and how no wake-up is lost, is reactor.cc's business.
#pragma once
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
  int wait(TimeNs timeout, bool forever);

  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  bool no_pwait2_ = false;  // kernel before 5.11, or forbidden by seccomp: milliseconds then
};

}  // namespace nvmeof::reactor
