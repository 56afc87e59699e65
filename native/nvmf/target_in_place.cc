// Reads and writes without a buffer, where a namespace lies in memory that no other reactor writes:
// sent from there, and fetched into it.
#include "nvmf/target_impl.h"

namespace nvmeof::nvmf {

// A read whose data lies in memory needs no buffer and no copy: it is sent from there, and holds
// the namespace until the host has it. Each packet takes whole blocks, so that a block is that of
// before a write or of after it, also when it is sent again.
bool TargetEngineImpl::read_in_place(Command* command) {
  if (command->row->opcode != io::kRead) return false;
  const Namespace* entry = command->entry;
  command->in_place = true;
  command->payload = entry->resident + command->offset;
  move(command, CommandState::Executing);
  finish(command);
  return true;
}

// A write is fetched to where its data belong. A packet's data are placed at once, so a block is
// never seen half written; a write whose fetch fails has changed some of its blocks, as it may.
bool TargetEngineImpl::write_in_place(Command* command) {
  if (command->row->opcode != io::kWrite || !command->fetches()) return false;
  const Namespace* entry = command->entry;
  command->in_place = true;
  command->shrinks = entry->backing->shrinks();
  command->payload = entry->resident + command->offset;
  fetch(command);
  return true;
}

bool TargetEngineImpl::in_place(Command* command) {
  const Namespace* entry = command->entry;
  if (command->row == nullptr || entry->resident == nullptr || entry->removed ||
      1u << entry->block_shift > command->queue->packet_bytes)
    return false;
  return read_in_place(command) || write_in_place(command);
}

// The host's data are in the namespace. When its end moved down meanwhile, some may have been cut
// off: they are fetched once more, through a buffer, and what becomes of them is seen then.
void TargetEngineImpl::placed(Command* command) {
  const Namespace* entry = command->entry;
  if (entry->removed) return refuse(command, {status::kInvalidNamespace, sqe::kNsid});
  if (entry->backing->shrinks() == command->shrinks) return finish(command);
  command->in_place = false;
  command->payload = nullptr;
  need_buffer(command, data_.get(), io_buffer_bytes(*command));
}

}  // namespace nvmeof::nvmf
