// The deadlines of all queue pairs of a transport: a binary heap of pointers. A deadline that moves
// back (every acknowledgement does that) costs nothing: the heap keeps the earlier key and asks
// again when that is due.
#pragma once
#include <vector>

#include "rdma/soft/queue_pair.h"

namespace nvmeof::rdma::soft {

class TimerHeap {
 public:
  void reserve(size_t queue_pairs) { heap_.reserve(queue_pairs); }
  TimeNs next() const { return heap_.empty() ? reactor::kNever : heap_[0]->heap_key_; }
  // `deadline` is at the latest when the queue pair must be looked at.
  void set(QueuePair& qp, TimeNs deadline);
  void remove(QueuePair& qp);
  // The queue pair whose key is due, out of the heap; nullptr: none.
  QueuePair* pop_due(TimeNs now);

 private:
  void put(size_t index, QueuePair* qp);
  void up(size_t index);
  void down(size_t index);
  std::vector<QueuePair*> heap_;
};

}  // namespace nvmeof::rdma::soft
