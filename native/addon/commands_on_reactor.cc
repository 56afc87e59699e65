// Commands of JavaScript; see commands_on_reactor.h.
#include "addon/commands_on_reactor.h"

#include <cerrno>

namespace nvmeof::addon {

namespace {

// How it is told to JavaScript, for which a command that a dead queue never sent died with it.
uint32_t code_of(nvmf::Outcome outcome) {
  const bool died = outcome == nvmf::Outcome::NeverSent;
  return static_cast<uint32_t>(died ? nvmf::Outcome::QueueDied : outcome);
}

}  // namespace

void CommandsOnReactor::count_regions() {
  live_regions_.store(static_cast<uint32_t>(buffers_.size()), std::memory_order_relaxed);
}

Result<nvmf::RegisteredMemory*> CommandsOnReactor::registered(Buffer* buffer, uint32_t queue) {
  auto& registrations = buffer->on[reactor_->index()].registrations;
  const uint32_t owner = shared_registration_ ? 0 : queue;
  if (const auto found = registrations.find(owner); found != registrations.end())
    return found->second.get();
  if (queues_ == nullptr) return Error{ENOTCONN, "the queue is closed"};
  auto made = queues_->register_memory(queue, buffer->arena->base(), buffer->arena->bytes());
  if (!made) return made.error();
  buffers_.insert(buffer);
  count_regions();
  return (registrations[owner] = std::move(*made)).get();
}

void CommandsOnReactor::drop_regions_of(uint32_t queue) {
  if (shared_registration_) return;
  std::erase_if(buffers_, [&](Buffer* buffer) {
    auto& registrations = buffer->on[reactor_->index()].registrations;
    return registrations.erase(queue) != 0 && registrations.empty();
  });
  count_regions();
}

void CommandsOnReactor::submit(SubmittedCommand* first) {
  while (first != nullptr) {
    SubmittedCommand* const next = first->next;
    start(first);
    first = next;
  }
}

void CommandsOnReactor::start(SubmittedCommand* command) {
  command->previous = nullptr;
  command->next = commands_;
  if (commands_ != nullptr) commands_->previous = command;
  commands_ = command;
  if (command->buffer) {
    command->buffer->on[reactor_->index()].in_flight++;
    Result<nvmf::RegisteredMemory*> memory = registered(command->buffer, command->queue);
    if (!memory) {
      complete(command, nvmf::Outcome::Cancelled, nvmf::kNoCqe.data());
      return;
    }
    command->command.memory = *memory;
  }
  command->on = this;
  command->command.context = command;
  command->command.done = finished;
  if (queues_ == nullptr) {
    complete(command, nvmf::Outcome::NeverSent, nvmf::kNoCqe.data());
    return;
  }
  queues_->submit(command->queue, &command->command);
}

void CommandsOnReactor::cancel(uint32_t queue, uint32_t tag) {
  if (queues_ != nullptr) queues_->cancel(queue, tag);
}

void CommandsOnReactor::finished(nvmf::HostCommand* command, nvmf::Outcome outcome,
                                 const uint8_t cqe[16]) {
  auto* mine = static_cast<SubmittedCommand*>(command->context);
  mine->on->complete(mine, outcome, cqe);
}

void CommandsOnReactor::complete(SubmittedCommand* command, nvmf::Outcome outcome,
                                 const uint8_t cqe[16]) {
  (command->previous != nullptr ? command->previous->next : commands_) = command->next;
  if (command->next != nullptr) command->next->previous = command->previous;
  Buffer* const buffer = command->buffer;
  std::span<const uint8_t> data;
  const bool success = outcome == nvmf::Outcome::Ok && (cqe[14] >> 1 | cqe[15]) == 0;
  if (success && command->answer_by_event) {
    data = {buffer->arena->base() + command->command.offset, command->command.length};
  }
  // The JavaScript thread takes the command back when it sees the event.
  ring_->push(nvmf::EventKind::Completion, command->queue, command->tag, code_of(outcome),
              command->index, {cqe, 16}, data);
  if (!buffer) return;
  Buffer::OnReactor& here = buffer->on[reactor_->index()];
  if (--here.in_flight == 0 && here.releasing) drop_region(buffer);
}

void CommandsOnReactor::release_buffer(Buffer* buffer) {
  Buffer::OnReactor& here = buffer->on[reactor_->index()];
  here.releasing = true;
  if (here.in_flight == 0) drop_region(buffer);
}

void CommandsOnReactor::drop_region(Buffer* buffer) {
  Buffer::OnReactor& here = buffer->on[reactor_->index()];
  here.registrations.clear();
  buffers_.erase(buffer);
  count_regions();
  if (here.releasing) {
    here.releasing = false;
    ring_->push_record(kBufferReleased, buffer->id, 0, 0, 0, {}, {});
  }
}

void CommandsOnReactor::drop_regions() {
  while (!buffers_.empty()) {
    Buffer* const buffer = *buffers_.begin();
    if (buffer->on[reactor_->index()].in_flight != 0) {
      buffer->on[reactor_->index()].registrations.clear();
      buffers_.erase(buffer);
    } else {
      drop_region(buffer);
    }
  }
  count_regions();
}

void CommandsOnReactor::end_all() {
  queues_ = nullptr;
  while (commands_ != nullptr) complete(commands_, nvmf::Outcome::QueueDied, nvmf::kNoCqe.data());
}

}  // namespace nvmeof::addon
