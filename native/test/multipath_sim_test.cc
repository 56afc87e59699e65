// A queue over several paths against controllers that share a disk, in virtual time, under seeded
// schedules of faults. Controllers lose their queues with commands on the way to them, executing,
// or executed and not yet answered; what had arrived is executed later although nobody waits for
// it. Every acknowledged write must be readable afterwards, no read may return older data than was
// acknowledged before it began, and every command ends once. That the model can see a stale write
// at all is shown by runs in which writes are released without waiting.
// MULTIPATH_SIM_SEED=n reruns one seed.
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <random>

#include "nvmf/multipath/path_queue.h"
#include "support/host_harness.h"
#include "test.h"

using namespace nvmeof;
using namespace nvmeof::nvmf;
using namespace nvmeof::test;

namespace {

using reactor::TimeNs;
constexpr TimeNs kMs = 1'000'000;
constexpr uint64_t kBlocks = 8;
constexpr uint32_t kControllers = 3;
constexpr uint16_t kInaccessible = 3u << 8 | 2, kInterrupted = 0x21 | 1u << 11;

class World {
 public:
  explicit World(uint64_t seed) : random(seed) {}

  void at(TimeNs when, std::function<void()> what) {
    events.push({when, order++, std::move(what)});
  }
  void after(TimeNs delay, std::function<void()> what) { at(now + delay, std::move(what)); }
  // False: nothing is left to happen before `look_at`.
  bool step() {
    if (events.empty()) return false;
    Event next = events.top();
    events.pop();
    now = next.at;
    next.what();
    return true;
  }
  bool chance(double p) { return std::uniform_real_distribution<double>()(random) < p; }
  TimeNs within(TimeNs most) { return random() % most + 1; }

  struct Event {
    TimeNs at;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::tie(other.at, other.order) < std::tie(at, order);
    }
  };
  std::mt19937_64 random;
  TimeNs now = 1;
  uint64_t order = 0;
  std::priority_queue<Event> events;
  std::array<uint64_t, kBlocks> disk{};
};

// One controller after the other on the same path: its queue dies, it goes on for a while.
class SimController final : public CommandQueues {
 public:
  explicit SimController(World* world) : world_(world) {}

  void submit(uint32_t, HostCommand* command) override {
    if (!live) {
      end(command, Outcome::NeverSent, 0);
      return;
    }
    const uint64_t id = next_++;
    waiting_[id] = command;
    world_->after(world_->within(kMs), [this, id, life = life_] { arrive(id, life); });
  }
  void cancel(uint32_t, uint64_t) override {}
  Result<std::unique_ptr<RegisteredMemory>> register_memory(uint32_t, uint8_t* base,
                                                            size_t length) override {
    struct Memory final : RegisteredMemory {
      Memory(uint8_t* at, size_t bytes) : RegisteredMemory({at, bytes, nullptr}) {}
    };
    return std::unique_ptr<RegisteredMemory>(std::make_unique<Memory>(base, length));
  }

  // Its queue dies. Commands that have not arrived never will; those that have are executed.
  void die() {
    live = false;
    life_++;
    auto lost = std::move(waiting_);
    waiting_.clear();
    for (const auto& [id, command] : lost) end(command, Outcome::QueueDied, 0);
  }
  // Of the controllers that were, up to now: calls `done` when the last of them is through.
  void when_idle(std::function<void()> done) {
    if (executing_ == 0) {
      done();
    } else {
      idle_.push_back(std::move(done));
    }
  }

  bool live = false;
  bool refusing = false;

 private:
  void arrive(uint64_t id, uint64_t life) {
    const auto found = waiting_.find(id);
    if (life != life_ || found == waiting_.end()) return;
    HostCommand* const command = found->second;
    if (refusing) {
      answer(id, life, kInaccessible);
      return;
    }
    if (world_->chance(0.02)) {
      answer(id, life, kInterrupted);
      return;
    }
    executing_++;
    const bool read = command->sqe[0] == io::kRead;
    const uint64_t block = load64(command->sqe + sqe::kCdw10);
    const uint64_t value = load64(command->sqe + 16);  // what it writes (reserved dwords)
    // Mostly fast, some very slow.
    const TimeNs time = world_->chance(0.1) ? world_->within(3000 * kMs) : world_->within(2 * kMs);
    world_->after(time, [this, id, life, read, block, value] {
      if (!read) world_->disk[block] = value;
      if (read && life == life_ && waiting_.contains(id)) {
        const HostMemory& into = *waiting_[id]->memory;
        store64(into.base + waiting_[id]->offset, world_->disk[block]);
      }
      if (--executing_ == 0) {
        for (auto& done : std::exchange(idle_, {})) done();
      }
      world_->after(world_->within(kMs), [this, id, life] { answer(id, life, 0); });
    });
  }
  void answer(uint64_t id, uint64_t life, uint16_t status) {
    const auto found = waiting_.find(id);
    if (life != life_ || found == waiting_.end()) return;
    HostCommand* const command = found->second;
    waiting_.erase(found);
    end(command, Outcome::Ok, status);
  }
  static void end(HostCommand* command, Outcome outcome, uint16_t status) {
    const auto cqe = cqe_with(status);
    command->done(command, outcome, cqe.data());
  }

  World* const world_;
  std::map<uint64_t, HostCommand*> waiting_;
  std::vector<std::function<void()>> idle_;
  uint64_t next_ = 1, life_ = 0;
  uint32_t executing_ = 0;
};

struct Outcomes {
  uint64_t reads = 0, writes = 0, failovers = 0, held = 0, stale = 0, lost = 0, open = 0;
};

// An application that has one write in flight to each block at most, and reads beside them.
class Schedule {
 public:
  Schedule(uint64_t seed, bool fenced)
      : world_(seed),
        fenced_(fenced),
        queue_(1, {static_cast<PathPolicy>(seed % 3), 0, {50 * kMs, 0, 0}},
               {[](const void* at) { return *static_cast<const TimeNs*>(at); }, &world_.now},
               &sink_, &counters_, &look_at_),
        bytes_(64 * sizeof(uint64_t)) {
    memory_ = queue_.register_memory(bytes_.data(), bytes_.size());
    for (uint32_t i = 0; i < kControllers; i++) {
      controllers_.push_back(std::make_unique<SimController>(&world_));
      raise(i);
    }
  }

  Outcomes run() {
    for (uint64_t block = 0; block < kBlocks; block++) {
      world_.after(world_.within(kMs), [this, block] { write(block); });
      world_.after(world_.within(kMs), [this, block] { read(block); });
    }
    for (int i = 0; i < 12; i++) world_.at(world_.within(kEnd), [this] { fault(); });
    while (step()) {
    }
    // Whatever was down comes back, so that everything ends.
    stopping_ = true;
    for (uint32_t i = 0; i < kControllers; i++) {
      controllers_[i]->refusing = false;
      if (!controllers_[i]->live) raise(i);
      set(i);
    }
    while (step()) {
    }
    for (uint64_t block = 0; block < kBlocks; block++)
      out_.lost += world_.disk[block] != acked_[block];
    for (const Io& io : ios_) out_.open += io.ends != 1;
    out_.failovers = counters_.failovers;
    if (!queue_.over()) {
      queue_.begin_close();
      out_.open += !queue_.over();
    }
    return out_;
  }

 private:
  static constexpr TimeNs kEnd = 2000 * kMs;

  struct Io {
    HostCommand host{};
    Schedule* schedule = nullptr;
    uint64_t block = 0, value = 0, acked_at_start = 0;
    int ends = 0;
  };

  bool step() {
    if (look_at_ != reactor::kNever &&
        (world_.events.empty() || look_at_ <= world_.events.top().at)) {
      world_.now = std::max(world_.now, look_at_);
      look_at_ = reactor::kNever;
      queue_.look(world_.now);
      return true;
    }
    return world_.step();
  }

  void submit(uint8_t opcode, uint64_t block, uint64_t value) {
    Io& io = ios_.emplace_back();
    io.schedule = this;
    io.block = block;
    io.value = value;
    io.acked_at_start = acked_[block];
    io.host.sqe[0] = opcode;
    store64(io.host.sqe + sqe::kCdw10, block);
    store64(io.host.sqe + 16, value);
    io.host.direction = opcode == io::kRead ? Direction::ToHost : Direction::ToController;
    io.host.memory = memory_.get();
    io.host.offset = (block + (opcode == io::kRead ? kBlocks : 0)) * sizeof(uint64_t);
    io.host.length = sizeof(uint64_t);
    io.host.tag = ios_.size();
    io.host.context = &io;
    io.host.done = [](HostCommand* command, Outcome outcome, const uint8_t cqe[16]) {
      auto* ended = static_cast<Io*>(command->context);
      ended->ends++;
      const bool good = outcome == Outcome::Ok && load16(cqe + cqe::kStatus) == 0;
      ended->schedule->ended(*ended, good);
    };
    queue_.submit(&io.host);
  }
  void write(uint64_t block) { submit(io::kWrite, block, ++issued_[block]); }
  void read(uint64_t block) { submit(io::kRead, block, 0); }

  void ended(Io& io, bool good) {
    const bool is_read = io.host.sqe[0] == io::kRead;
    (is_read ? out_.reads : out_.writes)++;
    if (!good) out_.open++;  // nothing here fails for good
    if (is_read) {
      const uint64_t seen = load64(bytes_.data() + io.host.offset);
      out_.stale += seen < io.acked_at_start || seen > issued_[io.block];
    } else {
      acked_[io.block] = io.value;
    }
    if (stopping_ || world_.now > kEnd) return;
    world_.after(world_.within(10 * kMs), [this, block = io.block, is_read] {
      if (is_read) {
        read(block);
      } else {
        write(block);
      }
    });
  }

  void raise(uint32_t index) {
    controllers_[index]->live = true;
    incarnations_[index]++;
    set(index);
  }
  void set(uint32_t index) {
    if (!controllers_[index]->live) return;
    queue_.set_path(index, {controllers_[index].get(), index + 1,
                            static_cast<uint8_t>(ranks_[index]), 0, incarnations_[index]});
  }
  void kill(uint32_t index) {
    SimController& victim = *controllers_[index];
    if (!victim.live) return;
    victim.die();
    const auto release = [this, index, incarnation = incarnations_[index]] {
      queue_.release(index, incarnation, true);
    };
    if (fenced_) {
      victim.when_idle(release);
    } else {
      release();
    }
    world_.after(world_.within(500 * kMs), [this, index] {
      if (!controllers_[index]->live) raise(index);
    });
  }
  void fault() {
    const auto index = static_cast<uint32_t>(world_.random() % kControllers);
    switch (world_.random() % 4) {
      case 0:
      case 1:
        kill(index);
        break;
      case 2:  // ANA inaccessible, and back; the control plane learns it a little later
        controllers_[index]->refusing = true;
        world_.after(world_.within(300 * kMs), [this, index] {
          controllers_[index]->refusing = false;
          world_.after(world_.within(20 * kMs), [this, index] { set(index); });
        });
        break;
      case 3:
        ranks_[index] = world_.random() % 3;
        set(index);
        break;
    }
  }

  World world_;
  const bool fenced_;
  KeepingSink sink_;
  PathQueueCounters counters_{};
  TimeNs look_at_ = reactor::kNever;
  PathQueue queue_;
  std::vector<uint8_t> bytes_;
  std::unique_ptr<RegisteredMemory> memory_;
  std::vector<std::unique_ptr<SimController>> controllers_;
  std::array<uint32_t, kControllers> incarnations_{};
  std::array<uint64_t, kControllers> ranks_{};
  std::array<uint64_t, kBlocks> issued_{}, acked_{};
  std::deque<Io> ios_;
  bool stopping_ = false;
  Outcomes out_;
};

Outcomes run_all(uint64_t first, uint64_t count, bool fenced) {
  Outcomes all;
  for (uint64_t seed = first; seed < first + count; seed++) {
    const Outcomes one = Schedule(seed, fenced).run();
    all.reads += one.reads;
    all.writes += one.writes;
    all.failovers += one.failovers;
    all.stale += one.stale;
    all.lost += one.lost;
    all.open += one.open;
    if (fenced && (one.stale != 0 || one.lost != 0 || one.open != 0))
      std::fprintf(
          stderr, "seed %llu: %llu stale reads, %llu blocks lost, %llu not ended well\n",
          static_cast<unsigned long long>(seed), static_cast<unsigned long long>(one.stale),
          static_cast<unsigned long long>(one.lost), static_cast<unsigned long long>(one.open));
  }
  return all;
}

}  // namespace

TEST(a_thousand_schedules_lose_nothing_and_return_nothing_stale) {
  const char* one = std::getenv("MULTIPATH_SIM_SEED");
  const Outcomes all =
      one != nullptr ? run_all(std::strtoull(one, nullptr, 10), 1, true) : run_all(1, 1000, true);
  std::printf(
      "%llu reads, %llu writes, %llu failovers\n", static_cast<unsigned long long>(all.reads),
      static_cast<unsigned long long>(all.writes), static_cast<unsigned long long>(all.failovers));
  CHECK_EQ(all.stale, 0u);
  CHECK_EQ(all.lost, 0u);
  CHECK_EQ(all.open, 0u);
  CHECK(one != nullptr || all.failovers > 1000);
}

TEST(without_the_wait_for_lost_controllers_the_model_sees_stale_writes) {
  const Outcomes all = run_all(1, 200, false);
  CHECK_EQ(all.open, 0u);
  CHECK(all.stale + all.lost > 0);
}

TEST_MAIN
