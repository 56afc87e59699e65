// States of a target command and the moves that are legal; the intrusive list it waits in.
#include "nvmf/target_command.h"

#include <cstdio>
#include <cstdlib>

#include "nvmf/target_queue.h"

namespace nvmeof::nvmf {

namespace {

constexpr const char* kNames[kCommandStates] = {"Free",      "Parsed",  "Waiting", "Fetching",
                                                "Executing", "Control", "Ready",   "Sending"};

constexpr unsigned bit(CommandState state) {
  return 1u << static_cast<unsigned>(state);
}

// Where each state may lead. Every state leads to Free: its queue may die, or end before the queue
// is bound; only who holds the buffer decides when.
constexpr unsigned kMoves[kCommandStates] = {
    /* Free */ bit(CommandState::Parsed),
    /* Parsed */ bit(CommandState::Free) | bit(CommandState::Waiting) |
        bit(CommandState::Fetching) | bit(CommandState::Executing) | bit(CommandState::Control) |
        bit(CommandState::Ready),
    /* Waiting */ bit(CommandState::Fetching) | bit(CommandState::Executing) |
        bit(CommandState::Ready) | bit(CommandState::Free),
    /* Fetching */ bit(CommandState::Executing) | bit(CommandState::Control) |
        bit(CommandState::Waiting) | bit(CommandState::Fetching) | bit(CommandState::Ready) |
        bit(CommandState::Free),
    /* Executing */ bit(CommandState::Ready) | bit(CommandState::Free),
    /* Control */ bit(CommandState::Waiting) | bit(CommandState::Ready) | bit(CommandState::Free),
    /* Ready */ bit(CommandState::Sending) | bit(CommandState::Free),
    /* Sending */ bit(CommandState::Free),
};

}  // namespace

const char* to_string(CommandState state) {
  return kNames[static_cast<unsigned>(state)];
}

void move(Command* command, CommandState to) {
  if (!(kMoves[static_cast<unsigned>(command->state)] & bit(to))) {
    std::fprintf(stderr, "nvmf target: command may not go from %s to %s\n",
                 to_string(command->state), to_string(to));
    std::abort();
  }
  if (command->list) command->list->unlink(command);
  command->state = to;
  const bool touches =
      to == CommandState::Executing || (to == CommandState::Fetching && command->in_place);
  if (touches == command->touching) return;
  command->touching = touches;
  if (touches)
    command->queue->touching++;
  else
    command->queue->touching--;
}

void Command::reset() {
  sequence++;
  posted = aborted = in_submit = done_inside = answered_above = false;
  row = nullptr;
  block = {};
  transfer = Transfer::None;
  data_length = buffer_bytes = 0;
  entry = nullptr;
  held_up = nullptr;
  offset = length = cursor = 0;
  fua = may_deallocate = false;
  error = 0;
  in_place = false;
  from = nullptr;
  parked.reset();
  result = 0;
  status = status::kSuccess;
  parameter = kNoParameter;
  response = kNoIndex;
  credits = 0;
}

void CommandList::push_back(Command* command) {
  command->list = this;
  command->previous = tail;
  command->next = nullptr;
  if (tail)
    tail->next = command;
  else
    head = command;
  tail = command;
}

Command* CommandList::pop_front() {
  Command* command = head;
  if (command) unlink(command);
  return command;
}

void CommandList::unlink(Command* command) {
  if (command->previous)
    command->previous->next = command->next;
  else
    head = command->next;
  if (command->next)
    command->next->previous = command->previous;
  else
    tail = command->previous;
  command->previous = command->next = nullptr;
  command->list = nullptr;
}

}  // namespace nvmeof::nvmf
