// Work requests of the target engine. Per queue and round: a train of RDMA WRITEs, then the
// responses of the same commands, then READs, in one post. The order of answers across commands is
// free, and RC keeps each WRITE before its response. Answers wait for send queue entries; the queue
// is never overrun.
#include <algorithm>

#include "nvmf/target_impl.h"

namespace nvmeof::nvmf {

void TargetEngineImpl::mark_dirty(TargetQueue* queue) {
  if (queue->dirty) return;
  queue->dirty = true;
  dirty_.push_back(queue);
}

int TargetEngineImpl::flush_round(reactor::TimeNs now) {
  now_ = now;
  if (dirty_.empty() && control_->waiting.empty() && data_->waiting.empty()) return 0;
  const int work = flush();
  flush_receives();
  return work;
}

// Serving and posting feed each other: until neither moves.
int TargetEngineImpl::flush() {
  int work = 0;
  for (;;) {
    buffers_freed_ = false;
    int moved = serve_waiting(control_.get()) + serve_waiting(data_.get());
    flushing_.swap(dirty_);
    for (TargetQueue* queue : flushing_) {
      queue->dirty = false;
      await_service(queue, &busy_);
    }
    for (TargetQueue* queue : flushing_) moved += flush_queue(queue);
    flushing_.clear();
    work += moved;
    if (moved == 0 && dirty_.empty()) return work;
  }
}

int TargetEngineImpl::flush_queue(TargetQueue* queue) {
  int posted = 0;
  while (queue->answers() && queue->credits > 0) {
    unsigned count = gather_answers(queue);
    count += gather_fetches(queue, count);
    if (count == 0) break;
    // Before the answers: the host may send its next command as soon as it has one.
    if (receives_wait()) flush_receives();
    if (const auto sent = queue->qp->post_send({requests_, count}); !sent) {
      // How many of them went is unknown: their commands end with the queue pair.
      kill(queue, "cannot post work requests: " + sent.error().message);
      break;
    }
    posted += static_cast<int>(count);
  }
  return posted;
}

namespace {

// How many of the answers leave together.
unsigned train_length(const CommandList& ready) {
  unsigned count = 0;
  for (const Command* command = ready.head; command && count <= kTrain + kTrainRest;
       command = command->next)
    count++;
  return count < kTrain + kTrainRest ? count : kTrain;
}

}  // namespace

// Takes up to a train of answers: first all their WRITEs, then all their responses.
unsigned TargetEngineImpl::gather_answers(TargetQueue* queue) {
  Command* train[kTrain + kTrainRest];
  unsigned commands = 0, count = 0;
  const unsigned limit = train_length(queue->ready);
  while (commands < limit && queue->ready.head) {
    Command* command = queue->ready.head;
    const uint8_t needed = command->data_length > 0 ? 2 : 1;
    if (needed > queue->credits) break;
    queue->credits -= needed;
    command->credits = needed;
    move(command, CommandState::Sending);
    train[commands++] = command;
    if (command->data_length == 0) continue;
    sges_[count] = payload_of(command);
    rdma::SendWorkRequest& request = requests_[count];
    request = {};
    request.wr_id = work_id(Work::Write, command->slot);
    request.opcode = rdma::Opcode::RdmaWrite;
    request.num_sge = 1;
    request.sg_list = &sges_[count];
    request.remote_address = command->block.address;
    request.rkey = command->block.key;
    count++;
  }
  for (unsigned i = 0; i < commands; i++, count++)
    fill_response(queue, train[i], &requests_[count], &sges_[count]);
  return count;
}

// In a buffer of ours, or in the namespace itself.
rdma::Sge TargetEngineImpl::payload_of(const Command* command) const {
  const uint32_t lkey = command->in_place ? command->entry->region->lkey() : memory_->lkey();
  return {reinterpret_cast<uint64_t>(command->payload), command->data_length, lkey};
}

void TargetEngineImpl::fill_response(TargetQueue* queue, Command* command,
                                     rdma::SendWorkRequest* request, rdma::Sge* sge) {
  command->response = free_responses_.back();
  free_responses_.pop_back();
  queue->outstanding--;
  uint16_t sqhd = 0;
  if (queue->flow_control_disabled) {
    // Connect's answer says that SQHD is not used (Base 6.4, Connect response); later it is 0.
    const bool connect = command->sqe[sqe::kOpcode] == kOpcodeFabrics &&
                         command->sqe[sqe::kFctype] == kFctypeConnect;
    if (connect) sqhd = 0xFFFF;
  } else {
    queue->sqhd = static_cast<uint16_t>((queue->sqhd + 1) % queue->depth);
    sqhd = queue->sqhd;
  }
  uint8_t* capsule = memory_->response(command->response);
  encode_response({command->result, sqhd, queue->qid, command->cid(), command->status}, capsule);
  const rdma::Capabilities& device = device_->capabilities();
  const bool invalidate = command->block.kind == DataBlock::Kind::Keyed &&
                          command->block.invalidate && device.send_with_invalidate;
  *sge = {reinterpret_cast<uint64_t>(capsule), static_cast<uint32_t>(kCqeBytes), memory_->lkey()};
  *request = {};
  request->wr_id = work_id(Work::Response, command->slot);
  request->opcode = invalidate ? rdma::Opcode::SendWithInvalidate : rdma::Opcode::Send;
  request->flags = rdma::kSignaled;
  if (device.max_inline >= kCqeBytes && (!invalidate || device.inline_with_invalidate))
    request->flags |= rdma::kInline;
  request->num_sge = 1;
  request->sg_list = sge;
  if (invalidate) request->imm_or_rkey = command->block.key;
}

unsigned TargetEngineImpl::gather_fetches(TargetQueue* queue, unsigned at) {
  unsigned count = 0;
  while (count < kFetchBatch && queue->fetch.head && queue->credits > 0) {
    Command* command = queue->fetch.pop_front();
    fill_fetch(command, &requests_[at + count], &sges_[at + count]);
    queue->credits--;
    command->credits = 1;
    command->posted = true;
    count++;
  }
  return count;
}

void TargetEngineImpl::fill_fetch(Command* command, rdma::SendWorkRequest* request,
                                  rdma::Sge* sge) {
  *sge = payload_of(command);
  *request = {};
  request->wr_id = work_id(Work::Read, command->slot);
  request->opcode = rdma::Opcode::RdmaRead;
  if (command->in_place) request->lease = command->queue->lease.get();
  request->flags = rdma::kSignaled;
  request->num_sge = 1;
  request->sg_list = sge;
  request->remote_address = command->block.address;
  request->rkey = command->block.key;
}

}  // namespace nvmeof::nvmf
