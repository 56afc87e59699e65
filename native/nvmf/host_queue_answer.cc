// How commands of a host queue end: completions and the controller's answers, cancellation, the
// death of the queue. Nothing the controller sends is trusted: an answer that fits no command in
// flight closes the queue. On the reactor's thread.
#include <algorithm>
#include <cstring>

#include "nvmf/host_queue.h"
#include "nvmf/nvme.h"

namespace nvmeof::nvmf {

namespace {

constexpr uint32_t kResponseBytes = kCqeBytes;

}  // namespace

void HostQueue::on_completion(const rdma::WorkCompletion& completion) {
  if (state_ != HostQueueState::Live) return;  // the end gives everything back at once
  if (completion.status != rdma::Status::Success) {
    // A flushed request says only that something else failed, and one without an answer only that:
    // the provider knows of narrow links and closed ports.
    const bool certain = completion.status != rdma::Status::FlushError &&
                         completion.status != rdma::Status::RetryExceeded;
    begin_close(std::string("the queue pair failed: ") + rdma::to_string(completion.status),
                certain);
    return;
  }
  if (completion.receive) {
    on_response(completion);
    return;
  }
  const auto index = static_cast<uint16_t>(completion.wr_id);
  Slot& slot = slots_[index];
  switch (static_cast<Work>(completion.wr_id >> kWorkShift)) {
    case Work::Send:
      slot.send_pending = false;
      release_if_over(index);
      break;
    case Work::Invalidate:
      if (slot.key == Key::Invalidating) key_died(slot);
      if (slot.command != nullptr) {
        end_command(index);
      } else {
        release_if_over(index);
      }
      break;
    case Work::Bind:
      break;  // not signaled
  }
}

// The slot of a command in flight; null when the controller answers anything else.
HostQueue::Slot* HostQueue::slot_of(uint16_t cid) {
  const uint32_t index = cid & ((1u << slot_bits_) - 1);
  if (index >= slot_count_) return nullptr;
  Slot& slot = slots_[index];
  const bool in_flight = slot.used && slot.posted && !slot.answered;
  return in_flight && cid == command_id(static_cast<uint16_t>(index)) ? &slot : nullptr;
}

void HostQueue::on_response(const rdma::WorkCompletion& completion) {
  const auto receive = static_cast<uint16_t>(completion.wr_id);
  reposts_.push_back(receive);
  mark_dirty();
  if (completion.byte_length != kResponseBytes) {
    protocol_error("the controller sent a response of " + std::to_string(completion.byte_length) +
                   " bytes instead of 16");
    return;
  }
  const uint8_t* entry = memory_ + size_t{receive} * kResponseBytes;
  const uint16_t cid = load16(entry + cqe::kCid);
  Slot* slot = slot_of(cid);
  if (slot == nullptr) {
    protocol_error("the controller answered command " + std::to_string(cid) +
                   ", which is not in flight (unknown, late or repeated)");
    return;
  }
  if ((completion.flags & rdma::kWithInvalidate) != 0) {
    if (!slot->keyed || completion.imm_or_rkey != slot->rkey) {
      protocol_error("the answer to command " + std::to_string(cid) +
                     " invalidated a key that is not the command's");
      return;
    }
    // A key whose invalidation we posted is certainly dead when that completes.
    if (slot->key == Key::Live || slot->key == Key::Dying) key_died(*slot);
  }
  answered(*slot);
  return_receive_bytes(*slot);
  std::memcpy(slot->cqe.data(), entry, kResponseBytes);
  const auto index = static_cast<uint16_t>(slot - slots_.data());
  if (slot->key == Key::Live) kill_key(index);
  if (slot->key != Key::None) return;
  if (slot->command != nullptr) {
    end_command(index);
  } else {
    release_if_over(index);
  }
}

void HostQueue::protocol_error(std::string reason) {
  reactor::add_relaxed(shared_->counters.protocol_errors, 1);
  begin_close(std::move(reason));
}

void HostQueue::kill_key(uint16_t index) {
  slots_[index].key = Key::Dying;
  dying_.push_back(index);
  mark_dirty();
}

void HostQueue::key_died(Slot& slot) {
  slot.key = Key::None;
  reactor::add_relaxed(shared_->counters.windows, ~0ull);
}

// The user's part is over: answered or cancelled, and no key of it lives.
void HostQueue::end_command(uint16_t index) {
  Slot& slot = slots_[index];
  HostCommand* command = slot.command;
  slot.command = nullptr;
  const std::array<uint8_t, kResponseBytes> cqe = slot.cancelled ? kNoCqe : slot.cqe;
  const Outcome outcome = slot.cancelled ? Outcome::Cancelled : Outcome::Ok;
  release_if_over(index);
  command->done(command, outcome, cqe.data());
}

// Or no answer will come any more.
void HostQueue::answered(Slot& slot) {
  if (slot.answered) return;
  slot.answered = true;
  in_flight_--;
  answers_++;
}

void HostQueue::release_if_over(uint16_t index) {
  Slot& slot = slots_[index];
  const bool over = slot.used && slot.command == nullptr && slot.key == Key::None &&
                    !slot.send_pending && (slot.answered || !slot.posted);
  if (!over) return;
  answered(slot);
  return_receive_bytes(slot);
  if (slot.large_capsule != nullptr) large_free_.push_back(slot.large_capsule);
  slot.large_capsule = nullptr;
  slot.used = slot.posted = slot.answered = slot.cancelled = slot.exposed = slot.keyed = false;
  slot.generation++;
  free_.push_back(index);
  reactor::add_relaxed(shared_->counters.slots, ~0ull);
  if (waiting_head_ != nullptr) mark_dirty();
}

void HostQueue::return_receive_bytes(Slot& slot) {
  if (slot.receive_bytes == 0) return;
  shared_->receive_used -= slot.receive_bytes;
  shared_->counters.receive_bytes.store(shared_->receive_used, std::memory_order_relaxed);
  slot.receive_bytes = 0;
  reads_in_flight_--;
}

// The queue pair is in ERR: nothing of it reaches memory any more.
void HostQueue::end_all() {
  ended_ = true;
  for (uint16_t index = 0; index < slot_count_; index++) {
    Slot& slot = slots_[index];
    if (!slot.used) continue;
    if (slot.key != Key::None) {
      key_died(slot);
      slot.window.reset();  // it holds on to the region, which may be deregistered from here on
    }
    slot.send_pending = false;
    answered(slot);
    HostCommand* command = slot.command;
    slot.command = nullptr;
    const Outcome lost = slot.posted ? Outcome::QueueDied : Outcome::NeverSent;
    const Outcome outcome = slot.cancelled ? Outcome::Cancelled : lost;
    release_if_over(index);
    if (command != nullptr) command->done(command, outcome, kNoCqe.data());
  }
  while (HostCommand* command = waiting_head_) {
    waiting_head_ = command->next;
    command->done(command, Outcome::NeverSent, kNoCqe.data());
  }
  waiting_tail_ = nullptr;
}

void HostQueue::cancel(uint64_t tag, reactor::TimeNs now) {
  if (state_ != HostQueueState::Connecting && state_ != HostQueueState::Live) return;
  for (uint16_t index = 0; index < slot_count_; index++) {
    const HostCommand* command = slots_[index].command;
    if (command != nullptr && command->tag == tag) cancel_slot(index, now);
  }
  cancel_waiting(tag);
}

// The slot and its CID stay taken until the controller answers or the queue ends. So does the key,
// for a while: the controller may be about to use it.
void HostQueue::cancel_slot(uint16_t index, reactor::TimeNs now) {
  Slot& slot = slots_[index];
  if (slot.cancelled || slot.answered) return;
  slot.cancelled = true;
  reactor::add_relaxed(shared_->counters.cancelled, 1);
  if (slot.key == Key::Live) {
    slot.key_until = now + kCancelGrace;
    deadline = std::min(deadline, slot.key_until);
  } else if (slot.key == Key::None && !slot.exposed) {
    end_command(index);
  }
}

void HostQueue::end_overdue_keys(reactor::TimeNs now) {
  deadline = reactor::kNever;
  for (uint16_t index = 0; index < slot_count_; index++) {
    const Slot& slot = slots_[index];
    if (!slot.cancelled || slot.key != Key::Live) continue;
    if (slot.key_until <= now) {
      kill_key(index);
    } else {
      deadline = std::min(deadline, slot.key_until);
    }
  }
}

void HostQueue::cancel_waiting(uint64_t tag) {
  HostCommand* cancelled = nullptr;
  HostCommand** link = &waiting_head_;
  waiting_tail_ = nullptr;
  while (HostCommand* command = *link) {
    if (command->tag != tag) {
      waiting_tail_ = command;
      link = &command->next;
      continue;
    }
    *link = command->next;
    command->next = cancelled;
    cancelled = command;
  }
  // Only now: `done` may submit to this queue.
  while (HostCommand* command = cancelled) {
    cancelled = command->next;
    reactor::add_relaxed(shared_->counters.cancelled, 1);
    command->done(command, Outcome::Cancelled, kNoCqe.data());
  }
}

}  // namespace nvmeof::nvmf
