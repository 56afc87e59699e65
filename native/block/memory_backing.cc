#include "block/memory_backing.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "block/text.h"

namespace nvmeof::block {
namespace {

constexpr uint64_t kUnit = 4096;   // what one stripe lock covers at a time; a block is never larger
constexpr size_t kStripes = 1024;  // power of two
constexpr uint64_t kArea = 2u << 20;  // a huge page
constexpr uint64_t kPopulateMax = 1ull << 30;
constexpr uint64_t kGrowth = 1ull << 36;  // address space kept free behind the data for resize()

// A single block is atomic (NVM Command Set 1.0, AWUN/AWUPF 0), also between reactors that copy it
// at the same time. This is the one lock on an I/O path: one byte, uncontended unless two hosts
// meet in the same block, held for one copy of at most 4 KiB.
class Stripes {
 public:
  class Guard {
   public:
    explicit Guard(std::atomic<uint8_t>& lock) : lock_(lock) {
      for (unsigned spins = 0; lock_.exchange(1, std::memory_order_acquire) != 0;)
        if (++spins % 128 == 0) sched_yield();
    }
    ~Guard() { lock_.store(0, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::atomic<uint8_t>& lock_;
  };
  std::atomic<uint8_t>& of(uint64_t offset) { return locks_[(offset / kUnit) & (kStripes - 1)]; }

 private:
  std::array<std::atomic<uint8_t>, kStripes> locks_{};
};

// Calls step(offset, length) for each piece of [offset, offset + length) that lies within one unit.
template <typename Step>
void each_unit(uint64_t offset, uint64_t length, Step step) {
  while (length > 0) {
    const uint64_t piece = std::min(length, kUnit - offset % kUnit);
    step(offset, piece);
    offset += piece;
    length -= piece;
  }
}

class MemoryBacking final : public Backing {
 public:
  MemoryBacking(void* mapped, uint64_t mapped_bytes, uint8_t* base, const Options& options)
      : mapped_(mapped),
        mapped_bytes_(mapped_bytes),
        base_(base),
        reserved_(mapped_bytes - kArea),
        options_(options),
        size_(options.size) {}
  ~MemoryBacking() override { munmap(mapped_, mapped_bytes_); }

  FixedBuffer resident() const override { return {base_, reserved_}; }
  uint64_t shrinks() const override { return shrinks_.load(std::memory_order_acquire); }
  Kind kind() const override { return Kind::Memory; }
  uint64_t size() const override { return size_.load(std::memory_order_acquire); }
  uint32_t block_size() const override { return options_.block_size; }
  bool read_only() const override { return options_.read_only; }
  bool volatile_write_cache() const override { return false; }
  bool can_deallocate() const override { return true; }
  std::string describe() const override { return "memory, " + size_text(size()); }

  Result<void> resize(uint64_t size) override {
    if (size == 0 || size % options_.block_size != 0)
      return Error{EINVAL, "memory: size " + std::to_string(size) +
                               " is not a positive multiple of the block size " +
                               std::to_string(options_.block_size)};
    if (size > reserved_)
      return Error{ENOMEM, "memory: cannot grow beyond " + size_text(reserved_) +
                               "; export it anew with the larger size"};
    const uint64_t old = size_.load(std::memory_order_relaxed);
    // What was cut off must not come back by growing again, nor what was on its way to it then.
    if (size > old) madvise(base_ + old, size - old, MADV_DONTNEED);
    if (size < old) shrinks_.fetch_add(1, std::memory_order_acq_rel);
    size_.store(size, std::memory_order_release);
    if (size < old) madvise(base_ + size, old - size, MADV_DONTNEED);
    return {};
  }

  Result<std::unique_ptr<Channel>> open_channel(reactor::Reactor* reactor,
                                                const FixedBuffer* buffers,
                                                uint32_t buffer_count) override;

  int execute(const Request& request) {
    const uint64_t limit = size();
    if (request.operation != Operation::Flush &&
        !(request.length <= limit && request.offset <= limit - request.length))
      return ERANGE;
    switch (request.operation) {
      case Operation::Read:
        copy(request, false);
        return 0;
      case Operation::Write:
        copy(request, true);
        return 0;
      case Operation::Flush:
        return 0;
      case Operation::WriteZeroes:
      case Operation::Deallocate:
        zero(request.offset, request.length);
        return 0;
    }
    return EINVAL;
  }

  void prefetch(uint64_t offset, uint64_t length) const {
    const uint64_t limit = size();
    if (!(length <= limit && offset <= limit - length)) return;
    for (uint64_t i = 0; i < std::min<uint64_t>(length, 512); i += 64)
      __builtin_prefetch(base_ + offset + i, 0, 2);
  }

 private:
  void copy(const Request& request, bool write) {
    uint64_t offset = request.offset;
    for (uint32_t i = 0; i < request.iov_count; i++) {
      uint8_t* memory = static_cast<uint8_t*>(request.iov[i].iov_base);
      each_unit(offset, request.iov[i].iov_len, [&](uint64_t at, uint64_t length) {
        const Stripes::Guard guard(stripes_.of(at));
        if (write)
          std::memcpy(base_ + at, memory, length);
        else
          std::memcpy(memory, base_ + at, length);
        memory += length;
      });
      offset += request.iov[i].iov_len;
    }
  }

  void zero(uint64_t offset, uint64_t length) {
    // Whole huge pages go back to the kernel; the rest is cleared in place.
    const uint64_t first = (offset + kArea - 1) / kArea * kArea,
                   last = (offset + length) / kArea * kArea;
    if (first < last && madvise(base_ + first, last - first, MADV_DONTNEED) == 0) {
      clear(offset, first - offset);
      clear(last, offset + length - last);
    } else {
      clear(offset, length);
    }
  }
  void clear(uint64_t offset, uint64_t length) {
    each_unit(offset, length, [&](uint64_t at, uint64_t piece) {
      const Stripes::Guard guard(stripes_.of(at));
      std::memset(base_ + at, 0, piece);
    });
  }

  void* mapped_;
  uint64_t mapped_bytes_;
  uint8_t* base_;      // aligned to a huge page
  uint64_t reserved_;  // bytes from base_
  Options options_;
  std::atomic<uint64_t> size_;
  std::atomic<uint64_t> shrinks_{0};
  Stripes stripes_;
};

class MemoryChannel final : public Channel {
 public:
  explicit MemoryChannel(MemoryBacking* backing) : backing_(backing) {}
  int poll(reactor::TimeNs) override { return 0; }
  void submit(Request* request) override {
    reactor::TimeNs now = 0;
    const bool late = lease_over(*request, &now);
    request->done(request, late ? kLeaseOver : backing_->execute(*request));
  }
  void prefetch(uint64_t offset, uint64_t length) override { backing_->prefetch(offset, length); }
  uint32_t in_flight() const override { return 0; }
  void cancel_all() override {}
  bool synchronous() const override { return true; }

 private:
  MemoryBacking* backing_;
};

Result<std::unique_ptr<Channel>> MemoryBacking::open_channel(reactor::Reactor*, const FixedBuffer*,
                                                             uint32_t) {
  return std::unique_ptr<Channel>(new MemoryChannel(this));
}

class NullChannel final : public Channel {
 public:
  int poll(reactor::TimeNs) override { return 0; }
  void submit(Request* request) override {
    if (request->operation == Operation::Read)
      for (uint32_t i = 0; i < request->iov_count; i++)
        std::memset(request->iov[i].iov_base, 0, request->iov[i].iov_len);
    request->done(request, 0);
  }
  uint32_t in_flight() const override { return 0; }
  void cancel_all() override {}
  bool synchronous() const override { return true; }
};

class NullBacking final : public Backing {
 public:
  explicit NullBacking(const Options& options) : options_(options), size_(options.size) {}
  Kind kind() const override { return Kind::Null; }
  uint64_t size() const override { return size_.load(std::memory_order_acquire); }
  uint32_t block_size() const override { return options_.block_size; }
  bool read_only() const override { return options_.read_only; }
  bool volatile_write_cache() const override { return false; }
  bool can_deallocate() const override { return true; }
  std::string describe() const override { return "null, " + size_text(size()); }
  Result<void> resize(uint64_t size) override {
    if (size == 0 || size % options_.block_size != 0)
      return Error{EINVAL, "null: size " + std::to_string(size) +
                               " is not a positive multiple of the block size " +
                               std::to_string(options_.block_size)};
    size_.store(size, std::memory_order_release);
    return {};
  }
  Result<std::unique_ptr<Channel>> open_channel(reactor::Reactor*, const FixedBuffer*,
                                                uint32_t) override {
    return std::unique_ptr<Channel>(new NullChannel());
  }

 private:
  Options options_;
  std::atomic<uint64_t> size_;
};

}  // namespace

Result<std::unique_ptr<Backing>> open_memory(const Options& options) {
  if (options.size > UINT64_MAX - kGrowth - kArea)
    return Error{EINVAL, "memory: size " + std::to_string(options.size) + " is too large"};
  // Where address space is scarce (RLIMIT_AS), growing is what is given up.
  uint64_t reserved = 0;
  void* mapped = MAP_FAILED;
  for (uint64_t growth = kGrowth; mapped == MAP_FAILED; growth /= 4) {
    reserved = options.size + growth;
    mapped = mmap(nullptr, reserved + kArea, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (growth == 0) break;
  }
  if (mapped == MAP_FAILED)
    return Error{errno, "memory: cannot reserve " + size_text(options.size) +
                            " of address space: " + errno_text(errno)};
  // Huge pages only lie at multiples of their size.
  uint8_t* base = static_cast<uint8_t*>(mapped);
  base += -reinterpret_cast<uintptr_t>(base) & (kArea - 1);
  madvise(base, options.size, MADV_HUGEPAGE);
  // Pages of small namespaces are taken now, so that no host waits for a page fault; a large one
  // grows as it is used.
  if (options.size <= kPopulateMax) madvise(base, options.size, MADV_POPULATE_WRITE);
  return std::unique_ptr<Backing>(new MemoryBacking(mapped, reserved + kArea, base, options));
}

Result<std::unique_ptr<Backing>> open_null(const Options& options) {
  return std::unique_ptr<Backing>(new NullBacking(options));
}

}  // namespace nvmeof::block
