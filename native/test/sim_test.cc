// The transport under a network that loses, duplicates, reorders and corrupts packets. Every run
// follows from its seed: two nodes exchange SENDs, WRITEs, READs and atomics of random sizes and
// shapes in both directions; afterwards every byte of both memories must be what it should be, and
// every atomic must have happened once.
//   sim_test                                   all; SIM_SEEDS=N: N seeds for each rate
//   sim_test --seed 17 --loss 20 [--retries 7] one run, with its counters
#include <cstdlib>

#include "sim/network.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::test::sim;

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr int kSeedsDefault = 10;
#elif defined(__SANITIZE_ADDRESS__)
constexpr int kSeedsDefault = 25;
#else
constexpr int kSeedsDefault = 200;
#endif

constexpr TimeNs kSecond = 1'000'000'000;
constexpr uint32_t kOperations = 48;  // of each side
constexpr uint32_t kSlot = 18 << 10;  // bytes of an operation at most
constexpr uint32_t kSources = 0, kSinks = kSlot * kOperations, kTargets = kSinks * 2,
                   kReceives = kSinks * 3, kAdded = kSinks * 4, kSwapped = kAdded + 8,
                   kMemory = kAdded + 16;  // two words that the peer's atomics change

int seeds() {
  const char* text = std::getenv("SIM_SEEDS");
  return text != nullptr ? std::atoi(text) : kSeedsDefault;
}

struct Operation {
  Opcode opcode;
  uint32_t length;
  bool signaled;
  uint32_t shift;   // where in its slot it lies
  uint64_t before;  // atomic: what must stand in the word
};

bool is_atomic(const Operation& operation) {
  return soft::is_atomic(operation.opcode);
}
bool takes_receive(const Operation& operation) {
  return !soft::is_answered(operation.opcode) && operation.opcode != Opcode::RdmaWrite;
}

// One side's work: operation i reads from (or into) slot i of its own memory.
struct Side {
  Node* node = nullptr;
  std::unique_ptr<soft::QueuePair> qp;
  std::vector<Operation> operations;
  uint32_t posted = 0;
  std::vector<WorkCompletion> sent, received;
  std::vector<std::unique_ptr<MemoryWindow>> windows;
  std::vector<uint8_t> at_start;
};

struct Outcome {
  bool passed = true;
  bool failed_queue_pair = false;
  std::string what;
  void check(bool ok, const char* text) {
    if (ok || !passed) return;
    passed = false;
    what = text;
  }
};

struct Run {
  Run(uint64_t seed, double loss, bool unlimited, uint8_t retries = 7)
      : random(seed * 0x2545f4914f6cdd1dull + 1),
        network(seed),
        config(make_config(unlimited, seed)),
        first(network, seed % 2 != 0 ? "fd00::1" : "10.0.0.1", seed + 1, config, kMemory),
        second(network, seed % 2 != 0 ? "fd00::2" : "10.0.0.2", seed + 2, config, kMemory),
        limited(!unlimited) {
    network.faults.loss = loss;
    network.faults.duplicate = loss / 2;
    network.faults.reorder = loss;
    network.faults.corrupt = loss / 5;
    options.mtu = 256u << seed % 5;
    options.retry_count = retries;
    options.timeout = 9;  // 2 ms
    options.reads = static_cast<uint8_t>(1 + random.below(8));
    a.node = &first;
    b.node = &second;
  }

  static soft::TransportConfig make_config(bool unlimited, uint64_t seed) {
    soft::TransportConfig config;
    config.unlimited_retries = unlimited;
    config.receive_window_bytes = 16 << 10 << seed % 4;
    return config;
  }

  void prepare(Side& side) {
    for (size_t i = 0; i < side.node->memory.size(); i += sizeof(uint64_t)) {
      const uint64_t noise = random.next();
      std::memcpy(&side.node->memory[i], &noise, sizeof noise);
    }
    std::memset(&side.node->memory[kAdded], 0, 16);
    side.at_start = side.node->memory;
    uint64_t added = 0, swapped = 0;
    side.qp = side.node->make_qp(64, 5);
    for (uint32_t i = 0; i < kOperations; i++) {
      constexpr Opcode kinds[] = {Opcode::Send,
                                  Opcode::SendWithImm,
                                  Opcode::SendWithInvalidate,
                                  Opcode::RdmaWrite,
                                  Opcode::RdmaWriteWithImm,
                                  Opcode::RdmaRead,
                                  Opcode::RdmaWrite,
                                  Opcode::RdmaRead,
                                  Opcode::AtomicFetchAdd,
                                  Opcode::AtomicCompareSwap};
      Operation operation{kinds[random.below(std::size(kinds))], 0, random.chance(0.7),
                          random.below(64), 0};
      const uint32_t size = random.below(4);
      operation.length = size == 0   ? random.below(65)
                         : size == 1 ? options.mtu * random.below(5)
                                     : random.below(kSlot - 64);
      operation.length = std::min(operation.length, kSlot - 64);
      if (is_atomic(operation)) {
        operation.length = 8;
        const bool adds = operation.opcode == Opcode::AtomicFetchAdd;
        operation.before = adds ? added : swapped;
        adds ? added += i + 1 : swapped = i + 1;
      }
      side.operations.push_back(operation);
    }
  }

  // A scatter/gather list of up to five random pieces over [offset, offset + length).
  std::vector<Sge> pieces(const Node& node, uint32_t offset, uint32_t length) {
    std::vector<Sge> list;
    while (list.size() < 4 && length > 1 && random.chance(0.6)) {
      const uint32_t n = random.below(length);
      list.push_back(node.sge(offset, n));
      offset += n;
      length -= n;
    }
    list.push_back(node.sge(offset, length));
    return list;
  }

  void post_receives(Side& side, const Side& peer) {
    for (uint32_t i = 0; i < kOperations; i++) {
      if (!takes_receive(peer.operations[i])) continue;
      const auto list = pieces(*side.node, kReceives + i * kSlot, kSlot);
      const ReceiveWorkRequest wr{i, static_cast<uint8_t>(list.size()), list.data()};
      if (!side.qp->post_receive({&wr, 1})) broken = true;
    }
  }

  // A window of the peer's that this SEND ends.
  uint32_t window_key(Side& peer) {
    peer.windows.push_back(std::move(peer.node->pd->allocate_window().value()));
    SendWorkRequest bind{};
    bind.opcode = Opcode::BindMemoryWindow;
    bind.bind = {peer.windows.back().get(),
                 peer.node->region.get(),
                 peer.node->at(0),
                 64,
                 peer.windows.back()->next_rkey(),
                 kRemoteRead};
    // Bound outside of the queues: the order of the two sides' work is not what is tested here.
    peer.node->keys->bind(static_cast<soft::SoftMemoryWindow&>(*bind.bind.window),
                          static_cast<soft::SoftMemoryRegion&>(*bind.bind.region),
                          static_cast<soft::SoftProtectionDomain&>(*peer.node->pd).id(),
                          peer.qp->number(), bind.bind.address, bind.bind.length, bind.bind.rkey,
                          bind.bind.access);
    return bind.bind.rkey;
  }

  void post_some(Side& side, Side& peer) {
    while (side.posted < kOperations && side.qp->state() == State::Rts &&
           side.qp->outstanding_sends() < 1 + posted_at_once) {
      const uint32_t i = side.posted++;
      const Operation& operation = side.operations[i];
      const bool read = operation.opcode == Opcode::RdmaRead;
      const bool sinks = read || is_atomic(operation);
      const auto list = pieces(
          *side.node, (sinks ? kSinks : kSources) + i * kSlot + operation.shift, operation.length);
      SendWorkRequest wr{};
      wr.wr_id = i;
      wr.opcode = operation.opcode;
      wr.flags = static_cast<uint8_t>((operation.signaled ? kSignaled : 0) |
                                      (random.chance(0.1) ? kFence : 0));
      wr.sg_list = list.data();
      wr.num_sge = static_cast<uint8_t>(list.size());
      wr.imm_or_rkey = operation.opcode == Opcode::SendWithInvalidate ? window_key(peer) : i;
      wr.remote_address =
          peer.node->at((read ? kSources : kTargets) + i * kSlot + (read ? operation.shift : 7));
      wr.rkey = peer.node->region->rkey();
      if (operation.opcode == Opcode::AtomicFetchAdd) {
        wr.remote_address = peer.node->at(kAdded);
        wr.atomic.compare_add = i + 1;
      } else if (operation.opcode == Opcode::AtomicCompareSwap) {
        wr.remote_address = peer.node->at(kSwapped);
        wr.atomic = {operation.before, i + 1};
      }
      if (!side.qp->post_send({&wr, 1})) broken = true;
    }
    for (const WorkCompletion& wc : side.node->poll())
      (wc.receive ? side.received : side.sent).push_back(wc);
  }

  bool finished(const Side& side, const Side& peer) const {
    size_t receives = 0;
    for (const Operation& operation : peer.operations) receives += takes_receive(operation);
    return side.posted == kOperations && side.qp->outstanding_sends() == 0 &&
           side.received.size() == receives;
  }

  Outcome execute() {
    prepare(a);
    prepare(b);
    posted_at_once = random.below(40);
    Outcome outcome;
    outcome.check(connect(first, *a.qp, second, *b.qp, options), "connect");
    post_receives(a, b);
    post_receives(b, a);
    first.process = [&] { post_some(a, b); };
    second.process = [&] { post_some(b, a); };
    const bool done = network.run(
        [&] {
          return (finished(a, b) && finished(b, a)) ||
                 (limited && a.qp->state() == State::Err && b.qp->state() == State::Err);
        },
        network.now + 600 * kSecond);
    post_some(a, b);
    post_some(b, a);
    outcome.failed_queue_pair = a.qp->state() == State::Err || b.qp->state() == State::Err;
    outcome.check(!broken, "a post was refused");
    if (!limited) {
      outcome.check(!outcome.failed_queue_pair, "a queue pair failed with unlimited retries");
      outcome.check(done, "not everything arrived");
    } else {
      outcome.check(done || outcome.failed_queue_pair, "neither finished nor failed");
    }
    judge(a, b, outcome);
    judge(b, a, outcome);
    first.process = second.process = nullptr;
    a.windows.clear();
    b.windows.clear();
    return outcome;
  }

  // What `side` was told it sent must be at the peer; nothing else may have changed anywhere.
  void judge(Side& side, Side& peer, Outcome& outcome) {
    const bool all = !outcome.failed_queue_pair;
    uint32_t successes = 0;  // operations that are complete
    bool failed = false;
    uint64_t next = 0;
    for (const WorkCompletion& wc : side.sent) {
      outcome.check(wc.wr_id >= next, "completions out of order");
      next = wc.wr_id + 1;
      if (wc.status == Status::Success) {
        outcome.check(!failed, "success after a failure");
        successes = static_cast<uint32_t>(wc.wr_id + 1);
      } else {
        outcome.check(failed
                          ? wc.status == Status::FlushError
                          : wc.status == Status::RetryExceeded || wc.status == Status::FlushError,
                      "a status that loss cannot cause");
        failed = true;
      }
    }
    outcome.check(!(all && failed), "a failure on a healthy queue pair");
    if (all) successes = kOperations;
    size_t receive = 0;
    const auto& mine = side.node->memory;
    const auto& theirs = peer.node->memory;
    for (uint32_t i = 0; i < kOperations; i++) {
      const Operation& operation = side.operations[i];
      const uint32_t at = i * kSlot;
      const bool sure = i < successes;
      const auto equal = [&](const uint8_t* x, const uint8_t* y, size_t n) {
        return std::memcmp(x, y, n) == 0;
      };
      const uint8_t* source = &side.at_start[kSources + at + operation.shift];
      if (operation.opcode == Opcode::RdmaRead) {
        source = &peer.at_start[kSources + at + operation.shift];
        const bool here = equal(&mine[kSinks + at + operation.shift], source, operation.length);
        outcome.check(!sure || here, "an RDMA READ brought wrong data");
        untouched(side, kSinks + at, operation.shift, operation.length, outcome);
      } else if (is_atomic(operation)) {
        const bool here = equal(&mine[kSinks + at + operation.shift],
                                reinterpret_cast<const uint8_t*>(&operation.before), 8);
        outcome.check(!sure || here, "an atomic found what it should not: another happened twice");
        untouched(side, kSinks + at, operation.shift, operation.length, outcome);
      } else if (operation.opcode == Opcode::RdmaWrite ||
                 operation.opcode == Opcode::RdmaWriteWithImm) {
        outcome.check(!sure || equal(&theirs[kTargets + at + 7], source, operation.length),
                      "an RDMA WRITE left wrong data");
        untouched(peer, kTargets + at, 7, operation.length, outcome);
      }
      if (takes_receive(operation)) {
        const bool received =
            receive < peer.received.size() && peer.received[receive].status == Status::Success;
        outcome.check(!sure || received, "a completed SEND was never received");
        if (received) {
          const WorkCompletion& wc = peer.received[receive++];
          outcome.check(wc.wr_id == i && wc.byte_length == operation.length &&
                            (operation.opcode == Opcode::SendWithInvalidate ||
                             operation.opcode == Opcode::Send || wc.imm_or_rkey == i),
                        "receives are not the SENDs in their order, once each");
          if (operation.opcode != Opcode::RdmaWriteWithImm) {
            outcome.check(equal(&theirs[kReceives + at], source, operation.length),
                          "a SEND left wrong data");
            untouched(peer, kReceives + at, 0, operation.length, outcome);
          } else {
            untouched(peer, kReceives + at, 0, 0, outcome);
          }
        }
      }
    }
    for (; receive < peer.received.size(); receive++)
      outcome.check(peer.received[receive].status == Status::FlushError, "an extra receive");
    judge_words(side, peer, successes, outcome);
    outcome.check(std::memcmp(mine.data(), side.at_start.data(), kSinks) == 0,
                  "source data changed");
    outcome.check(side.node->transport.read_bytes_outstanding() == 0, "READ bytes still counted");
  }
  // The words are what a prefix of the atomics leaves, and no shorter one than was reported done.
  void judge_words(const Side& side, const Side& peer, uint32_t successes, Outcome& outcome) {
    uint64_t words[2], added = 0, swapped = 0;
    std::memcpy(words, &peer.node->memory[kAdded], sizeof words);
    bool fits = false;
    for (uint32_t i = 0; i <= kOperations && !fits; i++) {
      fits = i >= successes && words[0] == added && words[1] == swapped;
      if (i == kOperations) break;
      if (side.operations[i].opcode == Opcode::AtomicFetchAdd) added += i + 1;
      if (side.operations[i].opcode == Opcode::AtomicCompareSwap) swapped = i + 1;
    }
    outcome.check(fits, "the words are not what each atomic once, in order, leaves");
  }
  void untouched(const Side& side, uint32_t slot, uint32_t from, uint32_t length,
                 Outcome& outcome) {
    const uint8_t* now = &side.node->memory[slot];
    const uint8_t* before = &side.at_start[slot];
    const uint32_t end = from + length;
    outcome.check(std::memcmp(now, before, from) == 0 &&
                      std::memcmp(now + end, before + end, kSlot - end) == 0,
                  "bytes beside a message changed");
  }

  Random random;
  Network network;
  soft::TransportConfig config;
  Node first, second;
  bool limited;
  ConnectOptions options;
  Side a, b;
  uint32_t posted_at_once = 0;
  bool broken = false;
};

struct Totals {
  uint64_t sent = 0, lost = 0, duplicated = 0, reordered = 0, corrupted = 0;
  uint64_t timeouts = 0, naks = 0, implied = 0, replays = 0, failed = 0, retransmitted = 0;
  uint64_t atomics = 0, atomic_replays = 0;
};

bool one(uint64_t seed, double loss, bool unlimited, Totals& totals, uint8_t retries = 7) {
  Run run(seed, loss, unlimited, retries);
  const Outcome outcome = run.execute();
  const NetworkCounters& n = run.network.counters;
  totals.sent += n.sent;
  totals.lost += n.lost;
  totals.duplicated += n.duplicated;
  totals.reordered += n.reordered;
  totals.corrupted += n.corrupted;
  totals.failed += outcome.failed_queue_pair;
  for (const Node* node : {&run.first, &run.second}) {
    const soft::TransportCounters& c = node->transport.counters();
    totals.timeouts += c.timeouts;
    totals.naks += c.naks_received;
    totals.implied += c.implied_naks;
    totals.replays += c.read_replays;
    totals.atomics += c.atomics;
    totals.atomic_replays += c.atomic_replays;
    totals.retransmitted += c.retransmitted_packets;
  }
  const double expected = static_cast<double>(n.sent) * loss;
  const bool losses = loss == 0 || expected < 12 || n.lost > 0;
  if (outcome.passed && losses) return true;
  for (const Node* node : {&run.first, &run.second})
    for (const std::string& reason : node->errors)
      std::fprintf(stderr, "  queue pair failed: %s\n", reason.c_str());
  const std::string limit = unlimited ? "" : " --retries " + std::to_string(retries);
  std::fprintf(stderr, "sim_test --seed %llu --loss %g%s: %s\n",
               static_cast<unsigned long long>(seed), loss * 100, limit.c_str(),
               outcome.passed ? "no packet was lost" : outcome.what.c_str());
  return false;
}

void rate(double loss, bool unlimited) {
  Totals t;
  int failures = 0;
  for (int seed = 1; seed <= seeds(); seed++)
    failures += !one(static_cast<uint64_t>(seed), loss, unlimited, t);
  CHECK_EQ(failures, 0);
  CHECK(seeds() == 0 || loss == 0 || (t.lost > 0 && t.duplicated > 0 && t.reordered > 0));
  CHECK(seeds() == 0 || (t.atomics > 0 && (t.atomic_replays > 0) == (loss > 0)));
  std::printf(
      "  loss %g%%, %s retries: %d seeds, %llu packets, %llu lost, %llu duplicated, %llu "
      "reordered, "
      "%llu corrupted; %llu timeouts, %llu NAKs, %llu implied, %llu READ replays, %llu resent, "
      "%llu atomics, %llu of their answers repeated, %llu failed runs\n",
      loss * 100, unlimited ? "unlimited" : "seven", seeds(),
      static_cast<unsigned long long>(t.sent), static_cast<unsigned long long>(t.lost),
      static_cast<unsigned long long>(t.duplicated), static_cast<unsigned long long>(t.reordered),
      static_cast<unsigned long long>(t.corrupted), static_cast<unsigned long long>(t.timeouts),
      static_cast<unsigned long long>(t.naks), static_cast<unsigned long long>(t.implied),
      static_cast<unsigned long long>(t.replays), static_cast<unsigned long long>(t.retransmitted),
      static_cast<unsigned long long>(t.atomics), static_cast<unsigned long long>(t.atomic_replays),
      static_cast<unsigned long long>(t.failed));
}

}  // namespace

TEST(no_loss) {
  rate(0, true);
}
TEST(loss_1_percent_unlimited_retries) {
  rate(0.01, true);
}
TEST(loss_5_percent_unlimited_retries) {
  rate(0.05, true);
}
TEST(loss_20_percent_unlimited_retries) {
  rate(0.20, true);
}
TEST(loss_1_percent_seven_retries) {
  rate(0.01, false);
}
TEST(loss_5_percent_seven_retries) {
  rate(0.05, false);
}
TEST(loss_20_percent_seven_retries) {
  rate(0.20, false);
}

// Hopeless enough that queue pairs do fail: what was reported as done must be done all the same.
TEST(loss_40_percent_two_retries_fails_honestly) {
  Totals t;
  int failures = 0;
  for (int seed = 1; seed <= seeds() / 4 + 1; seed++)
    failures += !one(static_cast<uint64_t>(seed), 0.4, false, t, 2);
  CHECK_EQ(failures, 0);
  CHECK(t.failed > 0);
}

// A failing run must look the same when it is run again.
TEST(a_seed_decides_everything) {
  Totals first, second;
  CHECK(one(7, 0.2, true, first) && one(7, 0.2, true, second));
  CHECK_EQ(first.sent, second.sent);
  CHECK_EQ(first.lost, second.lost);
  CHECK_EQ(first.timeouts, second.timeouts);
}

int main(int argc, char** argv) {
  uint64_t seed = 0;
  double loss = 20;
  bool unlimited = true;
  uint8_t retries = 7;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seed") == 0) seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--loss") == 0) loss = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--retries") == 0) {
      unlimited = false;
      retries = static_cast<uint8_t>(std::atoi(argv[i + 1]) & 7);
    }
  }
  if (seed == 0) return ::nvmeof::test::run_all(argc, argv);
  Totals t;
  const bool passed = one(seed, loss / 100, unlimited, t, retries);
  std::printf("seed %llu: %s; %llu packets, %llu lost, %llu timeouts, %llu failed\n",
              static_cast<unsigned long long>(seed), passed ? "passed" : "FAILED",
              static_cast<unsigned long long>(t.sent), static_cast<unsigned long long>(t.lost),
              static_cast<unsigned long long>(t.timeouts),
              static_cast<unsigned long long>(t.failed));
  return passed ? 0 : 1;
}
