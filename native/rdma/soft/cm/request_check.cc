#include "rdma/soft/cm/request_check.h"

#include <algorithm>

#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft::cm {
namespace {

constexpr uint8_t kReliableConnected = 0;
constexpr uint32_t kQpnMulticast = 0xffffff;

RequestVerdict refuse(uint16_t reason) {
  RequestVerdict verdict;
  verdict.reason = reason;
  return verdict;
}

}  // namespace

RequestVerdict check_request(const Req& req, const sockaddr_storage& source,
                             const sockaddr_storage& local, uint32_t path_mtu) {
  if (req.local_comm_id == 0) {
    RequestVerdict verdict;
    verdict.drop = true;
    return verdict;
  }
  if (req.transport_type != kReliableConnected || req.extended_transport != 0)
    return refuse(reject::kInvalidTransport);
  if (req.qpn <= kQpnGsi || req.qpn == kQpnMulticast) return refuse(reject::kUnsupported);
  if ((req.pkey & 0x7fff) != (kDefaultPKey & 0x7fff)) return refuse(reject::kUnsupported);
  if (mtu_bytes(req.path_mtu) == 0) {
    RequestVerdict verdict = refuse(reject::kInvalidMtu);
    verdict.info_length = 1;  // the MTU that we would take
    verdict.info[0] = static_cast<uint8_t>(mtu_code(path_mtu) << 4);
    return verdict;
  }
  if (req.primary.remote_gid != gid_of(local) || req.primary.local_gid != gid_of(source)) {
    RequestVerdict verdict = refuse(reject::kInvalidGid);
    const Gid ours = gid_of(local);
    verdict.info_length = static_cast<uint8_t>(ours.size());
    std::copy(ours.begin(), ours.end(), verdict.info.begin());
    return verdict;
  }
  if (!is_rdma_tcp_service(req.service_id)) return refuse(reject::kInvalidServiceId);
  // The RDMA-CM header repeats both addresses; they must be those of the packet, or a middle box
  // has rewritten it.
  RequestVerdict verdict;
  if (!decode_ip_header(req.private_data, verdict.ip) || !same_address(verdict.ip.source, source) ||
      !same_address(verdict.ip.destination, local))
    return refuse(reject::kConsumer);
  return verdict;
}

}  // namespace nvmeof::rdma::soft::cm
