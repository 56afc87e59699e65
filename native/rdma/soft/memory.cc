// Keys and the memory behind them; see memory.h.
//
// A slot is published by storing its key last and withdrawn by storing 0 first, so a look-up that
// finds the same key before and after reading the fields has read one registration.
#include "rdma/soft/memory.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "rdma/soft/copy.h"

namespace nvmeof::rdma::soft {

struct alignas(64) KeyTable::Slot {
  std::atomic<uint32_t> key{0};  // 0: no access
  std::atomic<uint32_t> domain{0};
  std::atomic<uint64_t> base{0}, length{0};
  std::atomic<uint32_t> qpn{0};                    // windows: the queue pair
  std::atomic<uint32_t> parent{0}, parent_key{0};  // windows: the region's slot and key
  std::atomic<uint32_t> generation{0}, next_key{0};
  std::atomic<uint32_t> ended_key{0};  // windows: what the last invalidation ended, of `qpn`
  std::atomic<uint8_t> access{0};
  std::atomic<Kind> kind{Kind::Free};
};

namespace {

constexpr uint32_t kGenerations = 1u << (32 - KeyTable::kIndexBits);
constexpr uint8_t kRemoteChange = kRemoteWrite | kRemoteAtomic;  // each needs kLocalWrite too
constexpr uint8_t kRemote = kRemoteRead | kRemoteChange;
constexpr uint8_t kRegionAccess = kLocalWrite | kRemote | kWindowBind;
constexpr const char* kFaultNames[] = {"none",
                                       "unknown key",
                                       "key of another protection domain",
                                       "window of another queue pair",
                                       "access right missing",
                                       "outside the registered range"};

// The reader whose section this thread is in; parked while the thread waits for others.
thread_local std::atomic<uint64_t>* current_epoch = nullptr;

void random_bytes(void* to, size_t length) {
  if (getrandom(to, length, 0) != static_cast<ssize_t>(length)) std::abort();  // up to 256: whole
}

bool in_range(uint64_t address, uint64_t length, uint64_t base, uint64_t limit) {
  const uint64_t offset = address - base;  // wraps to something huge below the base
  return length <= limit && offset <= limit - length;
}

// One round of the key cipher: 16 bits out of 16 bits and a secret.
uint32_t mix(uint32_t half, uint64_t secret) {
  uint64_t x = (half ^ secret) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 32) * (secret | 1);
  return static_cast<uint32_t>(x >> 40) & 0xffff;
}

}  // namespace

const char* to_string(KeyFault fault) {
  return kFaultNames[static_cast<uint8_t>(fault)];
}

// ---- Slots and keys

std::shared_ptr<KeyTable> KeyTable::create() {
  return std::shared_ptr<KeyTable>(new KeyTable);
}

KeyTable::KeyTable() {
  static_assert(sizeof(Slot) == 64 && std::is_trivially_destructible_v<Slot>);
  // Zeroed on first touch; an idle table costs no memory.
  void* area = mmap(nullptr, kSlots * sizeof(Slot), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) std::abort();  // 8 MiB of address space at start-up
  slots_ = static_cast<Slot*>(area);
  random_bytes(secret_, sizeof secret_);
}

KeyTable::~KeyTable() {
  munmap(slots_, kSlots * sizeof(Slot));
}

// A four-round Feistel network over the two halves of the key.
uint32_t KeyTable::encrypt(uint32_t plain) const {
  uint32_t left = plain >> 16, right = plain & 0xffff;
  for (const uint64_t secret : secret_) {
    const uint32_t next = left ^ mix(right, secret);
    left = right;
    right = next;
  }
  return left << 16 | right;
}

uint32_t KeyTable::decrypt(uint32_t key) const {
  uint32_t left = key >> 16, right = key & 0xffff;
  for (int round = 3; round >= 0; round--) {
    const uint32_t previous = right ^ mix(left, secret_[round]);
    right = left;
    left = previous;
  }
  return left << 16 | right;
}

uint32_t KeyTable::key_of(uint32_t index, uint32_t generation) const {
  return encrypt(generation << kIndexBits | index);
}

uint32_t KeyTable::advance(uint32_t index) {
  Slot& slot = slots_[index];
  uint32_t generation = slot.generation.load(std::memory_order_relaxed), key;
  do {
    generation = (generation + 1) % kGenerations;
    key = key_of(index, generation);
  } while (key == 0);  // 0 means no key
  slot.generation.store(generation, std::memory_order_relaxed);
  return key;
}

Result<uint32_t> KeyTable::take_slot(Kind kind) {
  const std::lock_guard lock(mutex_);
  uint32_t index;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (untouched_ < kSlots) {
    index = untouched_++;
    uint32_t start;
    random_bytes(&start, sizeof start);
    slots_[index].generation.store(start % kGenerations, std::memory_order_relaxed);
  } else {
    return Error{ENOMEM, "all " + std::to_string(kSlots) + " memory keys of the device are in use"};
  }
  slots_[index].kind.store(kind, std::memory_order_release);
  return index;
}

void KeyTable::end_slot(uint32_t index) {
  Slot& slot = slots_[index];
  slot.key.store(0, std::memory_order_seq_cst);
  if (slot.kind.load(std::memory_order_relaxed) == Kind::Region) wait_for_readers();
  slot.kind.store(Kind::Free, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  free_.push_back(index);
}

MemoryCounters KeyTable::counters() const {
  MemoryCounters counters{};
  const std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < untouched_; i++) {
    const Kind kind = slots_[i].kind.load(std::memory_order_relaxed);
    counters.regions += kind == Kind::Region;
    counters.windows += kind == Kind::Window;
    counters.bound_windows +=
        kind == Kind::Window && slots_[i].key.load(std::memory_order_relaxed) != 0;
  }
  counters.protection_domains = domains_.load(std::memory_order_relaxed);
  return counters;
}

// ---- Data path

const KeyTable::Slot* KeyTable::find(uint32_t key) const {
  if (key == 0) return nullptr;
  const Slot& slot = slots_[decrypt(key) & (kSlots - 1)];
  return slot.key.load(std::memory_order_seq_cst) == key ? &slot : nullptr;
}

Resolved KeyTable::check(const Slot& slot, uint32_t key, uint32_t domain, uint64_t address,
                         uint64_t length, uint8_t access) const {
  const bool same_domain = slot.domain.load(std::memory_order_acquire) == domain;
  const uint8_t granted = slot.access.load(std::memory_order_acquire);
  const uint64_t base = slot.base.load(std::memory_order_acquire);
  const uint64_t limit = slot.length.load(std::memory_order_acquire);
  if (slot.key.load(std::memory_order_relaxed) != key) return {nullptr, KeyFault::UnknownKey};
  if (!same_domain) return {nullptr, KeyFault::WrongDomain};
  if ((granted & access) != access) return {nullptr, KeyFault::AccessDenied};
  if (!in_range(address, length, base, limit)) return {nullptr, KeyFault::OutOfRange};
  return {reinterpret_cast<uint8_t*>(address), KeyFault::None};
}

Resolved KeyTable::resolve_local(uint32_t lkey, uint32_t domain, uint64_t address, uint64_t length,
                                 uint8_t access) const {
  if (length == 0) return {nullptr, KeyFault::None};
  const Slot* slot = find(lkey);
  if (slot == nullptr || slot->kind.load(std::memory_order_acquire) != Kind::Region)
    return {nullptr, KeyFault::UnknownKey};
  return check(*slot, lkey, domain, address, length, access);
}

Resolved KeyTable::resolve_remote(uint32_t rkey, uint32_t domain, uint32_t qpn, uint64_t address,
                                  uint64_t length, uint8_t access) const {
  if (length == 0) return {nullptr, KeyFault::None};
  const Slot* slot = find(rkey);
  if (slot == nullptr) return {nullptr, KeyFault::UnknownKey};
  if (slot->kind.load(std::memory_order_acquire) == Kind::Window) {
    const Slot& region = slots_[slot->parent.load(std::memory_order_acquire)];
    const uint32_t region_key = slot->parent_key.load(std::memory_order_acquire);
    if (region.key.load(std::memory_order_seq_cst) != region_key)
      return {nullptr, KeyFault::UnknownKey};  // the region went before its window
    if (slot->qpn.load(std::memory_order_acquire) != qpn)
      return {nullptr, slot->domain.load(std::memory_order_acquire) == domain
                           ? KeyFault::WrongQueuePair
                           : KeyFault::WrongDomain};
  }
  return check(*slot, rkey, domain, address, length, access);
}

KeyFault KeyTable::bind(SoftMemoryWindow& window, const SoftMemoryRegion& region, uint32_t domain,
                        uint32_t qpn, uint64_t address, uint64_t length, uint32_t rkey,
                        uint8_t access) {
  Slot& slot = slots_[window.slot_];
  const Slot& parent = slots_[region.slot_];
  if (rkey == 0 || rkey != slot.next_key.load(std::memory_order_relaxed))
    return KeyFault::UnknownKey;
  if (slot.domain.load(std::memory_order_relaxed) != domain) return KeyFault::WrongDomain;
  if ((access & ~kRemote) != 0 || length == 0) return KeyFault::AccessDenied;
  // A window for remote writing or atomics needs a region that may be written (IBTA 10.6.7.2.2).
  const uint8_t needed =
      static_cast<uint8_t>(kWindowBind | ((access & kRemoteChange) != 0 ? kLocalWrite : 0));
  const Resolved resolved = check(parent, region.key_, domain, address, length, needed);
  if (!resolved) return resolved.fault;
  slot.key.store(0, std::memory_order_release);  // what it was bound to before ends here
  slot.base.store(address, std::memory_order_release);
  slot.length.store(length, std::memory_order_release);
  slot.access.store(access, std::memory_order_release);
  slot.qpn.store(qpn, std::memory_order_release);
  slot.parent.store(region.slot_, std::memory_order_release);
  slot.parent_key.store(region.key_, std::memory_order_release);
  slot.key.store(rkey, std::memory_order_release);
  slot.next_key.store(advance(window.slot_), std::memory_order_relaxed);
  return KeyFault::None;
}

KeyFault KeyTable::invalidate(uint32_t rkey, uint32_t domain, uint32_t qpn) {
  Slot* slot = const_cast<Slot*>(find(rkey));
  if (slot == nullptr || slot->kind.load(std::memory_order_acquire) != Kind::Window)
    return KeyFault::UnknownKey;
  if (slot->domain.load(std::memory_order_relaxed) != domain) return KeyFault::WrongDomain;
  if (slot->qpn.load(std::memory_order_relaxed) != qpn) return KeyFault::WrongQueuePair;
  slot->key.store(0, std::memory_order_release);
  slot->ended_key.store(rkey, std::memory_order_relaxed);
  return KeyFault::None;
}

KeyFault KeyTable::invalidate_own(uint32_t rkey, uint32_t domain, uint32_t qpn) {
  const KeyFault fault = invalidate(rkey, domain, qpn);
  if (fault != KeyFault::UnknownKey || rkey == 0) return fault;
  const Slot& slot = slots_[decrypt(rkey) & (kSlots - 1)];
  const bool own = slot.kind.load(std::memory_order_acquire) == Kind::Window &&
                   slot.ended_key.load(std::memory_order_relaxed) == rkey &&
                   slot.domain.load(std::memory_order_relaxed) == domain &&
                   slot.qpn.load(std::memory_order_relaxed) == qpn;
  return own ? KeyFault::None : fault;
}

// ---- Readers

KeyTable::Reader::Reader(std::shared_ptr<KeyTable> table) : table_(std::move(table)) {
  const std::lock_guard lock(table_->readers_mutex_);
  table_->readers_.push_back(this);
}

KeyTable::Reader::~Reader() {
  const std::lock_guard lock(table_->readers_mutex_);
  std::erase(table_->readers_, this);
}

KeyTable::Section::Section(Reader& reader) : epoch_(reader.epoch_), outer_(current_epoch) {
  // Sequentially consistent: either we see the key withdrawn, or its owner sees us inside.
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  current_epoch = &epoch_;
}

KeyTable::Section::~Section() {
  copy_fence();  // whoever learns from this thread of what was copied shall see it
  epoch_.fetch_add(1, std::memory_order_release);
  current_epoch = outer_;
}

void KeyTable::wait_for_readers() {
  // Whoever waits counts as outside, or two threads that end regions inside sections would wait for
  // each other.
  std::atomic<uint64_t>* own = current_epoch;
  if (own != nullptr) own->fetch_add(1, std::memory_order_seq_cst);
  {
    const std::lock_guard lock(readers_mutex_);
    for (const Reader* reader : readers_) {
      const uint64_t seen = reader->epoch_.load(std::memory_order_seq_cst);
      if ((seen & 1) == 0) continue;
      while (reader->epoch_.load(std::memory_order_acquire) == seen) std::this_thread::yield();
    }
  }
  if (own != nullptr) own->fetch_add(1, std::memory_order_seq_cst);
}

// ---- Objects

Result<std::unique_ptr<ProtectionDomain>> KeyTable::allocate_pd() {
  return std::unique_ptr<ProtectionDomain>(std::make_unique<SoftProtectionDomain>(
      shared_from_this(), next_domain_.fetch_add(1, std::memory_order_relaxed)));
}

SoftProtectionDomain::SoftProtectionDomain(std::shared_ptr<KeyTable> table, uint32_t id)
    : table_(std::move(table)), id_(id) {
  table_->domains_.fetch_add(1, std::memory_order_relaxed);
}

SoftProtectionDomain::~SoftProtectionDomain() {
  table_->domains_.fetch_sub(1, std::memory_order_relaxed);
}

Result<std::unique_ptr<MemoryRegion>> SoftProtectionDomain::register_memory(void* address,
                                                                            size_t length,
                                                                            uint8_t access) {
  const uint64_t base = reinterpret_cast<uint64_t>(address);
  if (base == 0 || length == 0 || length > UINT64_MAX - base)
    return Error{EINVAL, "a memory region needs a non-empty range of addresses"};
  if ((access & ~kRegionAccess) != 0)
    return Error{EINVAL, "unknown access rights for a memory region"};
  if ((access & kRemoteChange) != 0 && (access & kLocalWrite) == 0)
    return Error{EINVAL,
                 "remote write or atomic access to a memory region needs local write access too"};
  Result<uint32_t> taken = table_->take_slot(KeyTable::Kind::Region);
  if (!taken) return taken.error();
  KeyTable::Slot& slot = table_->slots_[*taken];
  slot.domain.store(id_, std::memory_order_release);
  slot.base.store(base, std::memory_order_release);
  slot.length.store(length, std::memory_order_release);
  slot.access.store(access, std::memory_order_release);
  const uint32_t key = table_->advance(*taken);
  slot.key.store(key, std::memory_order_release);
  return std::unique_ptr<MemoryRegion>(std::make_unique<SoftMemoryRegion>(table_, *taken, key));
}

Result<std::unique_ptr<MemoryWindow>> SoftProtectionDomain::allocate_window() {
  Result<uint32_t> taken = table_->take_slot(KeyTable::Kind::Window);
  if (!taken) return taken.error();
  KeyTable::Slot& slot = table_->slots_[*taken];
  slot.domain.store(id_, std::memory_order_release);
  slot.ended_key.store(0, std::memory_order_relaxed);
  slot.next_key.store(table_->advance(*taken), std::memory_order_relaxed);
  return std::unique_ptr<MemoryWindow>(std::make_unique<SoftMemoryWindow>(table_, *taken));
}

SoftMemoryRegion::SoftMemoryRegion(std::shared_ptr<KeyTable> table, uint32_t slot, uint32_t key)
    : table_(std::move(table)), slot_(slot), key_(key) {}

SoftMemoryRegion::~SoftMemoryRegion() {
  table_->end_slot(slot_);
}

SoftMemoryWindow::SoftMemoryWindow(std::shared_ptr<KeyTable> table, uint32_t slot)
    : table_(std::move(table)), slot_(slot) {}

SoftMemoryWindow::~SoftMemoryWindow() {
  table_->end_slot(slot_);
}

uint32_t SoftMemoryWindow::next_rkey() {
  return table_->slots_[slot_].next_key.load(std::memory_order_relaxed);
}

}  // namespace nvmeof::rdma::soft
