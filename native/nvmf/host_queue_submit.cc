// What goes out on a host queue: commands from the waiting list to their work requests, keys,
// invalidations, receives. Everything of one loop iteration leaves in one flush(), in batches. On
// the reactor's thread.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nvmf/host_queue.h"
#include "nvmf/nvme.h"

namespace nvmeof::nvmf {

namespace {

// NVMe over RDMA: keyed SGL data block descriptor.
void put_keyed(uint8_t* sgl, uint64_t address, uint32_t length, uint32_t key, uint8_t id) {
  store64(sgl, address);
  store16(sgl + 8, static_cast<uint16_t>(length));
  sgl[10] = static_cast<uint8_t>(length >> 16);
  store32(sgl + 11, key);
  sgl[15] = id;
}

void put_in_capsule(uint8_t* sgl, uint32_t length) {
  store64(sgl, 0);  // offset into the in-capsule data
  store32(sgl + 8, length);
  store32(sgl + 12, uint32_t{kSglInCapsule} << 24);
}

void check_range(const HostCommand& command) {
  if (command.direction == Direction::None || command.length == 0) return;
  const HostMemory* memory = command.memory;
  const bool valid = command.length <= kHostTransferMax && memory != nullptr &&
                     command.length <= memory->length &&
                     command.offset <= memory->length - command.length;
  if (valid) return;
  std::fprintf(stderr, "nvmeof: command of %u bytes at %llu is outside its memory\n",
               command.length, static_cast<unsigned long long>(command.offset));
  std::abort();
}

uint32_t read_bytes(const HostCommand& command) {
  return command.direction == Direction::ToHost ? command.length : 0;
}

}  // namespace

void HostQueue::mark_dirty() {
  if (dirty_) return;
  dirty_ = true;
  shared_->dirty.push_back(this);
}

void HostQueue::submit(HostCommand* command) {
  check_range(*command);
  if (state_ != HostQueueState::Connecting && state_ != HostQueueState::Live) {
    command->done(command, Outcome::NeverSent, kNoCqe.data());
    return;
  }
  command->next = nullptr;
  (waiting_head_ != nullptr ? waiting_tail_->next : waiting_head_) = command;
  waiting_tail_ = command;
  if (state_ == HostQueueState::Live) mark_dirty();
}

// Whether the receive window has room; a single command larger than the window goes alone.
bool HostQueue::admits(const HostCommand& command) const {
  const uint64_t bytes = read_bytes(command);
  const uint64_t window = shared_->receive_window, used = shared_->receive_used;
  if (bytes == 0 || window == 0 || used == 0) return true;
  if (bytes <= kReadAlways && reads_in_flight_ == 0) return true;
  return used <= window && bytes <= window - used;
}

void HostQueue::pump() {
  if (starved_) return;
  while (waiting_head_ != nullptr && !free_.empty() && in_flight_ < in_flight_max_) {
    const bool behind_others = shared_->starved_head != nullptr && read_bytes(*waiting_head_) != 0;
    const bool small = read_bytes(*waiting_head_) <= kReadAlways && reads_in_flight_ == 0;
    if (!admits(*waiting_head_) || (behind_others && !small)) {
      starve();
      return;
    }
    start_first();
  }
}

void HostQueue::start_first() {
  HostCommand* command = waiting_head_;
  waiting_head_ = command->next;
  const uint16_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot.used = true;
  in_flight_++;
  slot.command = command;
  command->slot = index;
  if (shared_->receive_window != 0 && read_bytes(*command) != 0) {
    slot.receive_bytes = command->length;
    reads_in_flight_++;
    shared_->receive_used += command->length;
    shared_->counters.receive_bytes.store(shared_->receive_used, std::memory_order_relaxed);
  }
  reactor::add_relaxed(shared_->counters.slots, 1);
  ready_.push_back(index);
}

void HostQueue::starve() {
  starved_ = true;
  starved_previous_ = shared_->starved_tail;
  starved_next_ = nullptr;
  (starved_previous_ != nullptr ? starved_previous_->starved_next_ : shared_->starved_head) = this;
  shared_->starved_tail = this;
}

void HostQueue::unstarve() {
  if (!starved_) return;
  starved_ = false;
  (starved_previous_ != nullptr ? starved_previous_->starved_next_ : shared_->starved_head) =
      starved_next_;
  (starved_next_ != nullptr ? starved_next_->starved_previous_ : shared_->starved_tail) =
      starved_previous_;
}

// What comes behind the turn waits behind the other queues.
int HostQueue::serve_starved() {
  int started = 0;
  while (waiting_head_ != nullptr && started < kStarvedTurn && !free_.empty() &&
         in_flight_ < in_flight_max_ && admits(*waiting_head_)) {
    start_first();
    started++;
  }
  if (started > 0 || waiting_head_ == nullptr) {
    unstarve();
    mark_dirty();
  }
  return started;
}

void HostQueue::flush() {
  dirty_ = false;
  if (state_ != HostQueueState::Live) return;
  // Receives first: the answers to what follows need them.
  flush_receives();
  pump();
  flush_invalidates();
  flush_commands();
}

void HostQueue::flush_receives() {
  size_t count = 0;
  for (size_t i = 0; i < reposts_.size(); i++) {
    const uint16_t index = reposts_[i];
    shared_->receives[count++] = {index, 1, &receive_sges_[index]};
    if (count < HostShared::kBatch && i + 1 < reposts_.size()) continue;
    auto posted = qp_->post_receive({shared_->receives.data(), count});
    if (!posted) {
      begin_close("posting receives failed: " + posted.error().message);
      return;
    }
    count = 0;
  }
  reposts_.clear();
}

bool HostQueue::post(size_t count) {
  if (count == 0) return true;
  auto posted = qp_->post_send({shared_->sends.data(), count});
  if (posted) return true;
  begin_close("posting work requests failed: " + posted.error().message, false);
  return false;
}

void HostQueue::flush_invalidates() {
  if (state_ != HostQueueState::Live) return;
  size_t count = 0;
  for (const uint16_t index : dying_) {
    Slot& slot = slots_[index];
    if (slot.key != Key::Dying) continue;  // the answer did it meanwhile
    slot.key = Key::Invalidating;
    rdma::SendWorkRequest& request = shared_->sends[count++];
    request = {};
    request.wr_id = static_cast<uint64_t>(Work::Invalidate) << kWorkShift | index;
    request.opcode = rdma::Opcode::LocalInvalidate;
    request.flags = rdma::kSignaled;
    request.imm_or_rkey = slot.rkey;
    reactor::add_relaxed(shared_->counters.local_invalidates, 1);
    if (count < HostShared::kBatch) continue;
    if (!post(count)) return;
    count = 0;
  }
  dying_.clear();
  post(count);
}

void HostQueue::flush_commands() {
  if (state_ != HostQueueState::Live) return;
  size_t requests = 0, sges = 0;
  for (const uint16_t index : ready_) {
    requests += build(index, &shared_->sends[requests], &shared_->send_sges[sges++]);
    if (requests + 2 <= HostShared::kBatch) continue;
    if (!post(requests)) return;
    requests = sges = 0;
  }
  ready_.clear();
  post(requests);
}

bool HostQueue::fits_capsule(const HostCommand& command) const {
  if (command.direction != Direction::ToController) return false;
  if (command.length > in_capsule_bytes_) return false;
  if (command.length <= kSmallInCapsule) return true;
  return in_flight_ <= kLightLoad && !large_free_.empty();
}

// The work requests of one command: [BindMemoryWindow] SEND.
size_t HostQueue::build(uint16_t index, rdma::SendWorkRequest* out, rdma::Sge* sge) {
  Slot& slot = slots_[index];
  const HostCommand& command = *slot.command;
  const bool has_data = command.direction != Direction::None && command.length != 0;
  const bool in_capsule = has_data && fits_capsule(command);
  uint8_t* capsule = small_capsule(index);
  if (in_capsule && command.length > kSmallInCapsule) {
    capsule = slot.large_capsule = large_free_.back();
    large_free_.pop_back();
  }
  std::memcpy(capsule, command.sqe, kSqeBytes);
  capsule[sqe::kFlags] = static_cast<uint8_t>((capsule[sqe::kFlags] & ~kPsdtMask) | kPsdtSgl);
  store16(capsule + sqe::kCid, command_id(index));
  uint8_t* sgl = capsule + sqe::kSgl1;
  uint32_t capsule_bytes = kSqeBytes;
  size_t count = 0;
  if (!has_data) {
    put_keyed(sgl, 0, 0, 0, kSglKeyed);
  } else if (in_capsule) {
    put_in_capsule(sgl, command.length);
    std::memcpy(capsule + kSqeBytes, command.memory->base + command.offset, command.length);
    capsule_bytes += command.length;
    reactor::add_relaxed(shared_->counters.in_capsule, 1);
  } else {
    count = expose(slot, index, sgl, out);
  }
  *sge = {reinterpret_cast<uintptr_t>(capsule), capsule_bytes, region_->lkey()};
  rdma::SendWorkRequest& send = out[count++];
  send = {};
  send.wr_id = static_cast<uint64_t>(Work::Send) << kWorkShift | index;
  send.opcode = rdma::Opcode::Send;
  send.flags = rdma::kSignaled;
  send.num_sge = 1;
  send.sg_list = sge;
  slot.posted = slot.send_pending = true;
  count_command(command);
  return count;
}

// Exactly the command's bytes with the one right it needs, under a key of its own where there are
// memory windows.
size_t HostQueue::expose(Slot& slot, uint16_t index, uint8_t* sgl, rdma::SendWorkRequest* out) {
  const HostCommand& command = *slot.command;
  const auto address = reinterpret_cast<uintptr_t>(command.memory->base) + command.offset;
  if (!shared_->memory_windows) {
    slot.exposed = true;
    put_keyed(sgl, address, command.length, command.memory->region->rkey(), kSglKeyed);
    return 0;
  }
  slot.rkey = slot.window->next_rkey();
  slot.key = Key::Live;
  slot.keyed = true;
  reactor::add_relaxed(shared_->counters.windows, 1);
  put_keyed(sgl, address, command.length, slot.rkey,
            shared_->remote_invalidate ? kSglKeyedInvalidate : kSglKeyed);
  *out = {};
  out->wr_id = static_cast<uint64_t>(Work::Bind) << kWorkShift | index;
  out->opcode = rdma::Opcode::BindMemoryWindow;
  out->bind.window = slot.window.get();
  out->bind.region = command.memory->region;
  out->bind.address = address;
  out->bind.length = command.length;
  out->bind.rkey = slot.rkey;
  out->bind.access =
      command.direction == Direction::ToController ? rdma::kRemoteRead : rdma::kRemoteWrite;
  return 1;
}

void HostQueue::count_command(const HostCommand& command) {
  auto& counters = shared_->counters;
  reactor::add_relaxed(counters.commands, 1);
  if (command.direction == Direction::ToController) {
    reactor::add_relaxed(counters.bytes_to_controller, command.length);
  } else if (command.direction == Direction::ToHost) {
    reactor::add_relaxed(counters.bytes_to_host, command.length);
  }
}

}  // namespace nvmeof::nvmf
