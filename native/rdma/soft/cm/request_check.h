// What must hold of a REQ from the network before anybody hears of it. Pure.
#pragma once
#include "rdma/soft/cm/mad.h"

namespace nvmeof::rdma::soft::cm {

struct RequestVerdict {
  bool drop = false;    // so wrong that not even a REJ is sent
  uint16_t reason = 0;  // 0: good, else of the REJ
  uint8_t info_length = 0;
  std::array<uint8_t, 72> info{};
  IpHeader ip;  // when good
};

// `source`, `local`: addresses of the packet that brought it. `path_mtu`: bytes, ours.
RequestVerdict check_request(const Req& req, const sockaddr_storage& source,
                             const sockaddr_storage& local, uint32_t path_mtu);

}  // namespace nvmeof::rdma::soft::cm
