#include "rdma/verbs/port.h"

#include <cerrno>

#include "rdma/verbs/text.h"

namespace nvmeof::rdma::verbs {

namespace {

struct Gid {
  ibv_gid gid;
  uint32_t type;
};

const char* type_name(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_ROCE_V1:
      return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2:
      return "RoCE v2";
    default:
      return "InfiniBand";
  }
}

std::vector<Gid> gids_of(const Library& library, const Port& port, int table) {
  std::vector<Gid> gids;
  for (int index = 0; index < table; index++) {
    ibv_gid_entry entry{};
    // ENODATA: an empty place of the table.
    if (library.query_gid_ex(port.context, port.number, static_cast<uint32_t>(index), &entry, 0,
                             sizeof entry) == 0)
      gids.push_back({entry.gid, entry.gid_type});
  }
  return gids;
}

std::string list(const std::vector<Gid>& gids) {
  std::string text;
  for (const Gid& entry : gids) {
    if (!text.empty()) text += ", ";
    text += text_of(entry.gid) + " (" + type_name(entry.type) + ")";
  }
  return text.empty() ? "none" : text;
}

uint32_t bytes_of(ibv_mtu mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

// Calls visit(port, state) for every port of every device; until it returns true.
template <typename Visit>
bool each_port(const Library& library, Visit&& visit) {
  int count = 0;
  ibv_device** const devices = library.get_device_list(&count);
  if (devices == nullptr) return false;
  bool done = false;
  for (int i = 0; i < count && !done; i++) {
    ibv_context* const context = library.open_device(devices[i]);
    if (context == nullptr) continue;
    ibv_device_attr attributes{};
    const int ports =
        library.query_device(context, &attributes) == 0 ? attributes.phys_port_cnt : 0;
    for (int number = 1; number <= ports && !done; number++) {
      const Port port{context, static_cast<uint8_t>(number)};
      const auto state = query(library, port);
      if (state) done = visit(port, state.value());
    }
    library.close_device(context);
  }
  library.free_device_list(devices);
  return done;
}

}  // namespace

std::string name_of(const Library& library, const Port& port) {
  return std::string(library.get_device_name(port.context->device)) + " port " +
         std::to_string(port.number);
}

Result<PortState> query(const Library& library, const Port& port) {
  ibv_port_attr attributes{};
  if (const int code = library.query_port(port.context, port.number, &attributes); code != 0)
    return Error{code, name_of(library, port) + " does not answer" + reason_of(code) + "."};
  PortState state;
  if (port.context->device->transport_type == IBV_TRANSPORT_IWARP) {
    state.fabric = Fabric::Iwarp;
  } else if (attributes.link_layer != IBV_LINK_LAYER_ETHERNET) {
    state.fabric = Fabric::InfiniBand;
  }
  state.active = attributes.state == IBV_PORT_ACTIVE;
  state.mtu = bytes_of(attributes.active_mtu);
  state.gids = attributes.gid_tbl_len;
  return state;
}

Result<void> check_gid(const Library& library, const Port& port, const PortState& state,
                       const sockaddr_storage& address) {
  if (state.fabric != Fabric::RoceV2) return {};
  const ibv_gid wanted = gid_of(address);
  const std::vector<Gid> gids = gids_of(library, port, state.gids);
  bool other_type = false;
  for (const Gid& entry : gids) {
    if (!same_gid(entry.gid, wanted)) continue;
    if (entry.type == IBV_GID_TYPE_ROCE_V2) return {};
    other_type = true;
  }
  const std::string name = name_of(library, port);
  if (other_type)
    return Error{EADDRNOTAVAIL, name + " has the GID " + text_of(wanted) + " of " +
                                    text_of(address) + " for RoCE v1 only, its GIDs are " +
                                    list(gids) +
                                    ": switch RoCE v2 on (cma_roce_mode, or the driver's option)."};
  return Error{EADDRNOTAVAIL, name + " has no RoCE v2 GID for " + text_of(address) + ": " +
                                  text_of(wanted) + " is wanted, there are " + list(gids) +
                                  ". GIDs come from the addresses of the network interface."};
}

bool any_device_has_gid(const Library& library, const sockaddr_storage& address) {
  const ibv_gid wanted = gid_of(address);
  return each_port(library, [&](const Port& port, const PortState& state) {
    if (state.fabric != Fabric::RoceV2) return false;
    for (const Gid& entry : gids_of(library, port, state.gids)) {
      if (same_gid(entry.gid, wanted)) return true;
    }
    return false;
  });
}

std::string describe_devices(const Library& library) {
  std::string text;
  each_port(library, [&](const Port& port, const PortState& state) {
    if (!text.empty()) text += "; ";
    text += name_of(library, port) + " has " + list(gids_of(library, port, state.gids));
    return false;
  });
  return text;
}

}  // namespace nvmeof::rdma::verbs
