#include "rdma/verbs/completion_queue.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string>

#include "rdma/verbs/queue_pair.h"
#include "rdma/verbs/text.h"

namespace nvmeof::rdma::verbs {

namespace {

constexpr size_t kBatch = 32;
constexpr unsigned kAcknowledgeEvery = 64;
constexpr size_t kTableMin = 16;

// An SGE of ours is one of theirs: work requests point straight at it.
static_assert(sizeof(Sge) == sizeof(ibv_sge) && offsetof(Sge, address) == offsetof(ibv_sge, addr) &&
              offsetof(Sge, length) == offsetof(ibv_sge, length) &&
              offsetof(Sge, lkey) == offsetof(ibv_sge, lkey));

size_t place_of(uint32_t number, size_t slots) {
  return (number * 0x9e3779b1u) & (slots - 1);
}

}  // namespace

CompletionQueue::CompletionQueue(const Library& library, reactor::Reactor* reactor,
                                 ObjectCounts& counts)
    : library_(library), reactor_(reactor), counts_(counts), table_(kTableMin, nullptr) {}

Result<std::unique_ptr<CompletionQueue>> CompletionQueue::create(const Library& library,
                                                                 ibv_context* context,
                                                                 uint32_t depth, int vector,
                                                                 reactor::Reactor* reactor,
                                                                 ObjectCounts& counts) {
  std::unique_ptr<CompletionQueue> queue(new CompletionQueue(library, reactor, counts));
  queue->channel_ = library.create_comp_channel(context);
  if (queue->channel_ == nullptr)
    return Error{errno, "No completion channel could be made" + reason_of(errno) + "."};
  const int flags = fcntl(queue->channel_->fd, F_GETFL);
  fcntl(queue->channel_->fd, F_SETFL, flags | O_NONBLOCK);
  queue->cq_ =
      library.create_cq(context, static_cast<int>(depth), nullptr, queue->channel_, vector);
  if (queue->cq_ == nullptr)
    return Error{errno, "No completion queue of " + std::to_string(depth) +
                            " entries could be made" + reason_of(errno) + "."};
  queue->kept_.reserve(depth);
  if (reactor != nullptr) reactor->add_fd(queue->channel_->fd);
  return queue;
}

CompletionQueue::~CompletionQueue() {
  if (cq_ != nullptr) {
    if (reactor_ != nullptr) reactor_->remove_fd(channel_->fd);
    if (unacknowledged_ != 0) library_.ack_cq_events(cq_, unacknowledged_);
    library_.destroy_cq(cq_);
  }
  if (channel_ != nullptr) library_.destroy_comp_channel(channel_);
}

int CompletionQueue::poll(std::span<WorkCompletion> out) {
  size_t count = 0;
  if (kept_at_ < kept_.size()) {
    count = std::min(out.size(), kept_.size() - kept_at_);
    std::copy_n(kept_.begin() + static_cast<std::ptrdiff_t>(kept_at_), count, out.begin());
    kept_at_ += count;
    if (kept_at_ < kept_.size()) return static_cast<int>(count);
    kept_.clear();
    kept_at_ = 0;
  }
  bool dry = false;
  while (count < out.size() && !dry) count += take(out.subspan(count), &dry);
  return static_cast<int>(count);
}

size_t CompletionQueue::take(std::span<WorkCompletion> out, bool* dry) {
  std::array<ibv_wc, kBatch> batch;
  const size_t wanted = std::min(out.size(), batch.size());
  const int found = ibv_poll_cq(cq_, static_cast<int>(wanted), batch.data());
  *dry = found < static_cast<int>(wanted);  // also when it failed: the device is gone
  size_t count = 0;
  for (int i = 0; i < found; i++) {
    const ibv_wc& wc = batch[static_cast<size_t>(i)];
    QueuePair* const qp = find(wc.qp_num);
    if (qp != nullptr && qp->complete(wc, &out[count])) {
      count++;
    } else {
      counts_.dropped_completions.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return count;
}

// One event of the channel answers one request for it. It is read here, not in poll(): a reactor
// that polls makes no system call. The price is at most one needless wake-up after a busy time.
bool CompletionQueue::arm() {
  if (kept_at_ < kept_.size()) return false;
  if (armed_) {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (library_.get_cq_event(channel_, &cq, &context) == 0) {
      armed_ = false;
      if (++unacknowledged_ >= kAcknowledgeEvery) {
        library_.ack_cq_events(cq_, unacknowledged_);
        unacknowledged_ = 0;
      }
    }
  }
  if (!armed_) armed_ = ibv_req_notify_cq(cq_, 0) == 0;
  // Completions from before the request cause no event.
  keep_all();
  return armed_ && kept_at_ == kept_.size();
}

void CompletionQueue::keep_all() {
  std::array<WorkCompletion, kBatch> batch;
  bool dry = false;
  while (!dry) {
    const size_t count = take(batch, &dry);
    kept_.insert(kept_.end(), batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(count));
  }
}

// ---- Queue pairs by number

QueuePair* CompletionQueue::find(uint32_t number) const {
  for (size_t at = place_of(number, table_.size());; at = (at + 1) & (table_.size() - 1)) {
    QueuePair* const qp = table_[at];
    if (qp == nullptr || qp->number() == number) return qp;
  }
}

void CompletionQueue::rehash(size_t slots) {
  std::vector<QueuePair*> old(slots, nullptr);
  old.swap(table_);
  for (QueuePair* qp : old) {
    if (qp == nullptr) continue;
    size_t at = place_of(qp->number(), slots);
    while (table_[at] != nullptr) at = (at + 1) & (slots - 1);
    table_[at] = qp;
  }
}

void CompletionQueue::attach(QueuePair* qp) {
  if (find(qp->number()) == qp) return;  // sends and receives share the queue
  // Leftovers of an earlier queue pair with this number were dropped when it went.
  if ((attached_ + 1) * 2 > table_.size()) rehash(table_.size() * 2);
  size_t at = place_of(qp->number(), table_.size());
  while (table_[at] != nullptr) at = (at + 1) & (table_.size() - 1);
  table_[at] = qp;
  attached_++;
}

void CompletionQueue::detach(QueuePair* qp) {
  const auto found = std::find(table_.begin(), table_.end(), qp);
  if (found == table_.end()) return;
  keep_all();
  const uint32_t number = qp->number();
  const auto first = kept_.begin() + static_cast<std::ptrdiff_t>(kept_at_);
  kept_.erase(std::remove_if(first, kept_.end(),
                             [number](const WorkCompletion& wc) { return wc.qp_num == number; }),
              kept_.end());
  *found = nullptr;
  attached_--;
  rehash(table_.size());  // no gap in a chain of collisions
}

// ---- Receives

Result<void> post_receives(std::span<const ReceiveWorkRequest> requests,
                           int (*post)(void* queue, ibv_recv_wr* first), void* queue) {
  std::array<ibv_recv_wr, kBatch> chain;
  for (size_t at = 0; at < requests.size();) {
    const size_t count = std::min(chain.size(), requests.size() - at);
    for (size_t i = 0; i < count; i++) {
      const ReceiveWorkRequest& request = requests[at + i];
      ibv_recv_wr& wr = chain[i];
      wr.wr_id = request.wr_id;
      wr.next = i + 1 < count ? &chain[i + 1] : nullptr;
      wr.sg_list = reinterpret_cast<ibv_sge*>(const_cast<Sge*>(request.sg_list));
      wr.num_sge = request.num_sge;
    }
    if (const int code = error_of_post(post(queue, chain.data())); code != 0)
      return Error{code, "post_receive failed" + reason_of(code)};
    at += count;
  }
  return {};
}

Result<std::unique_ptr<SharedReceiveQueue>> SharedReceiveQueue::create(const Library& library,
                                                                       ibv_pd* pd, uint32_t max_wr,
                                                                       uint32_t max_sge) {
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = max_wr;
  attributes.attr.max_sge = max_sge;
  ibv_srq* const srq = library.create_srq(pd, &attributes);
  if (srq == nullptr)
    return Error{errno, "No shared receive queue of " + std::to_string(max_wr) +
                            " work requests could be made" + reason_of(errno) + "."};
  return std::unique_ptr<SharedReceiveQueue>(new SharedReceiveQueue(library, srq));
}

SharedReceiveQueue::~SharedReceiveQueue() {
  library_.destroy_srq(srq_);
}

Result<void> SharedReceiveQueue::post_receive(std::span<const ReceiveWorkRequest> requests) {
  const auto post = [](void* queue, ibv_recv_wr* first) {
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(static_cast<ibv_srq*>(queue), first, &bad);
  };
  return post_receives(requests, post, srq_);
}

}  // namespace nvmeof::rdma::verbs
