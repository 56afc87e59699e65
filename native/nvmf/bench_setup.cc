// Checks a job's options and makes its buffers, range and ledger. On the control thread.
#include <algorithm>
#include <cstring>

#include "nvmf/bench_job.h"

namespace nvmeof::nvmf {

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kLedgerBytesMax = 256u << 20;
constexpr uint32_t kBlocksPerCommandMax = 65536;  // NLB has 16 bits

bool sequential(BenchPattern pattern) {
  return pattern == BenchPattern::Read || pattern == BenchPattern::Write ||
         pattern == BenchPattern::Rw;
}

bool only_reads(BenchPattern pattern) {
  return pattern == BenchPattern::Read || pattern == BenchPattern::RandRead;
}

Error invalid(std::string what) {
  return Error{EINVAL, "bench: " + std::move(what)};
}

Result<void> check(const BenchOptions& o) {
  if (o.lba_bytes == 0 || o.lba_bytes % 8 != 0) {
    return invalid("a logical block of " + std::to_string(o.lba_bytes) + " bytes");
  }
  if (o.block_bytes == 0 || o.block_bytes % o.lba_bytes != 0) {
    return invalid("the block size " + std::to_string(o.block_bytes) +
                   " is not a multiple of the logical block's " + std::to_string(o.lba_bytes));
  }
  if (o.block_bytes > kHostTransferMax || o.block_bytes / o.lba_bytes > kBlocksPerCommandMax) {
    return invalid("the block size " + std::to_string(o.block_bytes) +
                   " is more than one command can carry");
  }
  if (o.queue_depth == 0 || o.queue_depth > 65535) {
    return invalid("queue depth " + std::to_string(o.queue_depth) + " is not 1 to 65535");
  }
  if (o.read_percent > 100) return invalid("more than 100 percent of reads");
  if (o.runtime_ms == 0 && o.command_count == 0) return invalid("neither a runtime nor a count");
  if (o.job_count == 0 || o.job_index >= o.job_count) return invalid("job index and count");
  if (o.lba_count > ~0ull - o.first_lba) return invalid("the range of blocks wraps around");
  return {};
}

// Units [begin, end) of this job: its share, or the whole range where sharing does no harm.
std::pair<uint64_t, uint64_t> share(const BenchOptions& o, uint64_t units) {
  if (!o.verify && !sequential(o.pattern)) return {0, units};
  const auto at = [&](uint64_t index) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(units) * index / o.job_count);
  };
  return {at(o.job_index), at(o.job_index + 1)};
}

Result<void> set_range(BenchJob::State* state) {
  const BenchOptions& o = state->options;
  state->blocks_per_unit = o.block_bytes / o.lba_bytes;
  const auto [begin, end] = share(o, o.lba_count / state->blocks_per_unit);
  state->units = end - begin;
  state->first_lba = o.first_lba + begin * state->blocks_per_unit;
  if (state->units == 0) return invalid("the range of blocks is too small");
  if (o.command_count != 0) {
    const uint64_t rest = o.command_count % o.job_count;
    state->commands_max = o.command_count / o.job_count + (o.job_index < rest ? 1 : 0);
  }
  if (!o.verify) return {};
  const uint64_t blocks = state->units * state->blocks_per_unit;
  if (blocks > kLedgerBytesMax / BlockLedger::bytes_for(1)) {
    return invalid("verify can follow at most " +
                   std::to_string(kLedgerBytesMax / BlockLedger::bytes_for(1)) +
                   " blocks a queue; give a smaller range");
  }
  // Commands in flight never overlap, so each needs a place of its own.
  if (state->units < o.queue_depth) {
    return invalid(
        "verify needs at least as many blocks of the command's size as commands in "
        "flight");
  }
  state->ledger = std::make_unique<BlockLedger>(o.seed, state->first_lba, blocks, o.lba_bytes,
                                                state->blocks_per_unit, only_reads(o.pattern));
  return {};
}

// On the queue's reactor: the queue, and with it its protection domain, could go meanwhile.
Result<void> register_on_reactor(BenchJob::State* state) {
  auto registered =
      state->engine->register_memory(state->queue, state->arena->base(), state->arena->bytes());
  if (!registered) {
    return Error{registered.error().code, "bench: queue " + std::to_string(state->queue) + ": " +
                                              registered.error().message};
  }
  state->memory = std::move(*registered);
  return {};
}

Result<void> register_arena(BenchJob::State* state) {
  if (state->reactor->on_thread()) return register_on_reactor(state);
  Result<void> result;
  state->reactor->run_and_wait([&] { result = register_on_reactor(state); });
  return result;
}

Result<void> set_buffers(BenchJob::State* state) {
  const BenchOptions& o = state->options;
  const uint64_t least = (o.block_bytes + kPage - 1) / kPage * kPage;
  const uint64_t wanted = o.buffer_arena_bytes / o.job_count / o.queue_depth / kPage * kPage;
  state->part_bytes = std::max(least, wanted);
  auto arena = rdma::Arena::map(state->part_bytes * o.queue_depth, state->reactor->core());
  if (!arena) return Error{arena.error().code, "bench: " + arena.error().message};
  state->arena = std::move(*arena);
  // Random, so that nothing on the way finds zeroes; and every page is there before the clock runs.
  Random content(o.seed + o.job_index);
  for (size_t at = 0; at < state->arena->bytes(); at += 8) {
    const uint64_t word = content.next();
    std::memcpy(state->arena->base() + at, &word, 8);
  }
  if (auto registered = register_arena(state); !registered) return registered;
  return {};
}

}  // namespace

BenchJob::BenchJob(std::unique_ptr<State> state) : state_(std::move(state)) {}
BenchJob::~BenchJob() = default;

BenchJob::State::~State() {
  if (!memory) return;
  if (reactor->on_thread()) {
    memory.reset();
  } else {
    reactor->run_and_wait([this] { memory.reset(); });
  }
}

Result<std::unique_ptr<BenchJob>> BenchJob::create(CommandQueues* engine, reactor::Reactor* reactor,
                                                   uint32_t queue, const BenchOptions& options) {
  if (auto checked = check(options); !checked) return checked.error();
  auto state = std::make_unique<State>(engine, reactor, queue, options);
  // Another stream of random numbers for each job, the same block contents for all.
  state->random = Random(options.seed * 64 + options.job_index);
  if (auto ranged = set_range(state.get()); !ranged) return ranged.error();
  if (auto buffered = set_buffers(state.get()); !buffered) return buffered.error();
  state->commands.resize(options.queue_depth);
  for (size_t i = 0; i < state->commands.size(); i++) {
    BenchCommand& command = state->commands[i];
    command.job = state.get();
    command.host.memory = state->memory.get();
    command.host.offset = i * state->part_bytes;
    command.host.length = options.block_bytes;
    command.host.context = &command;
    command.host.tag = kNativeTag | reinterpret_cast<uintptr_t>(&command);
  }
  return std::unique_ptr<BenchJob>(new BenchJob(std::move(state)));
}

}  // namespace nvmeof::nvmf
