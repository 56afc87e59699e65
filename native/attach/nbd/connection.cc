// From bytes to requests: what came in is taken apart as far as there are slots and buffers. The
// way back stands in connection_send.cc.
#include "attach/nbd/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "attach/nbd/connection_group.h"

namespace nvmeof::attach::nbd {

namespace {

// A whole payload of the largest kind, or many small ones.
constexpr size_t kArenaBytes = kPayloadMax;

}  // namespace

// Legal moves: bit `to` of row `from`.
void Connection::move(State to) {
  constexpr auto bit = [](State state) { return 1u << static_cast<unsigned>(state); };
  constexpr unsigned kMoves[] = {
      /* Negotiating  */ bit(State::Transmitting) | bit(State::Draining) | bit(State::Dropped),
      /* Transmitting */ bit(State::Draining) | bit(State::Dropped),
      /* Draining     */ bit(State::Dropped),
      /* Dropped      */ 0,
  };
  if ((kMoves[static_cast<unsigned>(state_)] & bit(to)) == 0) {
    std::fprintf(stderr, "nvmeof: NBD connection state %u -> %u\n", static_cast<unsigned>(state_),
                 static_cast<unsigned>(to));
    std::abort();
  }
  state_ = to;
}

Connection::Connection(ConnectionGroup* group, int fd)
    : group_(group), fd_(fd), handshake_(&group->served()) {}

Connection::~Connection() {
  if (fd_ >= 0) close(fd_);
}

// Registers the buffers: only for a client that got through the handshake.
Result<void> Connection::prepare() {
  auto arena = rdma::Arena::map(kArenaBytes);
  if (!arena) return arena.error();
  arena_ = std::move(*arena);
  auto registered = group_->lane().register_memory(arena_->base(), arena_->bytes());
  if (!registered) return registered.error();
  memory_ = std::move(*registered);
  buffers_ = std::make_unique<nvmf::BufferPool>(arena_->base(), kArenaBytes, kArenaBytes);
  slots_.resize(kSlots);
  for (Slot& slot : slots_) {
    slot.connection = this;
    slot.io.memory = memory_.get();
    slot.io.context = &slot;
    slot.io.done = done;
    slot.next = free_;
    free_ = &slot;
  }
  return {};
}

void Connection::on_readable() {
  if (state_ == State::Dropped) return;
  // Stalled input stays where it is, but the end of the connection is looked for.
  if (stalled_ || state_ == State::Draining) return;
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ != 0) {
    std::memmove(in_.data(), in_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  // A payload goes to its place, and what is behind it into the buffer, by one call.
  iovec parts[2];
  int count = 0;
  size_t direct = 0;
  if (receiving_ != nullptr && !discarding_) {
    direct = receiving_->request.length - received_;
    parts[count++] = {receiving_->buffer + received_, direct};
  }
  parts[count++] = {in_.data() + end_, in_.size() - end_};
  const ssize_t got = readv(fd_, parts, count);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop();
  const size_t placed = std::min(direct, static_cast<size_t>(got));
  received_ += static_cast<uint32_t>(placed);
  end_ += static_cast<size_t>(got) - placed;
  process();
}

void Connection::process() {
  stalled_ = false;
  for (;;) {
    if (state_ == State::Negotiating) {
      if (!negotiate()) return;
    } else if (state_ != State::Transmitting) {
      return;
    } else if (receiving_ != nullptr) {
      if (!take_payload()) return;
    } else if (end_ - begin_ < kRequestBytes || !begin_request()) {
      return;
    }
  }
}

// True: there is more to do with what was read.
bool Connection::negotiate() {
  begin_ += handshake_.feed(unread());
  if (!handshake_.output().empty()) {
    stalled_ = true;
    group_->mark(this);
    return false;
  }
  switch (handshake_.state()) {
    case Handshake::State::Transmission:
      move(State::Transmitting);
      if (prepare()) return true;
      drop();
      return false;
    case Handshake::State::Closed:
      move(State::Draining);
      group_->mark(this);
      return false;
    default:
      return false;
  }
}

// False: some of it has not come yet.
bool Connection::take_payload() {
  Slot* const slot = receiving_;
  const size_t taken = std::min<size_t>(end_ - begin_, slot->request.length - received_);
  if (!discarding_ && taken != 0) {
    std::memcpy(slot->buffer + received_, in_.data() + begin_, taken);
  }
  begin_ += taken;
  received_ += static_cast<uint32_t>(taken);
  if (received_ < slot->request.length) return false;
  receiving_ = nullptr;
  if (discarding_) {
    discarding_ = false;
    finish(slot, failure_);
  } else {
    submit(slot);
  }
  return true;
}

bool Connection::give_buffer(Slot* slot) {
  if (slot->request.length == 0) return true;
  slot->buffer = buffers_->allocate(slot->request.length);
  return slot->buffer != nullptr;
}

// False: it has to wait, or there will be no more.
bool Connection::begin_request() {
  Slot* const slot = free_;
  if (slot == nullptr) {
    stalled_ = true;
    return false;
  }
  const auto request = parse_request(unread().first<kRequestBytes>());
  if (!request) {
    drop();
    return false;
  }
  if (request->type == command::kDisconnect) {
    move(State::Draining);
    group_->mark(this);
    return false;
  }
  const uint32_t failure = refusal(*request, group_->served());
  const bool write = request->type == command::kWrite;
  slot->request = *request;
  if (failure == 0 && (write || request->type == command::kRead) && !give_buffer(slot)) {
    stalled_ = true;
    return false;
  }
  free_ = slot->next;
  begin_ += kRequestBytes;
  group_->count_request();
  if (write) {
    receiving_ = slot;
    received_ = 0;
    discarding_ = failure != 0;
    failure_ = failure;
  } else if (failure != 0) {
    finish(slot, failure);
  } else {
    submit(slot);
  }
  return true;
}

void Connection::submit(Slot* slot) {
  const Request& request = slot->request;
  IoRequest& io = slot->io;
  io.operation = operation_of(request);
  io.fua = request.type != command::kRead && (request.flags & command_flag::kFua) != 0;
  io.deallocate = (request.flags & command_flag::kNoHole) == 0;
  io.offset = request.offset;
  io.length = request.length;
  io.memory_offset =
      slot->buffer == nullptr ? 0 : static_cast<uint64_t>(slot->buffer - arena_->base());
  slot->flushing = false;
  in_flight_++;
  group_->lane().submit(&io);
}

void Connection::done(IoRequest* io, IoEnd end, uint16_t status) {
  auto* const slot = static_cast<Slot*>(io->context);
  slot->connection->on_done(slot, end, status);
}

void Connection::on_done(Slot* slot, IoEnd end, uint16_t status) {
  in_flight_--;
  const Request& request = slot->request;
  // Dataset Management has no FUA.
  if (request.type == command::kTrim && slot->io.fua && !slot->flushing && end == IoEnd::Ok) {
    slot->flushing = true;
    slot->io.operation = Operation::Flush;
    slot->io.length = 0;
    in_flight_++;
    group_->lane().submit(&slot->io);
    return;
  }
  finish(slot, error_of(end, status, request.type != command::kRead));
}

}  // namespace nvmeof::attach::nbd
