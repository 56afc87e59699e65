// Namespace tables: see the header. A change keeps the entry it replaced until its commands are
// done; settle() runs the `done` of each NSID's oldest change first.
#include "nvmf/namespace_table.h"

#include <algorithm>

namespace nvmeof::nvmf {

Namespace* NamespaceTable::find(uint32_t nsid) const {
  if (nsid < dense_.size()) return dense_[nsid];
  if (nsid < kDense) return nullptr;
  const auto found = slots_.find(nsid);
  return found == slots_.end() ? nullptr : found->second.current.get();
}

Namespace* NamespaceTable::after(uint32_t nsid) const {
  const auto next = std::upper_bound(order_.begin(), order_.end(), nsid);
  return next == order_.end() ? nullptr : find(*next);
}

const AccessView* NamespaceTable::view(uint32_t port) const {
  for (const auto& view : views_)
    if (view->port == port) return view.get();
  return &kOpenView;
}

NamespaceTables::~NamespaceTables() {
  for (auto& [id, table] : tables_) {
    for (auto& [nsid, slot] : table->slots_) {
      for (auto& change : slot.changes)
        if (change.old) close_(*change.old);
      if (slot.current) close_(*slot.current);
    }
  }
}

NamespaceTable* NamespaceTables::get(uint32_t table) {
  auto& entry = tables_[table];
  if (!entry) entry = std::make_unique<NamespaceTable>();
  return entry.get();
}

NamespaceTable* NamespaceTables::find(uint32_t table) const {
  const auto found = tables_.find(table);
  return found == tables_.end() ? nullptr : found->second.get();
}

void NamespaceTables::replace(uint32_t table, uint32_t nsid, std::unique_ptr<Namespace> fresh,
                              uint64_t cancel_at, ChangeDone done, void* context) {
  NamespaceTable* t = get(table);
  NamespaceTable::Slot& slot = t->slots_[nsid];
  std::unique_ptr<Namespace> old = std::move(slot.current);
  if (old) {
    old->retired = true;
    old->removed = !fresh;
    old->cancel_at = cancel_at;
  }
  const auto at = std::lower_bound(t->order_.begin(), t->order_.end(), nsid);
  if (fresh && !old) t->order_.insert(at, nsid);
  if (!fresh && old) t->order_.erase(at);
  slot.current = std::move(fresh);
  if (nsid < NamespaceTable::kDense) {
    if (t->dense_.size() <= nsid) t->dense_.resize(nsid + 1);
    t->dense_[nsid] = slot.current.get();
  }
  slot.changes.push_back({std::move(old), done, context, false, {}});
  pending_++;
}

void NamespaceTables::fail(uint32_t table, uint32_t nsid, Error error, ChangeDone done,
                           void* context) {
  get(table)->slots_[nsid].changes.push_back({nullptr, done, context, true, std::move(error)});
  pending_++;
}

void NamespaceTables::destroy(uint32_t table, uint64_t cancel_at, ChangeDone done, void* context) {
  NamespaceTable* t = get(table);
  while (Namespace* entry = t->after(0))
    replace(table, entry->nsid, nullptr, cancel_at, nullptr, nullptr);
  t->dying_ = true;
  t->ends_.push_back({nullptr, done, context, false, {}});
  pending_++;
}

// A view in which nothing is refused any more is dropped: ports come and go.
AccessChange* NamespaceTables::set_access(uint32_t table, const AccessRule& rule, ChangeDone done,
                                          void* context) {
  NamespaceTable* t = get(table);
  const auto found = std::find_if(t->views_.begin(), t->views_.end(),
                                  [&](const auto& view) { return view->port == rule.port; });
  if (found != t->views_.end()) {
    (*found)->refusal[rule.group] = rule.status;
    if (!(*found)->refuses()) t->views_.erase(found);
  } else if (rule.status != status::kSuccess) {
    auto fresh = std::make_unique<AccessView>();
    fresh->port = rule.port;
    fresh->refusal[rule.group] = rule.status;
    t->views_.push_back(std::move(fresh));
  }
  t->access_changes_.push_back({rule, 0, done, context});
  pending_++;
  return &t->access_changes_.back();
}

bool NamespaceTables::can_end(const NamespaceTable& table, const AccessChange& change) {
  if (change.executing > 0) return false;
  if (change.rule.status == status::kSuccess) return true;
  for (const AccessChange& earlier : table.access_changes_) {
    if (&earlier == &change) return true;
    if (earlier.rule.port == change.rule.port && earlier.rule.group == change.rule.group &&
        earlier.rule.status != status::kSuccess)
      return false;
  }
  return true;
}

void NamespaceTables::end(NamespaceTable::Change change) {
  pending_--;
  if (change.old) {
    close_(*change.old);
    change.old.reset();
  }
  error_ = change.failed ? &change.error : nullptr;
  if (change.done) change.done(change.context);
  error_ = nullptr;
}

int NamespaceTables::settle() {
  int ended = 0;
  // `done` may make further changes, even tables: collect first, then run.
  std::vector<NamespaceTable::Change> ready;
  std::vector<uint32_t> gone;
  for (auto& [id, table] : tables_) {
    for (auto slot = table->slots_.begin(); slot != table->slots_.end();) {
      auto& changes = slot->second.changes;
      while (!changes.empty() && (!changes.front().old || changes.front().old->in_flight == 0)) {
        ready.push_back(std::move(changes.front()));
        changes.pop_front();
      }
      const bool empty = changes.empty() && !slot->second.current;
      slot = empty ? table->slots_.erase(slot) : std::next(slot);
    }
    auto& access = table->access_changes_;
    for (auto change = access.begin(); change != access.end();) {
      const bool ends = can_end(*table, *change);
      if (ends) ready.push_back({nullptr, change->done, change->context, false, {}});
      change = ends ? access.erase(change) : std::next(change);
    }
    if (table->dying_ && table->slots_.empty() && access.empty()) {
      for (auto& change : table->ends_) ready.push_back(std::move(change));
      gone.push_back(id);
    }
  }
  for (const uint32_t id : gone) {
    gone_(tables_[id].get());
    tables_.erase(id);
  }
  for (auto& change : ready) {
    end(std::move(change));
    ended++;
  }
  return ended;
}

template <typename Visit>
void NamespaceTables::each_retired(Visit visit) const {
  for (const auto& [id, table] : tables_)
    for (const auto& [nsid, slot] : table->slots_)
      for (const auto& change : slot.changes)
        if (change.old) visit(*change.old);
}

void NamespaceTables::cancel_overdue(uint64_t now) {
  if (pending_ == 0) return;
  std::vector<Namespace*> overdue;  // cancelling completes commands: no iteration meanwhile
  each_retired([&](Namespace& old) {
    if (old.in_flight > 0 && !old.cancelled && now >= old.cancel_at) overdue.push_back(&old);
  });
  for (Namespace* old : overdue) {
    old->cancelled = true;
    old->channel->cancel_all();
  }
}

uint64_t NamespaceTables::next_deadline() const {
  uint64_t deadline = reactor::kNever;
  if (pending_ == 0) return deadline;
  each_retired([&](Namespace& old) {
    if (old.in_flight > 0 && !old.cancelled) deadline = std::min(deadline, old.cancel_at);
  });
  return deadline;
}

bool NamespaceTables::can_settle() const {
  if (pending_ == 0) return false;
  for (const auto& [id, table] : tables_) {
    const auto& access = table->access_changes_;
    for (const AccessChange& change : access)
      if (can_end(*table, change)) return true;
    if (table->dying_ && table->slots_.empty() && access.empty()) return true;
    for (const auto& [nsid, slot] : table->slots_) {
      if (slot.changes.empty()) continue;
      const Namespace* old = slot.changes.front().old.get();
      if (!old || old->in_flight == 0) return true;
    }
  }
  return false;
}

uint32_t NamespaceTables::live() const {
  uint32_t count = 0;
  for (const auto& [id, table] : tables_) count += static_cast<uint32_t>(table->order_.size());
  each_retired([&](Namespace&) { count++; });
  return count;
}

}  // namespace nvmeof::nvmf
