// Host engine and target engine over the soft provider: real UDP between two loopback addresses,
// one reactor each, a namespace in memory, the load generator with verification. No control plane:
// the target binds each connection as an I/O queue at once.
#include <arpa/inet.h>

#include <semaphore>

#include "block/backing.h"
#include "nvmf/bench.h"
#include "nvmf/target_engine.h"
#include "support/host_harness.h"

using namespace nvmeof;
using namespace nvmeof::nvmf;
using namespace nvmeof::test;

namespace {

constexpr uint64_t kBytes = 16u << 20;
constexpr uint32_t kDepth = 64, kInCapsule = 4096;

sockaddr_storage address_of(const char* text) {
  sockaddr_storage storage{};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  v4->sin_family = AF_INET;
  inet_pton(AF_INET, text, &v4->sin_addr);
  return storage;
}

template <typename Body>
void run_on(reactor::Reactor* reactor, Body body) {
  reactor->run_and_wait(body);
}

struct End {
  std::unique_ptr<reactor::Reactor> reactor;
  std::unique_ptr<rdma::Device> device;

  bool open(unsigned index, const char* address) {
    reactor::Options options;
    options.name = "end";
    auto started = reactor::Reactor::start(index, options);
    if (!started) return false;
    reactor = std::move(*started);
    rdma::DeviceOptions wanted;
    wanted.address = address_of(address);
    reactor::Reactor* const reactors[] = {reactor.get()};
    auto opened = rdma::open_device(wanted, reactors);
    if (!opened) {
      fail(__FILE__, __LINE__, opened.error().message);
      return false;
    }
    device = std::move(*opened);
    return true;
  }
};

// Accepts every connection and makes it an I/O queue.
struct AcceptingSink : EventSink {
  void push(EventKind kind, uint32_t, uint32_t, uint32_t, uint64_t value, std::span<const uint8_t>,
            std::span<const uint8_t>) override {
    if (kind == EventKind::QueueClosed) closed++;
    if (kind != EventKind::ConnectRequest) return;
    AcceptOptions options{};
    options.depth = kDepth;
    options.in_capsule_bytes = kInCapsule;
    options.parameters.initiator_depth = 16;
    if (!engine->accept(next, value, options)) return;
    engine->bind(next++, {1, 1, 1, true});
  }
  TargetEngine* engine = nullptr;
  uint32_t next = 1;
  int closed = 0;
};

struct Waiting : KeepingSink {
  void push(EventKind kind, uint32_t id, uint32_t tag, uint32_t code, uint64_t value,
            std::span<const uint8_t> first, std::span<const uint8_t> second) override {
    KeepingSink::push(kind, id, tag, code, value, first, second);
    seen.release();
  }
  std::counting_semaphore<1024> seen{0};
};

void release(void* semaphore) {
  static_cast<std::counting_semaphore<64>*>(semaphore)->release();
}

// Both ends with one connected queue, number 1.
struct Association {
  End target_end, host_end;
  std::unique_ptr<block::Backing> backing;
  AcceptingSink target_sink;
  Waiting host_sink;
  std::unique_ptr<TargetEngine> target;
  std::unique_ptr<HostEngine> host;
  std::counting_semaphore<64> ready{0};

  bool begin() {
    if (!target_end.open(0, "127.0.4.1") || !host_end.open(1, "127.0.4.2")) return false;
    block::Options wanted;
    wanted.kind = block::Kind::Memory;
    wanted.size = kBytes;
    auto opened = block::open_backing(wanted);
    if (!opened) return false;
    backing = std::move(*opened);
    run_on(target_end.reactor.get(), [&] {
      auto made =
          TargetEngine::create(target_end.device.get(), target_end.reactor.get(), &target_sink, {});
      if (!made) return;
      target = std::move(*made);
      target_sink.engine = target.get();
      target->set_namespace(1, 1, {backing.get(), false, 1u << 20}, release, &ready);
      CHECK(bool(target_end.device->listen(4420, target.get())));
    });
    if (target == nullptr) return false;
    ready.acquire();
    run_on(host_end.reactor.get(), [&] {
      auto made = HostEngine::create(host_end.device.get(), host_end.reactor.get(), &host_sink);
      if (!made) return;
      host = std::move(*made);
      HostQueueOptions options{};
      options.depth = kDepth;
      options.in_capsule_bytes = kInCapsule;
      options.timeout_ms = 5000;
      options.parameters.responder_resources = 16;
      const std::vector<uint8_t> data(32);
      options.parameters.private_data = data;
      CHECK(bool(host->connect(1, address_of("127.0.4.1"), 4420, options)));
    });
    if (host == nullptr) return false;
    host_sink.seen.acquire();
    return host_sink.count(EventKind::QueueEstablished, 1) == 1;
  }

  // `before_host_ends`: on its reactor, when the queue is closed.
  template <typename Body>
  void end(Body before_host_ends) {
    run_on(host_end.reactor.get(), [&] { host->close(1); });
    host_sink.seen.acquire();
    CHECK_EQ(host_sink.count(EventKind::QueueClosed, 1), 1);
    run_on(host_end.reactor.get(), [&] {
      for (const rdma::CounterValue& value : host->counters()) {
        if (std::strncmp(value.name, "live.", 5) == 0) CHECK_EQ(value.value, 0u);
      }
      before_host_ends();
      host.reset();
    });
    run_on(target_end.reactor.get(), [&] { target->remove_namespace(1, 1, release, &ready); });
    ready.acquire();
    run_on(target_end.reactor.get(), [&] { target.reset(); });
    host_end.device.reset();
    target_end.device.reset();
  }
};

}  // namespace

TEST(reads_and_writes_verify_over_udp) {
  Association a;
  REQUIRE(a.begin());

  const auto run = [&](BenchPattern pattern, uint32_t block, uint32_t depth, uint64_t count) {
    BenchOptions o;
    o.pattern = pattern;
    o.block_bytes = block;
    o.queue_depth = depth;
    o.lba_count = kBytes / 512;
    o.command_count = count;
    o.buffer_arena_bytes = 4 << 20;
    o.verify = true;
    auto job = BenchJob::create(a.host.get(), a.host_end.reactor.get(), 1, o);
    if (!job) return BenchResult{};
    std::counting_semaphore<64> ended(0);
    (*job)->start([](BenchJob*, void* context) { release(context); }, &ended);
    ended.acquire();
    const BenchJob* const jobs[] = {job->get()};
    const BenchResult result = bench_merge(jobs);
    CHECK_EQ(result.verify_errors, 0u);
    CHECK_EQ(result.read.errors + result.write.errors, 0u);
    if (!result.first_error.empty()) fail(__FILE__, __LINE__, result.first_error);
    CHECK_EQ(result.read.commands + result.write.commands, count);
    std::printf("%6u bytes, depth %2u: %llu commands, median %.1f us\n", block, depth,
                static_cast<unsigned long long>(count),
                static_cast<double>(
                    (result.read.commands ? result.read : result.write).percentiles[6].second) /
                    1e3);
    return result;
  };
  run(BenchPattern::RandRw, 512, 1, 500);
  run(BenchPattern::RandRw, 4096, 1, 500);
  run(BenchPattern::RandRw, 4096, 32, 5000);
  run(BenchPattern::RandRw, 65536, 16, 500);
  run(BenchPattern::Write, 131072, 8, kBytes / 131072);
  CHECK_EQ(run(BenchPattern::Read, 131072, 4, kBytes / 131072).blocks_verified, kBytes / 512);

  a.end([] {});
}

namespace {

// Reads of 128 KiB with one of 1 MiB among them, which is given up at one of their ends.
struct AbortRound {
  static constexpr uint32_t kSmall = 32, kSmallBytes = 128 << 10, kLargeBytes = 1 << 20;

  void start(uint32_t cancel_at_end) {
    cancel_at = cancel_at_end;
    ended = 0;
    for (uint32_t i = 0; i <= kSmall; i++) {
      HostCommand& command = commands[i];
      command = {};
      const uint32_t length = i == kSmall / 2 ? kLargeBytes : kSmallBytes;
      command.sqe[0] = 0x02;  // Read
      command.sqe[4] = 1;     // NSID
      store16(command.sqe + 48, static_cast<uint16_t>(length / 512 - 1));
      command.direction = Direction::ToHost;
      command.memory = memory;
      command.offset = i * kLargeBytes % memory->length;
      command.length = length;
      command.context = this;
      command.tag = i == kSmall / 2 ? 2 : 1;
      command.done = [](HostCommand* done, Outcome outcome, const uint8_t* cqe) {
        static_cast<AbortRound*>(done->context)->on_end(*done, outcome, cqe);
      };
      engine->submit(1, &command);
    }
  }
  void on_end(const HostCommand& command, Outcome outcome, const uint8_t* cqe) {
    if (command.tag == 1) {
      CHECK(outcome == Outcome::Ok);
      CHECK_EQ(load16(cqe + 14) >> 1, 0);
    } else {
      CHECK(outcome == Outcome::Ok || outcome == Outcome::Cancelled);
      cancelled += outcome == Outcome::Cancelled;
    }
    if (++ended == cancel_at) engine->cancel(1, 2);
    if (ended == kSmall + 1) over.release();
  }

  HostEngine* engine;
  const HostMemory* memory;
  uint32_t cancel_at = 0, ended = 0, cancelled = 0;
  HostCommand commands[kSmall + 1] = {};
  std::counting_semaphore<64> over{0};
};

}  // namespace

TEST(giving_up_a_read_under_load_keeps_the_queue) {
  Association a;
  REQUIRE(a.begin());
  std::vector<uint8_t> bytes(8u << 20);
  std::unique_ptr<RegisteredMemory> memory;
  run_on(a.host_end.reactor.get(), [&] {
    auto registered = a.host->register_memory(1, bytes.data(), bytes.size());
    if (registered) memory = std::move(*registered);
  });
  REQUIRE(memory != nullptr);
  AbortRound round{a.host.get(), memory.get()};
  for (uint32_t i = 0; i < 2 * AbortRound::kSmall; i++) {
    run_on(a.host_end.reactor.get(), [&] { round.start(1 + i % AbortRound::kSmall); });
    round.over.acquire();
  }
  std::printf("%u reads of 1 MiB given up\n", round.cancelled);
  CHECK(round.cancelled != 0);
  CHECK_EQ(a.host_sink.count(EventKind::QueueClosed, 1), 0);
  a.end([&] { memory.reset(); });
}

TEST_MAIN
