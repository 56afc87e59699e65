// Counters of several devices and engines under one name each: what the application sees. Plain
// functions, for the thread that calls.
#pragma once
#include <algorithm>
#include <map>
#include <string>

#include "rdma/provider.h"

namespace nvmeof::rdma {

using CounterTotals = std::map<std::string, double>;

inline void add_counter(CounterTotals& totals, const std::string& name,
                        const CounterValue& counter) {
  const auto value = static_cast<double>(counter.value);
  const auto [entry, first] = totals.try_emplace(name, value);
  if (first) return;
  entry->second = counter.kind == CounterKind::Smallest ? std::min(entry->second, value)
                                                        : entry->second + value;
}

}  // namespace nvmeof::rdma
