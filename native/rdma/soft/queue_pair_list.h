// An intrusive list of queue pairs: each sits in it at most once, no allocation.
#pragma once
#include "rdma/soft/queue_pair.h"

namespace nvmeof::rdma::soft {

class QueuePairList {
 public:
  using Member = QueuePair::Link QueuePair::*;
  explicit QueuePairList(Member member) : member_(member) {}

  bool empty() const { return head_ == nullptr; }

  void push(QueuePair& qp) {
    QueuePair::Link& link = qp.*member_;
    if (link.linked) return;
    link = {nullptr, tail_, true};
    (tail_ != nullptr ? (tail_->*member_).next : head_) = &qp;
    tail_ = &qp;
  }
  QueuePair* pop() {
    QueuePair* const qp = head_;
    if (qp != nullptr) remove(*qp);
    return qp;
  }
  void remove(QueuePair& qp) {
    QueuePair::Link& link = qp.*member_;
    if (!link.linked) return;
    (link.previous != nullptr ? (link.previous->*member_).next : head_) = link.next;
    (link.next != nullptr ? (link.next->*member_).previous : tail_) = link.previous;
    link = {};
  }

 private:
  Member member_;
  QueuePair* head_ = nullptr;
  QueuePair* tail_ = nullptr;
};

}  // namespace nvmeof::rdma::soft
