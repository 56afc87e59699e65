// What one reactor has done by the queues of another, and the box in which errands arrive: those
// for its queues (visiting_commands.h), and its own when they are done (remote_queue.h).
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "nvmf/command_queues.h"
#include "nvmf/nvme.h"

namespace nvmeof::nvmf {

class ErrandBox;
class VisitingCommands;

struct Errand {
  enum class Kind : uint8_t {
    Submit,  // `command`; comes back as Done
    Cancel,  // commands with the tag of `command`
    Forget,  // the registration of `memory`
    Done,
  };
  Kind kind = Kind::Submit;
  uint32_t queue = 0;
  CommandQueues* engine = nullptr;  // whose queue that is: may have ended, see VisitingCommands
  uint64_t memory = 0;              // its id; 0: the command has no data
  HostMemory extent;                // where it is
  HostCommand command;              // the copy that the engine gets
  HostCommand* original = nullptr;
  VisitingCommands* host = nullptr;  // that has it in hand
  Outcome outcome = Outcome::Ok;
  std::array<uint8_t, kCqeBytes> cqe{};
  std::shared_ptr<ErrandBox> home;  // where it comes back to; empty once it does
  Errand* next = nullptr;           // in a box, or of those that are free
};

class ErrandBox {
 public:
  explicit ErrandBox(reactor::Reactor* reactor) : reactor_(reactor) {}
  ~ErrandBox();  // and what nobody took
  ErrandBox(const ErrandBox&) = delete;
  ErrandBox& operator=(const ErrandBox&) = delete;

  // Any thread. What one thread puts in stays in order.
  void put(Errand* errand);
  // On the reactor's thread: all there are, the oldest first.
  Errand* take();
  // Nobody takes any more.
  void close() { reactor_.store(nullptr, std::memory_order_release); }

 private:
  std::atomic<Errand*> newest_{nullptr};
  std::atomic<reactor::Reactor*> reactor_;
};

// Errands of one reactor. On its thread.
class ErrandPool {
 public:
  explicit ErrandPool(std::shared_ptr<ErrandBox> home) : home_(std::move(home)) {}
  ~ErrandPool();
  ErrandPool(const ErrandPool&) = delete;
  ErrandPool& operator=(const ErrandPool&) = delete;

  Errand* make(Errand::Kind kind, CommandQueues* engine, uint32_t queue);
  const std::shared_ptr<ErrandBox>& home() const { return home_; }
  void give_back(Errand* errand);

 private:
  const std::shared_ptr<ErrandBox> home_;
  Errand* free_ = nullptr;
};

}  // namespace nvmeof::nvmf
