// Asymmetric namespace access: a port's view of a table changes under its queues. No command that
// is refused from then on begins; those that are in a backing hold the change up.
#include "nvmf/target_impl.h"

namespace nvmeof::nvmf {

void TargetEngineImpl::set_access(uint32_t table, const AccessRule& rule, ChangeDone done,
                                  void* context) {
  AccessChange* const change = tables_.set_access(table, rule, done, context);
  NamespaceTable* const changed = tables_.get(table);
  const AccessView* const view = changed->view(rule.port);
  for (auto& [id, queue] : by_id_) {
    if (queue->table != changed || queue->port != rule.port) continue;
    queue->view = view;
    if (rule.status != status::kSuccess) stop_refused(queue, change);
  }
}

// What has not touched its namespace is answered now; fetched data is refused by execute(). A read
// that is sent from the namespace's memory has been executed: its answer stands. A command that
// holds an earlier change up holds this one up, too.
void TargetEngineImpl::stop_refused(TargetQueue* queue, AccessChange* change) {
  for (uint32_t i = 0; i < queue->slot_count; i++) {
    Command* command = &queue->slots[i];
    if (command->row == nullptr || command->entry == nullptr) continue;
    const uint16_t refusal = command->refusal();
    if (refusal == status::kSuccess) continue;
    const bool fetching = command->state == CommandState::Fetching;
    if (command->state == CommandState::Waiting || (fetching && !command->posted)) {
      if (queue->answers()) refuse(command, {refusal, sqe::kNsid});
    } else if (command->state == CommandState::Executing || (fetching && command->in_place)) {
      if (command->held_up != nullptr) continue;
      command->held_up = change;
      change->executing++;
    }
  }
}

}  // namespace nvmeof::nvmf
