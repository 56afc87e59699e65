#include "attach/client/server_rings.h"

#include <cstring>

namespace nvmeof::attach {

namespace {

template <typename Record>
constexpr size_t kWords = sizeof(Record) / sizeof(uint64_t);

}  // namespace

ServerRings::ServerRings(uint8_t* base, const nvmeof_ring_layout& layout, uint32_t entries)
    : words_(reinterpret_cast<nvmeof_ring_words*>(base)),
      submissions_(reinterpret_cast<uint64_t*>(base + layout.submissions)),
      completions_(reinterpret_cast<uint64_t*>(base + layout.completions)),
      mask_(entries - 1) {}

uint32_t ServerRings::submitted() const {
  return __atomic_load_n(&words_->submission_tail, __ATOMIC_ACQUIRE) - taken_;
}

// Atomic loads, so that each word is read once whatever the compiler thinks.
nvmeof_ring_entry ServerRings::take() {
  constexpr size_t kCount = kWords<nvmeof_ring_entry>;
  const uint64_t* const slot = submissions_ + size_t{taken_++ & mask_} * kCount;
  uint64_t words[kCount];
  for (size_t i = 0; i < kCount; i++) words[i] = __atomic_load_n(&slot[i], __ATOMIC_RELAXED);
  nvmeof_ring_entry entry;
  std::memcpy(&entry, words, sizeof entry);
  return entry;
}

void ServerRings::put(const nvmeof_ring_completion& completion) {
  constexpr size_t kCount = kWords<nvmeof_ring_completion>;
  uint64_t* const slot = completions_ + size_t{put_++ & mask_} * kCount;
  uint64_t words[kCount];
  std::memcpy(words, &completion, sizeof completion);
  for (size_t i = 0; i < kCount; i++) __atomic_store_n(&slot[i], words[i], __ATOMIC_RELAXED);
}

bool ServerRings::publish() {
  if (published_ == put_) return false;
  published_ = put_;
  __atomic_store_n(&words_->completion_tail, put_, __ATOMIC_SEQ_CST);
  return __atomic_load_n(&words_->client_sleeping, __ATOMIC_SEQ_CST) != 0 &&
         __atomic_exchange_n(&words_->client_sleeping, 0, __ATOMIC_SEQ_CST) != 0;
}

bool ServerRings::arm() {
  __atomic_store_n(&words_->server_sleeping, 1, __ATOMIC_SEQ_CST);
  return __atomic_load_n(&words_->submission_tail, __ATOMIC_SEQ_CST) == taken_;
}

void ServerRings::disarm() {
  __atomic_store_n(&words_->server_sleeping, 0, __ATOMIC_RELAXED);
}

}  // namespace nvmeof::attach
