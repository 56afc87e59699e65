// A queue over several paths: commands for one namespace go to the I/O queue of whichever path is
// best, and to another when that fails. Which paths there are, and how good they are, is the
// control plane's to say; what happens to a command is decided here:
//
//             submit            answered, or cancelled
//   Nowhere ─────────> Sent ─────────────────────────────> done
//              │  ^     │
//   no path is │  │     ├─ path lost, command may be executing there ──> Held ── release() ─>
//     usable   v  │     ├─ path lost otherwise, or path refused it ──> another path, or Parked
//            Parked     └─ error that may pass ──> Delayed ── when due: again
//              └─ a path becomes usable: again; set_failing(): done with Host Pathing Error
//
// Each command ends once. On the reactor's thread; allocates when memory is registered only.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "nvmf/event_sink.h"
#include "nvmf/multipath/path.h"
#include "nvmf/multipath/path_memory.h"

namespace nvmeof::nvmf {

struct PathQueueOptions {
  PathPolicy policy = PathPolicy::RoundRobin;
  // A command without an answer for so long makes its path overdue, which is told once for each
  // incarnation; the command stays where it is. 0: never.
  reactor::TimeNs io_timeout = 0;
  // Command Retry Delay Times 1 to 3 of the controllers.
  std::array<reactor::TimeNs, 3> retry_delays{};
};

// What time it is: of the reactor, or of a simulation.
struct TimeSource {
  reactor::TimeNs (*read)(const void* from);
  const void* from;
  reactor::TimeNs now() const { return read(from); }
};

// Written by the reactor's thread, read by any.
struct PathQueueCounters {
  std::atomic<uint64_t> failovers, retries, parked, held, pathless;
};

class PathQueue {
 public:
  // `look_at`: when look() is to be called; lowered by what has to wait.
  PathQueue(uint32_t id, const PathQueueOptions& options, TimeSource time, EventSink* sink,
            PathQueueCounters* counters, reactor::TimeNs* look_at)
      : id_(id),
        options_(options),
        time_(time),
        sink_(sink),
        counters_(counters),
        look_at_(look_at),
        choice_(options.policy) {}

  uint32_t id() const { return id_; }
  void submit(HostCommand* command);
  void cancel(uint64_t tag);
  std::unique_ptr<RegisteredMemory> register_memory(uint8_t* base, size_t length) {
    return memories_.add(base, length);
  }

  void set_options(const PathQueueOptions& options);
  // A path that comes, that is another association's now, or whose rank has changed.
  void set_path(uint32_t index, const PathOptions& to);
  // No command goes there any more; `drained` is called once when none is left there.
  void remove_path(uint32_t index, void (*drained)(void* context), void* context);
  // Nothing that this path's controller was sent up to this incarnation can be executed any more:
  // what was held for that is repeated. Or else it must never be, and ends with an error.
  void release(uint32_t index, uint32_t incarnation, bool repeat);
  // Whether commands that find no path fail, now and later.
  void set_failing(bool failing);
  // An I/O queue, or all of an engine (`queue` 0), is gone.
  void queue_gone(const CommandQueues* engine, uint32_t queue);

  // No new commands; what was not sent ends now. Over when the rest has ended.
  void begin_close();
  bool over() const { return closing_ && in_flight_ == 0; }

  // Does what is due.
  void look(reactor::TimeNs now);

 private:
  static void sent_done(HostCommand* command, Outcome outcome, const uint8_t cqe[16]);

  void route(HostCommand* command);
  bool send(HostCommand* command, uint32_t index);
  void came_back(HostCommand* command, Outcome outcome, const uint8_t* cqe);
  void answered(HostCommand* command, const uint8_t* cqe);
  void lost(HostCommand* command, Outcome outcome);
  void park(HostCommand* command);
  void end(HostCommand* command, Outcome outcome, const uint8_t* cqe);
  void end_without_path(HostCommand* command);
  void end_all(HostCommandList list, void (PathQueue::*how)(HostCommand*));
  void route_all(HostCommandList list);
  void lose(uint32_t index);
  void suspend(uint32_t index, uint32_t status);
  void changed();
  void look_for_drained(Path& path);
  void note(std::atomic<uint64_t>& gauge, int64_t by) {
    reactor::add_relaxed(gauge, static_cast<uint64_t>(by));
  }
  void cancelled(HostCommand* command);
  void wake_at(reactor::TimeNs at) { *look_at_ = std::min(*look_at_, at); }

  const uint32_t id_;
  PathQueueOptions options_;
  const TimeSource time_;
  EventSink* const sink_;
  PathQueueCounters* const counters_;
  reactor::TimeNs* const look_at_;
  Paths paths_;
  PathChoice choice_;
  PathMemories memories_;
  HostCommandList parked_;
  HostCommandList delayed_;
  uint32_t in_flight_ = 0;  // all that were not ended
  bool failing_ = false;
  bool closing_ = false;
};

}  // namespace nvmeof::nvmf
