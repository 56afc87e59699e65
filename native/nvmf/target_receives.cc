// Receive buffers of the target engine. With a shared receive queue they are everyone's; without,
// each queue has as many as it has entries. Where a SEND that finds no receive ends the connection
// (iWARP), no more entries are promised to hosts than there are receives. A receive is posted again
// before the answer that lets the host send anew.
#include "nvmf/target_impl.h"

namespace nvmeof::nvmf {

namespace {
constexpr size_t kReceiveBatch = 64;
}

bool TargetEngineImpl::reserve_receives(TargetQueue* queue) {
  if (promises_receives()) promised_receives_ += queue->depth;
  if (srq_) return true;
  for (uint32_t i = 0; i < queue->depth; i++) {
    const uint32_t receive = to_repost_.back();
    to_repost_.pop_back();
    receive_owners_[receive] = queue;
    queue->receives.push_back(receive);
    queue->reposts.push_back(receive);
  }
  return flush_own_receives(queue);
}

// The queue pair is gone: what was posted to it is idle.
void TargetEngineImpl::return_receives(TargetQueue* queue) {
  if (promises_receives()) promised_receives_ -= queue->depth;
  if (srq_) return;
  std::erase(reposting_, queue);
  posted_receives_ -= queue->posted_receives;
  idle_receives_ += queue->posted_receives;
  for (const uint32_t receive : queue->receives) {
    receive_owners_[receive] = nullptr;
    to_repost_.push_back(receive);
  }
  queue->receives.clear();
}

void TargetEngineImpl::taken(uint32_t receive) {
  posted_receives_--;
  if (!srq_) receive_owners_[receive]->posted_receives--;
}

void TargetEngineImpl::repost(uint32_t receive) {
  idle_receives_++;
  if (srq_) return to_repost_.push_back(receive);
  TargetQueue* owner = receive_owners_[receive];
  if (!owner->answers()) return;  // goes back with its queue
  if (owner->reposts.empty()) reposting_.push_back(owner);
  owner->reposts.push_back(receive);
}

void TargetEngineImpl::flush_receives() {
  if (srq_) return flush_shared_receives();
  for (TargetQueue* queue : reposting_) {
    if (queue->answers()) flush_own_receives(queue);
    queue->reposts.clear();
  }
  reposting_.clear();
}

void TargetEngineImpl::flush_shared_receives() {
  while (!to_repost_.empty()) {
    rdma::ReceiveWorkRequest requests[kReceiveBatch];
    rdma::Sge sges[kReceiveBatch];
    const size_t count = std::min(to_repost_.size(), kReceiveBatch);
    for (size_t i = 0; i < count; i++)
      fill_receive(to_repost_[to_repost_.size() - 1 - i], &requests[i], &sges[i]);
    if (!srq_->post_receive({requests, count})) return;  // tried again with the next round
    to_repost_.resize(to_repost_.size() - count);
    posted_receives_ += static_cast<uint32_t>(count);
    idle_receives_ -= static_cast<uint32_t>(count);
  }
}

// False when the queue pair takes none: it is dying then, and its connection's end is on its way.
bool TargetEngineImpl::flush_own_receives(TargetQueue* queue) {
  while (!queue->reposts.empty()) {
    rdma::ReceiveWorkRequest requests[kReceiveBatch];
    rdma::Sge sges[kReceiveBatch];
    const size_t count = std::min(queue->reposts.size(), kReceiveBatch);
    for (size_t i = 0; i < count; i++)
      fill_receive(queue->reposts[queue->reposts.size() - 1 - i], &requests[i], &sges[i]);
    if (!queue->qp->post_receive({requests, count})) return false;
    queue->reposts.resize(queue->reposts.size() - count);
    queue->posted_receives += static_cast<uint32_t>(count);
    posted_receives_ += static_cast<uint32_t>(count);
    idle_receives_ -= static_cast<uint32_t>(count);
  }
  return true;
}

void TargetEngineImpl::fill_receive(uint32_t receive, rdma::ReceiveWorkRequest* request,
                                    rdma::Sge* sge) const {
  *sge = {reinterpret_cast<uint64_t>(memory_->receive(receive)), memory_->receive_bytes(),
          memory_->lkey()};
  *request = {work_id(Work::Receive, receive), 1, sge};
}

}  // namespace nvmeof::nvmf
