// The load generator's loop: each completion is measured, checked, and followed by the next
// command. On the reactor's thread; no allocation but for the text of a first error.
#include "nvmf/bench.h"

#include <cstdio>
#include <cstring>
#include <ctime>

#include "nvmf/bench_job.h"
#include "nvmf/nvme.h"

namespace nvmeof::nvmf {

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kNsPerMs = 1'000'000;

uint64_t thread_cpu_ns() {
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(used.tv_nsec);
}

}  // namespace

bool BenchJob::start(BenchDone done, void* context) {
  state_->job = this;
  state_->done = done;
  state_->context = context;
  return state_->reactor->post(
      {[](void* state, uint64_t) { static_cast<State*>(state)->run(); }, state_.get(), 0});
}

void BenchJob::stop() {
  state_->stop_asked.store(true, std::memory_order_relaxed);
}

void BenchJob::give_up_overdue() {
  state_->reactor->run_and_wait([state = state_.get()] { state->give_up_overdue(); });
}

void BenchJob::State::give_up_overdue() {
  const uint64_t limit = clock.to_ticks(options.command_timeout_ms * kNsPerMs);
  const uint64_t now = clock.ticks();
  for (size_t i = 0; !over && i < commands.size(); i++) {
    const BenchCommand& command = commands[i];
    if (command.in_flight && now - command.start_ticks > limit)
      engine->cancel(queue, command.host.tag);
  }
}

void BenchJob::State::run() {
  const uint64_t now = clock.ticks();
  measure_ticks = last_ticks = now + clock.to_ticks(options.warmup_ms * kNsPerMs);
  if (options.runtime_ms != 0) {
    deadline_ticks = measure_ticks + clock.to_ticks(options.runtime_ms * kNsPerMs);
  }
  starting = true;
  for (BenchCommand& command : commands) {
    if (!more(now)) break;
    command.start_ticks = now;
    issue(command);
  }
  starting = false;
  if (in_flight == 0) end();
}

// Whether another command may start.
bool BenchJob::State::more(uint64_t now) {
  if (!measuring && now >= measure_ticks) {
    measuring = true;
    cpu_begin_ns = thread_cpu_ns();
  }
  if (stop_asked.load(std::memory_order_relaxed)) stopping = true;
  if (deadline_ticks != 0 && now >= deadline_ticks) stopping = true;
  if (issued >= commands_max) stopping = true;
  return !stopping;
}

bool BenchJob::State::wants_read() {
  switch (options.pattern) {
    case BenchPattern::Read:
    case BenchPattern::RandRead:
      return true;
    case BenchPattern::Write:
    case BenchPattern::RandWrite:
      return false;
    case BenchPattern::Rw:
    case BenchPattern::RandRw:
      break;
  }
  return random.below(100) < options.read_percent;
}

uint64_t BenchJob::State::choose_unit() {
  const bool in_order = options.pattern == BenchPattern::Read ||
                        options.pattern == BenchPattern::Write ||
                        options.pattern == BenchPattern::Rw;
  uint64_t unit = in_order ? next_unit : random.below(units);
  // There are at least as many units as commands in flight: one is free.
  while (ledger && ledger->busy(unit)) unit = unit + 1 == units ? 0 : unit + 1;
  next_unit = unit + 1 == units ? 0 : unit + 1;
  return unit;
}

// `start_ticks` holds the present time.
void BenchJob::State::issue(BenchCommand& command) {
  HostCommand& host = command.host;
  command.read = wants_read();
  command.unit = choose_unit();
  const auto index = static_cast<uint64_t>(&command - commands.data());
  const uint64_t places = (part_bytes - options.block_bytes) / kPage + 1;
  host.offset = index * part_bytes + random.below(places) * kPage;
  host.direction = command.read ? Direction::ToHost : Direction::ToController;
  host.done = [](HostCommand* ended, Outcome outcome, const uint8_t cqe[16]) {
    auto* mine = static_cast<BenchCommand*>(ended->context);
    mine->job->finished(*mine, outcome, cqe);
  };
  const uint64_t lba = first_lba + command.unit * blocks_per_unit;
  std::memset(host.sqe, 0, sizeof host.sqe);
  host.sqe[sqe::kOpcode] = command.read ? io::kRead : io::kWrite;
  store32(host.sqe + sqe::kNsid, options.nsid);
  store64(host.sqe + sqe::kCdw10, lba);
  store16(host.sqe + sqe::kCdw12, static_cast<uint16_t>(blocks_per_unit - 1));
  if (measuring) issued++;
  if (ledger) {
    ledger->set_busy(command.unit, true);
    if (!command.read) ledger->begin_write(command.unit, memory->base + host.offset);
    command.start_ticks = clock.ticks();  // making the pattern is no latency
  }
  in_flight++;
  command.in_flight = true;
  engine->submit(queue, &host);
}

void BenchJob::State::finished(BenchCommand& command, Outcome outcome, const uint8_t* cqe) {
  uint64_t now = clock.ticks();
  in_flight--;
  command.in_flight = false;
  BenchDirection& direction = command.read ? read : write;
  if (succeeded(command, outcome, cqe)) {
    if (now >= measure_ticks) {
      direction.latency.record(clock.to_ns(now - command.start_ticks));
      last_ticks = now;
    }
    if (ledger && command.read) verify(command);
  } else {
    direction.errors++;
  }
  if (ledger) ledger->set_busy(command.unit, false);
  if (more(now)) {
    command.start_ticks = now;
    issue(command);
  } else if (in_flight == 0 && !starting) {
    end();  // `this` may be gone after it
  }
}

bool BenchJob::State::succeeded(BenchCommand& command, Outcome outcome, const uint8_t* cqe) {
  const auto status = static_cast<uint16_t>(load16(cqe + cqe::kStatus) >> 1);
  const bool good = outcome == Outcome::Ok && status == 0;
  if (ledger && !command.read) ledger->end_write(command.unit, good);
  if (good) return true;
  if (outcome != Outcome::Ok) stopping = true;
  if (outcome == Outcome::Cancelled) overdue++;
  if (!first_error.empty()) return false;
  char text[160];
  const auto lba = static_cast<unsigned long long>(first_lba + command.unit * blocks_per_unit);
  if (outcome == Outcome::Ok) {
    std::snprintf(text, sizeof text, "%s of LBA %llu failed with status %Xh/%02Xh",
                  command.read ? "read" : "write", lba, status >> 8 & 7u, status & 0xFFu);
  } else if (outcome == Outcome::Cancelled) {
    std::snprintf(text, sizeof text, "%s of LBA %llu was not answered in %llu ms",
                  command.read ? "read" : "write", lba,
                  static_cast<unsigned long long>(options.command_timeout_ms));
  } else {
    std::snprintf(text, sizeof text, "%s of LBA %llu: the queue closed before it was answered",
                  command.read ? "read" : "write", lba);
  }
  report(text);
  return false;
}

void BenchJob::State::verify(const BenchCommand& command) {
  BlockLedger::Finding finding{};
  const auto verdict = ledger->check_read(command.unit, memory->base + command.host.offset,
                                          &blocks_verified, &finding);
  if (verdict != BlockLedger::Verdict::Wrong) return;
  verify_errors++;
  if (!first_error.empty()) return;
  char text[160];
  const auto lba = static_cast<unsigned long long>(finding.lba);
  if (finding.found == 0 || finding.offset != 0) {
    std::snprintf(text, sizeof text, "LBA %llu: wrong data from byte %zu on", lba, finding.offset);
  } else {
    std::snprintf(text, sizeof text, "LBA %llu: holds write %u of it instead of write %u", lba,
                  finding.found, finding.expected);
  }
  report(text);
}

void BenchJob::State::report(const std::string& error) {
  if (first_error.empty()) first_error = error;
}

void BenchJob::State::end() {
  over = true;
  if (measuring) cpu_ns = thread_cpu_ns() - cpu_begin_ns;
  done(job, context);
}

uint64_t BenchJob::State::runtime_ns() const {
  return clock.to_ns(last_ticks - measure_ticks);
}

}  // namespace nvmeof::nvmf
