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
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    const int code = errno;
    return Error{code, std::string("A reactor cannot open its wake-up descriptor: ") +
                           std::strerror(code) + "; raise the limit of open files (ulimit -n)."};
  }
  polled_[kWake] = {wake_fd_, POLLIN, 0};
  polled_[kEpoll] = {-1, POLLIN, 0};  // a negative descriptor is passed over
  return {};
}

bool Sleeper::add_fd(int fd) {
  if (polled_count_ == kFirst + kPolled) return add_to_epoll(fd);
  polled_[polled_count_++] = {fd, POLLIN, 0};
  return true;
}

bool Sleeper::add_to_epoll(int fd) {
  if (epoll_fd_ < 0) {
    epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
    polled_[kEpoll].fd = epoll_fd_;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_fd_ >= 0 && epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0;
}

void Sleeper::remove_fd(int fd) {
  for (nfds_t i = kFirst; i < polled_count_; i++) {
    if (polled_[i].fd != fd) continue;
    polled_[i] = polled_[--polled_count_];
    return;
  }
  if (epoll_fd_ >= 0) epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
}

void Sleeper::wake() {
  const uint64_t one = 1;
  // EAGAIN would mean 2^64-2 unread wake-ups: then the reader wakes anyway.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

void Sleeper::sleep(TimeNs now, TimeNs deadline) {
  if (deadline <= now) return;
  // A deadline beyond an hour is waited for in pieces: the caller looks again and sleeps on.
  constexpr TimeNs kHour = 3'600'000'000'000, kSecond = 1'000'000'000;
  const TimeNs timeout = std::min(deadline - now, kHour);
  timespec spec{};
  spec.tv_sec = static_cast<time_t>(timeout / kSecond);
  spec.tv_nsec = static_cast<long>(timeout % kSecond);
  const int ready = ppoll(polled_, polled_count_, deadline == kNever ? nullptr : &spec, nullptr);
  if (ready <= 0 || (polled_[kWake].revents & POLLIN) == 0) return;
  uint64_t count;
  [[maybe_unused]] const ssize_t drained = read(wake_fd_, &count, sizeof count);
}

}  // namespace nvmeof::reactor
