// Commands of JavaScript on one reactor, for the queues of one device or those over several paths:
// registers the buffers that they name, on first use, and sends their ends up. All on the reactor's
// thread, but for what says otherwise.
#pragma once
#include <atomic>
#include <cstdint>
#include <set>

#include "addon/buffers.h"
#include "addon/event_ring.h"
#include "nvmf/command_queues.h"

namespace nvmeof::addon {

class CommandsOnReactor;

// A command that JavaScript submitted. The JavaScript thread makes and frees it; in between the
// reactor owns it.
struct SubmittedCommand {
  nvmf::HostCommand command;
  uint32_t index = 0;  // in the JavaScript thread's table of commands
  uint32_t queue = 0;
  uint32_t tag = 0;
  bool answer_by_event = false;  // the data goes up with the completion
  Buffer* buffer = nullptr;      // null: no data
  CommandsOnReactor* on = nullptr;
  // In a batch on its way to the reactor; then in the list of those that the reactor has.
  SubmittedCommand* next = nullptr;
  SubmittedCommand* previous = nullptr;
};

class CommandsOnReactor {
 public:
  // `shared_registration`: one of a buffer serves all queues.
  CommandsOnReactor(reactor::Reactor* reactor, EventRing* ring, bool shared_registration)
      : reactor_(reactor), ring_(ring), shared_registration_(shared_registration) {}

  // Where commands go from now on; null: nowhere.
  void use(nvmf::CommandQueues* queues) { queues_ = queues; }

  void submit(SubmittedCommand* first);  // and what is linked behind it
  void cancel(uint32_t queue, uint32_t tag);
  void release_buffer(Buffer* buffer);
  // The queue ended, and with it what was registered for it alone.
  void drop_regions_of(uint32_t queue);
  // Before the queues go; then end_all().
  void drop_regions();
  void end_all();

  reactor::Reactor* reactor() const { return reactor_; }
  uint32_t live_regions() const {  // any thread
    return live_regions_.load(std::memory_order_relaxed);
  }

 private:
  static void finished(nvmf::HostCommand* command, nvmf::Outcome outcome, const uint8_t cqe[16]);
  Result<nvmf::RegisteredMemory*> registered(Buffer* buffer, uint32_t queue);
  void drop_region(Buffer* buffer);
  void count_regions();
  void start(SubmittedCommand* command);
  void complete(SubmittedCommand* command, nvmf::Outcome outcome, const uint8_t cqe[16]);

  reactor::Reactor* const reactor_;
  EventRing* const ring_;
  const bool shared_registration_;
  nvmf::CommandQueues* queues_ = nullptr;
  SubmittedCommand* commands_ = nullptr;  // that were not completed
  std::set<Buffer*> buffers_;             // registered here
  std::atomic<uint32_t> live_regions_{0};
};

}  // namespace nvmeof::addon
