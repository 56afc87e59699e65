// How long a reactor spins: what sleeps and idle iterations of known lengths make of it.
#include "reactor/adaptive_spin.h"

#include "test.h"

using nvmeof::reactor::AdaptiveSpin;
using nvmeof::reactor::TimeNs;

namespace {

constexpr TimeNs kUs = 1000, kMs = 1'000'000;

// After many sleeps of one length.
TimeNs settled(AdaptiveSpin& spin, TimeNs sleep) {
  for (int i = 0; i < 20; i++) spin.slept(sleep);
  return spin.value();
}

void iterate(AdaptiveSpin& spin, TimeNs duration, int count = 500) {
  for (int i = 0; i < count; i++) spin.iterated(duration);
}

}  // namespace

TEST(short_sleeps_lengthen_it_and_long_ones_shorten_it) {
  AdaptiveSpin spin(50 * kUs);
  CHECK_EQ(spin.value(), 50 * kUs);
  iterate(spin, 1 * kUs);
  CHECK_EQ(settled(spin, 20 * kUs), 200 * kUs);
  CHECK_EQ(settled(spin, 100 * kUs), 200 * kUs);  // neither short nor long
  CHECK_EQ(settled(spin, 5 * kMs), 6'250u);
  CHECK_EQ(settled(spin, 20 * kUs), 200 * kUs);
}

TEST(slow_iterations_make_longer_sleeps_short) {
  AdaptiveSpin spin(50 * kUs);
  iterate(spin, 20 * kUs);
  CHECK(settled(spin, 500 * kUs) > 2 * kMs);
  CHECK(spin.value() < 3 * kMs);
  // A machine that was only slow for a while.
  iterate(spin, 1 * kUs);
  CHECK_EQ(settled(spin, 500 * kUs), 6'250u);
}

TEST(an_iteration_without_the_processor_counts_little) {
  AdaptiveSpin spin(50 * kUs);
  iterate(spin, 1 * kUs);
  for (int i = 0; i < 50; i++) {
    spin.iterated(10 * kMs);
    iterate(spin, 1 * kUs, 100);
  }
  CHECK_EQ(settled(spin, 20 * kUs), 200 * kUs);
}

TEST_MAIN
