// See arena.h. Huge pages that were set aside are tried first, transparent ones are what is left.
#include "rdma/arena.h"

#include <dirent.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

namespace nvmeof::rdma {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2u << 20;
// 2 MiB each, whatever the machine's default size is (mmap(2): log2 of it at MAP_HUGE_SHIFT).
constexpr int kHugeTlb = MAP_HUGETLB | 21 << 26;
// Pages set aside are few: no more than an eighth of an arena in them may be beyond its end.
constexpr size_t kWasteShift = 3;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14

size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Kernels without NUMA refuse, and need not be asked.
void prefer_node(void* mapped, size_t bytes, int node) {
  constexpr unsigned kNodesMax = 1024, kBits = 8 * sizeof(unsigned long);
  if (node < 0 || static_cast<unsigned>(node) >= kNodesMax) return;
  unsigned long mask[kNodesMax / kBits] = {};
  mask[static_cast<unsigned>(node) / kBits] = 1ul << static_cast<unsigned>(node) % kBits;
  (void)syscall(SYS_mbind, mapped, bytes, MPOL_PREFERRED, mask, kNodesMax, 0);
}

// Null where there are not enough of them. Populated here and now: a limit of the cgroup on huge
// pages is felt at the first touch, and would end the process then.
void* map_set_aside(size_t bytes, int node) {
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | kHugeTlb, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  prefer_node(mapped, bytes, node);
  if (madvise(mapped, bytes, kPopulateWrite) == 0) return mapped;
  munmap(mapped, bytes);
  return nullptr;
}

}  // namespace

int node_of_core(int core) {
  if (core < 0) return -1;
  DIR* const folder = opendir(("/sys/devices/system/cpu/cpu" + std::to_string(core)).c_str());
  if (folder == nullptr) return -1;
  int node = -1;
  while (const dirent* const entry = readdir(folder)) {
    if (std::sscanf(entry->d_name, "node%d", &node) == 1) break;
  }
  closedir(folder);
  return node;
}

Result<std::unique_ptr<Arena>> Arena::map(size_t bytes, int core) {
  const int node = node_of_core(core);
  const size_t in_huge_pages = round_up(bytes, kHugePage);
  if (in_huge_pages - bytes <= bytes >> kWasteShift) {
    if (void* const mapped = map_set_aside(in_huge_pages, node); mapped != nullptr)
      return std::unique_ptr<Arena>(
          new Arena(static_cast<uint8_t*>(mapped), bytes, mapped, in_huge_pages));
  }
  const bool large = bytes >= kHugePage;
  const size_t length = round_up(bytes, kPage) + (large ? kHugePage : 0);
  void* const mapped =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    return Error{errno, "no memory for a buffer of " + std::to_string(bytes) + " bytes"};
  prefer_node(mapped, length, node);
  uint8_t* base = static_cast<uint8_t*>(mapped);
  if (large) {
    base += -reinterpret_cast<uintptr_t>(base) & (kHugePage - 1);
    madvise(base, round_up(bytes, kPage), MADV_HUGEPAGE);
  }
  return std::unique_ptr<Arena>(new Arena(base, bytes, mapped, length));
}

Arena::~Arena() {
  munmap(mapped_, mapped_bytes_);
}

}  // namespace nvmeof::rdma
