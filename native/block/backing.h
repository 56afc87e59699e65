// Where a namespace's blocks live: a file, a block device, memory, or nothing (null).
// A Backing is opened once (control thread, may block) and shared; each reactor does I/O through
// its own Channel. Byte offsets here, not blocks: the NVMe layer has checked ranges against size()
// before it submits.
#pragma once
#include <sys/uio.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>

#include "reactor/lease.h"
#include "reactor/reactor.h"
#include "reactor/result.h"

namespace nvmeof::block {

enum class Kind : uint8_t { File, BlockDevice, Memory, Null };
enum class Cache : uint8_t {
  WriteBack,     // page cache; Flush and FUA reach the medium (fdatasync / RWF_DSYNC)
  WriteThrough,  // every write is durable when answered
  Direct,        // O_DIRECT; volatile cache of the device only, flushed by Flush and FUA
};

struct Options {
  Kind kind = Kind::File;
  std::string path;           // File, BlockDevice
  uint64_t size = 0;          // Memory, Null: bytes; File: 0 = the file's size
  uint32_t block_size = 512;  // 512 or 4096
  bool read_only = false;
  bool shared = false;  // several targets, one backing: no exclusive lock
  Cache cache = Cache::WriteBack;
  uint32_t delay_writes_ms = 0;  // a test tool: hold every write that long (delay_backing.h)
};

enum class Operation : uint8_t { Read, Write, Flush, WriteZeroes, Deallocate };
inline bool changes_data(Operation operation) {
  return operation != Operation::Read && operation != Operation::Flush;
}

// Of a request whose lease is over: nothing of it was begun since.
inline constexpr int kLeaseOver = ETIME;

struct Request;
using Done = void (*)(Request* request, int error);  // error: 0 or an errno value

// Owned by the caller until `done` runs (on the reactor's thread, maybe inside submit()).
struct Request {
  Operation operation;
  bool fua = false;
  bool may_deallocate = false;  // WriteZeroes with DEAC
  uint64_t offset = 0;          // bytes
  uint64_t length = 0;          // bytes
  const iovec* iov = nullptr;   // Read, Write; sum of lengths == length; lives until done
  uint32_t iov_count = 0;
  Done done = nullptr;
  void* context = nullptr;
  // A request that changes data begins only while this holds, also each part of it that begins
  // later; else it ends with kLeaseOver. Null: whenever.
  const reactor::Lease* lease = nullptr;
  // For the backing's own use while it holds the request.
  Request* next = nullptr;
  uint64_t scratch[4] = {};
};

// Whether it must not be begun any more. `now`: a reading of Lease::clock() that no stop of the
// process can lie behind, or 0, and then this makes one where one is needed.
inline bool lease_over(const Request& request, reactor::TimeNs* now) {
  if (request.lease == nullptr || !changes_data(request.operation)) return false;
  if (*now == 0) *now = reactor::Lease::clock();
  return request.lease->over(*now);
}

class Channel : public reactor::Poller {
 public:
  virtual void submit(Request* request) = 0;  // queued; leaves with the next poll() at Stage::Block
  // A hint that this range will be read soon (prefetch of memory; nothing for files).
  virtual void prefetch(uint64_t offset, uint64_t length) { (void)offset, (void)length; }
  virtual uint32_t in_flight() const = 0;
  // Try to end requests that hang; each still completes through `done` (ECANCELED where it could be
  // stopped).
  virtual void cancel_all() = 0;
  // Buffers were offered, but the kernel did not register them (RLIMIT_MEMLOCK is too small): it
  // works, but slower, as each request pins its pages.
  virtual bool buffers_refused() const { return false; }
  // True when read/write complete inside submit(): memory and null.
  virtual bool synchronous() const = 0;
};

// A registered range for io_uring fixed buffers (the reactor's arena); optional.
struct FixedBuffer {
  void* base;
  size_t length;
};

class Backing {
 public:
  virtual ~Backing() = default;  // all channels are gone; drops the lock
  // Where all of it lies in memory, offset 0 first, for as long as the backing lives; `base` null:
  // nowhere. Other reactors may write to it through their channels at any time.
  virtual FixedBuffer resident() const { return {nullptr, 0}; }
  // Grows whenever the end moves down: what was placed in resident memory meanwhile may be beyond
  // it, or cut off with it. Any thread.
  virtual uint64_t shrinks() const { return 0; }
  virtual Kind kind() const = 0;
  virtual uint64_t size() const = 0;  // bytes; any thread (atomic)
  virtual uint32_t block_size() const = 0;
  virtual bool read_only() const = 0;
  virtual bool volatile_write_cache() const = 0;  // does Flush mean anything
  virtual bool can_deallocate() const = 0;
  // Whether marks (marks.h) tell everybody who can write here: a shared file on a local file
  // system.
  virtual bool marks() const { return false; }
  // Below kMarkEnd; only where marks() is true.
  virtual Result<void> set_mark(uint64_t mark, bool on) {
    (void)mark, (void)on;
    return Error{ENOTSUP, describe() + ": takes no marks"};
  }
  virtual Result<bool> marked_elsewhere(uint64_t mark) const {
    (void)mark;
    return Error{ENOTSUP, describe() + ": takes no marks"};
  }
  virtual Result<void> resize(
      uint64_t size) = 0;  // Memory grows/shrinks within its reservation; File: re-stat or set
  // On the reactor's thread; the caller adds it to the reactor at Stage::Block.
  virtual Result<std::unique_ptr<Channel>> open_channel(reactor::Reactor* reactor,
                                                        const FixedBuffer* buffers,
                                                        uint32_t buffer_count) = 0;
  virtual std::string describe() const = 0;  // "file /srv/a.img, 1 GiB, write-back, io_uring"
};

// May block (open, stat, lock). Errors name the path and the remedy: a directory, missing, no
// permission, not a multiple of the block size, locked by another process (its pid where known),
// mounted device.
Result<std::unique_ptr<Backing>> open_backing(const Options& options);

}  // namespace nvmeof::block
