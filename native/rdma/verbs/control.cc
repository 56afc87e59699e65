// The thread of connection management: what it waits for, its calls, deadlines, and the ends of
// connections. The calls of users stand in control_calls.cc, rdma_cm's events in control_events.cc.
#include "rdma/verbs/control.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstdlib>

#include "rdma/verbs/async_events.h"
#include "rdma/verbs/text.h"

namespace nvmeof::rdma::verbs {

namespace {

constexpr uint64_t kMillisecond = 1'000'000;
// A link that flaps costs nobody his connection; one that stays down does.
constexpr uint64_t kTroublePatience = 3'000 * kMillisecond;
constexpr short kEnded = POLLERR | POLLHUP | POLLNVAL;

}  // namespace

Control::Control(const Library& library, const ControlOptions& options, rdma_event_channel* channel,
                 std::span<const std::unique_ptr<Shard>> shards, ObjectCounts& counts)
    : library_(library), options_(options), channel_(channel), shards_(shards), counts_(counts) {}

Control::~Control() {
  stop();
  if (wake_fd_ >= 0) close(wake_fd_);
}

Result<void> Control::start() {
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return Error{errno, "No eventfd could be made" + reason_of(errno) + "."};
  hear_async_events(this);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "nvmeof-rdma-cm");
  return {};
}

void Control::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_release);
  post([] {});
  thread_.join();
  stop_async_events(this);
}

void Control::post(Call call) {
  bool first;
  {
    const std::lock_guard<std::mutex> lock(calls_mutex_);
    first = calls_.empty();
    calls_.push_back(std::move(call));
  }
  if (!first) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
}

int Control::read_calls() {
  std::vector<Call> calls;
  {
    const std::lock_guard<std::mutex> lock(calls_mutex_);
    calls.swap(calls_);
  }
  for (const Call& call : calls) call();
  return static_cast<int>(calls.size());
}

void Control::run() {
  check_port();
  pollfd fds[] = {
      {wake_fd_, POLLIN, 0}, {channel_->fd, POLLIN, 0}, {context()->async_fd, POLLIN, 0}};
  while (!stopping_.load(std::memory_order_acquire)) {
    ::poll(fds, std::size(fds), wait_ms());
    uint64_t ignored;
    if (fds[0].revents != 0) {
      [[maybe_unused]] const ssize_t drained = read(wake_fd_, &ignored, sizeof ignored);
    }
    read_calls();
    while (fds[1].revents != 0 && read_cm_event()) {
    }
    if (fds[2].revents != 0) read_async_events(library_, context());
    expire();
    // A device that is gone leaves descriptors that are ready for ever.
    for (pollfd& entry : fds) {
      if ((entry.revents & kEnded) != 0) entry.fd = -1;
      entry.revents = 0;
    }
  }
  read_calls();
  while (!connections_.empty()) forget(connections_.begin()->second);
  const std::lock_guard<std::recursive_mutex> lock(tables_mutex_);
  for (const Listener& listener : listeners_) library_.destroy_id(listener.cm);
  listeners_.clear();
}

int Control::wait_ms() const {
  uint64_t next = trouble_deadline_;
  for (const auto& [id, connection] : connections_) next = std::min(next, connection.deadline);
  if (next == ~0ull) return -1;
  const uint64_t now = reactor::monotonic_now();
  return next <= now ? 0 : static_cast<int>((next - now) / kMillisecond + 1);
}

void Control::set_deadline(Connection& connection, uint32_t milliseconds) {
  connection.deadline = reactor::monotonic_now() + milliseconds * kMillisecond;
}

void Control::expire() {
  const uint64_t now = reactor::monotonic_now();
  if (trouble_deadline_ <= now) {
    trouble_deadline_ = ~0ull;
    end_all(trouble_);
  }
  for (auto at = connections_.begin(); at != connections_.end();) {
    Connection& connection = (at++)->second;
    if (connection.deadline > now) continue;
    if (connection.state == ConnectionState::Disconnecting) {
      end(connection, connection.why);
    } else {
      fail(connection,
           {ConnectFailure::Unreachable,
            0,
            {},
            std::string("no answer came in time, while ") + to_string(connection.state)});
    }
  }
}

// ---- Tables

Connection* Control::find(ConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : &found->second;
}

Connection* Control::find(const rdma_cm_id* cm) {
  const auto found = by_cm_.find(cm);
  return found == by_cm_.end() ? nullptr : find(found->second);
}

void Control::move(Connection& connection, ConnectionState to) {
  if (!may_move(connection.state, to)) {
    std::fprintf(stderr, "nvmeof: verbs connection may not go from %s to %s\n",
                 to_string(connection.state), to_string(to));
    std::abort();
  }
  connection.state = to;
}

// ---- Ends. The connection is gone when these return.

void Control::forget(Connection& connection) {
  move(connection, ConnectionState::Gone);
  by_cm_.erase(connection.cm);
  // Whatever rdma_cm still owes the peer (REJ, DREQ, DREP), it sends now.
  if (connection.cm != nullptr) library_.destroy_id(connection.cm);
  connections_.erase(connection.id);
  counts_.connections.store(connections_.size(), std::memory_order_relaxed);
}

void Control::fail(Connection& connection, const ConnectFailed& failed) {
  const ConnectionId id = connection.id;
  const bool asked = connection.state == ConnectionState::Requested;
  if (connection.qp) connection.qp->to_error();
  Shard& shard = *shards_[connection.shard];
  forget(connection);
  if (asked) return;  // nobody has answered it yet: accept() will find it gone
  shard.post([&shard, id, failed,
              data = std::vector<uint8_t>(failed.private_data.begin(), failed.private_data.end())] {
    ConnectionHandler* const handler = shard.take(id);
    if (handler == nullptr) return;
    ConnectFailed out = failed;
    out.private_data = data;
    handler->on_connect_failed(id, out);
  });
}

// By value: the reason may be the connection's own.
void Control::end(Connection& connection, std::string reason) {
  const ConnectionId id = connection.id;
  if (connection.qp) connection.qp->to_error();
  if (connection.state == ConnectionState::Established) library_.disconnect(connection.cm);
  Shard& shard = *shards_[connection.shard];
  forget(connection);
  shard.post([&shard, id, reason] {
    if (ConnectionHandler* const handler = shard.take(id)) handler->on_disconnected(id, reason);
  });
}

void Control::end_all(const std::string& reason) {
  while (!connections_.empty()) {
    Connection& connection = connections_.begin()->second;
    if (connection.state == ConnectionState::Established ||
        connection.state == ConnectionState::Disconnecting) {
      end(connection, reason);
    } else {
      fail(connection, {ConnectFailure::Unreachable, 0, {}, reason});
    }
  }
}

// ---- The device's own troubles

void Control::check_port() {
  if (removed_) return;
  std::string trouble;
  const auto state = query(library_, options_.port);
  if (!state) {
    trouble = state.error().message;
  } else if (!state.value().active) {
    trouble = name_of(library_, options_.port) + " is down";
  } else if (auto gid = check_gid(library_, options_.port, state.value(), options_.address); !gid) {
    trouble = gid.error().message;
  }
  if (trouble.empty()) {
    trouble_deadline_ = ~0ull;
  } else if (trouble_.empty()) {
    trouble_deadline_ = reactor::monotonic_now() + kTroublePatience;
  }
  trouble_ = std::move(trouble);
}

void Control::queue_pair_failed(uint32_t number, const std::string& reason) {
  for (auto& [id, connection] : connections_) {
    if (!connection.qp || connection.qp->number() != number) continue;
    if (connection.state == ConnectionState::Established) return end(connection, reason);
    if (connection.state == ConnectionState::Disconnecting) return;
    return fail(connection, {ConnectFailure::Unreachable, 0, {}, reason});
  }
}

void Control::on_queue_pair_failed(uint32_t number, Status status) {
  post([this, number, reason = std::string("the queue pair failed: ") + rdma::to_string(status)] {
    queue_pair_failed(number, reason);
  });
}

void Control::on_async_event(ibv_event_type type, uint32_t qp_number) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
      return post([this, qp_number] {
        queue_pair_failed(qp_number, "the device reports a fatal error of the queue pair");
      });
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return post([this, qp_number] {
        queue_pair_failed(qp_number,
                          "the device reports that the peer broke the queue pair's rules");
      });
    case IBV_EVENT_COMM_EST:
      // The first data came before the RTU, which may be lost.
      return post([this, qp_number] {
        for (auto& [id, connection] : connections_) {
          if (connection.state == ConnectionState::Accepting &&
              connection.qp->number() == qp_number)
            library_.notify(connection.cm, IBV_EVENT_COMM_EST);
        }
      });
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
      return post([this] { check_port(); });
    case IBV_EVENT_DEVICE_FATAL:
      return post([this] {
        removed_ = true;
        trouble_ = "the RDMA device failed or was removed";
        end_all(trouble_);
      });
    default:
      return;  // others come with completions or need no answer
  }
}

}  // namespace nvmeof::rdma::verbs
