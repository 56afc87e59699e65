#include "reactor/sleeper.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace nvmeof::reactor {

Sleeper::~Sleeper() {
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

Result<void> Sleeper::open() {
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_fd_ < 0 || wake_fd_ < 0) {
    const int code = errno;
    return Error{code, std::string("A reactor cannot open its wake-up descriptors: ") +
                           std::strerror(code) + "; raise the limit of open files (ulimit -n)."};
  }
  if (!add_fd(wake_fd_)) return Error{errno, "A reactor cannot watch its own eventfd."};
  return {};
}

bool Sleeper::add_fd(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0;
}

void Sleeper::remove_fd(int fd) {
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
}

void Sleeper::wake() {
  const uint64_t one = 1;
  // EAGAIN would mean 2^64-2 unread wake-ups: then the reader wakes anyway.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

int Sleeper::wait(TimeNs timeout, bool forever) {
  epoll_event events[16];
  constexpr int kEvents = 16;
  int ready = -1;
  if (!no_pwait2_) {
    constexpr TimeNs kSecond = 1'000'000'000;
    timespec spec{};
    spec.tv_sec = static_cast<time_t>(timeout / kSecond);
    spec.tv_nsec = static_cast<long>(timeout % kSecond);
    ready = epoll_pwait2(epoll_fd_, events, kEvents, forever ? nullptr : &spec, nullptr);
    no_pwait2_ = ready < 0 && (errno == ENOSYS || errno == EPERM);
  }
  if (no_pwait2_) {
    const TimeNs ms = std::min<TimeNs>((timeout + 999'999) / 1'000'000, 1 << 30);
    ready = epoll_wait(epoll_fd_, events, kEvents, forever ? -1 : static_cast<int>(ms));
  }
  for (int i = 0; i < ready; i++) {
    if (events[i].data.fd != wake_fd_) continue;
    uint64_t count;
    [[maybe_unused]] const ssize_t drained = read(wake_fd_, &count, sizeof count);
  }
  return ready;
}

void Sleeper::sleep(TimeNs now, TimeNs deadline) {
  if (deadline <= now) return;
  // A deadline beyond an hour is waited for in pieces: the caller looks again and sleeps on.
  constexpr TimeNs kHour = 3'600'000'000'000;
  wait(std::min(deadline - now, kHour), deadline == kNever);
}

}  // namespace nvmeof::reactor
