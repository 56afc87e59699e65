#include "nvmf/multipath/errand.h"

#include <utility>

namespace nvmeof::nvmf {

namespace {

void delete_all(Errand* errand) {
  while (errand != nullptr) delete std::exchange(errand, errand->next);
}

}  // namespace

ErrandBox::~ErrandBox() {
  delete_all(newest_.load(std::memory_order_acquire));
}

void ErrandBox::put(Errand* errand) {
  Errand* before = newest_.load(std::memory_order_relaxed);
  do {
    errand->next = before;
  } while (!newest_.compare_exchange_weak(before, errand, std::memory_order_release,
                                          std::memory_order_relaxed));
  // Whoever finds the box empty wakes its reactor, which takes what is there by itself while it is
  // awake: it does not matter when its ring of tasks is full.
  if (before != nullptr) return;
  if (reactor::Reactor* const reactor = reactor_.load(std::memory_order_acquire)) {
    reactor->post({[](void*, uint64_t) {}, nullptr, 0});
  }
}

Errand* ErrandBox::take() {
  if (newest_.load(std::memory_order_relaxed) == nullptr) return nullptr;
  Errand* newest = newest_.exchange(nullptr, std::memory_order_acquire);
  Errand* oldest = nullptr;
  while (newest != nullptr) {
    Errand* const before = newest->next;
    newest->next = oldest;
    oldest = std::exchange(newest, before);
  }
  return oldest;
}

ErrandPool::~ErrandPool() {
  delete_all(free_);
}

Errand* ErrandPool::make(Errand::Kind kind, CommandQueues* engine, uint32_t queue) {
  Errand* const errand = free_ != nullptr ? std::exchange(free_, free_->next) : new Errand;
  errand->kind = kind;
  errand->engine = engine;
  errand->queue = queue;
  errand->memory = 0;
  return errand;
}

void ErrandPool::give_back(Errand* errand) {
  errand->next = std::exchange(free_, errand);
}

}  // namespace nvmeof::nvmf
