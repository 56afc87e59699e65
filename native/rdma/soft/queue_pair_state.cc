// The table of legal moves of each service and the ranges of its attributes. Pure.
#include "rdma/soft/queue_pair_state.h"

#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {

namespace {

constexpr uint8_t of(QpType type) {
  return static_cast<uint8_t>(1u << static_cast<unsigned>(type));
}
constexpr uint8_t kRc = of(QpType::Rc), kUc = of(QpType::Uc), kUd = of(QpType::Ud),
                  kUnreliableTypes = kUc | kUd, kAllTypes = kRc | kUnreliableTypes;

struct Move {
  uint8_t types;
  State from, to;
  uint32_t required, optional;
};

constexpr uint32_t kLater = kAccessFlags | kMinRnrTimer;
constexpr uint32_t kWhileDrained = kPort | kPkeyIndex | kAddressVector | kTimeout | kRetryCount |
                                   kRnrRetry | kMaxReads | kMaxDestReads | kLater;
constexpr uint32_t kUdInitAttributes = kPkeyIndex | kPort | kQKey;
constexpr uint32_t kUcRtrAttributes = kAddressVector | kPathMtu | kDestinationQpn | kReceivePsn;
constexpr uint32_t kUcWhileDrained = kPort | kPkeyIndex | kAddressVector | kAccessFlags;

constexpr Move kMoves[] = {
    {kRc | kUc, State::Reset, State::Init, kInitAttributes, 0},
    {kUd, State::Reset, State::Init, kUdInitAttributes, 0},
    {kRc | kUc, State::Init, State::Init, 0, kInitAttributes},
    {kUd, State::Init, State::Init, 0, kUdInitAttributes},
    {kRc, State::Init, State::Rtr, kRtrAttributes, kAccessFlags | kPkeyIndex},
    {kUc, State::Init, State::Rtr, kUcRtrAttributes, kAccessFlags | kPkeyIndex},
    {kUd, State::Init, State::Rtr, 0, kPkeyIndex | kQKey},
    {kRc, State::Rtr, State::Rts, kRtsAttributes, kLater},
    {kUc, State::Rtr, State::Rts, kSendPsn, kAccessFlags},
    {kUd, State::Rtr, State::Rts, kSendPsn, kQKey},
    {kRc, State::Rts, State::Rts, 0, kLater},
    {kUc, State::Rts, State::Rts, 0, kAccessFlags},
    {kUd, State::Rts, State::Rts, 0, kQKey},
    {kAllTypes, State::Rts, State::Sqd, 0, 0},
    {kRc, State::Sqd, State::Sqd, 0, kWhileDrained},
    {kUc, State::Sqd, State::Sqd, 0, kUcWhileDrained},
    {kUd, State::Sqd, State::Sqd, 0, kPkeyIndex | kQKey},
    {kRc, State::Sqd, State::Rts, 0, kLater},
    {kUc, State::Sqd, State::Rts, 0, kAccessFlags},
    {kUd, State::Sqd, State::Rts, 0, kQKey},
    {kUc, State::Sqe, State::Rts, 0, kAccessFlags},
    {kUd, State::Sqe, State::Rts, 0, kQKey},
    {kAllTypes, State::Reset, State::Reset, 0, 0},
    {kAllTypes, State::Init, State::Reset, 0, 0},
    {kAllTypes, State::Rtr, State::Reset, 0, 0},
    {kAllTypes, State::Rts, State::Reset, 0, 0},
    {kAllTypes, State::Sqd, State::Reset, 0, 0},
    {kUnreliableTypes, State::Sqe, State::Reset, 0, 0},
    {kAllTypes, State::Err, State::Reset, 0, 0},
    {kAllTypes, State::Init, State::Err, 0, 0},
    {kAllTypes, State::Rtr, State::Err, 0, 0},
    {kAllTypes, State::Rts, State::Err, 0, 0},
    {kAllTypes, State::Sqd, State::Err, 0, 0},
    {kUnreliableTypes, State::Sqe, State::Err, 0, 0},
    {kAllTypes, State::Err, State::Err, 0, 0},
};

const Move* find_move(QpType type, State from, State to) {
  for (const Move& move : kMoves)
    if ((move.types & of(type)) != 0 && move.from == from && move.to == to) return &move;
  return nullptr;
}

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
       return (a.access & ~(kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic)) == 0;
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
    {kQKey, "Q_Key", [](const QpAttributes&) { return true; }},
};

Error refuse(State from, State to, const std::string& why) {
  return Error{EINVAL, std::string("modify queue pair ") + to_string(from) + " -> " +
                           to_string(to) + ": " + why};
}

}  // namespace

uint32_t required_attributes(QpType type, State from, State to) {
  const Move* const move = find_move(type, from, to);
  return move != nullptr ? move->required : 0;
}

Result<void> check_move(QpType type, State from, const QpAttributes& attributes) {
  const Move* const move = find_move(type, from, attributes.state);
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
