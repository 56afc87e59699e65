// What is possible of faults; see fault_rules.h.
#include "rdma/fault_rules.h"

#include <string>

namespace nvmeof::rdma {

namespace {

struct Probability {
  const char* name;
  double FaultRule::*field;
};
constexpr Probability kProbabilities[] = {
    {"drop", &FaultRule::drop},
    {"duplicate", &FaultRule::duplicate},
    {"reorder", &FaultRule::reorder},
};

struct Time {
  const char* name;
  uint64_t FaultRule::*field;
};
constexpr Time kTimes[] = {
    {"delayMs", &FaultRule::delay_ns},
    {"jitterMs", &FaultRule::jitter_ns},
    {"reorderMs", &FaultRule::reorder_ns},
};

Error wrong(const std::string& field, const std::string& expected) {
  return Error{EINVAL, field + " must be " + expected + "."};
}

Result<void> check_rule(const FaultRule& rule, const std::string& name) {
  if (!rule.in && !rule.out) return wrong(name + ".direction", "in, out or both");
  const int family = rule.peer.ss_family;
  if (family != AF_UNSPEC && family != AF_INET && family != AF_INET6)
    return wrong(name + ".peer", "an IPv4 or IPv6 address");
  for (const auto& [field, member] : kProbabilities) {
    const double value = rule.*member;
    // Not a number is neither.
    if (!(value >= 0 && value <= 1)) return wrong(name + "." + field, "a probability of 0 to 1");
  }
  for (const auto& [field, member] : kTimes) {
    if (rule.*member > kFaultDelayMaxNs) return wrong(name + "." + field, "60 seconds at most");
  }
  if (rule.reorder > 0 && rule.reorder_ns == 0)
    return wrong(name + ".reorderMs", "more than 0, or nothing passes");
  return {};
}

}  // namespace

Result<void> check(const FaultRules& rules) {
  if (rules.rules.size() > kFaultRulesMax)
    return wrong("rules", "a list of at most " + std::to_string(kFaultRulesMax));
  if (rules.queue_packets == 0 || rules.queue_packets > kFaultQueueMax)
    return wrong("queuePackets", "1 to " + std::to_string(kFaultQueueMax));
  for (size_t i = 0; i < rules.rules.size(); i++) {
    auto checked = check_rule(rules.rules[i], "rules[" + std::to_string(i) + "]");
    if (!checked) return checked;
  }
  return {};
}

}  // namespace nvmeof::rdma
