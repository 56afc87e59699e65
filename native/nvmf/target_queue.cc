// Set-up and states of a target queue.
#include "nvmf/target_queue.h"

#include <cstdio>
#include <cstdlib>

namespace nvmeof::nvmf {

namespace {

constexpr const char* kNames[] = {"Accepting", "Live", "Closing", "Dying", "Gone"};

constexpr unsigned bit(QueueState state) {
  return 1u << static_cast<unsigned>(state);
}

constexpr unsigned kMoves[] = {
    /* Accepting */ bit(QueueState::Live) | bit(QueueState::Dying) | bit(QueueState::Gone),
    /* Live */ bit(QueueState::Closing) | bit(QueueState::Dying) | bit(QueueState::Gone),
    /* Closing */ bit(QueueState::Dying) | bit(QueueState::Gone),
    /* Dying */ bit(QueueState::Gone),
    /* Gone */ 0,
};

}  // namespace

const char* to_string(QueueState state) {
  return kNames[static_cast<unsigned>(state)];
}

void TargetQueue::advance(QueueState to) {
  if (!(kMoves[static_cast<unsigned>(state)] & bit(to))) {
    std::fprintf(stderr, "nvmf target: queue %u may not go from %s to %s\n", id, to_string(state),
                 to_string(to));
    std::abort();
  }
  state = to;
}

void TargetQueue::push_waiting(const WaitingCapsule& capsule) {
  uint32_t at = waiting_head + waiting_count;
  if (at >= depth) at -= depth;
  waiting[at] = capsule;
  waiting_count++;
}

WaitingCapsule TargetQueue::pop_waiting() {
  const WaitingCapsule capsule = waiting[waiting_head];
  waiting_head = waiting_head + 1 == depth ? 0 : waiting_head + 1;
  waiting_count--;
  return capsule;
}

void TargetQueue::allocate(uint32_t entries, uint32_t send_queue_entries) {
  depth = entries;
  slot_count = entries * 2;
  slots = std::make_unique<Command[]>(slot_count);
  for (uint32_t i = 0; i < slot_count; i++) {
    slots[i].queue = this;
    slots[i].slot = i;
    free.push_back(&slots[i]);
  }
  waiting.resize(entries);
  send_entries = credits = send_queue_entries;
}

}  // namespace nvmeof::nvmf
