// A binary heap of queue pairs by deadline; see timer_heap.h. Each queue pair knows its place.
#include "rdma/soft/timer_heap.h"

namespace nvmeof::rdma::soft {

namespace {
constexpr uint32_t kAbsent = ~0u;
}

void TimerHeap::put(size_t index, QueuePair* qp) {
  heap_[index] = qp;
  qp->heap_index_ = static_cast<uint32_t>(index);
}

void TimerHeap::up(size_t index) {
  QueuePair* const qp = heap_[index];
  while (index != 0) {
    const size_t parent = (index - 1) / 2;
    if (heap_[parent]->heap_key_ <= qp->heap_key_) break;
    put(index, heap_[parent]);
    index = parent;
  }
  put(index, qp);
}

void TimerHeap::down(size_t index) {
  QueuePair* const qp = heap_[index];
  for (;;) {
    size_t child = 2 * index + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->heap_key_ < heap_[child]->heap_key_) child++;
    if (qp->heap_key_ <= heap_[child]->heap_key_) break;
    put(index, heap_[child]);
    index = child;
  }
  put(index, qp);
}

void TimerHeap::set(QueuePair& qp, TimeNs deadline) {
  if (qp.heap_index_ == kAbsent) {
    qp.heap_key_ = deadline;
    heap_.push_back(&qp);
    up(heap_.size() - 1);
  } else if (deadline < qp.heap_key_) {
    qp.heap_key_ = deadline;
    up(qp.heap_index_);
  }
}

void TimerHeap::remove(QueuePair& qp) {
  const size_t index = qp.heap_index_;
  if (index == kAbsent) return;
  qp.heap_index_ = kAbsent;
  QueuePair* const last = heap_.back();
  heap_.pop_back();
  if (last == &qp) return;
  put(index, last);
  up(index);
  down(last->heap_index_);
}

QueuePair* TimerHeap::pop_due(TimeNs now) {
  if (heap_.empty() || heap_[0]->heap_key_ > now) return nullptr;
  QueuePair* const qp = heap_[0];
  remove(*qp);
  return qp;
}

}  // namespace nvmeof::rdma::soft
