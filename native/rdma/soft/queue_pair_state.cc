// The table of legal moves of an RC queue pair and the ranges of its attributes. Pure.
#include "rdma/soft/queue_pair_state.h"

#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {

namespace {

struct Move {
  State from, to;
  uint32_t required, optional;
};

constexpr uint32_t kLater = kAccessFlags | kMinRnrTimer;
constexpr uint32_t kWhileDrained = kPort | kPkeyIndex | kAddressVector | kTimeout | kRetryCount |
                                   kRnrRetry | kMaxReads | kMaxDestReads | kLater;

constexpr Move kMoves[] = {
    {State::Reset, State::Init, kInitAttributes, 0},
    {State::Init, State::Init, 0, kInitAttributes},
    {State::Init, State::Rtr, kRtrAttributes, kAccessFlags | kPkeyIndex},
    {State::Rtr, State::Rts, kRtsAttributes, kLater},
    {State::Rts, State::Rts, 0, kLater},
    {State::Rts, State::Sqd, 0, 0},
    {State::Sqd, State::Sqd, 0, kWhileDrained},
    {State::Sqd, State::Rts, 0, kLater},
    {State::Reset, State::Reset, 0, 0},
    {State::Init, State::Reset, 0, 0},
    {State::Rtr, State::Reset, 0, 0},
    {State::Rts, State::Reset, 0, 0},
    {State::Sqd, State::Reset, 0, 0},
    {State::Err, State::Reset, 0, 0},
    {State::Init, State::Err, 0, 0},
    {State::Rtr, State::Err, 0, 0},
    {State::Rts, State::Err, 0, 0},
    {State::Sqd, State::Err, 0, 0},
    {State::Err, State::Err, 0, 0},
};

struct Named {
  uint32_t bit;
  const char* name;
  bool (*valid)(const QpAttributes&);
};
constexpr Named kAttributes[] = {
    {kPkeyIndex, "pkey_index", [](const QpAttributes& a) { return a.pkey_index == 0; }},
    {kPort, "port", [](const QpAttributes& a) { return a.port == 1; }},
    {kAccessFlags, "access flags",
     [](const QpAttributes& a) {
       return (a.access & ~(kLocalWrite | kRemoteWrite | kRemoteRead)) == 0;
     }},
    {kAddressVector, "address vector",
     [](const QpAttributes& a) {
       return a.flow != nullptr && a.flow->local.ss_family == a.flow->remote.ss_family &&
              (a.flow->local.ss_family == AF_INET || a.flow->local.ss_family == AF_INET6);
     }},
    {kPathMtu, "path_mtu",
     [](const QpAttributes& a) {
       return a.path_mtu >= 256 && mtu_bytes(mtu_code(a.path_mtu)) == a.path_mtu;
     }},
    {kDestinationQpn, "destination QPN",
     [](const QpAttributes& a) { return a.destination_qpn > 1 && a.destination_qpn < kMask24; }},
    {kReceivePsn, "receive PSN", [](const QpAttributes& a) { return a.receive_psn <= kMask24; }},
    {kMaxDestReads, "max_dest_reads", [](const QpAttributes&) { return true; }},
    {kMinRnrTimer, "min_rnr_timer", [](const QpAttributes& a) { return a.min_rnr_timer <= 31; }},
    {kTimeout, "timeout", [](const QpAttributes& a) { return a.timeout <= 31; }},
    {kRetryCount, "retry_count", [](const QpAttributes& a) { return a.retry_count <= 7; }},
    {kRnrRetry, "rnr_retry", [](const QpAttributes& a) { return a.rnr_retry <= 7; }},
    {kSendPsn, "send PSN", [](const QpAttributes& a) { return a.send_psn <= kMask24; }},
    {kMaxReads, "max_reads", [](const QpAttributes&) { return true; }},
};

Error refuse(State from, State to, const std::string& why) {
  return Error{EINVAL, std::string("modify queue pair ") + to_string(from) + " -> " +
                           to_string(to) + ": " + why};
}

}  // namespace

Result<void> check_move(State from, const QpAttributes& attributes) {
  const Move* move = nullptr;
  for (const Move& candidate : kMoves)
    if (candidate.from == from && candidate.to == attributes.state) move = &candidate;
  if (move == nullptr) return refuse(from, attributes.state, "no such transition");
  uint32_t known = 0;
  for (const Named& attribute : kAttributes) {
    known |= attribute.bit;
    const bool given = (attributes.mask & attribute.bit) != 0;
    const std::string name = attribute.name;
    if (!given && (move->required & attribute.bit) != 0)
      return refuse(from, attributes.state, name + " is missing");
    if (given && ((move->required | move->optional) & attribute.bit) == 0)
      return refuse(from, attributes.state, name + " cannot be set here");
    if (given && !attribute.valid(attributes))
      return refuse(from, attributes.state, name + " is out of range");
  }
  if ((attributes.mask & ~known) != 0) return refuse(from, attributes.state, "unknown attribute");
  return {};
}

}  // namespace nvmeof::rdma::soft
