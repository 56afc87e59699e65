// Namespaces by table and NSID, on one reactor: lookup without allocation, and changes that end
// only when nothing of the entry they replaced is in flight. Changes of one NSID end in their
// order; new commands see a change at once. Reactor's thread.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "nvmf/namespace_access.h"

namespace nvmeof::nvmf {

struct Namespace {
  uint32_t nsid = 0;
  block::Backing* backing = nullptr;
  std::unique_ptr<block::Channel> channel;
  // Where the data lies; null: reads and writes go through a buffer.
  uint8_t* resident = nullptr;
  std::unique_ptr<rdma::MemoryRegion> region;  // of it
  bool write_protected = false;
  uint32_t block_shift = 9;
  uint32_t max_transfer_bytes = 0;
  uint32_t ana_group = 1;
  uint32_t in_flight = 0;  // commands that hold the entry
  bool retired = false;    // replaced or removed
  bool removed = false;    // with no successor
  bool cancelled = false;  // cancel_all() was called after the grace period
  uint64_t cancel_at = 0;  // when retired: the end of that period
};

// One subsystem's namespaces, and what its ports may do with them.
class NamespaceTable {
 public:
  Namespace* find(uint32_t nsid) const;
  // The entry with the smallest NSID greater than `nsid`, or nullptr.
  Namespace* after(uint32_t nsid) const;
  bool dying() const { return dying_; }
  // What holds for a port. Valid until that port's next NamespaceTables::set_access().
  const AccessView* view(uint32_t port) const;

 private:
  friend class NamespaceTables;
  struct Change {
    std::unique_ptr<Namespace> old;  // may be null
    ChangeDone done;
    void* context;
    bool failed;
    Error error;
  };
  struct Slot {
    std::unique_ptr<Namespace> current;
    std::deque<Change> changes;
  };
  static constexpr uint32_t kDense = 1024;

  std::vector<Namespace*> dense_;  // by NSID below kDense
  std::unordered_map<uint32_t, Slot> slots_;
  std::vector<uint32_t> order_;  // NSIDs with a current entry, ascending
  bool dying_ = false;
  std::deque<Change> ends_;  // destroy_table calls
  std::vector<std::unique_ptr<AccessView>> views_;
  std::list<AccessChange> access_changes_;
};

class NamespaceTables {
 public:
  using Close = std::function<void(Namespace&)>;  // before an entry is destroyed
  using Gone = std::function<void(NamespaceTable*)>;
  NamespaceTables(Close close, Gone gone) : close_(std::move(close)), gone_(std::move(gone)) {}
  ~NamespaceTables();

  NamespaceTable* get(uint32_t table);  // made when new
  NamespaceTable* find(uint32_t table) const;
  // `fresh` may be null: removal. Takes effect at once; `done` runs from settle().
  void replace(uint32_t table, uint32_t nsid, std::unique_ptr<Namespace> fresh, uint64_t cancel_at,
               ChangeDone done, void* context);
  void fail(uint32_t table, uint32_t nsid, Error error, ChangeDone done, void* context);
  void destroy(uint32_t table, uint64_t cancel_at, ChangeDone done, void* context);
  // The caller counts into the change what it has to wait for, before settle().
  AccessChange* set_access(uint32_t table, const AccessRule& rule, ChangeDone done, void* context);

  // Ends what can end. Returns how many changes ended.
  int settle();
  // Asks the channels of retired entries whose grace period is over to cancel.
  void cancel_overdue(uint64_t now);
  uint64_t next_deadline() const;
  bool can_settle() const;
  uint32_t pending() const { return pending_; }
  const Error* error() const { return error_; }
  uint32_t live() const;  // entries, current and retired

 private:
  void end(NamespaceTable::Change change);
  static bool can_end(const NamespaceTable& table, const AccessChange& change);
  template <typename Visit>
  void each_retired(Visit visit) const;

  Close close_;
  Gone gone_;
  std::unordered_map<uint32_t, std::unique_ptr<NamespaceTable>> tables_;
  uint32_t pending_ = 0;
  const Error* error_ = nullptr;
};

}  // namespace nvmeof::nvmf
