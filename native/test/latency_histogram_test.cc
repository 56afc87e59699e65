// The histogram against a sorted list of the same values, at the edges, and merged; the cycle clock
// against CLOCK_MONOTONIC.
#include "nvmf/latency_histogram.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "nvmf/cycle_clock.h"
#include "nvmf/queue_statistics.h"
#include "reactor/reactor.h"
#include "test.h"

using nvmeof::nvmf::CoarseHistogram;
using nvmeof::nvmf::CycleClock;
using nvmeof::nvmf::LatencyHistogram;

namespace {

constexpr double kPercents[] = {1, 5, 10, 50, 90, 99, 99.5, 99.9, 99.95, 99.99, 100};

void check_against_sorted(std::vector<uint64_t> values) {
  auto histogram = std::make_unique<LatencyHistogram>();
  long double sum = 0, squares = 0;
  for (const uint64_t value : values) {
    histogram->record(value);
    sum += static_cast<long double>(value);
  }
  const auto n = static_cast<long double>(values.size());
  for (const uint64_t value : values) {
    const long double d = static_cast<long double>(value) - sum / n;
    squares += d * d;
  }
  std::sort(values.begin(), values.end());
  CHECK_EQ(histogram->count(), values.size());
  CHECK_EQ(histogram->min(), values.front());
  CHECK_EQ(histogram->max(), values.back());
  const auto mean = static_cast<double>(sum / n),
             deviation = static_cast<double>(std::sqrt(squares / n));
  CHECK(std::abs(histogram->mean() - mean) <= 1e-9 * mean);
  CHECK(std::abs(histogram->stddev() - deviation) <= 1e-6 * deviation + 1e-3);
  for (const double percent : kPercents) {
    const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()) - 1e-9);
    const auto exact = static_cast<double>(values[static_cast<size_t>(std::max(rank, 1.0)) - 1]);
    const auto found = static_cast<double>(histogram->percentile(percent));
    CHECK(std::abs(found - exact) <= 0.004 * exact);
  }
}

}  // namespace

TEST(empty) {
  const auto histogram = std::make_unique<LatencyHistogram>();
  CHECK_EQ(histogram->count(), 0u);
  CHECK_EQ(histogram->min(), 0u);
  CHECK_EQ(histogram->max(), 0u);
  CHECK_EQ(histogram->percentile(99), 0u);
  CHECK_EQ(histogram->mean(), 0.0);
  CHECK_EQ(histogram->stddev(), 0.0);
}

TEST(small_values_are_exact) {
  auto histogram = std::make_unique<LatencyHistogram>();
  for (uint64_t value = 0; value < 200; value++) histogram->record(value);
  for (int percent = 1; percent <= 50; percent++) {
    CHECK_EQ(histogram->percentile(percent), static_cast<uint64_t>(2 * percent - 1));
  }
}

TEST(every_power_of_two_and_its_neighbours) {
  for (unsigned bit = 0; bit <= 40; bit++) {
    for (int delta = -1; delta <= 1; delta++) {
      const uint64_t value = (1ull << bit) + static_cast<uint64_t>(static_cast<int64_t>(delta));
      auto histogram = std::make_unique<LatencyHistogram>();
      // Something on both sides, so that min and max do not round for it.
      histogram->record(0);
      histogram->record(value);
      histogram->record(LatencyHistogram::kMax);
      const auto found = static_cast<double>(histogram->percentile(50));
      CHECK(std::abs(found - static_cast<double>(value)) <= 0.004 * static_cast<double>(value));
    }
  }
}

TEST(too_long_values_count_as_the_longest) {
  auto histogram = std::make_unique<LatencyHistogram>();
  histogram->record(~0ull);
  CHECK_EQ(histogram->max(), LatencyHistogram::kMax);
  CHECK_EQ(histogram->percentile(50), LatencyHistogram::kMax);
}

TEST(distributions_agree_with_sorted_values) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> narrow, wide, equal(1000, 123'456'789), two;
  std::lognormal_distribution<double> latency(11, 1.5);
  for (int i = 0; i < 20'000; i++) {
    narrow.push_back(8'000 + random() % 500);
    wide.push_back(static_cast<uint64_t>(latency(random)));
    two.push_back(i % 1000 == 0 ? 50'000'000 : 7'000);
  }
  check_against_sorted(narrow);
  check_against_sorted(wide);
  check_against_sorted(equal);
  check_against_sorted(two);
  check_against_sorted({42});
}

TEST(merging_is_recording_both) {
  std::mt19937_64 random(2);
  auto one = std::make_unique<LatencyHistogram>(), two = std::make_unique<LatencyHistogram>();
  auto both = std::make_unique<LatencyHistogram>();
  for (int i = 0; i < 5000; i++) {
    const uint64_t value = random() % (i % 2 ? 10'000 : 10'000'000);
    (i % 2 ? one : two)->record(value);
    both->record(value);
  }
  one->merge(*two);
  CHECK_EQ(one->count(), both->count());
  CHECK_EQ(one->min(), both->min());
  CHECK_EQ(one->max(), both->max());
  CHECK_EQ(one->stddev(), both->stddev());
  for (const double percent : kPercents) {
    CHECK_EQ(one->percentile(percent), both->percentile(percent));
  }
  const auto empty = std::make_unique<LatencyHistogram>();
  one->merge(*empty);
  CHECK_EQ(one->min(), both->min());
  one->clear();
  CHECK_EQ(one->count(), 0u);
}

TEST(cycle_clock_agrees_with_the_monotonic_clock) {
  const CycleClock& clock = CycleClock::get();
  const uint64_t ticks = clock.ticks(), begin = nvmeof::reactor::monotonic_now();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const uint64_t end = nvmeof::reactor::monotonic_now();
  const auto measured = static_cast<double>(clock.to_ns(clock.ticks() - ticks));
  const auto expected = static_cast<double>(end - begin);
  // One way only: between the two pairs of readings this thread may have lost the core.
  CHECK(measured >= expected * 0.999);
  const uint64_t again = clock.to_ns(clock.to_ticks(1'000'000'000));
  CHECK(again > 999'999'000 && again <= 1'000'000'000);
}

TEST(coarse_buckets_meet_without_gaps_and_hold_what_is_below_their_bound) {
  using Coarse = CoarseHistogram;
  CHECK_EQ(Coarse::lower_bound(0), 0u);
  for (unsigned bucket = 0; bucket + 1 < Coarse::kBuckets; bucket++) {
    const uint64_t first = Coarse::lower_bound(bucket), next = Coarse::lower_bound(bucket + 1);
    CHECK(next > first);
    CHECK_EQ(Coarse::bucket_of(first), bucket);
    CHECK_EQ(Coarse::bucket_of(next - 1), bucket);
    if (first >= 16) CHECK(next - first <= first / 4);
  }
  CHECK_EQ(Coarse::bucket_of(~0ull), Coarse::kBuckets - 1);  // too long counts as the longest
  Coarse histogram;
  for (const uint64_t ns : {0ull, 3ull, 1000ull, 1001ull, ~0ull}) histogram.record(ns);
  uint64_t count = 0;
  for (unsigned bucket = 0; bucket < Coarse::kBuckets; bucket++)
    count += histogram.count_of(bucket);
  CHECK_EQ(count, 5u);
  CHECK_EQ(histogram.count_of(Coarse::bucket_of(1000)), 2u);
}

TEST_MAIN
