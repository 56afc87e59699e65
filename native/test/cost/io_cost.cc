// What one I/O costs each side in instructions and system calls: the real host and target engines
// on the real soft transport, joined by memory, taking turns on one thread. The counts do not
// depend on how fast or how quiet the machine is; test/cost/ compares them with what is recorded.
//   io_cost --rw read|write --bs BYTES --qd DEPTH --count N [--side host|target] [--plant
//   trains|checks]
// Under `valgrind --tool=callgrind --collect-atstart=no` the instructions of `side` are collected.
// Prints one line of JSON: for each side packets, trains and system calls of N commands. --plant
// makes either worse on purpose: trains that fall apart, checksums that are checked twice.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "cost/collecting.h"
#include "cost/simulated_device.h"
#include "nvmf/host_engine.h"
#include "nvmf/nvme.h"
#include "nvmf/target_engine.h"
#include "rdma/soft/copy.h"
#include "rdma/soft/shard.h"
#include "support/run_on.h"

using namespace nvmeof;
using namespace nvmeof::test;
using namespace nvmeof::test::cost;

namespace {

constexpr uint64_t kNamespaceBytes = 16u << 20;
constexpr uint32_t kInCapsule = 4096, kLba = 512, kQueue = 1, kQueueDepth = 256;
constexpr TimeNs kTurn = 5'000;  // virtual time of one turn of one side

struct Wanted {
  bool write = false;
  uint32_t bytes = 4096, depth = 32;
  uint64_t count = 4096;
  std::string side, plant;
};

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "io_cost: %s\n", why.c_str());
  std::exit(2);
}

template <typename T>
T checked(Result<T> result) {
  if (!result) stop(result.error().message);
  return std::move(*result);
}

// Accepts the connection and makes it an I/O queue.
struct TargetSink final : nvmf::EventSink {
  nvmf::TargetEngine* engine = nullptr;
  void push(nvmf::EventKind kind, uint32_t, uint32_t, uint32_t code, uint64_t value,
            std::span<const uint8_t>, std::span<const uint8_t>) override {
    if (kind == nvmf::EventKind::IoError) stop("status " + std::to_string(code & 0xffff));
    if (kind != nvmf::EventKind::ConnectRequest) return;
    nvmf::AcceptOptions options{};
    options.depth = kQueueDepth;
    options.in_capsule_bytes = kInCapsule;
    options.parameters.initiator_depth = rdma::soft::kReadsMax;
    if (auto done = engine->accept(kQueue, value, options); !done) stop(done.error().message);
    engine->bind(kQueue, {1, 1, 1, true, 0, std::make_shared<reactor::Lease>()});
  }
};

struct HostSink final : nvmf::EventSink {
  void push(nvmf::EventKind kind, uint32_t, uint32_t, uint32_t, uint64_t, std::span<const uint8_t>,
            std::span<const uint8_t> second) override {
    if (kind == nvmf::EventKind::ConnectFailed)
      stop(std::string(reinterpret_cast<const char*>(second.data()), second.size()));
  }
};

// The target's half and the host's half of a loop iteration.
class Exchange {
 public:
  explicit Exchange(const Wanted& wanted)
      : wanted_(wanted),
        host_device_(0x7f000001, 1),
        target_device_(0x7f000002, 2),
        memory_(size_t{wanted.depth} * wanted.bytes) {
    host_device_.join(&target_device_);
    target_device_.join(&host_device_);
    for (SimulatedDevice* device : {&host_device_, &target_device_}) {
      if (wanted.plant == "trains") device->break_trains();
      if (wanted.plant == "checks") device->check_twice();
    }

    block::Options options;
    options.kind = block::Kind::Memory;
    options.size = kNamespaceBytes;
    backing_ = checked(block::open_backing(options));
    reactor::Reactor* const here = reactor::Reactor::current();
    nvmf::TargetLimits limits;
    limits.sole_reactor = true;
    target_ = checked(nvmf::TargetEngine::create(&target_device_, here, &target_sink_, limits));
    target_sink_.engine = target_.get();
    target_->set_namespace(
        1, 1, {backing_.get(), false, 1u << 20}, [](void*) {}, nullptr);
    checked(target_device_.listen(4420, target_.get()));
    host_ = checked(nvmf::HostEngine::create(&host_device_, here, &host_sink_));
    nvmf::HostQueueOptions queue{};
    queue.depth = kQueueDepth;
    queue.in_capsule_bytes = kInCapsule;
    queue.timeout_ms = 1000;
    queue.parameters.responder_resources = rdma::soft::kReadsMax;
    if (auto done = host_->connect(kQueue, target_device_.address(), 4420, queue); !done)
      stop(done.error().message);
    named_ = checked(host_->register_memory(kQueue, memory_.data(), memory_.size()));
    for (int i = 0; i < 4; i++) turn(false);
    commands_.resize(wanted.depth);
    for (uint32_t i = 0; i < wanted.depth; i++) prepare(commands_[i], i);
  }

  ~Exchange() {
    host_->close(kQueue);
    for (int i = 0; i < 16; i++) turn(false);
    named_.reset();
    host_.reset();
    target_->remove_namespace(
        1, 1, [](void*) {}, nullptr);
    half(target_device_, *target_, false);
    target_.reset();
  }

  // `count` commands, `depth` of them at a time.
  void run(uint64_t count, bool collect) {
    left_ = count;
    done_ = 0;
    {
      const Collected collected(collect && wanted_.side == "host");
      for (auto& command : commands_) submit(command);
    }
    for (uint64_t idle = 0; done_ < count;) {
      const uint64_t before = done_;
      turn(collect);
      idle = done_ == before ? idle + 1 : 0;
      if (idle > 1'000'000) stop("no command ends any more");
    }
  }

  const Traffic& host_traffic() const { return host_device_.traffic(); }
  const Traffic& target_traffic() const { return target_device_.traffic(); }

 private:
  void prepare(nvmf::HostCommand& command, uint32_t index) {
    std::memset(command.sqe, 0, sizeof command.sqe);
    command.sqe[0] = wanted_.write ? 0x01 : 0x02;
    command.sqe[4] = 1;  // NSID
    const uint32_t blocks = wanted_.bytes / kLba - 1;
    std::memcpy(command.sqe + 48, &blocks, sizeof blocks);
    command.direction = wanted_.write ? nvmf::Direction::ToController : nvmf::Direction::ToHost;
    command.memory = named_.get();
    command.offset = uint64_t{index} * wanted_.bytes;
    command.length = wanted_.bytes;
    command.context = this;
    command.done = [](nvmf::HostCommand* ended, nvmf::Outcome outcome, const uint8_t cqe[16]) {
      auto* const self = static_cast<Exchange*>(ended->context);
      if (outcome != nvmf::Outcome::Ok || (cqe[14] | cqe[15]) >> 1 != 0) stop("a command failed");
      self->done_++;
      self->submit(*ended);
    };
  }

  void submit(nvmf::HostCommand& command) {
    if (left_ == 0) return;
    left_--;
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    const uint64_t lba =
        (random_ >> 33) % (kNamespaceBytes / wanted_.bytes) * (wanted_.bytes / kLba);
    std::memcpy(command.sqe + 40, &lba, sizeof lba);
    host_->submit(kQueue, &command);
  }

  template <typename Engine>
  void half(SimulatedDevice& device, Engine& engine, bool collect) {
    const Collected collected(collect);
    device.receive(now_);
    engine.poll(now_);
    device.transmit(now_);
    now_ += kTurn;
  }
  void turn(bool collect) {
    half(target_device_, *target_, collect && wanted_.side == "target");
    half(host_device_, *host_, collect && wanted_.side == "host");
  }

  const Wanted wanted_;
  SimulatedDevice host_device_, target_device_;
  std::vector<uint8_t> memory_;
  std::unique_ptr<block::Backing> backing_;
  TargetSink target_sink_;
  HostSink host_sink_;
  std::unique_ptr<nvmf::TargetEngine> target_;
  std::unique_ptr<nvmf::HostEngine> host_;
  std::unique_ptr<nvmf::RegisteredMemory> named_;
  std::vector<nvmf::HostCommand> commands_;
  uint64_t left_ = 0, done_ = 0, random_ = 7;
  TimeNs now_ = 1'000'000;
};

void print_side(const char* name, const Traffic& before, const Traffic& after) {
  std::printf(
      "\"%s\":{\"packets\":%lu,\"bytes\":%lu,\"trains\":%lu,\"sendCalls\":%lu,"
      "\"receiveCalls\":%lu,\"receiveMessages\":%lu}",
      name, after.packets - before.packets, after.bytes - before.bytes,
      after.trains - before.trains, after.send_calls - before.send_calls,
      after.receive_calls - before.receive_calls, after.receive_messages - before.receive_messages);
}

Wanted parse(int argc, char** argv) {
  Wanted wanted;
  for (int i = 1; i < argc; i++) {
    const std::string name = argv[i];
    if (i + 1 == argc) stop(name + " needs a value");
    const std::string value = argv[++i];
    const auto number = [&] {
      const unsigned long parsed = std::strtoul(value.c_str(), nullptr, 10);
      if (parsed == 0) stop(name + " takes a number above 0, not " + value);
      return parsed;
    };
    if (name == "--rw" && (value == "read" || value == "write")) {
      wanted.write = value == "write";
    } else if (name == "--bs") {
      wanted.bytes = static_cast<uint32_t>(number());
    } else if (name == "--qd") {
      wanted.depth = static_cast<uint32_t>(number());
    } else if (name == "--count") {
      wanted.count = number();
    } else if (name == "--side" && (value == "host" || value == "target")) {
      wanted.side = value;
    } else if (name == "--plant" && (value == "trains" || value == "checks")) {
      wanted.plant = value;
    } else {
      stop("what is " + name + " " + value + "?");
    }
  }
  if (wanted.bytes % kLba != 0 || wanted.bytes > 1u << 20) stop("--bs: 512 bytes to 1 MiB");
  if (wanted.depth >= kQueueDepth) stop("--qd: 255 at most");
  return wanted;
}

}  // namespace

int main(int argc, char** argv) {
  const Wanted wanted = parse(argc, argv);
  reactor::Options options;
  options.name = "cost";
  const auto reactor = checked(reactor::Reactor::start(0, options));
  run_on(*reactor, [&] {
    Exchange exchange(wanted);
    exchange.run(wanted.count / 4, false);  // until every path was taken once
    const Traffic host = exchange.host_traffic(), target = exchange.target_traffic();
    exchange.run(wanted.count, true);
    std::printf("{\"compiler\":\"gcc %d\",\"copy\":\"%s\",\"commands\":%lu,", __GNUC__,
                rdma::soft::copy_variant(), wanted.count);
    print_side("host", host, exchange.host_traffic());
    std::printf(",");
    print_side("target", target, exchange.target_traffic());
    std::printf("}\n");
  });
  return 0;
}
