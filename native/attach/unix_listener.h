// The Unix socket that clients come to: made with mode 0600, taken over from a process that is no
// more, removed at the end if it is still ours.
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>

#include "reactor/result.h"

namespace nvmeof::attach {

class UnixListener {
 public:
  // `type`: SOCK_STREAM or SOCK_SEQPACKET. EADDRINUSE: somebody listens there. EEXIST: there is a
  // file of another kind.
  static Result<std::unique_ptr<UnixListener>> open(const std::string& path, int type);
  ~UnixListener();
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  int fd() const { return fd_; }
  // A socket that does not block; -1: nobody waits, or there is no room (errno).
  int accept() const;

 private:
  UnixListener(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const int fd_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace nvmeof::attach
