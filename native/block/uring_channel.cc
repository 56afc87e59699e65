#include "block/uring_channel.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "block/text.h"

namespace nvmeof::block {
namespace {

constexpr unsigned kEntries = 256;    // submissions per call
constexpr unsigned kInFlight = 2048;  // completion queue; more requests wait
constexpr unsigned kReapBatch = 64;

// The newest kernels' cheap way first; older ones refuse flags they do not know.
int init_ring(io_uring* ring) {
  constexpr unsigned kDeferred =
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  constexpr unsigned kCooperative = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  for (const unsigned flags : {kDeferred, kCooperative, 0u}) {
    io_uring_params parameters{};
    parameters.flags = IORING_SETUP_CQSIZE | flags;
    parameters.cq_entries = kInFlight;
    const int result = io_uring_queue_init_params(kEntries, ring, &parameters);
    if (result != -EINVAL) return result;
  }
  return -EINVAL;
}

bool probe() {
  const char* wish = getenv("NVMEOF_IO_URING");
  if (wish && strcmp(wish, "0") == 0) return false;
  io_uring ring;
  if (init_ring(&ring) != 0) return false;
  io_uring_queue_exit(&ring);
  return true;
}

}  // namespace

bool UringChannel::allowed() {
  static const bool answer = probe();
  return answer;
}

Result<std::unique_ptr<Channel>> UringChannel::open(reactor::Reactor* reactor, FileHandle* file,
                                                    const FixedBuffer* buffers,
                                                    uint32_t buffer_count) {
  std::unique_ptr<UringChannel> channel(new UringChannel(reactor, file));
  if (auto ready = channel->set_up(buffers, buffer_count); !ready) return ready.error();
  return std::unique_ptr<Channel>(std::move(channel));
}

Result<void> UringChannel::set_up(const FixedBuffer* buffers, uint32_t buffer_count) {
  const int result = init_ring(&ring_);
  if (result != 0)
    return Error{-result, "io_uring: cannot set up a ring: " + errno_text(-result) +
                              (result == -ENOMEM ? "; raise RLIMIT_MEMLOCK (ulimit -l)" : "")};
  ring_open_ = true;
  fixed_file_ = io_uring_register_files(&ring_, &file_->fd, 1) == 0;
  // Fixed buffers count against RLIMIT_MEMLOCK; without them the kernel pins pages per request.
  std::vector<iovec> vectors(buffer_count);
  for (uint32_t i = 0; i < buffer_count; i++) vectors[i] = {buffers[i].base, buffers[i].length};
  buffers_refused_ =
      buffer_count > 0 && io_uring_register_buffers(&ring_, vectors.data(), buffer_count) != 0;
  if (!buffers_refused_) buffers_.assign(buffers, buffers + buffer_count);
  if (!reactor_) return {};
  event_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event_fd_ < 0) return Error{errno, "io_uring: no eventfd: " + errno_text(errno)};
  if (const int refused = io_uring_register_eventfd(&ring_, event_fd_); refused != 0)
    return Error{-refused, "io_uring: cannot register an eventfd: " + errno_text(-refused)};
  ask_for_event(false);
  reactor_->add_fd(event_fd_);
  return {};
}

void UringChannel::ask_for_event(bool wanted) {
  event_wanted_ = wanted;
  // Where the kernel cannot be told (before 5.8), it signals always.
  io_uring_cq_eventfd_toggle(&ring_, wanted);
}

UringChannel::~UringChannel() {
  if (!ring_open_) return;
  if (event_fd_ >= 0) {
    reactor_->remove_fd(event_fd_);
    close(event_fd_);
  }
  if (fixed_file_) io_uring_unregister_files(&ring_);  // now: the ring itself goes later
  io_uring_queue_exit(&ring_);
}

void UringChannel::submit(Request* request) {
  Progress& progress = progress_of(request);
  progress = {0, nullptr, first_step(*request, *file_), false};
  if (request->length == 0 && request->operation != Operation::Flush) {
    request->done(request, 0);
    return;
  }
  if (needs_bounce(*request, *file_) && !take_bounce(request)) {
    request->done(request, ENOMEM);
    return;
  }
  request->next = nullptr;
  (waiting_tail_ ? waiting_tail_->next : waiting_head_) = request;
  waiting_tail_ = request;
  waiting_count_++;
}

int UringChannel::fixed_buffer_of(const iovec& piece) const {
  const uint8_t* base = static_cast<const uint8_t*>(piece.iov_base);
  for (size_t i = 0; i < buffers_.size(); i++) {
    const uint8_t* start = static_cast<const uint8_t*>(buffers_[i].base);
    if (base >= start && piece.iov_len <= buffers_[i].length &&
        static_cast<size_t>(base - start) <= buffers_[i].length - piece.iov_len)
      return static_cast<int>(i);
  }
  return -1;
}

void UringChannel::prepare_transfer(io_uring_sqe* sqe, Request* request) {
  const Progress& progress = progress_of(request);
  const bool write = request->operation == Operation::Write;
  const uint64_t offset = request->offset + progress.done_bytes;
  const int flags = write && request->fua ? RWF_DSYNC : 0;
  if (progress.done_bytes == 0 && !progress.bounce && request->iov_count > 1) {
    if (write)
      io_uring_prep_writev2(sqe, file_->fd, request->iov, request->iov_count, offset, flags);
    else
      io_uring_prep_readv2(sqe, file_->fd, request->iov, request->iov_count, offset, flags);
    return;
  }
  const iovec piece = remaining_piece(*request, progress.done_bytes);
  const unsigned length = static_cast<unsigned>(piece.iov_len);
  const int fixed = fixed_buffer_of(piece);
  if (write && fixed >= 0)
    io_uring_prep_write_fixed(sqe, file_->fd, piece.iov_base, length, offset, fixed);
  else if (write)
    io_uring_prep_write(sqe, file_->fd, piece.iov_base, length, offset);
  else if (fixed >= 0)
    io_uring_prep_read_fixed(sqe, file_->fd, piece.iov_base, length, offset, fixed);
  else
    io_uring_prep_read(sqe, file_->fd, piece.iov_base, length, offset);
  sqe->rw_flags = flags;
}

void UringChannel::prepare(io_uring_sqe* sqe, Request* request) {
  const Progress& progress = progress_of(request);
  switch (progress.step) {
    case Step::Transfer:
      prepare_transfer(sqe, request);
      break;
    case Step::ZeroRange:
    case Step::PunchHole: {
      const int mode = progress.step == Step::ZeroRange ? kZeroRangeMode : kPunchHoleMode;
      io_uring_prep_fallocate(sqe, file_->fd, mode, 0, 0);
      // Set here, as liburing 2.3 takes both as signed and 2.9 as unsigned. IORING_OP_FALLOCATE has
      // its length in addr.
      sqe->off = request->offset;
      sqe->addr = request->length;
      break;
    }
    case Step::ZeroWrite: {
      const uint64_t left = request->length - progress.done_bytes;
      io_uring_prep_write(sqe, file_->fd, zero_page(),
                          static_cast<unsigned>(std::min(left, kZeroBytes)),
                          request->offset + progress.done_bytes);
      break;
    }
    case Step::Sync:
      io_uring_prep_fsync(sqe, file_->fd, IORING_FSYNC_DATASYNC);
      break;
  }
  if (fixed_file_) {
    sqe->fd = 0;
    sqe->flags |= IOSQE_FIXED_FILE;
  }
  io_uring_sqe_set_data(sqe, request);
}

void UringChannel::fill() {
  while (waiting_head_ && in_flight_ < kInFlight) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (!sqe) return;
    Request* request = waiting_head_;
    waiting_head_ = request->next;
    if (!waiting_head_) waiting_tail_ = nullptr;
    waiting_count_--;
    prepare(sqe, request);
    in_flight_++;
    unsubmitted_++;
  }
}

// Right before the kernel takes the entries, those of this round and what it left of an earlier
// one: a request whose lease is over becomes one that does nothing.
void UringChannel::hold_back() {
  reactor::TimeNs now = 0;
  const unsigned end = ring_.sq.sqe_tail, mask = *ring_.sq.kring_mask;
  for (unsigned i = end - io_uring_sq_ready(&ring_); i != end; i++) {
    io_uring_sqe* sqe = &ring_.sq.sqes[i & mask];
    Request* request = reinterpret_cast<Request*>(sqe->user_data);
    if (!request || !lease_over(*request, &now)) continue;
    std::memset(sqe, 0, sizeof *sqe);  // flags of a write mean other things to a no-op
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data(sqe, request);
    progress_of(request).held_back = true;
  }
}

void UringChannel::finish(Request* request, int error) {
  end_bounce(request, error == 0);
  request->done(request, error);  // may submit again
}

int UringChannel::reap() {
  io_uring_cqe* entries[kReapBatch];
  struct {
    Request* request;
    int result;
  } batch[kReapBatch];
  const unsigned count = io_uring_peek_batch_cqe(&ring_, entries, kReapBatch);
  unsigned requests = 0;
  for (unsigned i = 0; i < count; i++) {
    Request* request = static_cast<Request*>(io_uring_cqe_get_data(entries[i]));
    if (request)
      batch[requests++] = {request, entries[i]->res};
    else
      cancels_--;
  }
  io_uring_cq_advance(&ring_, count);
  in_flight_ -= requests;
  for (unsigned i = 0; i < requests; i++) {
    Request* request = batch[i].request;
    if (progress_of(request).held_back) {
      finish(request, kLeaseOver);
      continue;
    }
    // The kernel asks for the same step again.
    const bool again = batch[i].result == -EAGAIN || batch[i].result == -EINTR;
    int error = 0;
    if (!again && !next_step(request, file_, batch[i].result, &error)) {
      finish(request, error);
      continue;
    }
    request->next = waiting_head_;
    waiting_head_ = request;
    if (!waiting_tail_) waiting_tail_ = request;
    waiting_count_++;
  }
  return static_cast<int>(count);
}

void UringChannel::count_call(int submitted) {
  if (reactor_ == nullptr) return;
  reactor::Counters& counters = reactor_->own_counters();
  reactor::add_relaxed(counters.io_uring_calls, 1);
  if (submitted > 0)
    reactor::add_relaxed(counters.io_uring_submissions, static_cast<uint64_t>(submitted));
}

int UringChannel::poll(reactor::TimeNs) {
  if (in_flight_ + waiting_count_ + cancels_ == 0) return 0;
  if (event_wanted_) ask_for_event(false);
  int work = 0;
  for (;;) {
    fill();
    if (unsubmitted_ > 0) {
      hold_back();
      const int submitted = io_uring_submit_and_get_events(&ring_);
      if (submitted > 0) {
        unsubmitted_ -= std::min(unsubmitted_, static_cast<uint32_t>(submitted));
        work += submitted;
      }
      count_call(submitted);
    }
    const int reaped = reap();
    work += reaped;
    // Page-cached reads finish within the call; take what they started in turn, but let other
    // pollers run too.
    if (reaped < static_cast<int>(kReapBatch)) return work;
  }
}

bool UringChannel::arm() {
  if (waiting_count_ > 0 || unsubmitted_ > 0) return false;
  if (event_possible_) {
    // Here, not in poll(): an event may come after its completion was taken, however late.
    uint64_t count;
    [[maybe_unused]] const ssize_t taken = read(event_fd_, &count, sizeof count);
  }
  if (in_flight_ + cancels_ == 0) return true;
  event_possible_ = true;
  ask_for_event(true);
  // The kernel first says that there is work, then looks whether an event is wanted. (Not a fence
  // of <atomic>: TSan refuses those.)
  __sync_synchronize();
  return io_uring_cq_ready(&ring_) == 0 &&
         (IO_URING_READ_ONCE(*ring_.sq.kflags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) == 0;
}

void UringChannel::cancel_all() {
  while (waiting_head_) {
    Request* request = waiting_head_;
    waiting_head_ = request->next;
    waiting_count_--;
    if (!waiting_head_) waiting_tail_ = nullptr;
    finish(request, ECANCELED);
  }
  io_uring_sqe* sqe = in_flight_ > 0 ? io_uring_get_sqe(&ring_) : nullptr;
  if (!sqe) return;
  io_uring_prep_cancel(sqe, nullptr, IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY);
  io_uring_sqe_set_data(sqe, nullptr);
  cancels_++;
  unsubmitted_++;
}

}  // namespace nvmeof::block
