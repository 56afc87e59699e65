// File I/O where io_uring is not allowed: a few threads per process do the blocking calls, and hand
// results back to the reactor through a list and an eventfd.
#pragma once
#include "block/file_request.h"

namespace nvmeof::block {

class ThreadChannel final : public Channel {
 public:
  static Result<std::unique_ptr<Channel>> open(reactor::Reactor* reactor, FileHandle* file);
  ~ThreadChannel() override;  // nothing may be in flight

  int poll(reactor::TimeNs now) override;
  bool arm() override;
  void submit(Request* request) override;
  uint32_t in_flight() const override { return in_flight_; }
  void cancel_all() override;
  bool synchronous() const override { return false; }

 private:
  friend class ThreadPool;
  ThreadChannel(reactor::Reactor* reactor, FileHandle* file, int event)
      : reactor_(reactor), file_(file), event_(event) {}
  void finished(Request* request, int error);  // on a pool thread

  reactor::Reactor* reactor_;
  FileHandle* file_;
  int event_;
  uint32_t in_flight_ = 0;
  std::atomic<Request*> done_{nullptr};  // last finished first
  std::atomic<uint32_t> finishing_{0};   // pool threads inside finished()
};

}  // namespace nvmeof::block
