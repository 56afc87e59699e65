// How long a reactor spins before it sleeps. Spinning pays when work comes back sooner than a
// wake-up takes, so the time grows when sleeps turn out short and shrinks when they turn out long.
// A wake-up takes as long as some dozens of idle loop iterations, on machines where both are slow,
// too: what is short and long is measured in those. One thread's.
#pragma once
#include <algorithm>

#include "reactor/reactor.h"

namespace nvmeof::reactor {

class AdaptiveSpin {
 public:
  explicit AdaptiveSpin(TimeNs least) : least_(least), spin_(least) {}
  TimeNs value() const { return spin_; }
  void iterated(TimeNs duration) {  // idle, and now and then without the processor
    const TimeNs capped = std::min(duration, 2 * iteration_ + 1'000);
    iteration_ += capped / 16;
    iteration_ -= iteration_ / 16;
  }
  void slept(TimeNs duration) {
    const TimeNs base = std::max(least_, kIterations * iteration_);
    if (duration < base) {
      spin_ = std::min(spin_ * 2, base * 4);
    } else if (duration > base * 8) {
      spin_ = std::max(spin_ / 2, base / 8);
    }
  }

 private:
  static constexpr TimeNs kIterations = 32;
  TimeNs least_, spin_;
  TimeNs iteration_ = 0;  // about
};

}  // namespace nvmeof::reactor
