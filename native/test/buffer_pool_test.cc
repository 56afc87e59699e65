// The buddy allocator of data buffers: sizes, alignment, exhaustion, joining, and a random run
// against a naive map of who owns which byte.
#include "nvmf/buffer_pool.h"

#include <map>
#include <random>

#include "test.h"

using nvmeof::nvmf::BufferPool;

namespace {

// Only addresses are handed out, the memory is never touched.
uint8_t* const kBase = reinterpret_cast<uint8_t*>(uint64_t{1} << 32);

}  // namespace

TEST(a_buffer_is_aligned_to_its_rounded_size) {
  BufferPool pool(kBase, 1u << 20, 256 * 1024);
  for (const size_t bytes : {1u, 4096u, 4097u, 12288u, 131072u, 131073u, 262144u}) {
    uint8_t* buffer = pool.allocate(bytes);
    REQUIRE(buffer);
    size_t rounded = 4096;
    while (rounded < bytes) rounded *= 2;
    CHECK_EQ(static_cast<size_t>(buffer - kBase) % rounded, 0u);
    CHECK_EQ(pool.used(), rounded);
    pool.release(buffer);
    CHECK_EQ(pool.used(), 0u);
  }
}

TEST(an_empty_pool_gives_nothing_and_recovers) {
  BufferPool pool(kBase, 512 * 1024, 256 * 1024);
  uint8_t* first = pool.allocate(256 * 1024);
  uint8_t* second = pool.allocate(200 * 1024);
  REQUIRE(first && second);
  CHECK(pool.allocate(1) == nullptr);
  pool.release(first);
  CHECK(pool.allocate(4096) != nullptr);
  CHECK(pool.allocate(256 * 1024) == nullptr);  // the half is broken into
  CHECK_EQ(pool.live(), 2u);
}

TEST(freed_neighbours_join_again) {
  BufferPool pool(kBase, 256 * 1024, 256 * 1024);
  std::vector<uint8_t*> pages;
  while (uint8_t* page = pool.allocate(4096)) pages.push_back(page);
  CHECK_EQ(pages.size(), 64u);
  for (size_t i = 0; i < pages.size(); i += 2) pool.release(pages[i]);
  CHECK(pool.allocate(8192) == nullptr);
  for (size_t i = 1; i < pages.size(); i += 2) pool.release(pages[i]);
  CHECK(pool.allocate(256 * 1024) == kBase);
}

TEST(random_use_never_overlaps) {
  BufferPool pool(kBase, 4u << 20, 1u << 20);
  std::mt19937 random(7);
  std::map<uint8_t*, size_t> owned;
  for (int round = 0; round < 20000; round++) {
    if (random() % 2 || owned.empty()) {
      const size_t bytes = 1 + random() % (random() % 8 ? 16384 : 1u << 20);
      uint8_t* buffer = pool.allocate(bytes);
      if (!buffer) continue;
      const auto after = owned.upper_bound(buffer);
      if (after != owned.end()) CHECK(buffer + bytes <= after->first);
      if (after != owned.begin()) {
        const auto before = std::prev(after);
        CHECK(before->first + before->second <= buffer);
      }
      CHECK(buffer >= kBase && buffer + bytes <= kBase + (4u << 20));
      owned[buffer] = bytes;
    } else {
      auto victim = owned.begin();
      std::advance(victim, random() % owned.size());
      pool.release(victim->first);
      owned.erase(victim);
    }
    CHECK_EQ(pool.live(), owned.size());
  }
  for (const auto& [buffer, bytes] : owned) pool.release(buffer);
  for (int i = 0; i < 4; i++) CHECK(pool.allocate(1u << 20) != nullptr);
}

TEST_MAIN
