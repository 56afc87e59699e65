#include "attach/client/client_session.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "attach/client/client_input.h"

namespace nvmeof::attach {

namespace {

// Entries and messages of one visit: enough for a burst, too few to keep others waiting.
constexpr uint32_t kBatch = 128;
constexpr int kMessages = 16;

uint8_t ring_end(IoEnd end) {
  switch (end) {
    case IoEnd::Ok:
      return NVMEOF_RING_OK;
    case IoEnd::Failed:
      return NVMEOF_RING_FAILED;
    case IoEnd::TimedOut:
      return NVMEOF_RING_TIMED_OUT;
    case IoEnd::Disconnected:
      break;
  }
  return NVMEOF_RING_DISCONNECTED;
}

uint32_t flags_of(const Geometry& geometry) {
  uint32_t flags = 0;
  if (geometry.read_only) flags |= NVMEOF_RING_READ_ONLY;
  if (geometry.volatile_write_cache) flags |= NVMEOF_RING_WRITE_CACHE;
  if (geometry.can_deallocate) flags |= NVMEOF_RING_DISCARD;
  if (geometry.can_write_zeroes) flags |= NVMEOF_RING_WRITE_ZEROES;
  return flags;
}

}  // namespace

ClientSession::ClientSession(int socket, NamespaceLane* lane, ClientCounters* counters,
                             reactor::TimeNs now)
    : socket_(socket),
      lane_(lane),
      counters_(counters),
      greeting_until_(now + kGreetingLimit),
      next_look_(now) {}

ClientSession::~ClientSession() {
  assert(free_.size() == slots_.size() && "requests in flight name this memory");
  if (socket_ >= 0) close(socket_);
}

int ClientSession::take(reactor::TimeNs now) {
  int handled = 0;
  if (is_listening() && (std::exchange(armed_, false) || now >= next_look_)) {
    if (rings_) rings_->disarm();
    handled += look_at_socket(now);
  }
  if (state_ == State::Greeting && now >= greeting_until_) {
    end(ETIMEDOUT, "no hello came");
    handled++;
  }
  if (state_ == State::Serving) handled += take_entries();
  if (state_ == State::Draining) drain();
  return handled;
}

int ClientSession::look_at_socket(reactor::TimeNs now) {
  next_look_ = now + kLookEvery;
  int handled = 0;
  while (is_listening() && handled < kMessages) {
    uint8_t bytes[sizeof(nvmeof_ring_hello) + 1];
    // Flags and not O_NONBLOCK; MSG_TRUNC shows the true length of what is too long.
    const ssize_t length = recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT | MSG_TRUNC);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) break;
    handled++;
    if (length <= 0) {
      state_ = State::Draining;  // gone; nobody to say Goodbye to
    } else if (state_ == State::Greeting) {
      greet(bytes, static_cast<size_t>(length));
    } else if (length != 1) {
      end(EPROTO, "a message of " + std::to_string(length) + " bytes is no doorbell");
    }
  }
  return handled;
}

void ClientSession::greet(const uint8_t* bytes, size_t length) {
  if (auto prepared = prepare(bytes, length); !prepared) {
    reason_ = prepared.error().message;
    send_answer(NVMEOF_RING_WELCOME, prepared.error().code, reason_, -1);
    state_ = State::Draining;
    return;
  }
  const bool sent = send_answer(NVMEOF_RING_WELCOME, 0, "", memory_->fd());
  memory_->close_fd();
  state_ = sent ? State::Serving : State::Draining;
}

Result<void> ClientSession::prepare(const uint8_t* bytes, size_t length) {
  auto hello = check_hello(bytes, length);
  if (!hello) return hello.error();
  auto memory = SharedMemory::create(hello->entries, hello->data_bytes);
  if (!memory) return memory.error();
  auto registered = lane_->register_memory((*memory)->data(), (*memory)->data_bytes());
  if (!registered) return registered.error();
  memory_ = std::move(*memory);
  registered_ = std::move(*registered);
  rings_ = std::make_unique<ServerRings>(memory_->base(), memory_->layout(), hello->entries);
  slots_.resize(hello->entries);
  free_.reserve(hello->entries);
  for (Slot& slot : slots_) {
    slot.session = this;
    slot.request.memory = registered_.get();
    slot.request.done = done;
    slot.request.context = &slot;
    free_.push_back(&slot);
  }
  return {};
}

bool ClientSession::send_answer(uint32_t message, int error, const std::string& reason,
                                int memory) {
  nvmeof_ring_answer answer{};
  const Geometry& geometry = lane_->geometry();
  answer.magic = NVMEOF_RING_MAGIC;
  answer.version = NVMEOF_RING_VERSION;
  answer.message = message;
  answer.error = static_cast<uint32_t>(error);
  answer.size_bytes = geometry.lba_count * geometry.lba_bytes;
  answer.block_bytes = geometry.lba_bytes;
  answer.transfer_max = geometry.transfer_max;
  answer.flags = flags_of(geometry);
  std::memcpy(answer.reason, reason.data(), std::min(reason.size(), sizeof answer.reason - 1));

  iovec part{&answer, sizeof answer};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (memory >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* const passed = CMSG_FIRSTHDR(&header);
    passed->cmsg_level = SOL_SOCKET;
    passed->cmsg_type = SCM_RIGHTS;
    passed->cmsg_len = CMSG_LEN(sizeof memory);
    std::memcpy(CMSG_DATA(passed), &memory, sizeof memory);
  }
  return sendmsg(socket_, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof answer;
}

int ClientSession::take_entries() {
  const uint32_t submitted = rings_->submitted();
  if (submitted == 0) return 0;
  if (submitted > free_.size()) {
    end(EPROTO, "more than " + std::to_string(slots_.size()) + " requests are outstanding");
    return 1;
  }
  const uint32_t count = std::min(submitted, kBatch);
  counters_->requests.fetch_add(count, std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; i++) start(rings_->take());
  return static_cast<int>(count);
}

void ClientSession::start(const nvmeof_ring_entry& entry) {
  Slot* const slot = free_.back();
  if (const uint16_t error =
          check_entry(entry, lane_->geometry(), registered_->length, &slot->request)) {
    complete(entry.user_data, NVMEOF_RING_INVALID, error);
    return;
  }
  free_.pop_back();
  slot->user_data = entry.user_data;
  lane_->submit(&slot->request);  // may end it at once
}

void ClientSession::done(IoRequest* request, IoEnd end, uint16_t status) {
  auto* const slot = static_cast<Slot*>(request->context);
  ClientSession* const session = slot->session;
  session->free_.push_back(slot);
  session->complete(slot->user_data, ring_end(end), status);
}

void ClientSession::complete(uint64_t user_data, uint8_t end, uint16_t status) {
  nvmeof_ring_completion completion{};
  completion.user_data = user_data;
  completion.status = status;
  completion.end = end;
  rings_->put(completion);
}

int ClientSession::publish() {
  if (state_ == State::Draining) drain();
  if (state_ != State::Serving || !rings_->publish()) return 0;
  // A full socket holds doorbells that the client did not hear yet.
  const char bell = 0;
  send(socket_, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  return 1;
}

bool ClientSession::arm() {
  if (!is_listening()) return true;
  armed_ = true;
  return !rings_ || rings_->arm();
}

reactor::TimeNs ClientSession::next_deadline() const {
  return state_ == State::Greeting ? greeting_until_ : reactor::kNever;
}

void ClientSession::end(int error, const std::string& reason) {
  if (!is_listening()) return;
  reason_ = reason;
  const uint32_t message = state_ == State::Greeting ? NVMEOF_RING_WELCOME : NVMEOF_RING_GOODBYE;
  if (rings_) rings_->publish();
  send_answer(message, error, reason, -1);
  state_ = State::Draining;
}

// The socket stays open until here: when it closes, the client may believe that nobody uses its
// memory any more.
void ClientSession::drain() {
  if (free_.size() != slots_.size()) return;
  registered_.reset();
  rings_.reset();
  memory_.reset();
  state_ = State::Over;
}

}  // namespace nvmeof::attach
