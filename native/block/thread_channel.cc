#include "block/thread_channel.h"

#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "block/text.h"

namespace nvmeof::block {
namespace {

constexpr unsigned kThreads = 8;

int64_t result_of(ssize_t value) {
  return value < 0 ? -errno : value;
}

int64_t perform(Request* request, const FileHandle& file) {
  const Progress& progress = progress_of(request);
  const off_t offset = static_cast<off_t>(request->offset + progress.done_bytes);
  switch (progress.step) {
    case Step::Transfer: {
      const iovec piece = remaining_piece(*request, progress.done_bytes);
      if (request->operation == Operation::Read)
        return result_of(preadv2(file.fd, &piece, 1, offset, 0));
      return result_of(pwritev2(file.fd, &piece, 1, offset, request->fua ? RWF_DSYNC : 0));
    }
    case Step::ZeroRange:
    case Step::PunchHole:
      return result_of(fallocate(file.fd,
                                 progress.step == Step::ZeroRange ? kZeroRangeMode : kPunchHoleMode,
                                 offset, static_cast<off_t>(request->length)));
    case Step::ZeroWrite:
      return result_of(pwrite(file.fd, zero_page(),
                              std::min(request->length - progress.done_bytes, kZeroBytes), offset));
    case Step::Sync:
      return result_of(fdatasync(file.fd));
  }
  return -EINVAL;
}

// All its steps, one after another. Returns its error.
int carry_out(Request* request, FileHandle* file) {
  int error = 0;
  int64_t result;
  do {
    reactor::TimeNs now = 0;
    if (lease_over(*request, &now)) return kLeaseOver;
    result = perform(request, *file);
  } while (result == -EINTR || next_step(request, file, result, &error));
  return error;
}

}  // namespace

// Shared by all channels; started with the first, lives as long as the process uses it.
class ThreadPool {
 public:
  static ThreadPool& instance() {
    static ThreadPool pool;
    return pool;
  }
  void add(ThreadChannel* channel, Request* request) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({channel, request});
    }
    ready_.notify_one();
  }
  // Takes back what no thread has begun for this channel.
  std::vector<Request*> take_back(ThreadChannel* channel) {
    std::vector<Request*> taken;
    const std::lock_guard lock(mutex_);
    std::erase_if(queue_, [&](const Item& item) {
      if (item.channel != channel) return false;
      taken.push_back(item.request);
      return true;
    });
    return taken;
  }

 private:
  struct Item {
    ThreadChannel* channel;
    Request* request;
  };
  ThreadPool() {
    for (unsigned i = 0; i < kThreads; i++) threads_.emplace_back([this] { run(); });
  }
  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void run() {
    for (;;) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        item = queue_.front();
        queue_.pop_front();
      }
      item.channel->finished(item.request, carry_out(item.request, item.channel->file_));
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Item> queue_;
  std::vector<std::thread> threads_;
  bool stopping_ = false;
};

Result<std::unique_ptr<Channel>> ThreadChannel::open(reactor::Reactor* reactor, FileHandle* file) {
  const int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) return Error{errno, "eventfd: " + errno_text(errno)};
  if (reactor) reactor->add_fd(event);
  return std::unique_ptr<Channel>(new ThreadChannel(reactor, file, event));
}

ThreadChannel::~ThreadChannel() {
  // The reactor may have taken the last result while the thread that left it still rings the bell.
  while (finishing_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
  if (reactor_) reactor_->remove_fd(event_);
  close(event_);
}

void ThreadChannel::submit(Request* request) {
  progress_of(request) = {0, nullptr, first_step(*request, *file_), false};
  if (request->length == 0 && request->operation != Operation::Flush) {
    request->done(request, 0);
    return;
  }
  if (needs_bounce(*request, *file_) && !take_bounce(request)) {
    request->done(request, ENOMEM);
    return;
  }
  in_flight_++;
  ThreadPool::instance().add(this, request);
}

void ThreadChannel::finished(Request* request, int error) {
  end_bounce(request, error == 0);
  request->scratch[0] = static_cast<uint64_t>(error);  // the progress is over; poll() reads it here
  finishing_.fetch_add(1, std::memory_order_relaxed);
  request->next = done_.load(std::memory_order_relaxed);
  while (!done_.compare_exchange_weak(request->next, request, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event_, &one, sizeof one);
  finishing_.fetch_sub(1, std::memory_order_release);  // the last touch of this channel
}

int ThreadChannel::poll(reactor::TimeNs) {
  if (in_flight_ == 0) return 0;
  Request* request = done_.exchange(nullptr, std::memory_order_acquire);
  if (!request) return 0;
  uint64_t count;
  [[maybe_unused]] const ssize_t drained = read(event_, &count, sizeof count);
  Request* in_order = nullptr;
  while (request) {
    Request* next = request->next;
    request->next = in_order;
    in_order = request;
    request = next;
  }
  int work = 0;
  while (in_order) {
    Request* finished_request = in_order;
    in_order = in_order->next;
    in_flight_--;
    work++;
    finished_request->done(finished_request, static_cast<int>(finished_request->scratch[0]));
  }
  return work;
}

bool ThreadChannel::arm() {
  return done_.load(std::memory_order_acquire) == nullptr;
}

void ThreadChannel::cancel_all() {
  for (Request* request : ThreadPool::instance().take_back(this)) {
    in_flight_--;
    end_bounce(request, false);
    request->done(request, ECANCELED);
  }
}

}  // namespace nvmeof::block
