// Chooses the provider by name. "verbs" has no provider in this build.
#include "rdma/provider.h"
#include "rdma/soft/device.h"

namespace nvmeof::rdma {

Result<std::unique_ptr<Device>> open_device(const DeviceOptions& options,
                                            std::span<reactor::Reactor* const> reactors) {
  if (options.provider == "verbs")
    return Error{ENOTSUP,
                 "This build has no verbs provider yet: use the provider \"soft\", which speaks "
                 "RoCEv2 over UDP with any network card."};
  if (options.provider != "auto" && options.provider != "soft")
    return Error{EINVAL, "There is no RDMA provider \"" + options.provider +
                             "\": choose auto, soft or verbs."};
  auto device = soft::Device::open(options, reactors);
  if (!device) return device.error();
  return std::unique_ptr<Device>(std::move(*device));
}

}  // namespace nvmeof::rdma
