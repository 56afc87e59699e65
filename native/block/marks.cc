#include "block/marks.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>

#include "block/text.h"

namespace nvmeof::block {
namespace {

// Numbers that <linux/magic.h> of older systems lacks, or never had.
constexpr uint32_t kXfs = 0x58465342, kZfs = 0x2fc12fc1, kBcachefs = 0xca451a4e;
constexpr uint32_t kLocal[] = {
    EXT4_SUPER_MAGIC,      BTRFS_SUPER_MAGIC, TMPFS_MAGIC, RAMFS_MAGIC, F2FS_SUPER_MAGIC,
    OVERLAYFS_SUPER_MAGIC, MSDOS_SUPER_MAGIC, kXfs,        kZfs,        kBcachefs};

// Byte locks go up to 2^63 - 1; no file reaches half of that.
struct flock one_byte(short type, uint64_t mark) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(kMarkEnd + mark);
  lock.l_len = 1;
  return lock;
}

Error failed(const char* path) {
  return {errno, std::string(path) + ": the file system refuses byte locks: " + errno_text(errno)};
}

Error out_of_range(uint64_t mark) {
  return {EINVAL, "mark " + std::to_string(mark) + ": must be below 2^62"};
}

}  // namespace

bool marks_reach_everybody(int fd) {
  struct stat st;
  struct statfs fs;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || fstatfs(fd, &fs) != 0) return false;
  const uint32_t type = static_cast<uint32_t>(fs.f_type);
  return std::find(std::begin(kLocal), std::end(kLocal), type) != std::end(kLocal);
}

Result<void> set_mark(int fd, uint64_t mark, bool on, const char* path) {
  if (mark >= kMarkEnd) return out_of_range(mark);
  struct flock lock = one_byte(on ? F_RDLCK : F_UNLCK, mark);
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0) return failed(path);
  return {};
}

Result<bool> marked_elsewhere(int fd, uint64_t mark, const char* path) {
  if (mark >= kMarkEnd) return out_of_range(mark);
  struct flock lock = one_byte(F_WRLCK, mark);
  if (fcntl(fd, F_OFD_GETLK, &lock) != 0) return failed(path);
  return lock.l_type != F_UNLCK;
}

}  // namespace nvmeof::block
