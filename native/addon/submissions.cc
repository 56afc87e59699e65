#include "addon/submissions.h"

#include <sched.h>

#include "addon/device_on_reactor.h"

namespace nvmeof::addon {

Submissions::Batch& Submissions::batch_for(DeviceOnReactor* on) {
  for (Batch& batch : batches_)
    if (batch.on == on) return batch;
  return batches_.emplace_back(Batch{on});
}

void Submissions::add(DeviceOnReactor* on, SubmittedCommand* command) {
  const size_t before = batches_.size();
  Batch& batch = batch_for(on);
  command->next = nullptr;
  (batch.count == 0 ? batch.first : batch.last->next) = command;
  batch.last = command;
  batch.count++;
  if (batch.count == kBatch || batches_.size() != before) send(batch);
}

void Submissions::flush() {
  for (Batch& batch : batches_)
    if (batch.count != 0) send(batch);
  batches_.clear();
}

void Submissions::send(Batch& batch) {
  const reactor::Task task{
      [](void* context, uint64_t on) {
        reinterpret_cast<DeviceOnReactor*>(on)->submit(static_cast<SubmittedCommand*>(context));
      },
      batch.first, reinterpret_cast<uintptr_t>(batch.on)};
  // The reactor never waits for JavaScript: room comes.
  while (!batch.on->reactor()->post(task)) sched_yield();
  batch.count = 0;
}

}  // namespace nvmeof::addon
