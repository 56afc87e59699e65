// Until when something may be begun: a deadline that is put off again and again and, once it has
// passed, stays passed. Whoever is about to do it asks with a fresh reading of the clock, right
// before. Any thread: one word, no lock.
#pragma once
#include <atomic>
#include <ctime>

#include "reactor/reactor.h"

namespace nvmeof::reactor {

class Lease {
 public:
  // CLOCK_BOOTTIME: runs on while the process is stopped and, unlike CLOCK_MONOTONIC, while the
  // machine is suspended.
  static TimeNs clock() {
    timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return static_cast<TimeNs>(time.tv_sec) * 1'000'000'000 + static_cast<TimeNs>(time.tv_nsec);
  }

  // How long it holds from now on, and after each renewal; kNever: for ever. False: it is over.
  bool set(TimeNs term, TimeNs now) {
    term_.store(term, std::memory_order_relaxed);
    return renew(now);
  }
  // Counts from `now`, however late this call is carried out. False: it is over.
  bool renew(TimeNs now) {
    const TimeNs term = term_.load(std::memory_order_relaxed);
    const TimeNs next = term == kNever ? kNever : now + term;
    TimeNs deadline = deadline_.load(std::memory_order_relaxed);
    do {
      if (now >= deadline) return false;
    } while (!deadline_.compare_exchange_weak(deadline, next, std::memory_order_relaxed));
    return true;
  }
  bool over(TimeNs now) const { return now >= deadline_.load(std::memory_order_relaxed); }
  // 0: it is over; kNever: it has no end.
  TimeNs left(TimeNs now) const {
    const TimeNs deadline = deadline_.load(std::memory_order_relaxed);
    if (deadline == kNever) return kNever;
    return now >= deadline ? 0 : deadline - now;
  }

 private:
  std::atomic<TimeNs> deadline_{kNever}, term_{kNever};
};

}  // namespace nvmeof::reactor
