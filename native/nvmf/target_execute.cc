// From a parsed command to its answer: a buffer, the host's data, block requests or the control
// plane, the status. Every way out of here ends in finish() or release().
#include "nvmf/target_impl.h"

namespace nvmeof::nvmf {

// Buffers are given in the order asked for: who comes later waits behind who waits already.
void TargetEngineImpl::need_buffer(Command* command, WaitingPool* from, uint32_t bytes) {
  command->from = from;
  command->buffer_bytes = bytes;
  if (from->waiting.empty()) command->buffer = from->pool.allocate(bytes);
  if (command->buffer) return have_memory(command);
  reactor::add_relaxed(counters_.buffer_waits, 1);
  move(command, CommandState::Waiting);
  from->waiting.push_back(command);
}

// Releasing never serves directly: that would recurse as deep as the queue of waiters is long.
int TargetEngineImpl::serve_waiting(WaitingPool* from) {
  int served = 0;
  while (Command* command = from->waiting.head) {
    command->buffer = from->pool.allocate(command->buffer_bytes);
    if (!command->buffer) break;
    from->waiting.unlink(command);
    have_memory(command);
    served++;
  }
  return served;
}

void TargetEngineImpl::have_memory(Command* command) {
  if (command->parked) {  // the control plane's data: its buffer has come
    std::memcpy(command->buffer, command->parked.get(), command->data_length);
    command->parked.reset();
    command->payload = command->buffer;
    return finish(command);
  }
  if (!command->payload) command->payload = command->buffer;
  if (command->fetches()) return fetch(command);
  if (command->row)
    execute(command);
  else
    hand_up(command);
}

void TargetEngineImpl::fetch(Command* command) {
  move(command, CommandState::Fetching);
  command->posted = false;
  command->queue->fetch.push_back(command);
  mark_dirty(command->queue);
}

void TargetEngineImpl::fetched(Command* command) {
  if (command->aborted) return refuse(command, {status::kAbortRequested, kNoParameter});
  if (command->in_place) return placed(command);
  if (command->row)
    execute(command);
  else
    hand_up(command);
}

void TargetEngineImpl::execute(Command* command) {
  // Removed while the command waited: nothing was done yet, and the removal need not wait for it.
  if (command->entry->removed) return refuse(command, {status::kInvalidNamespace, sqe::kNsid});
  if (const uint16_t refusal = command->refusal()) return refuse(command, {refusal, sqe::kNsid});
  move(command, CommandState::Executing);
  command->request.lease = command->queue->lease.get();
  command->request.done = on_block_done;
  command->request.context = command;
  run(command, true);
}

// Runs steps until one has to wait. A backing that completes inside submit() is looped here: a
// command of many steps must not grow the stack.
void TargetEngineImpl::run(Command* command, bool first) {
  for (;;) {
    if (command->error == block::kLeaseOver) kill(command->queue, kOverdue);
    if (!command->queue->answers()) return release(command);
    if (command->aborted) {
      command->status = status::kAbortRequested;
      return finish(command);
    }
    if (command->row->step(*command, first) == Step::End) {
      if (!next_flush_target(command)) return finish(command);
      first = true;
      continue;
    }
    first = false;
    command->request.next = nullptr;
    command->in_submit = true;
    command->done_inside = false;
    command->entry->channel->submit(&command->request);
    command->in_submit = false;
    if (!command->done_inside) return;
  }
}

// A flush of all namespaces goes on with the next one. Only this namespace is held meanwhile.
bool TargetEngineImpl::next_flush_target(Command* command) {
  if (command->row->opcode != io::kFlush || command->status != status::kSuccess ||
      load32(command->sqe + sqe::kNsid) != kNsidAll || !command->queue->table)
    return false;
  Namespace* next = command->queue->table->after(command->entry->nsid);
  if (!next) return false;
  // What the port may not use cannot be flushed through it, and the host must not think it was.
  if (const uint16_t refusal = command->queue->view->refusal[next->ana_group]) {
    command->status = refusal;
    return false;
  }
  command->entry->in_flight--;
  command->entry = next;
  next->in_flight++;
  return true;
}

void TargetEngineImpl::on_block_done(block::Request* request, int error) {
  Command* command = static_cast<Command*>(request->context);
  command->error = error;
  if (command->in_submit) {
    command->done_inside = true;
    return;
  }
  command->queue->engine->run(command, false);
}

// To the control plane, which answers through complete(). What carried the data is free again.
void TargetEngineImpl::hand_up(Command* command) {
  move(command, CommandState::Control);
  TargetQueue* queue = command->queue;
  const std::span<const uint8_t> data{command->payload,
                                      from_host(command->transfer) ? command->data_length : 0};
  sink_->push(EventKind::Capsule, queue->id, command->tag(), 0, 0, command->sqe, data);
  release_memory(command);
  command->data_length = 0;
}

void TargetEngineImpl::refuse(Command* command, const Rejection& why) {
  command->status = why.status;
  command->parameter = why.parameter;
  finish(command);
}

// The answer stands: keeps only what the host still has to receive, and lines it up for sending.
void TargetEngineImpl::finish(Command* command) {
  TargetQueue* queue = command->queue;
  command->leave_backing();
  if (command->row && command->error == ECANCELED && !command->aborted && command->entry->cancelled)
    command->status =
        command->entry->removed ? status::kInvalidNamespace : status::kNamespaceNotReady;
  const bool failed = command->status != status::kSuccess;
  if (command->row) {
    QueueStatistics& statistics = queue->statistics;
    statistics.latency.record(time() - command->arrived);
    if (failed) {
      command->data_length = 0;
      statistics.errors++;
    } else if (command->row->opcode == io::kRead) {
      reactor::add_relaxed(counters_.bytes_read, command->length);
      statistics.reads++;
      statistics.bytes_read += command->length;
    } else if (command->row->opcode == io::kWrite) {
      reactor::add_relaxed(counters_.bytes_written, command->length);
      statistics.writes++;
      statistics.bytes_written += command->length;
    } else {
      statistics.others++;
    }
    if (!command->in_place) {
      command->entry->in_flight--;
      command->entry = nullptr;
    }
  }
  // Native's own refusals are reported; what the control plane answered, it knows.
  if (failed && !command->answered_above) {
    reactor::add_relaxed(counters_.errors, 1);
    sink_->push(EventKind::IoError, queue->id, 0,
                command->status | static_cast<uint32_t>(command->parameter) << 16, 0, command->sqe,
                {});
  }
  if (!to_host(command->transfer)) command->data_length = 0;
  if (command->data_length == 0) release_memory(command);
  move(command, CommandState::Ready);
  queue->ready.push_back(command);
  mark_dirty(queue);
}

void TargetEngineImpl::release_memory(Command* command) {
  if (command->receive != kNoIndex) {
    repost(command->receive);
    command->receive = kNoIndex;
  }
  if (command->buffer) {
    command->from->pool.release(command->buffer);
    command->buffer = nullptr;
    buffers_freed_ = true;
  }
  command->payload = nullptr;
}

// Back to the queue: nothing may touch the command, its buffer or its response any more.
void TargetEngineImpl::release(Command* command) {
  TargetQueue* queue = command->queue;
  command->leave_backing();
  release_memory(command);
  if (command->entry) command->entry->in_flight--;
  if (command->response != kNoIndex) free_responses_.push_back(command->response);
  move(command, CommandState::Free);
  command->reset();
  queue->free.push_back(command);
  queue->live--;
  live_commands_--;
  if (queue->waiting_count > 0) mark_dirty(queue);
}

}  // namespace nvmeof::nvmf
