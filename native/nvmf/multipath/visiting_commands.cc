#include "nvmf/multipath/visiting_commands.h"

#include <algorithm>

#include "nvmf/status.h"

namespace nvmeof::nvmf {

bool VisitingCommands::lives(const CommandQueues* engine) const {
  return std::ranges::find(engines_, engine) != engines_.end();
}

void VisitingCommands::queue_gone(const CommandQueues* engine, uint32_t queue) {
  std::erase_if(memories_, [engine, queue](const auto& entry) {
    return entry.second.engine == engine && (queue == 0 || entry.second.queue == queue);
  });
  count_registrations();
  if (queue == 0) std::erase(engines_, engine);
}

void VisitingCommands::serve(Errand* errand) {
  switch (errand->kind) {
    case Errand::Kind::Submit:
      submit(errand);
      return;
    case Errand::Kind::Cancel:
      if (lives(errand->engine)) errand->engine->cancel(errand->queue, errand->command.tag);
      break;
    case Errand::Kind::Forget:
      forget(errand->memory);
      break;
    case Errand::Kind::Done:
      break;  // its home's
  }
  delete errand;  // nothing comes back of it
}

void VisitingCommands::submit(Errand* errand) {
  if (!lives(errand->engine)) {
    send_back(errand, Outcome::NeverSent, kNoCqe.data());
    return;
  }
  HostCommand& command = errand->command;
  command.done = ended;
  command.context = errand;
  errand->host = this;
  if (errand->memory != 0) {
    Memory* const memory = registered(*errand);
    if (memory == nullptr) {
      // Takes another path: the error does not say "do not retry".
      const auto cqe = cqe_with(again(wire::Status::kHostPathError));
      send_back(errand, Outcome::Ok, cqe.data());
      return;
    }
    memory->in_use++;
    command.memory = memory->registered.get();
  }
  reactor::add_relaxed(commands_, 1);
  errand->engine->submit(errand->queue, &command);
}

VisitingCommands::Memory* VisitingCommands::registered(const Errand& errand) {
  if (const auto found = memories_.find(errand.memory); found != memories_.end()) {
    return &found->second;
  }
  auto made =
      errand.engine->register_memory(errand.queue, errand.extent.base, errand.extent.length);
  if (!made) return nullptr;
  Memory& memory = memories_[errand.memory];
  memory.engine = errand.engine;
  memory.queue = errand.queue;
  memory.registered = std::move(*made);
  count_registrations();
  return &memory;
}

void VisitingCommands::forget(uint64_t id) {
  const auto found = memories_.find(id);
  if (found == memories_.end()) return;
  found->second.forgotten = true;
  drop_if_unused(found);
}

void VisitingCommands::drop_if_unused(std::unordered_map<uint64_t, Memory>::iterator at) {
  if (at->second.in_use != 0 || !at->second.forgotten) return;
  memories_.erase(at);
  count_registrations();
}

void VisitingCommands::ended(HostCommand* command, Outcome outcome, const uint8_t cqe[16]) {
  auto* const errand = static_cast<Errand*>(command->context);
  VisitingCommands& here = *errand->host;
  if (const auto found = here.memories_.find(errand->memory); found != here.memories_.end()) {
    found->second.in_use--;
    here.drop_if_unused(found);
  }
  send_back(errand, outcome, cqe);
}

void VisitingCommands::send_back(Errand* errand, Outcome outcome, const uint8_t* cqe) {
  errand->kind = Errand::Kind::Done;
  errand->outcome = outcome;
  std::copy_n(cqe, errand->cqe.size(), errand->cqe.begin());
  const std::shared_ptr<ErrandBox> home = std::move(errand->home);
  home->put(errand);
}

}  // namespace nvmeof::nvmf
