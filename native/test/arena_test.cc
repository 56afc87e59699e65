// Memory for registration: zeroed, aligned, in huge pages where there are some. Pages set aside are
// taken by the scenario "huge pages set aside hold the buffers"; here there may be none.
#include "rdma/arena.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "test.h"

using nvmeof::rdma::Arena;

namespace {
constexpr size_t kHugePage = 2u << 20;

bool zeroed(const Arena& arena) {
  return std::all_of(arena.base(), arena.base() + arena.bytes(),
                     [](uint8_t byte) { return byte == 0; });
}
}  // namespace

TEST(every_size_is_there_zeroed_and_aligned) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{4097}, kHugePage - 1, kHugePage,
                             kHugePage + 1, 5 * kHugePage / 2, 8 * kHugePage}) {
    auto arena = Arena::map(bytes);
    REQUIRE(arena);
    CHECK_EQ((*arena)->bytes(), bytes);
    CHECK(zeroed(**arena));
    const size_t alignment = bytes >= kHugePage ? kHugePage : 4096;
    CHECK_EQ(reinterpret_cast<uintptr_t>((*arena)->base()) % alignment, 0u);
    std::memset((*arena)->base(), 0xa5, bytes);
    CHECK_EQ((*arena)->base()[bytes - 1], 0xa5);
  }
}

TEST(more_than_there_can_be_is_refused) {
  auto arena = Arena::map(size_t{1} << 60);
  REQUIRE(!arena);
  CHECK_EQ(arena.error().code, ENOMEM);
  CHECK(arena.error().message.find("no memory for a buffer of 1152921504606846976 bytes") !=
        std::string::npos);
}

TEST_MAIN
