#include "block/file_backing.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/stat.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "block/file_lock.h"
#include "block/marks.h"
#include "block/text.h"
#include "block/thread_channel.h"
#include "block/uring_channel.h"

namespace nvmeof::block {
namespace {

const char* cache_name(Cache cache) {
  switch (cache) {
    case Cache::WriteBack:
      return "write-back";
    case Cache::WriteThrough:
      return "write-through";
    case Cache::Direct:
      return "O_DIRECT";
  }
  return "?";
}

class FileBacking final : public Backing {
 public:
  FileBacking(int fd, const struct stat& st, const Options& options, uint64_t size,
              uint32_t memory_alignment)
      : options_(options), size_(size) {
    handle_.fd = fd;
    handle_.block_device = S_ISBLK(st.st_mode);
    handle_.direct = options.cache == Cache::Direct;
    handle_.memory_alignment = memory_alignment;
    marks_ = options.shared && !options.read_only && marks_reach_everybody(fd);
  }
  ~FileBacking() override {
    // A ring that just went may hold the file a little longer; the lock must not.
    flock(handle_.fd, LOCK_UN);
    close(handle_.fd);
  }

  Kind kind() const override { return handle_.block_device ? Kind::BlockDevice : Kind::File; }
  uint64_t size() const override { return size_.load(std::memory_order_acquire); }
  uint32_t block_size() const override { return options_.block_size; }
  bool read_only() const override { return options_.read_only; }
  bool volatile_write_cache() const override { return options_.cache != Cache::WriteThrough; }
  bool can_deallocate() const override {
    return !handle_.no_punch_hole.load(std::memory_order_relaxed);
  }

  bool marks() const override { return marks_; }
  Result<void> set_mark(uint64_t mark, bool on) override {
    return block::set_mark(handle_.fd, mark, on, options_.path.c_str());
  }
  Result<bool> marked_elsewhere(uint64_t mark) const override {
    return block::marked_elsewhere(handle_.fd, mark, options_.path.c_str());
  }

  std::string describe() const override {
    return (handle_.block_device ? "block device " : "file ") + options_.path + ", " +
           size_text(size()) + ", " + cache_name(options_.cache) +
           (options_.read_only ? ", read-only" : "") +
           (UringChannel::allowed() ? ", io_uring" : ", threads (io_uring is not allowed here)");
  }

  Result<void> resize(uint64_t size) override {
    if (size == 0 || size % options_.block_size != 0)
      return Error{EINVAL, options_.path + ": size " + std::to_string(size) +
                               " is not a positive multiple of the block size " +
                               std::to_string(options_.block_size)};
    uint64_t now = 0;
    if (handle_.block_device) {
      if (ioctl(handle_.fd, BLKGETSIZE64, &now) != 0)
        return Error{errno, options_.path + ": " + errno_text(errno)};
      if (size > now)
        return Error{ENOSPC, options_.path + ": the device has " + size_text(now) + ", less than " +
                                 size_text(size)};
    } else {
      struct stat st;
      if (fstat(handle_.fd, &st) != 0)
        return Error{errno, options_.path + ": " + errno_text(errno)};
      // A file that somebody has grown already only needs to be looked at again; shrinking never
      // cuts the file itself: what the namespace no longer shows stays there for the one who shrank
      // it by mistake.
      if (static_cast<uint64_t>(st.st_size) < size &&
          ftruncate(handle_.fd, static_cast<off_t>(size)) != 0)
        return Error{errno, options_.path + ": cannot grow it to " + size_text(size) + ": " +
                                errno_text(errno)};
    }
    size_.store(size, std::memory_order_release);
    return {};
  }

  Result<std::unique_ptr<Channel>> open_channel(reactor::Reactor* reactor,
                                                const FixedBuffer* buffers,
                                                uint32_t buffer_count) override {
    if (!UringChannel::allowed()) return ThreadChannel::open(reactor, &handle_);
    return UringChannel::open(reactor, &handle_, buffers, buffer_count);
  }

 private:
  Options options_;
  std::atomic<uint64_t> size_;
  FileHandle handle_;
  bool marks_ = false;
};

Error open_error(int error, const Options& options) {
  const std::string& path = options.path;
  switch (error) {
    case ENOENT:
      return {error, path + ": no such file; create it first, for example: truncate -s 1G " + path};
    case EACCES:
    case EPERM:
      return {error, path + ": no permission to open it for " +
                         (options.read_only ? "reading" : "writing") +
                         "; change its owner or mode" +
                         (options.read_only ? "" : ", or export it read-only (,ro)")};
    case EROFS:
      return {error, path + ": lies on a read-only file system; export it read-only (,ro)"};
    case EBUSY:
      return {error, path +
                         ": the device is in use (mounted, or held by another program); unmount "
                         "it, or mark the "
                         "namespace shared if you know what you do"};
    case EISDIR:
      return {error, path + ": is a directory; name a file or block device"};
    case EINVAL:
      if (options.cache == Cache::Direct)
        return {
            error,
            path +
                ": this file system does not do O_DIRECT; use cache=write-back or write-through"};
      [[fallthrough]];
    default:
      return {error, path + ": cannot open it: " + errno_text(error)};
  }
}

// The size of the namespace: what is there, or what was asked for.
Result<uint64_t> determine_size(int fd, const struct stat& st, const Options& options) {
  uint64_t there = static_cast<uint64_t>(st.st_size);
  if (S_ISBLK(st.st_mode) && ioctl(fd, BLKGETSIZE64, &there) != 0)
    return Error{errno,
                 options.path + ": cannot ask the device for its size: " + errno_text(errno)};
  const uint64_t size = options.size ? options.size : there;
  if (size == 0)
    return Error{EINVAL, options.path + ": is empty; give it a size, for example: truncate -s 1G " +
                             options.path};
  if (size > there)
    return Error{EINVAL, options.path + ": has " + size_text(there) +
                             ", less than the size asked for, " + size_text(size)};
  if (size % options.block_size != 0)
    return Error{EINVAL, options.path + ": its size, " + std::to_string(size) +
                             " bytes, is not a multiple of the block size " +
                             std::to_string(options.block_size) + "; grow it: truncate -s %" +
                             std::to_string(options.block_size) + " " + options.path};
  return size;
}

// O_DIRECT's rules for this file: buffer alignment; refuses blocks smaller than the device's own.
Result<uint32_t> direct_alignment(int fd, const Options& options) {
  if (options.cache != Cache::Direct) return 1u;
  uint32_t memory = 512, offset = 512;
#ifdef STATX_DIOALIGN
  struct statx stx;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 && (stx.stx_mask & STATX_DIOALIGN) &&
      stx.stx_dio_offset_align) {
    memory = stx.stx_dio_mem_align;
    offset = stx.stx_dio_offset_align;
  }
#endif
  if (offset > options.block_size)
    return Error{EINVAL, options.path + ": O_DIRECT needs blocks of " + std::to_string(offset) +
                             " bytes here; use bs=4096 or "
                             "another cache mode"};
  return memory;
}

Result<void> refuse_if_in_use(int fd, const Options& options) {
  if (options.shared) {
    // So that one which is not marked shared is refused beside it. Whoever was first may hold more.
    flock(fd, LOCK_SH | LOCK_NB);
    return {};
  }
  const std::string user = user_of_file(options.path);
  if (!user.empty() && !options.read_only)
    return Error{EBUSY,
                 options.path + ": is " + user +
                     "; release it there, or mark the namespace shared if you know what you do"};
  return lock_file(fd, options.path, options.read_only);
}

}  // namespace

Result<std::unique_ptr<Backing>> open_file(const Options& options) {
  struct stat st;
  if (stat(options.path.c_str(), &st) != 0) return open_error(errno, options);
  if (S_ISDIR(st.st_mode)) return open_error(EISDIR, options);
  if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
    return Error{EINVAL, options.path + ": is neither a file nor a block device"};
  int flags = O_CLOEXEC | (options.read_only ? O_RDONLY : O_RDWR);
  if (options.cache == Cache::Direct) flags |= O_DIRECT;
  if (options.cache == Cache::WriteThrough) flags |= O_DSYNC;
  // O_EXCL on a block device fails while it is mounted or somebody else holds it so.
  if (S_ISBLK(st.st_mode) && !options.shared && !options.read_only) flags |= O_EXCL;
  const int fd = open(options.path.c_str(), flags);
  if (fd < 0) return open_error(errno, options);

  const auto fail = [fd](const Error& error) -> Result<std::unique_ptr<Backing>> {
    close(fd);
    return error;
  };
  if (fstat(fd, &st) != 0) return fail(open_error(errno, options));
  if (const auto used = refuse_if_in_use(fd, options); !used) return fail(used.error());
  const auto size = determine_size(fd, st, options);
  if (!size) return fail(size.error());
  const auto alignment = direct_alignment(fd, options);
  if (!alignment) return fail(alignment.error());
  return std::unique_ptr<Backing>(
      new FileBacking(fd, st, options, size.value(), alignment.value()));
}

}  // namespace nvmeof::block
