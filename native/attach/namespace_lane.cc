// A lane over the host engine: the first of the waiting requests is cut into commands as long as
// there are free ones. On the reactor's thread; no allocation after create().
#include "attach/namespace_lane.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "nvmf/nvme.h"
#include "nvmf/status.h"
#include "rdma/arena.h"

namespace nvmeof::attach {

namespace {

constexpr uint64_t kBlocksPerCommand = 65536;   // NLB has 16 bits and counts from zero
constexpr uint64_t kBlocksPerRange = ~0u;       // of Dataset Management: 32 bits, counts from one
constexpr uint16_t kStatusTypeAndCode = 0x7FF;  // without CRD, More and DNR

class Lane;

struct LaneCommand {
  nvmf::HostCommand host;
  Lane* lane = nullptr;
  IoRequest* request = nullptr;
  uint32_t index = 0;
  reactor::TimeNs issued_at = 0;  // kNever: given up
};

// How each operation becomes commands.
struct Rule {
  uint8_t opcode;
  nvmf::Direction direction;
  bool writes;
};
constexpr Rule kRules[] = {
    /* Read        */ {nvmf::io::kRead, nvmf::Direction::ToHost, false},
    /* Write       */ {nvmf::io::kWrite, nvmf::Direction::ToController, true},
    /* Flush       */ {nvmf::io::kFlush, nvmf::Direction::None, false},
    /* WriteZeroes */ {nvmf::io::kWriteZeroes, nvmf::Direction::None, true},
    /* Discard     */ {nvmf::io::kDatasetManagement, nvmf::Direction::ToController, true},
};
const Rule& rule_of(const IoRequest& request) {
  return kRules[static_cast<size_t>(request.operation)];
}

class Lane final : public NamespaceLane, public reactor::Poller {
 public:
  Lane(nvmf::CommandQueues* engine, reactor::Reactor* reactor, uint32_t queue,
       reactor::TimeNs command_time, const Geometry& geometry)
      : engine_(engine),
        reactor_(reactor),
        queue_(queue),
        command_time_(command_time),
        geometry_(geometry),
        lba_shift_(static_cast<unsigned>(std::countr_zero(geometry.lba_bytes))) {}

  ~Lane() override;

  Result<void> allocate(uint32_t depth);
  void submit(IoRequest* request) override;
  Result<std::unique_ptr<nvmf::RegisteredMemory>> register_memory(uint8_t* base,
                                                                  size_t length) override;
  const Geometry& geometry() const override { return geometry_; }
  uint32_t in_flight() const override { return live_; }

  // Gives up what is overdue.
  int poll(reactor::TimeNs now) override;
  reactor::TimeNs next_deadline() const override { return look_at_; }

 private:
  template <typename Work>
  void on_reactor(Work&& work) const;
  uint64_t bytes_max(Operation operation) const;
  uint16_t refusal(const IoRequest& request) const;
  bool has_nothing_to_do(const IoRequest& request) const;
  void pump();
  bool issue(IoRequest* request);
  void fill(LaneCommand& command, const IoRequest& request, uint64_t bytes);
  void fill_range(LaneCommand& command, uint64_t lba, uint64_t blocks);
  void command_done(LaneCommand& command, nvmf::Outcome outcome, const uint8_t* cqe);
  void pop_first();
  void finish(IoRequest* request);

  nvmf::CommandQueues* const engine_;
  reactor::Reactor* const reactor_;
  const uint32_t queue_;
  const reactor::TimeNs command_time_;  // 0: no limit
  const Geometry geometry_;
  const unsigned lba_shift_;
  uint64_t transfer_max_ = 0, write_zeroes_max_ = 0, discard_max_ = 0;  // bytes
  std::unique_ptr<rdma::Arena> ranges_;
  std::unique_ptr<nvmf::RegisteredMemory> ranges_memory_;
  std::vector<LaneCommand> commands_;
  std::vector<LaneCommand*> free_;
  // No command falls due before; kNever: none is watched. Early when what set it has ended since.
  reactor::TimeNs look_at_ = reactor::kNever;
  bool polled_ = false;
  // Only the first may have commands in flight already.
  IoRequest* waiting_head_ = nullptr;
  IoRequest* waiting_tail_ = nullptr;
  uint32_t live_ = 0;
  bool pumping_ = false;
};

Error invalid(const std::string& what) {
  return Error{EINVAL, "attach: " + what};
}

Result<void> check(uint32_t depth, const Geometry& geometry) {
  if (depth == 0) return invalid("a depth of 0");
  if (geometry.nsid == 0 || geometry.nsid == nvmf::kNsidAll) {
    return invalid("namespace id " + std::to_string(geometry.nsid));
  }
  if (!std::has_single_bit(geometry.lba_bytes)) {
    return invalid("a logical block of " + std::to_string(geometry.lba_bytes) + " bytes");
  }
  const auto shift = static_cast<unsigned>(std::countr_zero(geometry.lba_bytes));
  if (geometry.lba_count == 0 || geometry.lba_count > ~0ull >> shift) {
    return invalid("a namespace of " + std::to_string(geometry.lba_count) + " blocks");
  }
  if (geometry.transfer_max == 0 || geometry.transfer_max % geometry.lba_bytes != 0) {
    return invalid("a largest transfer of " + std::to_string(geometry.transfer_max) +
                   " bytes, with blocks of " + std::to_string(geometry.lba_bytes));
  }
  return {};
}

IoEnd end_of(nvmf::Outcome outcome) {
  return outcome == nvmf::Outcome::Cancelled ? IoEnd::TimedOut : IoEnd::Disconnected;
}

// Of two limits; 0 is none.
uint64_t least(uint64_t limit, uint64_t always) {
  return limit == 0 ? always : std::min(limit, always);
}

Result<void> Lane::allocate(uint32_t depth) {
  transfer_max_ =
      std::min<uint64_t>({geometry_.transfer_max, kBlocksPerCommand << lba_shift_,
                          uint64_t{nvmf::kHostTransferMax} >> lba_shift_ << lba_shift_});
  if (transfer_max_ == 0) {
    return invalid("a logical block of " + std::to_string(geometry_.lba_bytes) + " bytes");
  }
  write_zeroes_max_ = least(geometry_.write_zeroes_max, kBlocksPerCommand) << lba_shift_;
  discard_max_ = least(geometry_.discard_max, kBlocksPerRange) << lba_shift_;
  auto arena = rdma::Arena::map(size_t{depth} * nvmf::kDsmRangeBytes);
  if (!arena) return Error{arena.error().code, "attach: " + arena.error().message};
  ranges_ = std::move(*arena);
  auto registered = register_memory(ranges_->base(), ranges_->bytes());
  if (!registered) return registered.error();
  ranges_memory_ = std::move(*registered);
  commands_.resize(depth);
  free_.reserve(depth);
  for (uint32_t i = depth; i-- > 0;) {
    LaneCommand& command = commands_[i];
    command.lane = this;
    command.index = i;
    command.host.context = &command;
    command.host.tag = nvmf::kNativeTag | reinterpret_cast<uintptr_t>(&command);
    command.host.done = [](nvmf::HostCommand* host, nvmf::Outcome outcome, const uint8_t cqe[16]) {
      auto* ended = static_cast<LaneCommand*>(host->context);
      ended->lane->command_done(*ended, outcome, cqe);
    };
    free_.push_back(&command);
  }
  polled_ = command_time_ != 0;
  if (polled_) on_reactor([&] { reactor_->add(this, reactor::Stage::Process); });
  return {};
}

Lane::~Lane() {
  if (!ranges_memory_) return;  // was never allocated
  on_reactor([&] {
    if (polled_) reactor_->remove(this);
    ranges_memory_.reset();
  });
}

template <typename Work>
void Lane::on_reactor(Work&& work) const {
  if (reactor_->on_thread()) {
    work();
  } else {
    reactor_->run_and_wait(work);
  }
}

Result<std::unique_ptr<nvmf::RegisteredMemory>> Lane::register_memory(uint8_t* base,
                                                                      size_t length) {
  Result<std::unique_ptr<nvmf::RegisteredMemory>> registered =
      Error{ENOTCONN, "attach: the queue is closed"};
  on_reactor([&] { registered = engine_->register_memory(queue_, base, length); });
  return registered;
}

// The most bytes one command of this kind takes.
uint64_t Lane::bytes_max(Operation operation) const {
  switch (operation) {
    case Operation::WriteZeroes:
      return write_zeroes_max_;
    case Operation::Discard:
      return discard_max_;
    default:
      return transfer_max_;
  }
}

// Why no command is sent for a request; 0: it may go. Consumers do not offer what the namespace
// cannot, so these are for one that does nevertheless.
uint16_t Lane::refusal(const IoRequest& request) const {
  if (geometry_.read_only && rule_of(request).writes) return nvmf::status::kNamespaceWriteProtected;
  if (request.operation == Operation::WriteZeroes && !geometry_.can_write_zeroes) {
    return nvmf::status::kInvalidOpcode;
  }
  if (request.operation == Operation::Discard && !geometry_.can_deallocate) {
    return nvmf::status::kInvalidOpcode;
  }
  return 0;
}

bool Lane::has_nothing_to_do(const IoRequest& request) const {
  if (request.operation == Operation::Flush) return !geometry_.volatile_write_cache;
  return request.length == 0;
}

void Lane::submit(IoRequest* request) {
  request->issued = 0;
  request->in_flight = 0;
  request->end = IoEnd::Ok;
  request->status = 0;
  request->next = nullptr;
  (waiting_head_ != nullptr ? waiting_tail_->next : waiting_head_) = request;
  waiting_tail_ = request;
  live_++;
  pump();
}

// Ends what needs no command here, too, and only in this loop: a `done` that submits again makes
// the list longer, not the stack deeper.
void Lane::pump() {
  if (pumping_) return;
  pumping_ = true;
  while (IoRequest* request = waiting_head_) {
    const uint16_t refused = refusal(*request);
    if (refused != 0) {
      request->end = IoEnd::Failed;
      request->status = refused & kStatusTypeAndCode;
    }
    if (request->end != IoEnd::Ok || has_nothing_to_do(*request)) {
      pop_first();
      if (request->in_flight == 0) finish(request);
    } else if (!issue(request)) {
      break;
    }
  }
  pumping_ = false;
}

// One command for the first request, which leaves the list with its last. False: none is free.
bool Lane::issue(IoRequest* request) {
  if (free_.empty()) return false;
  LaneCommand& command = *free_.back();
  free_.pop_back();
  const uint64_t rest = request->length - request->issued;
  const uint64_t bytes = request->operation == Operation::Flush
                             ? request->length
                             : std::min(rest, bytes_max(request->operation));
  command.request = request;
  fill(command, *request, bytes);
  request->issued += bytes;
  request->in_flight++;
  if (request->issued == request->length) pop_first();
  command.issued_at = reactor_->now();
  if (command_time_ != 0) look_at_ = std::min(look_at_, command.issued_at + command_time_);
  engine_->submit(queue_, &command.host);  // may end it at once
  return true;
}

void Lane::fill(LaneCommand& command, const IoRequest& request, uint64_t bytes) {
  const Rule& rule = rule_of(request);
  nvmf::HostCommand& host = command.host;
  const uint64_t lba = (request.offset + request.issued) >> lba_shift_;
  const uint64_t blocks = bytes >> lba_shift_;
  host.direction = rule.direction;
  host.memory = request.memory;
  host.offset = request.memory_offset + request.issued;
  host.length = rule.direction == nvmf::Direction::None ? 0 : static_cast<uint32_t>(bytes);
  std::memset(host.sqe, 0, sizeof host.sqe);
  host.sqe[nvmf::sqe::kOpcode] = rule.opcode;
  nvmf::store32(host.sqe + nvmf::sqe::kNsid, geometry_.nsid);
  switch (request.operation) {
    case Operation::Flush:
      return;
    case Operation::Discard:
      fill_range(command, lba, blocks);
      return;
    default:
      break;
  }
  uint32_t cdw12 = static_cast<uint32_t>(blocks - 1);
  if (request.fua) cdw12 |= 1u << nvmf::kFuaBit;
  if (request.operation == Operation::WriteZeroes && request.deallocate) {
    cdw12 |= 1u << nvmf::kDeacBit;
  }
  nvmf::store64(host.sqe + nvmf::sqe::kCdw10, lba);
  nvmf::store32(host.sqe + nvmf::sqe::kCdw12, cdw12);
}

// Dataset Management: the range is the command's data, the SQE says how many there are less one.
void Lane::fill_range(LaneCommand& command, uint64_t lba, uint64_t blocks) {
  const uint64_t at = uint64_t{command.index} * nvmf::kDsmRangeBytes;
  uint8_t* const range = ranges_->base() + at;
  std::memset(range, 0, nvmf::kDsmRangeBytes);
  nvmf::store32(range + nvmf::kDsmBlocks, static_cast<uint32_t>(blocks));
  nvmf::store64(range + nvmf::kDsmSlba, lba);
  nvmf::HostCommand& host = command.host;
  host.memory = ranges_memory_.get();
  host.offset = at;
  host.length = nvmf::kDsmRangeBytes;
  nvmf::store32(host.sqe + nvmf::sqe::kCdw11, 1u << nvmf::kAttributeDeallocateBit);
}

void Lane::command_done(LaneCommand& command, nvmf::Outcome outcome, const uint8_t* cqe) {
  IoRequest* const request = command.request;
  const auto status =
      static_cast<uint16_t>(nvmf::load16(cqe + nvmf::cqe::kStatus) >> 1 & kStatusTypeAndCode);
  if (request->end == IoEnd::Ok) {
    if (outcome != nvmf::Outcome::Ok) {
      request->end = end_of(outcome);
    } else if (status != 0) {
      request->end = IoEnd::Failed;
      request->status = status;
    }
  }
  command.request = nullptr;
  free_.push_back(&command);
  // The first request has commands to come, or is dropped by pump() if it failed.
  if (--request->in_flight == 0 && request != waiting_head_) finish(request);
  pump();
}

// A lane cancels only what is overdue. That may end it at once, and others be issued: these move
// look_at_ by themselves.
int Lane::poll(reactor::TimeNs now) {
  if (now < look_at_) return 0;
  look_at_ = reactor::kNever;
  int given_up = 0;
  for (LaneCommand& command : commands_) {
    if (command.request == nullptr || command.issued_at == reactor::kNever) continue;
    const reactor::TimeNs due = command.issued_at + command_time_;
    if (now < due) {
      look_at_ = std::min(look_at_, due);
    } else {
      command.issued_at = reactor::kNever;
      engine_->cancel(queue_, command.host.tag);
      given_up++;
    }
  }
  return given_up;
}

void Lane::pop_first() {
  waiting_head_ = waiting_head_->next;
}

void Lane::finish(IoRequest* request) {
  live_--;
  request->done(request, request->end, request->status);
}

}  // namespace

Result<std::unique_ptr<NamespaceLane>> NamespaceLane::create(nvmf::CommandQueues* engine,
                                                             reactor::Reactor* reactor,
                                                             uint32_t queue,
                                                             const LaneLimits& limits,
                                                             const Geometry& geometry) {
  if (auto checked = check(limits.depth, geometry); !checked) return checked.error();
  auto lane = std::make_unique<Lane>(engine, reactor, queue, limits.command_time, geometry);
  if (auto allocated = lane->allocate(limits.depth); !allocated) return allocated.error();
  return std::unique_ptr<NamespaceLane>(std::move(lane));
}

}  // namespace nvmeof::attach
