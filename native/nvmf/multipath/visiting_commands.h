// Commands of other reactors for the queues of this one (remote_queue.h): gives them to their
// engine, with their memory registered here, and sends back how they ended. On the reactor's
// thread.
#pragma once
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "nvmf/multipath/errand.h"

namespace nvmeof::nvmf {

class VisitingCommands {
 public:
  // Errands name engines of this reactor, which may have ended meanwhile.
  void engine_made(CommandQueues* engine) { engines_.push_back(engine); }
  // A queue of an engine, or (`queue` 0) the engine, has ended. Before its protection domain goes.
  void queue_gone(const CommandQueues* engine, uint32_t queue);

  // One from the box that asks for something here.
  void serve(Errand* errand);

  // Any thread: commands that were served, and registrations there are.
  uint64_t commands() const { return commands_.load(std::memory_order_relaxed); }
  uint64_t registrations() const { return registrations_.load(std::memory_order_relaxed); }

 private:
  struct Memory {
    CommandQueues* engine;
    uint32_t queue;
    std::unique_ptr<RegisteredMemory> registered;
    uint32_t in_use = 0;  // by commands
    bool forgotten = false;
  };

  static void ended(HostCommand* command, Outcome outcome, const uint8_t cqe[16]);
  static void send_back(Errand* errand, Outcome outcome, const uint8_t* cqe);

  void submit(Errand* errand);
  Memory* registered(const Errand& errand);
  void forget(uint64_t memory);
  void drop_if_unused(std::unordered_map<uint64_t, Memory>::iterator at);
  void count_registrations() { registrations_.store(memories_.size(), std::memory_order_relaxed); }
  bool lives(const CommandQueues* engine) const;

  std::atomic<uint64_t> commands_{0}, registrations_{0};
  std::vector<CommandQueues*> engines_;
  std::unordered_map<uint64_t, Memory> memories_;  // by the id that errands name
};

}  // namespace nvmeof::nvmf
