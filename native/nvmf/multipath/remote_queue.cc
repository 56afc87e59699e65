#include "nvmf/multipath/remote_queue.h"

#include <utility>

namespace nvmeof::nvmf {

namespace {

// Of all reactors: what is registered for one is told from what is for another.
std::atomic<uint64_t> last_memory{0};

class RemoteMemory final : public RegisteredMemory {
 public:
  RemoteMemory(const HostMemory& extent, ErrandPool* errands, QueuePlace at, uint32_t queue)
      : RegisteredMemory(extent),
        id(last_memory.fetch_add(1, std::memory_order_relaxed) + 1),
        errands_(errands),
        at_(std::move(at)),
        queue_(queue) {}
  ~RemoteMemory() override {
    Errand* const errand = errands_->make(Errand::Kind::Forget, at_.engine, queue_);
    errand->memory = id;
    at_.box->put(errand);
  }

  const uint64_t id;

 private:
  ErrandPool* const errands_;
  const QueuePlace at_;
  const uint32_t queue_;
};

}  // namespace

void RemoteQueue::submit(uint32_t queue, HostCommand* command) {
  Errand* const errand = errands_->make(Errand::Kind::Submit, at_.engine, queue);
  errand->home = errands_->home();
  errand->original = command;
  errand->command = *command;
  if (command->direction != Direction::None && command->length != 0) {
    // What is given to us was made by register_memory().
    const auto* memory = static_cast<const RemoteMemory*>(command->memory);
    errand->memory = memory->id;
    errand->extent = *memory;
  }
  at_.box->put(errand);
}

void RemoteQueue::cancel(uint32_t queue, uint64_t tag) {
  Errand* const errand = errands_->make(Errand::Kind::Cancel, at_.engine, queue);
  errand->command.tag = tag;
  at_.box->put(errand);
}

Result<std::unique_ptr<RegisteredMemory>> RemoteQueue::register_memory(uint32_t queue,
                                                                       uint8_t* base,
                                                                       size_t length) {
  return std::unique_ptr<RegisteredMemory>(
      std::make_unique<RemoteMemory>(HostMemory{base, length, nullptr}, errands_, at_, queue));
}

void RemoteQueue::finish(ErrandPool& errands, Errand* errand) {
  HostCommand* const command = errand->original;
  const Outcome outcome = errand->outcome;
  const auto cqe = errand->cqe;
  errands.give_back(errand);
  command->done(command, outcome, cqe.data());
}

}  // namespace nvmeof::nvmf
