// A reactor's own io_uring on one file: requests are queued by submit(), leave together at the next
// poll(), and their completions are taken in batches. An eventfd wakes a sleeping reactor: the
// ring's own descriptor does not become readable for completions that wait for the thread to take
// them (IORING_SETUP_DEFER_TASKRUN, seen with 6.12 and 6.18). It is asked for only before a sleep.
#pragma once
#include <liburing.h>

#include "block/file_request.h"

namespace nvmeof::block {

class UringChannel final : public Channel {
 public:
  // Whether this process may use io_uring at all (kernel.io_uring_disabled, seccomp;
  // NVMEOF_IO_URING=0 says no).
  static bool allowed();
  static Result<std::unique_ptr<Channel>> open(reactor::Reactor* reactor, FileHandle* file,
                                               const FixedBuffer* buffers, uint32_t buffer_count);
  ~UringChannel() override;

  int poll(reactor::TimeNs now) override;
  bool arm() override;
  void submit(Request* request) override;
  uint32_t in_flight() const override { return in_flight_ + waiting_count_; }
  void cancel_all() override;
  bool buffers_refused() const override { return buffers_refused_; }
  bool synchronous() const override { return false; }

 private:
  UringChannel(reactor::Reactor* reactor, FileHandle* file) : reactor_(reactor), file_(file) {}
  Result<void> set_up(const FixedBuffer* buffers, uint32_t buffer_count);
  void fill();  // waiting requests into free submission entries
  void prepare(io_uring_sqe* sqe, Request* request);
  void hold_back();
  void prepare_transfer(io_uring_sqe* sqe, Request* request);
  int fixed_buffer_of(const iovec& piece) const;
  void finish(Request* request, int error);
  int reap();
  void count_call(int submitted);
  void ask_for_event(bool wanted);

  reactor::Reactor* reactor_;  // null in tests, where the caller polls
  FileHandle* file_;
  io_uring ring_{};
  int event_fd_ = -1;
  bool event_wanted_ = false, event_possible_ = false;
  bool ring_open_ = false, fixed_file_ = false, buffers_refused_ = false;
  std::vector<FixedBuffer> buffers_;
  Request* waiting_head_ = nullptr;
  Request* waiting_tail_ = nullptr;
  uint32_t waiting_count_ = 0, in_flight_ = 0, unsubmitted_ = 0, cancels_ = 0;
};

}  // namespace nvmeof::block
