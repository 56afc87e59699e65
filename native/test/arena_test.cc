// Memory for registration: zeroed, aligned, in huge pages where there are some. Pages set aside are
// taken by the scenario "huge pages set aside hold the buffers"; here there may be none.
#include "rdma/arena.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

// On machines with one node, too, the kernel tells what it was asked for.
TEST(memory_prefers_the_node_of_its_core) {
  CHECK_EQ(nvmeof::rdma::node_of_core(-1), -1);
  CHECK_EQ(nvmeof::rdma::node_of_core(1 << 20), -1);
  const int core = sched_getcpu();
  const int node = nvmeof::rdma::node_of_core(core);
  for (const size_t bytes : {size_t{4096}, 4 * kHugePage}) {
    auto arena = Arena::map(bytes, core);
    REQUIRE(arena);
    int mode = -1;
    unsigned long nodes[16] = {};
    const long asked =
        syscall(SYS_get_mempolicy, &mode, nodes, 1024, (*arena)->base(), MPOL_F_ADDR);
    if (asked != 0) {
      CHECK_EQ(errno, ENOSYS);  // a kernel without NUMA
      CHECK_EQ(node, -1);
      continue;
    }
    REQUIRE(node >= 0 && node < 64);
    CHECK_EQ(mode, MPOL_PREFERRED);
    CHECK_EQ(nodes[0], 1ul << node);
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
