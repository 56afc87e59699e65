// The way back of a connection: replies in the order in which requests ended, many by one call.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "attach/nbd/connection.h"
#include "attach/nbd/connection_group.h"

namespace nvmeof::attach::nbd {

namespace {
constexpr size_t kPartsMax = 256;  // of one call
}  // namespace

void Connection::finish(Slot* slot, uint32_t failure) {
  if (state_ == State::Dropped) {
    release(slot);
    group_->mark(this);
    return;
  }
  const Request& request = slot->request;
  slot->head = make_reply(request, failure, handshake_.structured_replies());
  slot->payload = request.type == command::kRead && failure == 0 ? request.length : 0;
  slot->next = nullptr;
  (replies_head_ != nullptr ? replies_tail_->next : replies_head_) = slot;
  replies_tail_ = slot;
  group_->mark(this);
}

void Connection::release(Slot* slot) {
  if (slot->buffer != nullptr) buffers_->release(slot->buffer);
  slot->buffer = nullptr;
  slot->next = free_;
  free_ = slot;
}

// Requests in flight keep their slots, and the connection, until they end.
void Connection::drop() {
  if (state_ == State::Dropped) return;
  move(State::Dropped);
  close(fd_);
  fd_ = -1;
  while (replies_head_ != nullptr) {
    Slot* const slot = replies_head_;
    replies_head_ = slot->next;
    release(slot);
  }
  if (receiving_ != nullptr) release(receiving_);
  receiving_ = nullptr;
  group_->mark(this);
}

bool Connection::service() {
  if (state_ != State::Dropped && !blocked_ && flush() && stalled_) process();
  const bool quiet = in_flight_ == 0 && replies_head_ == nullptr && handshake_.output().empty();
  if (state_ == State::Draining && quiet) drop();
  return state_ == State::Dropped && in_flight_ == 0;
}

uint32_t Connection::wanted_events() const {
  const bool reads = !stalled_ && state_ != State::Draining;
  return (reads ? uint32_t{EPOLLIN} : 0) | (blocked_ ? uint32_t{EPOLLOUT} : 0);
}

// False: the connection has ended.
bool Connection::flush() {
  while (!handshake_.output().empty()) {
    const auto bytes = handshake_.output();
    const iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
    size_t sent = 0;
    if (!send(&part, 1, &sent)) return false;
    handshake_.sent(sent);
    if (blocked_) return true;
  }
  return flush_replies();
}

bool Connection::flush_replies() {
  while (replies_head_ != nullptr && !blocked_) {
    iovec parts[kPartsMax];
    size_t count = 0, bytes = 0, skip = head_sent_;
    const auto add = [&](uint8_t* base, size_t length) {
      const size_t gone = std::min(skip, length);
      skip -= gone;
      if (gone == length) return;
      parts[count++] = {base + gone, length - gone};
      bytes += length - gone;
    };
    for (Slot* slot = replies_head_; slot != nullptr && count + 2 <= kPartsMax; slot = slot->next) {
      add(slot->head.bytes.data(), slot->head.length);
      add(slot->buffer, slot->payload);
    }
    size_t sent = 0;
    if (!send(parts, count, &sent)) return false;
    sent_replies(sent);
    if (sent < bytes) blocked_ = true;
  }
  return true;
}

void Connection::sent_replies(size_t bytes) {
  head_sent_ += bytes;
  while (replies_head_ != nullptr) {
    Slot* const slot = replies_head_;
    const size_t whole = size_t{slot->head.length} + slot->payload;
    if (head_sent_ < whole) return;
    head_sent_ -= whole;
    replies_head_ = slot->next;
    release(slot);
  }
}

// False: the connection has ended.
bool Connection::send(const iovec* parts, size_t count, size_t* sent) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  const ssize_t done = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (done >= 0) {
    *sent = static_cast<size_t>(done);
    return true;
  }
  *sent = 0;
  if (errno == EINTR) return true;
  if (errno == EAGAIN) {
    blocked_ = true;
    return true;
  }
  drop();
  return false;
}

}  // namespace nvmeof::attach::nbd
