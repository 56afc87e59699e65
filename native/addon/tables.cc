// Namespace tables: the mirror on each reactor, confirmation of changes, and the calls of the door.
#include "addon/tables.h"

#include "addon/instance.h"
#include "addon/task.h"

namespace nvmeof::addon {

void Operation::confirm(nvmf::EventSink& sink, const Error* failed) {
  if (failed && !failing.exchange(true)) error = *failed;
  if (pending.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const auto* text = reinterpret_cast<const uint8_t*>(error.message.data());
  // The JavaScript thread may free this as soon as it sees the event.
  sink.push(nvmf::EventKind::OperationDone, id, 0, static_cast<uint32_t>(error.code), 0, {},
            {text, error.message.size()});
}

void apply(TableMirror& tables, const Change& change) {
  switch (change.kind) {
    case Change::Kind::Set:
      tables[change.table].namespaces[change.nsid] = change.entry;
      break;
    case Change::Kind::Remove:
      tables[change.table].namespaces.erase(change.nsid);
      break;
    case Change::Kind::DestroyTable:
      tables.erase(change.table);
      break;
    case Change::Kind::Access: {
      const std::pair at{change.access.port, change.access.group};
      if (change.access.status == 0)
        tables[change.table].refused.erase(at);
      else
        tables[change.table].refused[at] = change.access;
      break;
    }
  }
}

namespace {

// Every reactor applies the change to its mirror and its engines, and confirms.
uint32_t begin(Instance& instance, Change change, std::vector<std::shared_ptr<Backing>> released) {
  Runtime& runtime = *instance.runtime;
  Operation& operation = instance.begin_operation();
  operation.table = change.table;
  operation.nsid = change.nsid;
  operation.released = std::move(released);
  operation.pending = static_cast<uint32_t>(runtime.sides.size());
  change.operation = &operation;
  const uint32_t id = operation.id;
  for (const auto& side : runtime.sides) {
    post(*side->reactor, [side = side.get(), change] {
      apply(side->tables, change);
      for (DeviceOnReactor* device : side->devices) device->change(change);
      change.operation->confirm(side->ring);
    });
  }
  return id;
}

}  // namespace

void Instance::operation_done(uint32_t id) {
  std::unique_ptr<Operation>* found = operations.find(id);
  if (!found) return;
  const Operation& operation = **found;
  Table* table = operation.error.code == 0 ? nullptr : tables.find(operation.table);
  for (const auto& backing : operation.released) {
    if (table) {
      (*table)[operation.nsid].push_back(backing);
    } else {
      backing->references--;
    }
  }
  operations.erase(id);
}

Napi::Value create_table(const Arguments& arguments) {
  Instance& instance = Instance::running(arguments.env());
  return Napi::Number::New(arguments.env(), instance.tables.add({}));
}

Napi::Value set_namespace(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  Table& table = instance.tables.get(env, arguments.at(0, "table").u32());
  const uint32_t nsid = arguments.at(1, "nsid").u32(1, 0xFFFFFFFE);
  const Argument options = arguments.at(2, "options");
  const std::shared_ptr<Backing> backing = instance.backings.get(env, options["backing"].u32());
  Change change{};
  change.kind = Change::Kind::Set;
  change.table = arguments.at(0, "table").u32();
  change.nsid = nsid;
  change.entry.backing = backing->backing.get();
  change.entry.write_protected = options["writeProtected"].boolean();
  change.entry.max_transfer_bytes = options["maxTransferBytes"].u32(512, nvmf::kEventSecondMax);
  change.entry.ana_group = options["anaGroup"].u32(1, nvmf::kAnaGroups);

  std::vector<std::shared_ptr<Backing>> released = std::move(table[nsid]);
  backing->references++;
  table[nsid] = {backing};
  return Napi::Number::New(env, begin(instance, change, std::move(released)));
}

Napi::Value remove_namespace(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t id = arguments.at(0, "table").u32();
  Table& table = instance.tables.get(env, id);
  const uint32_t nsid = arguments.at(1, "nsid").u32(1, 0xFFFFFFFE);
  const auto entry = table.find(nsid);
  if (entry == table.end()) {
    throw_error(
        env, {ENOENT, "table " + std::to_string(id) + " has no namespace " + std::to_string(nsid)});
  }
  std::vector<std::shared_ptr<Backing>> released = std::move(entry->second);
  table.erase(entry);
  const Change change{Change::Kind::Remove, id, nsid, {}, nullptr};
  return Napi::Number::New(env, begin(instance, change, std::move(released)));
}

Napi::Value set_access(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  Change change{};
  change.kind = Change::Kind::Access;
  change.table = arguments.at(0, "table").u32();
  instance.tables.get(env, change.table);
  change.access.port = arguments.at(1, "port").u32();
  change.access.group = arguments.at(2, "group").u32(1, nvmf::kAnaGroups);
  change.access.status = static_cast<uint16_t>(arguments.at(3, "status").u32(0, 0x7FFF));
  return Napi::Number::New(env, begin(instance, change, {}));
}

Napi::Value destroy_table(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  Instance& instance = Instance::running(env);
  const uint32_t id = arguments.at(0, "table").u32();
  std::vector<std::shared_ptr<Backing>> released;
  for (auto& [nsid, backings] : instance.tables.get(env, id)) {
    for (auto& backing : backings) released.push_back(std::move(backing));
  }
  instance.tables.erase(id);
  const Change change{Change::Kind::DestroyTable, id, 0, {}, nullptr};
  return Napi::Number::New(env, begin(instance, change, std::move(released)));
}

}  // namespace nvmeof::addon
