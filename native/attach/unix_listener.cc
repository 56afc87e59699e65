#include "attach/unix_listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace nvmeof::attach {

namespace {

constexpr int kBacklog = 128;

Error failed(const std::string& path, const char* what, int code) {
  return Error{code, "socket " + path + ": " + what + ": " + std::strerror(code)};
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path ||
      path.find('\0') != std::string::npos) {
    return Error{ENAMETOOLONG, "socket \"" + path + "\": a path has 1 to " +
                                   std::to_string(sizeof address.sun_path - 1) + " bytes"};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

int make_socket(int type) {
  return socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

// A file that is in the way: removed when it is a socket that nobody listens on.
Result<void> clear(const std::string& path, const sockaddr_un& address, int type) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return {};  // it went by itself
  if (!S_ISSOCK(found.st_mode)) {
    return Error{EEXIST, "socket " + path +
                             ": there is a file that is no socket; remove it "
                             "or name another path"};
  }
  const int probe = make_socket(type);
  if (probe < 0) return failed(path, "socket", errno);
  const bool connected =
      connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const int code = connected ? 0 : errno;
  close(probe);
  if (code != ECONNREFUSED) {
    return Error{EADDRINUSE,
                 "socket " + path + ": another process listens there; end it or name another path"};
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return failed(path, "unlink", errno);
  return {};
}

}  // namespace

Result<std::unique_ptr<UnixListener>> UnixListener::open(const std::string& path, int type) {
  auto address = address_of(path);
  if (!address) return address.error();
  const int fd = make_socket(type);
  if (fd < 0) return failed(path, "socket", errno);
  std::unique_ptr<UnixListener> listener(new UnixListener(path, fd));
  // Before bind(): the file is never there with other rights.
  if (fchmod(fd, 0600) != 0) return failed(path, "fchmod", errno);
  const auto* const where = reinterpret_cast<const sockaddr*>(&*address);
  int bound = bind(fd, where, sizeof *address);
  if (bound != 0 && errno == EADDRINUSE) {
    if (auto cleared = clear(path, *address, type); !cleared) return cleared.error();
    bound = bind(fd, where, sizeof *address);
  }
  if (bound != 0) return failed(path, "bind", errno);
  struct stat made {};
  if (stat(path.c_str(), &made) == 0) {
    listener->device_ = made.st_dev;
    listener->inode_ = made.st_ino;
  }
  if (listen(fd, kBacklog) != 0) return failed(path, "listen", errno);
  return listener;
}

UnixListener::~UnixListener() {
  struct stat found {};
  const bool ours = inode_ != 0 && stat(path_.c_str(), &found) == 0 && found.st_ino == inode_ &&
                    found.st_dev == device_;
  if (ours) unlink(path_.c_str());
  close(fd_);
}

int UnixListener::accept() const {
  for (;;) {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0 || (errno != EINTR && errno != ECONNABORTED)) return fd;
  }
}

}  // namespace nvmeof::attach
