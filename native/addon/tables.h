// Namespace tables as each reactor knows them, and changes that hold when every engine of every
// reactor has confirmed. A new engine gets the entries that stand at that moment.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "block/backing.h"
#include "nvmf/event_sink.h"
#include "nvmf/target_engine.h"

namespace nvmeof::addon {

// An open backing; it can be closed when no table entry (old or new) names it any more.
struct Backing {
  std::unique_ptr<block::Backing> backing;
  std::atomic<uint32_t> references{0};  // entries in tables, until their removal is confirmed
};

// One change on its way. Owned by the JavaScript thread until its OperationDone was drained.
struct Operation {
  uint32_t id = 0;
  std::atomic<uint32_t> pending{0};                // reactors and engines that have not confirmed
  std::vector<std::shared_ptr<Backing>> released;  // of entries that this change ends

  // Any reactor's thread. The last one reports through `sink`, its own ring.
  void confirm(nvmf::EventSink& sink);
};

struct Change {
  enum class Kind : uint8_t { Set, Remove, DestroyTable };
  Kind kind;
  uint32_t table;
  uint32_t nsid;
  nvmf::NamespaceEntry entry;
  Operation* operation;
};

using TableMirror = std::map<uint32_t, std::map<uint32_t, nvmf::NamespaceEntry>>;

// To the mirror of one reactor.
void apply(TableMirror& tables, const Change& change);

}  // namespace nvmeof::addon
