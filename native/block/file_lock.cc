#include "block/file_lock.h"

#include <dirent.h>
#include <mntent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "block/text.h"

namespace nvmeof::block {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

std::string first_line(const std::string& path) {
  const File file(fopen(path.c_str(), "re"), fclose);
  char line[PATH_MAX] = "";
  if (!file || !fgets(line, sizeof line, file.get())) return "";
  line[strcspn(line, "\n")] = 0;
  return line;
}

// The process that holds a flock on this inode, from /proc/locks; 0: not found.
long flock_holder(const struct stat& st) {
  const File file(fopen("/proc/locks", "re"), fclose);
  char line[256];
  while (file && fgets(line, sizeof line, file.get())) {
    long pid = 0;
    unsigned major_number = 0, minor_number = 0;
    unsigned long inode = 0;
    if (sscanf(line, "%*d: FLOCK %*s %*s %ld %x:%x:%lu", &pid, &major_number, &minor_number,
               &inode) == 4 &&
        inode == st.st_ino && major_number == major(st.st_dev) && minor_number == minor(st.st_dev))
      return pid;
  }
  return 0;
}

std::string mount_point_of_device(dev_t device) {
  const std::unique_ptr<FILE, int (*)(FILE*)> mounts(setmntent("/proc/self/mounts", "re"),
                                                     endmntent);
  while (mounts) {
    const mntent* entry = getmntent(mounts.get());
    if (!entry) break;
    struct stat st;
    if (entry->mnt_fsname[0] == '/' && stat(entry->mnt_fsname, &st) == 0 && S_ISBLK(st.st_mode) &&
        st.st_rdev == device)
      return entry->mnt_dir;
  }
  return "";
}

std::string loop_device_of(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (!resolved) return "";
  const std::string real(resolved);
  free(resolved);
  const std::unique_ptr<DIR, int (*)(DIR*)> blocks(opendir("/sys/block"), closedir);
  while (blocks) {
    const dirent* entry = readdir(blocks.get());
    if (!entry) break;
    if (strncmp(entry->d_name, "loop", 4) != 0) continue;
    const std::string name = entry->d_name;
    if (first_line("/sys/block/" + name + "/loop/backing_file") == real) return "/dev/" + name;
  }
  return "";
}

}  // namespace

Result<void> lock_file(int fd, const std::string& path, bool shared_lock) {
  if (flock(fd, (shared_lock ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return {};
  if (errno != EWOULDBLOCK) return Error{errno, path + ": cannot lock it: " + errno_text(errno)};
  struct stat st;
  const long pid = fstat(fd, &st) == 0 ? flock_holder(st) : 0;
  const std::string holder = pid > 0
                                 ? "process " + std::to_string(pid) + " (" +
                                       first_line("/proc/" + std::to_string(pid) + "/comm") + ")"
                                 : "another export or process";
  return Error{EBUSY,
               path + ": " + holder +
                   " holds its lock; stop that one, or mark the namespace shared on both sides"};
}

std::string user_of_file(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return "";
  if (S_ISBLK(st.st_mode)) {
    const std::string where = mount_point_of_device(st.st_rdev);
    return where.empty() ? "" : "mounted at " + where;
  }
  const std::string loop = loop_device_of(path);
  return loop.empty() ? "" : "attached to " + loop;
}

}  // namespace nvmeof::block
