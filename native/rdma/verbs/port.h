// A port of an RDMA device: which fabric it is on, whether it has a GID for an address, and the
// errors that name both when it has not. Any thread; makes system calls.
#pragma once
#include <string>
#include <vector>

#include "rdma/provider.h"
#include "rdma/verbs/library.h"

namespace nvmeof::rdma::verbs {

struct Port {
  ibv_context* context = nullptr;
  uint8_t number = 0;
};

struct PortState {
  Fabric fabric = Fabric::RoceV2;
  bool active = false;
  uint32_t mtu = 0;  // active, in bytes
  int gids = 0;      // size of its table
};

// "rxe0 port 1".
std::string name_of(const Library& library, const Port& port);
Result<PortState> query(const Library& library, const Port& port);

// RoCE sends from the GID that stands for the address: it must be in the port's table, as RoCE v2.
// InfiniBand and iWARP have other GIDs, and nothing to check. EADDRNOTAVAIL names the GID that is
// wanted and those that are there.
Result<void> check_gid(const Library& library, const Port& port, const PortState& state,
                       const sockaddr_storage& address);

// Whether some device of this machine has a GID for the address (RoCE), whatever else is missing.
bool any_device_has_gid(const Library& library, const sockaddr_storage& address);
// For the error when no device owns the address: all devices, with their GIDs.
std::string describe_devices(const Library& library);

}  // namespace nvmeof::rdma::verbs
