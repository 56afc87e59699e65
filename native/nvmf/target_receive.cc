// Completions of the target engine: capsules that arrive become commands, work requests that end
// move theirs on. Commands of one round are parsed and prefetched first, then started.
#include "nvmf/target_impl.h"

namespace nvmeof::nvmf {

void TargetEngineImpl::on_completion(const rdma::WorkCompletion& wc) {
  if (static_cast<Work>(wc.wr_id >> 56) == Work::Receive)
    on_receive(wc);
  else
    on_sent(wc);
}

void TargetEngineImpl::on_receive(const rdma::WorkCompletion& wc) {
  const uint32_t receive = static_cast<uint32_t>(wc.wr_id);
  taken(receive);
  TargetQueue* queue = queue_of(wc.qp_context);
  if (!queue || !queue->alive()) return repost(receive);
  if (wc.status != rdma::Status::Success) {
    repost(receive);
    return kill(queue, std::string("receive failed: ") + rdma::to_string(wc.status));
  }
  establish(queue);
  // NVMe RDMA Transport: a command capsule is one SEND. Anything else is no capsule.
  if (wc.opcode == rdma::Opcode::RdmaWriteWithImm || wc.byte_length < kSqeBytes) {
    repost(receive);
    return kill(queue, "the host sent a capsule of " + std::to_string(wc.byte_length) +
                           " bytes, the least is 64");
  }
  if (queue->outstanding >= queue->outstanding_limit()) {
    repost(receive);
    return kill(queue, "the host sent more commands than the queue's " +
                           std::to_string(queue->depth) + " entries allow");
  }
  queue->outstanding++;
  queue->push_waiting({receive, wc.byte_length, now_});
  await_service(queue, &sparse_);
}

// Gives the capsule a slot, parses it, and lists it for launch_arrivals(). Returns the bytes of its
// data.
uint32_t TargetEngineImpl::take_capsule(TargetQueue* queue, const WaitingCapsule& waiting) {
  const auto [receive, length, arrived] = waiting;
  Command* command = queue->free.pop_front();
  move(command, CommandState::Parsed);
  queue->live++;
  live_commands_++;
  command->receive = receive;
  const uint8_t* capsule = memory_->receive(receive);
  std::memcpy(command->sqe, capsule, kSqeBytes);
  const uint32_t in_capsule =
      std::min(length - static_cast<uint32_t>(kSqeBytes), queue->in_capsule_bytes);
  Rejection refused;
  if (queue->executes(command->sqe)) {
    const IoContext context{queue->table, in_capsule, limits_.max_transfer_bytes, queue->view};
    refused = parse_io(*command, context);
    if (!refused) {
      command->entry->in_flight++;
      command->arrived = arrived;
      reactor::add_relaxed(counters_.commands[io_row_index(command->row)], 1);
      if (to_host(command->transfer))
        command->entry->channel->prefetch(command->offset, command->length);
    } else {
      command->row = nullptr;
      command->entry = nullptr;
    }
  } else {
    reactor::add_relaxed(counters_.control_commands, 1);
    if (queue->qid == 0 && command->sqe[sqe::kOpcode] == kOpcodeKeepAlive) keep_alive(queue);
    refused = parse_control(command->sqe, in_capsule, &command->transfer, &command->block);
    if (!refused && from_host(command->transfer)) {
      command->data_length = command->block.length;
      if (command->data_length > kControlFetchMax)
        refused = {status::kSglLengthInvalid, sqe::kSglLength};
    }
  }
  const bool data_in_capsule =
      !refused && command->data_length > 0 && command->block.kind == DataBlock::Kind::InCapsule;
  if (data_in_capsule) {
    command->payload = memory_->receive(receive) + kSqeBytes + command->block.address;
  } else {
    command->receive = kNoIndex;
    repost(receive);
  }
  if (refused) {
    refuse(command, refused);
    return 0;
  }
  arrivals_.push_back(command);
  return command->data_length;
}

void TargetEngineImpl::launch_arrivals() {
  for (size_t i = 0; i < arrivals_.size(); i++) {
    Command* command = arrivals_[i];
    if (command->queue->alive())
      launch(command);
    else
      release(command);
  }
  arrivals_.clear();
}

void TargetEngineImpl::launch(Command* command) {
  if (in_place(command)) return;
  const uint32_t bytes = command->row         ? io_buffer_bytes(*command)
                         : command->fetches() ? command->data_length
                                              : 0;
  if (bytes > 0)
    need_buffer(command, command->row ? data_.get() : control_.get(), bytes);
  else
    have_memory(command);
}

// A work request of ours ended. Only READs and responses are signalled; a WRITE is seen here when
// it failed, and its response is flushed behind it.
void TargetEngineImpl::on_sent(const rdma::WorkCompletion& wc) {
  TargetQueue* queue = queue_of(wc.qp_context);
  if (!queue) return;  // of a queue that is gone
  const uint32_t slot = static_cast<uint32_t>(wc.wr_id);
  if (slot >= queue->slot_count) return;
  Command* command = &queue->slots[slot];
  const Work work = static_cast<Work>(wc.wr_id >> 56);
  if (wc.status != rdma::Status::Success && queue->answers()) {
    const char* what = work == Work::Read    ? "RDMA READ"
                       : work == Work::Write ? "RDMA WRITE"
                                             : "response";
    if (wc.status != rdma::Status::FlushError) reactor::add_relaxed(counters_.queue_failures, 1);
    const bool overdue = queue->lease && queue->lease->over(reactor::Lease::clock());
    kill(queue, overdue ? kOverdue : std::string(what) + " failed: " + rdma::to_string(wc.status));
  }
  if (work == Work::Response && command->state == CommandState::Sending) {
    queue->credits += command->credits;
    if (!queue->ready.empty() || !queue->fetch.empty()) mark_dirty(queue);
    release(command);
  } else if (work == Work::Read && command->state == CommandState::Fetching && command->posted) {
    queue->credits += command->credits;
    command->credits = 0;
    if (!queue->ready.empty() || !queue->fetch.empty()) mark_dirty(queue);
    if (wc.status == rdma::Status::Success && queue->answers())
      fetched(command);
    else
      release(command);
  }
}

}  // namespace nvmeof::nvmf
