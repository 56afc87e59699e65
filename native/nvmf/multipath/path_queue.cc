#include "nvmf/multipath/path_queue.h"

#include <array>
#include <utility>

#include "nvmf/multipath/disposition.h"
#include "nvmf/nvme.h"
#include "nvmf/status.h"

namespace nvmeof::nvmf {

namespace {

constexpr uint32_t kNoStatus = 0;  // of the event: the path could not take a command

uint16_t status_of(const uint8_t* cqe) {
  return static_cast<uint16_t>(load16(cqe + cqe::kStatus) >> 1);
}

}  // namespace

void PathQueue::submit(HostCommand* command) {
  if (closing_) {
    command->done(command, Outcome::NeverSent, kNoCqe.data());
    return;
  }
  Route& route_of = command->route;
  route_of = {};
  route_of.done = std::exchange(command->done, sent_done);
  route_of.context = std::exchange(command->context, this);
  route_of.memory = command->memory;
  in_flight_++;
  route(command);
}

void PathQueue::route(HostCommand* command) {
  for (;;) {
    const uint32_t index = choice_.next(paths_);
    if (index == kPathsMax) break;
    if (send(command, index)) return;
  }
  if (failing_) {
    end_without_path(command);
  } else {
    park(command);
  }
}

// False: its memory cannot be registered there, and the path is suspended.
bool PathQueue::send(HostCommand* command, uint32_t index) {
  Path& path = paths_[index];
  if (command->direction != Direction::None && command->length != 0) {
    // What is given to us was made by register_memory().
    auto* memory = const_cast<PathMemory*>(static_cast<const PathMemory*>(command->route.memory));
    auto named = memory->on(index, path.to);
    if (!named) {
      suspend(index, kNoStatus);
      return false;
    }
    command->memory = *named;
  }
  Route& to = command->route;
  to.path = static_cast<uint8_t>(index);
  to.incarnation = path.to.incarnation;
  to.at = time_.now();
  path.sent.push_back(command);
  if (options_.io_timeout != 0) wake_at(to.at + options_.io_timeout);
  path.to.engine->submit(path.to.queue, command);  // may end it at once
  return true;
}

void PathQueue::sent_done(HostCommand* command, Outcome outcome, const uint8_t cqe[16]) {
  static_cast<PathQueue*>(command->context)->came_back(command, outcome, cqe);
}

void PathQueue::came_back(HostCommand* command, Outcome outcome, const uint8_t* cqe) {
  Path& path = paths_[command->route.path];
  path.sent.remove(command);
  if (outcome == Outcome::Ok) {
    answered(command, cqe);
  } else if (outcome == Outcome::Cancelled || command->route.given_up) {
    end(command, Outcome::Cancelled, kNoCqe.data());
  } else if (closing_) {
    end(command, outcome, kNoCqe.data());
  } else {
    lost(command, outcome);
  }
  look_for_drained(path);
}

void PathQueue::answered(HostCommand* command, const uint8_t* cqe) {
  const uint16_t status = status_of(cqe);
  Route& at = command->route;
  const Disposition what =
      closing_ || at.given_up ? Disposition::Finish : disposition_of(status, at.retries);
  switch (what) {
    case Disposition::Finish:
      end(command, Outcome::Ok, cqe);
      return;
    case Disposition::OtherPath:
      reactor::add_relaxed(counters_->failovers, 1);
      if (paths_[at.path].to.incarnation == at.incarnation) suspend(at.path, status);
      route(command);
      return;
    case Disposition::Again:
      break;
  }
  at.retries++;
  reactor::add_relaxed(counters_->retries, 1);
  const unsigned delay = retry_delay_of(status);
  if (delay == 0 || options_.retry_delays[delay - 1] == 0) {
    route(command);
    return;
  }
  at.at = time_.now() + options_.retry_delays[delay - 1];
  delayed_.push_back(command);
  wake_at(at.at);
}

void PathQueue::lost(HostCommand* command, Outcome outcome) {
  Route& was = command->route;
  Path& path = paths_[was.path];
  if (path.to.incarnation == was.incarnation) lose(was.path);
  reactor::add_relaxed(counters_->failovers, 1);
  if (outcome == Outcome::NeverSent || repeats_freely(command->sqe[sqe::kOpcode])) {
    route(command);
    return;
  }
  path.held.push_back(command);
  note(counters_->held, 1);
}

void PathQueue::park(HostCommand* command) {
  parked_.push_back(command);
  note(counters_->parked, 1);
}

void PathQueue::end(HostCommand* command, Outcome outcome, const uint8_t* cqe) {
  command->done = command->route.done;
  command->context = command->route.context;
  command->memory = command->route.memory;
  in_flight_--;
  command->done(command, outcome, cqe);
}

void PathQueue::end_without_path(HostCommand* command) {
  reactor::add_relaxed(counters_->pathless, 1);
  const auto cqe = cqe_with(final(wire::Status::kHostPathError));
  end(command, Outcome::Ok, cqe.data());
}

void PathQueue::cancelled(HostCommand* command) {
  end(command, Outcome::Cancelled, kNoCqe.data());
}

void PathQueue::end_all(HostCommandList list, void (PathQueue::*how)(HostCommand*)) {
  while (!list.empty()) (this->*how)(list.pop_front());
}

void PathQueue::route_all(HostCommandList list) {
  while (!list.empty()) route(list.pop_front());
}

// Wherever they are: a caller's tag stands for one command, or for all that it gave that tag.
void PathQueue::cancel(uint64_t tag) {
  const auto tagged = [tag](const HostCommand& command) { return command.tag == tag; };
  for (Path& path : paths_) {
    bool sent = false;
    for (HostCommand* command = path.sent.front(); command != nullptr;
         command = command->route.next) {
      if (command->tag != tag) continue;
      command->route.given_up = sent = true;
    }
    if (sent && !path.lost) path.to.engine->cancel(path.to.queue, tag);
    const HostCommandList held = path.held.take(tagged);
    note(counters_->held, -static_cast<int64_t>(held.size()));
    end_all(held, &PathQueue::cancelled);
  }
  const HostCommandList parked = parked_.take(tagged);
  note(counters_->parked, -static_cast<int64_t>(parked.size()));
  end_all(parked, &PathQueue::cancelled);
  end_all(delayed_.take(tagged), &PathQueue::cancelled);
}

// ---- Paths

void PathQueue::set_options(const PathQueueOptions& options) {
  options_ = options;
  choice_.set_policy(options.policy);
  wake_at(0);
}

void PathQueue::set_path(uint32_t index, const PathOptions& to) {
  Path& path = paths_[index];
  if (to.engine != path.to.engine || to.queue != path.to.queue) memories_.drop(index);
  if (to.incarnation != path.to.incarnation) path.overdue_told = false;
  path.to = to;
  path.lost = path.suspended = false;
  changed();
}

void PathQueue::remove_path(uint32_t index, void (*drained)(void* context), void* context) {
  Path& path = paths_[index];
  if (path.drained != nullptr) path.drained(path.drained_context);
  path.to.rank = kPathUnusable;
  path.drained = drained;
  path.drained_context = context;
  changed();
  look_for_drained(path);
}

void PathQueue::look_for_drained(Path& path) {
  if (path.drained == nullptr || !path.sent.empty()) return;
  std::exchange(path.drained, nullptr)(path.drained_context);
}

void PathQueue::release(uint32_t index, uint32_t incarnation, bool repeat) {
  const HostCommandList released = paths_[index].held.take(
      [incarnation](const HostCommand& held) { return held.route.incarnation <= incarnation; });
  note(counters_->held, -static_cast<int64_t>(released.size()));
  if (repeat) {
    route_all(released);
  } else {
    end_all(released, &PathQueue::end_without_path);
  }
}

// What is held fails, too: its caller learns that nobody knows what became of it.
void PathQueue::set_failing(bool failing) {
  failing_ = failing;
  if (!failing || choice_.any()) return;
  HostCommandList without;
  std::swap(without, parked_);
  note(counters_->parked, -static_cast<int64_t>(without.size()));
  end_all(without, &PathQueue::end_without_path);
  for (Path& path : paths_) {
    HostCommandList held;
    std::swap(held, path.held);
    note(counters_->held, -static_cast<int64_t>(held.size()));
    end_all(held, &PathQueue::end_without_path);
  }
}

void PathQueue::queue_gone(const CommandQueues* engine, uint32_t queue) {
  for (uint32_t index = 0; index < kPathsMax; index++) {
    const PathOptions& to = paths_[index].to;
    if (to.engine != engine || (queue != 0 && to.queue != queue)) continue;
    memories_.drop(index);
    lose(index);
    paths_[index].to.engine = nullptr;
  }
}

// No command finds the path any more. Those that are there come back by themselves; the memory they
// name stays registered until the queue is gone.
void PathQueue::lose(uint32_t index) {
  if (std::exchange(paths_[index].lost, true)) return;
  choice_.update(paths_);
}

void PathQueue::suspend(uint32_t index, uint32_t status) {
  if (paths_[index].suspended) return;
  paths_[index].suspended = true;
  choice_.update(paths_);
  sink_->push(EventKind::PathRefused, id_, index, status, paths_[index].to.incarnation, {}, {});
}

void PathQueue::changed() {
  choice_.update(paths_);
  if (!choice_.any()) return;
  HostCommandList waiting;
  std::swap(waiting, parked_);
  note(counters_->parked, -static_cast<int64_t>(waiting.size()));
  route_all(waiting);
}

// ---- Time and the end

void PathQueue::look(reactor::TimeNs now) {
  const HostCommandList due =
      delayed_.take([now](const HostCommand& command) { return command.route.at <= now; });
  for (const HostCommand* command = delayed_.front(); command != nullptr;
       command = command->route.next) {
    wake_at(command->route.at);
  }
  for (uint32_t index = 0; options_.io_timeout != 0 && index < kPathsMax; index++) {
    Path& path = paths_[index];
    if (path.overdue_told || path.lost) continue;
    const HostCommand* const oldest = path.oldest();
    if (oldest == nullptr) continue;
    const reactor::TimeNs until = oldest->route.at + options_.io_timeout;
    if (now < until) {
      wake_at(until);
    } else {
      path.overdue_told = true;
      sink_->push(EventKind::PathOverdue, id_, index, 0, path.to.incarnation, {}, {});
    }
  }
  route_all(due);
}

void PathQueue::begin_close() {
  closing_ = true;
  for (uint32_t index = 0; index < kPathsMax; index++) {
    Path& path = paths_[index];
    HostCommandList held;
    std::swap(held, path.held);
    note(counters_->held, -static_cast<int64_t>(held.size()));
    end_all(held, &PathQueue::cancelled);
    // Cancelling may end any of them.
    while (!path.lost) {
      HostCommand* command = path.sent.front();
      while (command != nullptr && command->route.given_up) command = command->route.next;
      if (command == nullptr) break;
      command->route.given_up = true;
      path.to.engine->cancel(path.to.queue, command->tag);
    }
  }
  HostCommandList parked, delayed;
  std::swap(parked, parked_);
  std::swap(delayed, delayed_);
  note(counters_->parked, -static_cast<int64_t>(parked.size()));
  end_all(parked, &PathQueue::cancelled);
  end_all(delayed, &PathQueue::cancelled);
}

}  // namespace nvmeof::nvmf
