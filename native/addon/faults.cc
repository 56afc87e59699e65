// Faults that a device injects into its packets, from the rules of a test.
#include "addon/address.h"
#include "addon/instance.h"

namespace nvmeof::addon {

namespace {

constexpr double kNsOfMs = 1e6;
constexpr double kDelayMaxMs = static_cast<double>(rdma::kFaultDelayMaxNs) / kNsOfMs;

uint64_t milliseconds(const Argument& time, uint64_t fallback_ns) {
  const double ms = time.real_or(static_cast<double>(fallback_ns) / kNsOfMs, 0, kDelayMaxMs);
  return static_cast<uint64_t>(ms * kNsOfMs);
}

rdma::FaultRule unpack_rule(Napi::Env env, const Argument& given) {
  rdma::FaultRule rule;
  const size_t direction = given["direction"].word_or(2, {"in", "out", "both"});
  rule.in = direction != 1;
  rule.out = direction != 0;
  if (!given["peer"].absent())
    rule.peer = value_or_throw(env, parse_address(given["peer"].text(), 0));
  rule.drop = given["drop"].real_or(0, 0, 1);
  rule.duplicate = given["duplicate"].real_or(0, 0, 1);
  rule.reorder = given["reorder"].real_or(0, 0, 1);
  rule.delay_ns = milliseconds(given["delayMs"], 0);
  rule.jitter_ns = milliseconds(given["jitterMs"], 0);
  rule.reorder_ns = milliseconds(given["reorderMs"], rdma::kFaultReorderNs);
  return rule;
}

}  // namespace

Napi::Value set_faults(const Arguments& arguments) {
  const Napi::Env env = arguments.env();
  const Device& device = *Instance::of(env).devices.get(env, arguments.at(0, "device").u32());
  const Argument faults = arguments.at(1, "faults");
  rdma::FaultRules unpacked;
  unpacked.seed = faults["seed"].u32_or(1);
  unpacked.queue_packets =
      faults["queuePackets"].u32_or(unpacked.queue_packets, 1, rdma::kFaultQueueMax);
  const Napi::Array rules = faults["rules"].list();
  if (rules.Length() > rdma::kFaultRulesMax)
    faults["rules"].out_of_range("at most " + std::to_string(rdma::kFaultRulesMax) + " rules");
  for (uint32_t i = 0; i < rules.Length(); i++) {
    const std::string name =
        std::string(arguments.function()) + ": faults.rules[" + std::to_string(i) + "]";
    unpacked.rules.push_back(unpack_rule(env, Argument(rules.Get(i), name)));
  }
  if (auto set = device.device->set_faults(unpacked); !set) throw_error(env, set.error());
  return env.Undefined();
}

}  // namespace nvmeof::addon
