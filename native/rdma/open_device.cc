// Chooses the provider: the one asked for, or with "auto" verbs where an RDMA device owns the
// address, else soft.
#include "rdma/provider.h"
#include "rdma/soft/device.h"
#include "rdma/verbs/device.h"

namespace nvmeof::rdma {

namespace {

using Opened = Result<std::unique_ptr<Device>>;
using Reactors = std::span<reactor::Reactor* const>;

template <typename Provider>
Opened open(const DeviceOptions& options, Reactors reactors) {
  auto device = Provider::open(options, reactors);
  if (!device) return device.error();
  return std::unique_ptr<Device>(std::move(*device));
}

Opened open_auto(const DeviceOptions& options, Reactors reactors) {
  Opened device = open<verbs::Device>(options, reactors);
  // An RDMA device that owns the address owns its port 4791 as well: soft would not help.
  const int code = device ? 0 : device.error().code;
  if (code != ENODEV && code != ENOTSUP) return device;
  return open<soft::Device>(options, reactors);
}

constexpr struct {
  const char* name;
  Opened (*open)(const DeviceOptions& options, Reactors reactors);
} kProviders[] = {
    {"auto", open_auto}, {"soft", open<soft::Device>}, {"verbs", open<verbs::Device>}};

}  // namespace

Opened open_device(const DeviceOptions& options, Reactors reactors) {
  for (const auto& provider : kProviders) {
    if (options.provider == provider.name) return provider.open(options, reactors);
  }
  return Error{EINVAL, "There is no RDMA provider \"" + options.provider +
                           "\": choose auto, soft or verbs."};
}

}  // namespace nvmeof::rdma
