// Life of a host queue: what it is made of, its connection, its close. What goes out stands in
// host_queue_submit.cc, what comes in and ends commands in host_queue_answer.cc. On the reactor's
// thread.
#include "nvmf/host_queue.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nvmf/nvme.h"

namespace nvmeof::nvmf {

namespace {

constexpr uint32_t kResponseBytes = kCqeBytes;

// Legal moves of HostQueueState: bit `to` of row `from`.
//   Connecting -> Live -> Closing -> Closed, or Connecting -> Closing when the connect failed.
constexpr uint8_t bit(HostQueueState state) {
  return static_cast<uint8_t>(1u << static_cast<unsigned>(state));
}
constexpr uint8_t kMoves[] = {
    static_cast<uint8_t>(bit(HostQueueState::Live) | bit(HostQueueState::Closing)),
    bit(HostQueueState::Closing),
    bit(HostQueueState::Closed),
    0,
};
constexpr const char* kStateNames[] = {"Connecting", "Live", "Closing", "Closed"};

uint32_t align_up(size_t value, size_t to) {
  return static_cast<uint32_t>((value + to - 1) / to * to);
}

}  // namespace

const char* to_string(HostQueueState state) {
  return kStateNames[static_cast<unsigned>(state)];
}

HostQueue::HostQueue(HostShared* shared, uint32_t id, uint64_t handle, rdma::CompletionQueue* cq,
                     const HostQueueOptions& options)
    : shared_(shared),
      id_(id),
      handle_(handle),
      cq_(cq),
      depth_(options.depth),
      slot_count_(slots_for(options.depth)),
      // Never all ones within an index: CID FFFFh means "no command" in the error log.
      slot_bits_(static_cast<uint32_t>(std::bit_width(slots_for(options.depth)))),
      in_capsule_bytes_(options.in_capsule_bytes),
      in_flight_max_(options.depth - 1),
      probes_(options.probes) {}

Result<std::unique_ptr<HostQueue>> HostQueue::create(HostShared* shared, uint32_t id,
                                                     uint64_t handle, rdma::CompletionQueue* cq,
                                                     const HostQueueOptions& options) {
  std::unique_ptr<HostQueue> queue(new HostQueue(shared, id, handle, cq, options));
  if (auto allocated = queue->allocate(); !allocated) return allocated.error();
  return queue;
}

Result<void> HostQueue::allocate() {
  const size_t receives = align_up(size_t{depth_} * kResponseBytes, 64);
  small_stride_ = align_up(kSqeBytes + std::min(in_capsule_bytes_, kSmallInCapsule), 64);
  const size_t large_stride = align_up(kSqeBytes + size_t{in_capsule_bytes_}, 64);
  const size_t large_count = in_capsule_bytes_ > kSmallInCapsule ? kLargeCapsules : 0;
  memory_bytes_ = receives + size_t{slot_count_} * small_stride_ + large_count * large_stride;
  void* memory =
      mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    memory_bytes_ = 0;
    return Error{ENOMEM, "no memory for the capsules of queue " + std::to_string(id_)};
  }
  memory_ = static_cast<uint8_t*>(memory);
  capsules_ = memory_ + receives;
  if (!shared_->memory_windows) {
    auto pd = shared_->device->allocate_pd();
    if (!pd) return pd.error();
    own_pd_ = std::move(*pd);
  }
  auto region = protection_domain()->register_memory(memory_, memory_bytes_, rdma::kLocalWrite);
  if (!region) return region.error();
  region_ = std::move(*region);

  rdma::QueuePairOptions pair;
  pair.pd = protection_domain();
  pair.send_cq = pair.receive_cq = cq_;
  pair.max_send_wr = 3 * slot_count_;  // bind, send and invalidation of each command
  pair.max_receive_wr = depth_;
  pair.context = reinterpret_cast<void*>(static_cast<uintptr_t>(handle_));
  auto qp = shared_->device->create_qp(pair);
  if (!qp) return qp.error();
  qp_ = std::move(*qp);

  slots_.resize(slot_count_);
  free_.reserve(slot_count_);
  ready_.reserve(slot_count_);
  dying_.reserve(slot_count_);
  reposts_.reserve(depth_);
  large_free_.reserve(large_count);
  for (uint32_t i = 0; i < slot_count_; i++) {
    free_.push_back(static_cast<uint16_t>(slot_count_ - 1 - i));
    if (!shared_->memory_windows) continue;
    auto window = shared_->pd->allocate_window();
    if (!window) return window.error();
    slots_[i].window = std::move(*window);
  }
  uint8_t* large = capsules_ + size_t{slot_count_} * small_stride_;
  for (size_t i = 0; i < large_count; i++) large_free_.push_back(large + i * large_stride);
  for (uint32_t i = 0; i < depth_; i++) {
    const auto address = reinterpret_cast<uintptr_t>(memory_) + size_t{i} * kResponseBytes;
    receive_sges_.push_back({address, kResponseBytes, region_->lkey()});
    reposts_.push_back(static_cast<uint16_t>(i));
  }
  return {};
}

HostQueue::~HostQueue() {
  // A queue pair that is in ERR reaches no memory: what names it goes first, as verbs wants it.
  slots_.clear();
  qp_.reset();
  region_.reset();
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

void HostQueue::move(HostQueueState to) {
  if ((kMoves[static_cast<unsigned>(state_)] & bit(to)) == 0) {
    std::fprintf(stderr, "nvmeof: host queue state %s -> %s\n", to_string(state_), to_string(to));
    std::abort();
  }
  state_ = to;
}

Result<void> HostQueue::connect(const sockaddr_storage& peer, uint16_t port,
                                const rdma::ConnectionParameters& parameters,
                                rdma::ConnectionHandler* handler) {
  auto connection = shared_->device->connect(peer, port, qp_.get(), parameters, handler);
  if (!connection) return connection.error();
  connection_ = *connection;
  reactor::add_relaxed(shared_->counters.queues, 1);
  return {};
}

void HostQueue::on_connected(const rdma::ConnectResponse& response) {
  if (state_ != HostQueueState::Connecting) return;
  move(HostQueueState::Live);
  connected_ = true;
  deadline = reactor::kNever;
  // The controller's receive queue (CRQSIZE, NVMe over RDMA accept data) may be smaller than ours.
  const auto data = response.private_data;
  if (data.size() >= 4 && load16(data.data()) == 0) {
    const uint16_t crqsize = load16(data.data() + 2);
    if (crqsize != 0) in_flight_max_ = std::min(in_flight_max_, uint32_t{crqsize});
  }
  shared_->sink->push(
      EventKind::QueueEstablished, id_, 0,
      static_cast<uint32_t>(response.responder_resources | response.initiator_depth << 8), 0, data,
      {});
  mark_dirty();  // for the receives, too: a queue pair in RESET takes none
}

void HostQueue::on_connect_failed(const rdma::ConnectFailed& failed) {
  disconnected_ = true;
  if (state_ != HostQueueState::Connecting) return;
  failed_.failure = failed.failure;
  failed_.reason = failed.reason;
  failed_private_data_.assign(failed.private_data.begin(), failed.private_data.end());
  begin_close(failed.message);
}

void HostQueue::fail_connect(rdma::ConnectFailure failure, std::string message) {
  failed_.failure = failure;
  begin_close(std::move(message));
}

void HostQueue::expire(reactor::TimeNs now) {
  if (state_ == HostQueueState::Connecting) {
    fail_connect(rdma::ConnectFailure::Unreachable,
                 "the connect was not answered within its time limit");
  } else {
    end_overdue_keys(now);
  }
}

bool HostQueue::probe_silent() {
  if (!probes_ || state_ != HostQueueState::Live || in_flight_ == 0) return false;
  if (answers_ == answers_probed_) qp_->probe();
  answers_probed_ = answers_;
  return true;
}

void HostQueue::on_disconnected(const std::string& reason) {
  disconnected_ = true;
  if (state_ == HostQueueState::Closing && !reason_certain_ && !reason.empty()) {
    reason_ = reason;
    reason_certain_ = true;
  }
  begin_close(reason.empty() ? "the connection ended" : reason);
}

void HostQueue::begin_close(std::string reason, bool certain) {
  if (state_ == HostQueueState::Closing || state_ == HostQueueState::Closed) return;
  const bool was_live = state_ == HostQueueState::Live;
  move(HostQueueState::Closing);
  reason_ = std::move(reason);
  reason_certain_ = certain;
  deadline = reactor::kNever;
  unstarve();
  if (!disconnected_ && connection_ != 0) {
    if (was_live) {
      shared_->device->disconnect(connection_);
    } else {
      shared_->device->abandon(connection_);
      disconnected_ = true;
    }
  }
  // From here on the peer reaches none of the memory that commands exposed.
  qp_->to_error();
  shared_->closing.push_back(this);
}

bool HostQueue::finish_close() {
  if (!ended_) end_all();
  if (!disconnected_) return false;
  if (state_ == HostQueueState::Closed) return true;
  move(HostQueueState::Closed);
  const std::span<const uint8_t> text(reinterpret_cast<const uint8_t*>(reason_.data()),
                                      reason_.size());
  if (connected_) {
    shared_->sink->push(EventKind::QueueClosed, id_, 0, 0, 0, {}, text);
  } else {
    shared_->sink->push(EventKind::ConnectFailed, id_, 0,
                        static_cast<uint32_t>(failed_.failure) | uint32_t{failed_.reason} << 16, 0,
                        failed_private_data_, text);
  }
  reactor::add_relaxed(shared_->counters.queues, ~0ull);
  return true;
}

void HostQueue::abandon() {
  begin_close("the initiator's engine stopped");
  if (!disconnected_) shared_->device->abandon(connection_);
  disconnected_ = true;
}

}  // namespace nvmeof::nvmf
