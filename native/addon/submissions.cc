#include "addon/submissions.h"

#include "addon/commands_on_reactor.h"
#include "addon/task.h"

namespace nvmeof::addon {

Submissions::Batch* Submissions::batch_of(CommandsOnReactor* on) {
  for (Batch& batch : batches_)
    if (batch.on == on) return &batch;
  return nullptr;
}

void Submissions::add(CommandsOnReactor* on, SubmittedCommand* command) {
  command->next = nullptr;
  Batch* const batch = batch_of(on);
  if (batch == nullptr) {
    batches_.push_back({on});
    send(on, command);
    return;
  }
  (batch->count == 0 ? batch->first : batch->last->next) = command;
  batch->last = command;
  if (++batch->count < kBatch) return;
  batch->count = 0;
  send(on, batch->first);
}

void Submissions::flush() {
  for (const Batch& batch : batches_)
    if (batch.count != 0) send(batch.on, batch.first);
  batches_.clear();
}

void Submissions::send(CommandsOnReactor* on, SubmittedCommand* first) {
  post(*on->reactor(), reactor::Task{[](void* context, uint64_t to) {
                                       reinterpret_cast<CommandsOnReactor*>(to)->submit(
                                           static_cast<SubmittedCommand*>(context));
                                     },
                                     first, reinterpret_cast<uintptr_t>(on)});
}

}  // namespace nvmeof::addon
