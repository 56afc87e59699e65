// Namespace tables as each reactor knows them, and changes that hold when every engine of every
// reactor has confirmed. A new engine gets the entries that stand at that moment.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "block/backing.h"
#include "nvmf/event_sink.h"
#include "nvmf/target_engine.h"

namespace nvmeof::addon {

// An open backing. It can be closed when no table entry names it any more: neither one that stands
// nor one whose end some engine has not confirmed. The count is the JavaScript thread's.
struct Backing {
  std::unique_ptr<block::Backing> backing;
  uint32_t references = 0;
};

// A table on the JavaScript thread: for each namespace its backing, then those of entries that an
// engine may still have, because the change that was to replace them failed there.
using Table = std::map<uint32_t, std::vector<std::shared_ptr<Backing>>>;

// One change on its way. Made and freed by the JavaScript thread, which frees it when it sees the
// OperationDone.
struct Operation {
  uint32_t id = 0;
  std::atomic<uint32_t> pending{0};  // reactors and engines that have not confirmed
  std::atomic<bool> failing{false};
  Error error;  // the first, by whoever set `failing`

  // The JavaScript thread's: what is let go of when the change holds.
  uint32_t table = 0;
  uint32_t nsid = 0;
  std::vector<std::shared_ptr<Backing>> released;

  // Any reactor's thread. The last one reports through `sink`, its own ring.
  void confirm(nvmf::EventSink& sink, const Error* failed = nullptr);
};

struct Change {
  enum class Kind : uint8_t { Set, Remove, DestroyTable, Access };
  Kind kind;
  uint32_t table;
  uint32_t nsid;               // Set, Remove
  nvmf::NamespaceEntry entry;  // Set
  Operation* operation;
  nvmf::AccessRule access{};
};

struct MirroredTable {
  std::map<uint32_t, nvmf::NamespaceEntry> namespaces;                // by NSID
  std::map<std::pair<uint32_t, uint32_t>, nvmf::AccessRule> refused;  // by port and group
};
using TableMirror = std::map<uint32_t, MirroredTable>;

// To the mirror of one reactor.
void apply(TableMirror& tables, const Change& change);

}  // namespace nvmeof::addon
