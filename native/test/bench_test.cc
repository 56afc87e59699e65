// The load generator against a scripted target with a memory namespace: counts, patterns, warm-up,
// merging, and above all that verification finds what is wrong and only that. The loop of a real
// reactor drives it.
#include "nvmf/bench.h"

#include <chrono>
#include <functional>
#include <semaphore>
#include <set>
#include <thread>

#include "nvmf/bench_job.h"
#include "nvmf/bench_pattern.h"
#include "support/host_harness.h"

using namespace nvmeof;
using namespace nvmeof::nvmf;
using namespace nvmeof::test;

namespace {

constexpr uint32_t kLba = 512;
constexpr uint64_t kBlocks = 2048;  // of the namespace

// A connected engine and target that the reactor polls by itself.
struct Rig {
  explicit Rig(uint32_t queues = 1, uint32_t depth = 32) {
    on_reactor([&] {
      harness = std::make_unique<HostHarness>();
      harness->target.memory.resize(kBlocks * kLba);
      for (uint32_t queue = 1; queue <= queues; queue++)
        CHECK(harness->connect(queue, depth, 4096));
      test_reactor()->add(&harness->target, reactor::Stage::Process);
    });
  }
  ~Rig() {
    on_reactor([&] {
      test_reactor()->remove(&harness->target);
      harness.reset();
    });
  }
  BenchOptions options(BenchPattern pattern) const {
    BenchOptions o;
    o.pattern = pattern;
    o.queue_depth = 8;
    o.lba_bytes = kLba;
    o.lba_count = kBlocks;
    o.command_count = 1000;
    o.buffer_arena_bytes = 1 << 20;
    o.seed = 5;
    return o;
  }
  // Runs one job a queue; `meanwhile` runs on this thread while they do.
  BenchResult run(BenchOptions o, std::function<void()> meanwhile = {}) {
    jobs.clear();
    std::counting_semaphore<64> ended(0);
    on_reactor([&] {
      for (uint32_t i = 0; i < o.job_count; i++) {
        o.job_index = i;
        auto job = BenchJob::create(harness->engine.get(), test_reactor(), i + 1, o);
        CHECK(bool(job));
        if (job) jobs.push_back(std::move(*job));
      }
    });
    for (auto& job : jobs) {
      CHECK(job->start(
          [](BenchJob*, void* context) {
            static_cast<std::counting_semaphore<64>*>(context)->release();
          },
          &ended));
    }
    if (meanwhile) meanwhile();
    for (size_t i = 0; i < jobs.size(); i++) ended.acquire();
    std::vector<const BenchJob*> finished;
    for (auto& job : jobs) finished.push_back(job.get());
    BenchResult result = bench_merge(finished);
    on_reactor([&] { jobs.clear(); });
    return result;
  }
  std::unique_ptr<HostHarness> harness;
  std::vector<std::unique_ptr<BenchJob>> jobs;
};

}  // namespace

TEST(counts_are_exact) {
  Rig rig;
  const BenchResult result = rig.run(rig.options(BenchPattern::RandRead));
  CHECK_EQ(result.read.commands, 1000u);
  CHECK_EQ(result.read.bytes, 1000u * 4096);
  CHECK_EQ(result.read.errors, 0u);
  CHECK_EQ(result.write.commands, 0u);
  CHECK_EQ(result.write.latency_max, 0u);
  CHECK(result.first_error.empty());
  CHECK_EQ(rig.harness->target.reads_served, 1000u);
  CHECK(result.read.runtime_ns > 0);
  CHECK(result.read.latency_min > 0);
  CHECK(static_cast<double>(result.read.latency_min) <= result.read.latency_mean);
  CHECK(result.read.latency_mean <= static_cast<double>(result.read.latency_max));
  CHECK_EQ(result.read.percentiles.size(), size_t{17});
  uint64_t before = result.read.latency_min;
  for (const auto& [percent, ns] : result.read.percentiles) {
    CHECK(ns >= before && ns <= result.read.latency_max);
    before = ns;
  }
  CHECK_EQ(result.reactor_cpu_seconds.size(), size_t{1});
  CHECK(result.reactor_cpu_seconds[0] > 0);
  CHECK_EQ(rig.harness->counter("live.host.windows"), 0u);
  CHECK_EQ(rig.harness->counter("live.host.slots"), 0u);
}

TEST(sequential_writes_cover_the_range_in_order) {
  Rig rig;
  BenchOptions o = rig.options(BenchPattern::Write);
  o.block_bytes = 8192;
  o.first_lba = 64;
  o.lba_count = 1024;
  o.command_count = 64;  // exactly once
  auto& memory = rig.harness->target.memory;
  const BenchResult result = rig.run(o);
  CHECK_EQ(result.write.commands, 64u);
  CHECK_EQ(result.write.bytes, 64u * 8192);
  const std::vector<uint8_t> zeroes(kLba);
  for (uint64_t lba = 0; lba < kBlocks; lba++) {
    const bool inside = lba >= 64 && lba < 64 + 1024;
    const bool written = std::memcmp(memory.data() + lba * kLba, zeroes.data(), kLba) != 0;
    CHECK_EQ(written, inside);
  }
}

TEST(mix_keeps_its_percentage) {
  Rig rig;
  BenchOptions o = rig.options(BenchPattern::RandRw);
  o.read_percent = 70;
  o.command_count = 2000;
  const BenchResult result = rig.run(o);
  CHECK_EQ(result.read.commands + result.write.commands, 2000u);
  CHECK(result.read.commands > 1300 && result.read.commands < 1500);
}

TEST(several_jobs_are_one_result) {
  Rig rig(3);
  BenchOptions o = rig.options(BenchPattern::Write);
  o.job_count = 3;
  o.command_count = kBlocks / 8;  // 256 units in shares of 85 and 86
  BenchResult result = rig.run(o);
  CHECK_EQ(result.write.commands, 256u);
  CHECK_EQ(result.reactor_cpu_seconds.size(), size_t{1});
  o.command_count = 2;  // one job has nothing to do
  result = rig.run(o);
  CHECK_EQ(result.write.commands, 2u);
  // All of them verify what all of them wrote, also in other shares.
  o.verify = true;
  o.command_count = 300;
  CHECK_EQ(rig.run(o).verify_errors, 0u);
  o.job_count = 2;
  o.pattern = BenchPattern::Read;
  o.command_count = 256;
  result = rig.run(o);
  CHECK_EQ(result.verify_errors, 0u);
  CHECK_EQ(result.blocks_verified, kBlocks);
}

TEST(verify_accepts_what_is_right) {
  Rig rig;
  BenchOptions o = rig.options(BenchPattern::RandRw);
  o.verify = true;
  o.command_count = 3000;
  o.queue_depth = 16;
  for (const uint32_t block : {512u, 4096u}) {
    o.block_bytes = block;
    const BenchResult result = rig.run(o);
    CHECK_EQ(result.verify_errors, 0u);
    CHECK(result.blocks_verified > 0);
    CHECK(result.first_error.empty());
  }
  // As many commands in flight as there is room for.
  o.lba_count = 16 * 8;
  CHECK_EQ(rig.run(o).verify_errors, 0u);
}

TEST(verify_finds_a_flipped_byte) {
  Rig rig;
  BenchOptions o = rig.options(BenchPattern::Write);
  o.verify = true;
  o.command_count = kBlocks / 8;
  CHECK_EQ(rig.run(o).write.commands, kBlocks / 8);
  o.pattern = BenchPattern::Read;
  BenchResult result = rig.run(o);
  CHECK_EQ(result.verify_errors, 0u);
  CHECK_EQ(result.blocks_verified, kBlocks);
  for (const size_t at :
       {1234 * kLba + 100ul, 1234 * kLba + 511ul, 1234ul * kLba, kBlocks * kLba - 1}) {
    rig.harness->target.memory[at] ^= 0x10;
    result = rig.run(o);
    CHECK_EQ(result.verify_errors, 1u);
    CHECK(result.first_error.find("LBA " + std::to_string(at / kLba) + ":") != std::string::npos);
    const std::string word = "byte " + std::to_string(at % kLba / 8 * 8);
    CHECK(result.first_error.find(word) != std::string::npos);
    rig.harness->target.memory[at] ^= 0x10;
  }
  // Another seed's pattern is not this run's.
  o.seed++;
  CHECK_EQ(rig.run(o).verify_errors, kBlocks / 8);
}

TEST(verify_finds_a_lost_write) {
  Rig rig;
  rig.harness->target.lose_write_every = 50;
  BenchOptions o = rig.options(BenchPattern::RandRw);
  o.verify = true;
  o.lba_count = 512;
  o.command_count = 4000;
  const BenchResult result = rig.run(o);
  CHECK(result.verify_errors > 0);
  CHECK(!result.first_error.empty());
}

TEST(failed_commands_are_counted_and_leave_both_contents_right) {
  Rig rig;
  rig.harness->target.fail_every = 10;
  BenchOptions o = rig.options(BenchPattern::RandRw);
  o.verify = true;
  o.lba_count = 512;
  o.command_count = 2000;
  const BenchResult result = rig.run(o);
  CHECK_EQ(result.verify_errors, 0u);
  CHECK_EQ(result.read.errors + result.write.errors, 200u);
  CHECK_EQ(result.read.commands + result.write.commands, 1800u);
  CHECK(result.first_error.find("status 2h/81") != std::string::npos);
}

TEST(queue_death_ends_the_job) {
  Rig rig;
  BenchOptions o = rig.options(BenchPattern::RandRw);
  o.command_count = 0;
  o.runtime_ms = 600'000;
  const BenchResult result = rig.run(o, [&] {
    on_reactor([&] {
      auto& target = rig.harness->target;
      target.device()->disconnect(target.connections[0]->id);
    });
  });
  CHECK(result.read.errors + result.write.errors > 0);
  CHECK(result.first_error.find("queue closed") != std::string::npos);
  // A job on a dead queue ends at once.
  CHECK_EQ(rig.run(o).read.commands, 0u);
}

TEST(commands_without_an_answer_are_given_up) {
  Rig rig;
  on_reactor([&] { rig.harness->target.silent = true; });
  BenchOptions o = rig.options(BenchPattern::RandRead);
  o.command_count = 0;
  o.runtime_ms = 600'000;
  o.command_timeout_ms = 20;
  const uint64_t begin = reactor::monotonic_now();
  const BenchResult result = rig.run(o, [&] {
    // Until the keys of the commands have ended, too.
    for (bool ended = false; !ended;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      rig.jobs[0]->give_up_overdue();
      on_reactor([&] { ended = rig.jobs[0]->state().over; });
    }
  });
  CHECK(reactor::monotonic_now() - begin >= 20'000'000);
  CHECK_EQ(result.read.errors, 8u);
  CHECK_EQ(result.overdue, 8u);
  CHECK(result.first_error.find("was not answered in 20 ms") != std::string::npos);
}

TEST(warm_up_is_left_out_and_time_ends_a_run) {
  Rig rig;
  BenchOptions o = rig.options(BenchPattern::RandRead);
  o.command_count = 0;
  o.warmup_ms = 20;
  o.runtime_ms = 60;
  const uint64_t begin = reactor::monotonic_now();
  const BenchResult result = rig.run(o);
  const uint64_t took = reactor::monotonic_now() - begin;
  CHECK(took >= 80'000'000);
  CHECK(result.read.runtime_ns <= took - 20'000'000);
  CHECK(result.read.runtime_ns > 30'000'000);
  CHECK(result.read.commands > 0);
  CHECK(result.read.commands < rig.harness->target.reads_served);
  CHECK_EQ(result.read.errors, 0u);
}

TEST(stop_ends_a_run) {
  Rig rig;
  BenchOptions o = rig.options(BenchPattern::RandRead);
  o.command_count = 0;
  o.runtime_ms = 600'000;
  const BenchResult result = rig.run(o, [&] {
    on_reactor([] {});
    for (auto& job : rig.jobs) job->stop();
  });
  CHECK_EQ(result.read.errors, 0u);
  CHECK(result.first_error.empty());
}

TEST(options_are_checked) {
  Rig rig;
  const std::pair<const char*, std::function<void(BenchOptions&)>> cases[] = {
      {"lba 0", [](BenchOptions& o) { o.lba_bytes = 0; }},
      {"not a multiple", [](BenchOptions& o) { o.block_bytes = 1000; }},
      {"block 0", [](BenchOptions& o) { o.block_bytes = 0; }},
      {"block 16 MiB", [](BenchOptions& o) { o.block_bytes = 16u << 20; }},
      {"depth 0", [](BenchOptions& o) { o.queue_depth = 0; }},
      {"percent", [](BenchOptions& o) { o.read_percent = 101; }},
      {"no end", [](BenchOptions& o) { o.command_count = 0; }},
      {"range 0", [](BenchOptions& o) { o.lba_count = 0; }},
      {"range below a block", [](BenchOptions& o) { o.lba_count = 7; }},
      {"range wraps", [](BenchOptions& o) { o.first_lba = ~0ull - 7; }},
      {"job index", [](BenchOptions& o) { o.job_index = 1; }},
      {"verify of 2^40 blocks", [](BenchOptions& o) { o.verify = true, o.lba_count = 1ull << 40; }},
      {"verify with fewer blocks than commands",
       [](BenchOptions& o) { o.verify = true, o.lba_count = 56; }},
  };
  for (const auto& [name, spoil] : cases) {
    BenchOptions o = rig.options(BenchPattern::RandRead);
    spoil(o);
    on_reactor([&, name = name] {
      auto job = BenchJob::create(rig.harness->engine.get(), test_reactor(), 1, o);
      if (job || job.error().message.empty()) fail(__FILE__, __LINE__, name);
    });
  }
}

TEST(random_numbers_repeat_and_cover) {
  Random one(7), two(7), other(8);
  std::set<uint64_t> seen;
  int equal = 0;
  for (int i = 0; i < 1000; i++) {
    const uint64_t value = one.next();
    CHECK_EQ(value, two.next());
    equal += value == other.next();
    seen.insert(one.below(50) + 1000);
    two.below(50);
  }
  CHECK_EQ(equal, 0);
  CHECK_EQ(seen.size(), size_t{50});
  CHECK(*seen.rbegin() < 1050);
  CHECK(Random(0).next() != 0);
}

TEST(pattern_depends_on_everything) {
  uint8_t block[kLba], changed[kLba];
  fill_block(block, kLba, 1, 99, 3);
  CHECK_EQ(find_mismatch(block, kLba, 1, 99, 3), size_t{kLba});
  CHECK_EQ(find_mismatch(block, kLba, 2, 99, 3), size_t{0});
  CHECK_EQ(find_mismatch(block, kLba, 1, 98, 3), size_t{0});
  CHECK_EQ(find_mismatch(block, kLba, 1, 99, 4), size_t{0});
  CHECK_EQ(generation_of(block, 1, 99), 3);
  CHECK_EQ(generation_of(block, 1, 100), 0);
  for (size_t bit = 0; bit < kLba * 8; bit++) {
    std::memcpy(changed, block, kLba);
    changed[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    CHECK_EQ(find_mismatch(changed, kLba, 1, 99, 3), bit / 64 * 8);
  }
  std::memcpy(changed, block, kLba);
  std::swap_ranges(changed + 64, changed + 72, changed + 72);
  CHECK_EQ(find_mismatch(changed, kLba, 1, 99, 3), size_t{64});
}

TEST(ledger_follows_generations) {
  using Verdict = BlockLedger::Verdict;
  BlockLedger ledger(1, 1000, 16, kLba, 2, false);
  uint8_t data[2 * kLba], old[2 * kLba], empty[2 * kLba] = {};
  uint64_t verified = 0;
  BlockLedger::Finding finding{};
  CHECK(ledger.check_read(3, empty, &verified, &finding) == Verdict::Unknown);
  CHECK_EQ(verified, 0u);
  ledger.begin_write(3, old);
  ledger.end_write(3, true);
  CHECK(ledger.check_read(3, old, &verified, &finding) == Verdict::Right);
  CHECK_EQ(verified, 2u);
  CHECK(ledger.check_read(3, empty, &verified, &finding) == Verdict::Wrong);
  CHECK_EQ(finding.lba, 1006u);
  // A failed write: both contents are right, per block.
  ledger.begin_write(3, data);
  ledger.end_write(3, false);
  CHECK(ledger.check_read(3, old, &verified, &finding) == Verdict::Right);
  CHECK(ledger.check_read(3, data, &verified, &finding) == Verdict::Right);
  std::memcpy(data, old, kLba);
  CHECK(ledger.check_read(3, data, &verified, &finding) == Verdict::Right);
  // After a good one neither is.
  uint8_t newest[2 * kLba];
  ledger.begin_write(3, newest);
  ledger.end_write(3, true);
  CHECK(ledger.check_read(3, newest, &verified, &finding) == Verdict::Right);
  std::memcpy(newest + kLba, old + kLba, kLba);
  CHECK(ledger.check_read(3, newest, &verified, &finding) == Verdict::Wrong);
  CHECK_EQ(finding.lba, 1007u);
  CHECK_EQ(finding.expected, 3);
  CHECK_EQ(finding.found, 1);
  CHECK_EQ(finding.offset, size_t{0});
  // Generations begin anew after 255.
  for (int i = 0; i < 600; i++) {
    ledger.begin_write(0, data);
    ledger.end_write(0, true);
    CHECK(ledger.check_read(0, data, &verified, &finding) == Verdict::Right);
    if (i > 0) CHECK(ledger.check_read(0, old, &verified, &finding) == Verdict::Wrong);
    std::memcpy(old, data, sizeof old);
  }
  // A read-only run wants a pattern, learns it, and then wants the same one.
  BlockLedger strict(1, 1000, 16, kLba, 1, true);
  CHECK(strict.check_read(0, empty, &verified, &finding) == Verdict::Wrong);
  fill_block(data, kLba, 1, 1000, 200);
  CHECK(strict.check_read(0, data, &verified, &finding) == Verdict::Right);
  fill_block(data, kLba, 1, 1000, 201);
  CHECK(strict.check_read(0, data, &verified, &finding) == Verdict::Wrong);
  CHECK_EQ(finding.expected, 200);
  CHECK_EQ(finding.found, 201);
}

TEST_MAIN
