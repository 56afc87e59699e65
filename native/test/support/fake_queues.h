// I/O queues of a controller without one: keeps what is submitted until a test answers it or lets
// the queue die.
#pragma once
#include <algorithm>
#include <array>
#include <deque>
#include <memory>

#include "nvmf/command_queues.h"
#include "nvmf/nvme.h"

namespace nvmeof::test {

class FakeQueues final : public nvmf::CommandQueues {
 public:
  void submit(uint32_t queue, nvmf::HostCommand* command) override {
    if (dead) {
      end(command, nvmf::Outcome::NeverSent);
      return;
    }
    queue_seen = queue;
    sent.push_back(command);
  }
  void cancel(uint32_t, uint64_t tag) override {
    cancels++;
    if (silent_cancel) return;
    const auto found = std::ranges::find_if(
        sent, [tag](const nvmf::HostCommand* command) { return command->tag == tag; });
    if (found == sent.end()) return;
    nvmf::HostCommand* const command = *found;
    sent.erase(found);
    end(command, nvmf::Outcome::Cancelled);
  }
  Result<std::unique_ptr<nvmf::RegisteredMemory>> register_memory(uint32_t, uint8_t* base,
                                                                  size_t length) override {
    if (refuse_memory) return Error{ENOMEM, "no"};
    return std::unique_ptr<nvmf::RegisteredMemory>(std::make_unique<Memory>(this, base, length));
  }

  // The oldest that was submitted.
  void answer(uint16_t status = 0) {
    nvmf::HostCommand* const command = sent.front();
    sent.pop_front();
    end(command, nvmf::Outcome::Ok, status);
  }
  void die() {
    dead = true;
    while (!sent.empty()) {
      nvmf::HostCommand* const command = sent.front();
      sent.pop_front();
      end(command, nvmf::Outcome::QueueDied);
    }
  }

  std::deque<nvmf::HostCommand*> sent;
  uint32_t queue_seen = 0;
  int cancels = 0, memories = 0;
  bool dead = false, silent_cancel = false, refuse_memory = false;

 private:
  struct Memory final : nvmf::RegisteredMemory {
    Memory(FakeQueues* its, uint8_t* at, size_t bytes)
        : RegisteredMemory({at, bytes, nullptr}), queues(its) {
      queues->memories++;
    }
    ~Memory() override { queues->memories--; }
    FakeQueues* const queues;
  };

  static void end(nvmf::HostCommand* command, nvmf::Outcome outcome, uint16_t status = 0) {
    const auto cqe = nvmf::cqe_with(status);
    command->done(command, outcome, cqe.data());
  }
};

}  // namespace nvmeof::test
