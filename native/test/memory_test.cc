// Keys: rights, domains, ranges and their edges, windows and their lives, guessing, registration
// and deregistration while another thread resolves.
#include "rdma/soft/memory.h"

#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "test.h"

using namespace nvmeof;
using namespace nvmeof::rdma;
using namespace nvmeof::rdma::soft;

namespace {

struct Fixture {
  std::shared_ptr<KeyTable> table = KeyTable::create();
  std::unique_ptr<ProtectionDomain> pd = std::move(*table->allocate_pd());
  std::vector<uint8_t> memory = std::vector<uint8_t>(4096);
  uint32_t domain() const { return static_cast<SoftProtectionDomain&>(*pd).id(); }
  uint64_t base() const { return reinterpret_cast<uint64_t>(memory.data()); }
  std::unique_ptr<MemoryRegion> region(uint8_t access) {
    return std::move(*pd->register_memory(memory.data(), memory.size(), access));
  }
  std::unique_ptr<MemoryWindow> window() { return std::move(*pd->allocate_window()); }
  KeyFault bind(MemoryWindow& w, const MemoryRegion& r, uint64_t address, uint64_t length,
                uint8_t access, uint32_t qpn = 17) {
    return table->bind(static_cast<SoftMemoryWindow&>(w), static_cast<const SoftMemoryRegion&>(r),
                       domain(), qpn, address, length, w.next_rkey(), access);
  }
};

constexpr uint8_t kAll = kLocalWrite | kRemoteWrite | kRemoteRead | kWindowBind;

}  // namespace

TEST(rights_domains_and_ranges_of_regions) {
  Fixture f;
  const auto read_only = f.region(kRemoteRead);
  const auto all = f.region(kAll);
  const uint64_t at = f.base();
  const auto remote = [&](const MemoryRegion& r, uint64_t address, uint64_t length,
                          uint8_t access) {
    return f.table->resolve_remote(r.rkey(), f.domain(), 17, address, length, access).fault;
  };
  CHECK(remote(*all, at, 4096, kRemoteWrite) == KeyFault::None);
  CHECK(f.table->resolve_remote(all->rkey(), f.domain(), 1, at + 5, 1, kRemoteRead).pointer ==
        f.memory.data() + 5);
  CHECK(remote(*read_only, at, 1, kRemoteWrite) == KeyFault::AccessDenied);
  CHECK(remote(*read_only, at, 1, kRemoteRead) == KeyFault::None);
  CHECK(remote(*all, at, 4097, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(remote(*all, at + 4095, 1, kRemoteRead) == KeyFault::None);
  CHECK(remote(*all, at + 4095, 2, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(remote(*all, at + 4096, 1, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(remote(*all, at - 1, 1, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(remote(*all, at - 1, 2, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(remote(*all, at, ~0ull, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(remote(*all, at + 1, ~0ull - at, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(remote(*all, ~0ull, 4096, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(remote(*all, ~0ull - 100, 200, kRemoteRead) == KeyFault::OutOfRange);
  // Zero length looks at nothing.
  CHECK(f.table->resolve_remote(12345, 999, 1, 0, 0, kRemoteWrite).fault == KeyFault::None);
  CHECK(f.table->resolve_remote(0, f.domain(), 1, at, 1, kRemoteRead).fault ==
        KeyFault::UnknownKey);
  const auto other = std::move(*f.table->allocate_pd());
  const uint32_t other_id = static_cast<SoftProtectionDomain&>(*other).id();
  CHECK(f.table->resolve_remote(all->rkey(), other_id, 17, at, 1, kRemoteRead).fault ==
        KeyFault::WrongDomain);
  CHECK(f.table->resolve_local(all->lkey(), other_id, at, 1, 0).fault == KeyFault::WrongDomain);
  CHECK(f.table->resolve_local(read_only->lkey(), f.domain(), at, 1, 0).fault == KeyFault::None);
  CHECK(f.table->resolve_local(read_only->lkey(), f.domain(), at, 1, kLocalWrite).fault ==
        KeyFault::AccessDenied);
}

TEST(bad_registrations_are_refused) {
  Fixture f;
  uint8_t byte;
  CHECK(!f.pd->register_memory(nullptr, 10, 0));
  CHECK(!f.pd->register_memory(&byte, 0, 0));
  CHECK(!f.pd->register_memory(&byte, SIZE_MAX, 0));
  CHECK(!f.pd->register_memory(&byte, 1, 0x40));
  const auto result = f.pd->register_memory(&byte, 1, kRemoteWrite);
  CHECK(!result && result.error().code == EINVAL);
}

TEST(windows_live_and_die) {
  Fixture f;
  const auto region = f.region(kAll);
  const auto window = f.window();
  const uint64_t at = f.base() + 100;
  const uint32_t key = window->next_rkey();
  const auto fault = [&](uint32_t rkey, uint32_t qpn, uint64_t address, uint64_t length,
                         uint8_t access) {
    return f.table->resolve_remote(rkey, f.domain(), qpn, address, length, access).fault;
  };
  CHECK(fault(key, 17, at, 1, kRemoteRead) == KeyFault::UnknownKey);
  CHECK(f.bind(*window, *region, at, 50, kRemoteRead) == KeyFault::None);
  CHECK(window->next_rkey() != key);
  CHECK(fault(key, 17, at, 50, kRemoteRead) == KeyFault::None);
  CHECK(fault(key, 17, at, 51, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(fault(key, 17, at - 1, 1, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(fault(key, 17, at, 50, kRemoteWrite) == KeyFault::AccessDenied);
  CHECK(fault(key, 18, at, 50, kRemoteRead) == KeyFault::WrongQueuePair);
  CHECK(f.table->resolve_local(key, f.domain(), at, 1, 0).fault == KeyFault::UnknownKey);
  CHECK_EQ(f.table->counters().bound_windows, uint64_t{1});
  CHECK(f.table->invalidate(key, f.domain(), 18) == KeyFault::WrongQueuePair);
  CHECK(f.table->invalidate(key, f.domain() + 1, 17) == KeyFault::WrongDomain);
  CHECK(f.table->invalidate(region->rkey(), f.domain(), 17) == KeyFault::UnknownKey);
  CHECK(f.table->invalidate(key, f.domain(), 17) == KeyFault::None);
  CHECK(f.table->invalidate(key, f.domain(), 17) == KeyFault::UnknownKey);
  CHECK(fault(key, 17, at, 1, kRemoteRead) == KeyFault::UnknownKey);
  CHECK_EQ(f.table->counters().bound_windows, uint64_t{0});
}

TEST(bad_binds_change_nothing) {
  Fixture f;
  const auto region = f.region(kAll);
  const auto unbindable = f.region(kLocalWrite | kRemoteWrite);
  const auto read_only = f.region(kWindowBind);
  const auto window = f.window();
  const uint64_t at = f.base();
  CHECK(f.bind(*window, *region, at, 10, kRemoteRead) == KeyFault::None);
  const auto old = [&, key = window->next_rkey()] { return window->next_rkey() == key; };
  CHECK(f.bind(*window, *unbindable, at, 10, kRemoteRead) == KeyFault::AccessDenied);
  CHECK(f.bind(*window, *read_only, at, 10, kRemoteWrite) == KeyFault::AccessDenied);
  CHECK(f.bind(*window, *region, at, 4097, kRemoteRead) == KeyFault::OutOfRange);
  CHECK(f.bind(*window, *region, at, 0, kRemoteRead) == KeyFault::AccessDenied);
  CHECK(f.bind(*window, *region, at, 1, kLocalWrite) == KeyFault::AccessDenied);
  auto& w = static_cast<SoftMemoryWindow&>(*window);
  auto& r = static_cast<SoftMemoryRegion&>(*region);
  CHECK(f.table->bind(w, r, f.domain(), 17, at, 1, window->next_rkey() ^ 1, kRemoteRead) ==
        KeyFault::UnknownKey);
  CHECK(f.table->bind(w, r, f.domain() + 1, 17, at, 1, window->next_rkey(), kRemoteRead) ==
        KeyFault::WrongDomain);
  CHECK(old());
  CHECK_EQ(f.table->counters().bound_windows, uint64_t{1});
  CHECK(f.bind(*window, *read_only, at, 10, kRemoteRead) == KeyFault::None);
}

TEST(a_window_dies_with_its_region_and_counters_return) {
  Fixture f;
  auto region = f.region(kAll);
  auto window = f.window();
  const uint32_t key = window->next_rkey();
  CHECK(f.bind(*window, *region, f.base(), 10, kRemoteRead) == KeyFault::None);
  CHECK(f.table->counters().regions == 1 && f.table->counters().windows == 1);
  const uint32_t region_key = region->rkey();
  region.reset();
  CHECK(f.table->resolve_remote(key, f.domain(), 17, f.base(), 1, kRemoteRead).fault ==
        KeyFault::UnknownKey);
  CHECK(f.table->resolve_remote(region_key, f.domain(), 17, f.base(), 1, kRemoteRead).fault ==
        KeyFault::UnknownKey);
  window.reset();
  f.pd.reset();
  const MemoryCounters after = f.table->counters();
  CHECK(after.regions + after.windows + after.bound_windows + after.protection_domains == 0);
}

TEST(keys_do_not_come_back_soon_and_cannot_be_guessed) {
  Fixture f;
  const auto region = f.region(kAll);
  const auto window = f.window();
  std::set<uint32_t> seen;
  uint32_t close = 0, last = 0;
  for (int i = 0; i < 32000; i++) {
    const uint32_t key = window->next_rkey();
    CHECK(seen.insert(key).second);
    close += (key > last ? key - last : last - key) < 1u << 16;
    last = key;
    CHECK(f.bind(*window, *region, f.base(), 10, kRemoteRead) == KeyFault::None);
  }
  CHECK(close < 20);  // neighbours by chance only
  std::mt19937 random(8);
  int hits = 0;
  for (int i = 0; i < 1'000'000; i++)
    hits += f.table
                ->resolve_remote(static_cast<uint32_t>(random()), f.domain(), 17, f.base(), 1,
                                 kRemoteRead)
                .fault == KeyFault::None;
  CHECK(hits <= 1);  // two keys alive among 2^32
  const auto other = Fixture().region(kAll);
  CHECK(other->rkey() != region->rkey());
}

TEST(all_slots_can_be_used_and_used_again) {
  Fixture f;
  std::vector<std::unique_ptr<MemoryRegion>> regions;
  while (true) {
    auto result = f.pd->register_memory(f.memory.data(), 1, 0);
    if (!result) {
      CHECK_EQ(result.error().code, ENOMEM);
      break;
    }
    regions.push_back(std::move(*result));
  }
  CHECK_EQ(regions.size(), size_t{KeyTable::kSlots});
  const uint32_t old = regions.back()->lkey();
  regions.pop_back();
  const auto again = f.region(0);
  CHECK(again->lkey() != old);
  CHECK(f.table->resolve_local(old, f.domain(), f.base(), 1, 0).fault == KeyFault::UnknownKey);
}

TEST(regions_end_safely_while_readers_work) {
  Fixture f;
  std::atomic<uint32_t> key{0};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> good{0}, wrong{0};
  const auto reader = [&] {
    KeyTable::Reader mine(f.table);
    while (!stop) {
      const KeyTable::Section section(mine);
      const uint32_t now = key;
      // The region's bytes carry its key while it lives; a stale pointer would show another one.
      const Resolved resolved =
          f.table->resolve_remote(now, f.domain(), 1, f.base(), 4, kRemoteRead);
      if (!resolved) continue;
      const auto* word = reinterpret_cast<const std::atomic<uint32_t>*>(resolved.pointer);
      (word->load() == now ? good : wrong)++;
    }
  };
  std::thread one(reader), two(reader);
  auto* word = reinterpret_cast<std::atomic<uint32_t>*>(f.memory.data());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  int rounds = 0;
  while ((good < 100 || rounds < 200) && std::chrono::steady_clock::now() < end) {
    auto region = f.region(kRemoteRead);
    word->store(region->rkey());
    key = region->rkey();
    std::this_thread::yield();
    region.reset();
    word->store(0);  // only after all readers left
    rounds++;
  }
  stop = true;
  one.join();
  two.join();
  CHECK_EQ(wrong.load(), uint64_t{0});
  CHECK(good >= 100 && rounds >= 200);
}

TEST(two_threads_that_end_regions_inside_sections_do_not_wait_for_each_other) {
  Fixture f;
  const auto work = [&] {
    KeyTable::Reader mine(f.table);
    for (int i = 0; i < 2000; i++) {
      const KeyTable::Section section(mine);
      f.region(kRemoteRead).reset();
    }
  };
  std::thread one(work), two(work);
  one.join();
  two.join();
  CHECK_EQ(f.table->counters().regions, uint64_t{0});
}

TEST_MAIN
