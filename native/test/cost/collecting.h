// Which code callgrind counts: it starts with `--collect-atstart=no`, and each switch here turns
// the counting on or off. Without valgrind they cost nothing.
#pragma once
#include <valgrind/callgrind.h>

namespace nvmeof::test::cost {

inline bool collecting = false;

inline void switch_collecting() {
  collecting = !collecting;
  CALLGRIND_TOGGLE_COLLECT;
}

struct Collected {
  explicit Collected(bool wanted_) : wanted(wanted_) {
    if (wanted) switch_collecting();
  }
  ~Collected() {
    if (wanted) switch_collecting();
  }
  Collected(const Collected&) = delete;
  Collected& operator=(const Collected&) = delete;
  const bool wanted;
};

// What a kernel would do.
struct NotCollected {
  NotCollected() : interrupted(collecting) {
    if (interrupted) switch_collecting();
  }
  ~NotCollected() {
    if (interrupted) switch_collecting();
  }
  NotCollected(const NotCollected&) = delete;
  NotCollected& operator=(const NotCollected&) = delete;
  const bool interrupted;
};

}  // namespace nvmeof::test::cost
