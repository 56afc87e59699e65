#include "rdma/verbs/connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rdma/verbs/text.h"

namespace nvmeof::rdma::verbs {

namespace {

using S = ConnectionState;

constexpr const char* kNames[] = {
    "resolving the address", "resolving the route", "connecting", "requested", "accepting",
    "established",           "disconnecting",       "gone"};

constexpr unsigned kMoves[] = {
    /* Resolving */ bit(S::Routing) | bit(S::Gone),
    /* Routing */ bit(S::Connecting) | bit(S::Gone),
    /* Connecting */ bit(S::Established) | bit(S::Gone),
    /* Requested */ bit(S::Accepting) | bit(S::Gone),
    /* Accepting */ bit(S::Established) | bit(S::Gone),
    /* Established */ bit(S::Disconnecting) | bit(S::Gone),
    /* Disconnecting */ bit(S::Gone),
    /* Gone */ 0,
};
static_assert(std::size(kMoves) == kConnectionStates && std::size(kNames) == kConnectionStates);

// IB CM reject reasons (InfiniBand Architecture 12.6.7.2) that rdma_cm's iWARP side has no
// numbers for.
constexpr uint16_t kRejectInvalidServiceId = 8, kRejectConsumer = 28;

ConnectFailed failed(ConnectFailure failure, uint16_t reason, std::string message) {
  return {failure, reason, {}, std::move(message)};
}

ConnectFailed rejected(int status, std::span<const uint8_t> private_data, bool iwarp) {
  ConnectFailed out = failed(ConnectFailure::Rejected, 0, "");
  if (!iwarp && status > 0) {
    out.reason = static_cast<uint16_t>(status);
  } else {
    // iWARP refuses by TCP (nobody listens) or by MPA, which carries the consumer's data.
    out.reason = private_data.empty() ? kRejectInvalidServiceId : kRejectConsumer;
  }
  out.private_data = private_data;
  out.message = "the peer refused the connection, reason " + std::to_string(out.reason);
  return out;
}

}  // namespace

const char* to_string(ConnectionState state) {
  return kNames[static_cast<unsigned>(state)];
}

bool may_move(ConnectionState from, ConnectionState to) {
  return (kMoves[static_cast<unsigned>(from)] & bit(to)) != 0;
}

rdma_conn_param parameters_of(const Connection& connection, const Capabilities& capabilities) {
  rdma_conn_param out{};
  const ConnectionParameters& wanted = connection.parameters;
  out.private_data = connection.private_data.data();
  out.private_data_len = static_cast<uint8_t>(connection.private_data.size());
  out.responder_resources = static_cast<uint8_t>(
      std::min<uint32_t>(wanted.responder_resources, capabilities.max_responder_resources));
  out.initiator_depth = static_cast<uint8_t>(
      std::min<uint32_t>(wanted.initiator_depth, capabilities.max_initiator_depth));
  out.flow_control = 1;
  out.retry_count = wanted.retry_count;
  out.rnr_retry_count = wanted.rnr_retry_count;
  out.srq = connection.srq ? 1 : 0;
  out.qp_num = connection.qp->number();
  return out;
}

ConnectFailed failure_of(rdma_cm_event_type event, int status,
                         std::span<const uint8_t> private_data, bool iwarp) {
  const std::string detail = status < 0 ? reason_of(-status) : "";
  switch (event) {
    case RDMA_CM_EVENT_ADDR_ERROR:
      return failed(ConnectFailure::Unreachable, 0,
                    "the peer's address cannot be resolved" + detail +
                        ": is it up, and on a network of this device?");
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return failed(ConnectFailure::Unreachable, 0, "there is no route to the peer" + detail);
    case RDMA_CM_EVENT_UNREACHABLE:
      return failed(ConnectFailure::Unreachable, 0, "the peer did not answer" + detail);
    case RDMA_CM_EVENT_REJECTED:
      return rejected(status, private_data, iwarp);
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return failed(ConnectFailure::NoResources, 0, "the RDMA device was removed");
    default:
      return failed(ConnectFailure::Unreachable, 0, "the connection could not be made" + detail);
  }
}

}  // namespace nvmeof::rdma::verbs
