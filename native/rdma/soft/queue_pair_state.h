// The states of a queue pair and what a move between them needs (IBTA 10.3.1), for each service.
// One table of legal moves, one function that judges a move; the queue pair itself carries it out.
//
// SQE exists for unreliable services only: the send queue failed, receives go on. A queue pair gets
// there by itself; no move leads into it.
#pragma once
#include <cstdint>

#include "rdma/provider.h"
#include "rdma/soft/link.h"

namespace nvmeof::rdma::soft {

// Which fields of QpAttributes a modify() sets (ibv_qp_attr_mask in its own words).
enum QpAttribute : uint32_t {
  kPkeyIndex = 1u << 0,
  kPort = 1u << 1,
  kAccessFlags = 1u << 2,
  kAddressVector = 1u << 3,
  kPathMtu = 1u << 4,
  kDestinationQpn = 1u << 5,
  kReceivePsn = 1u << 6,
  kMaxDestReads = 1u << 7,
  kMinRnrTimer = 1u << 8,
  kTimeout = 1u << 9,
  kRetryCount = 1u << 10,
  kRnrRetry = 1u << 11,
  kSendPsn = 1u << 12,
  kMaxReads = 1u << 13,
  kQKey = 1u << 14,
};

// What RESET->INIT, INIT->RTR and RTR->RTS require of RC.
inline constexpr uint32_t kInitAttributes = kPkeyIndex | kPort | kAccessFlags;
inline constexpr uint32_t kRtrAttributes =
    kAddressVector | kPathMtu | kDestinationQpn | kReceivePsn | kMaxDestReads | kMinRnrTimer;
inline constexpr uint32_t kRtsAttributes =
    kTimeout | kRetryCount | kRnrRetry | kSendPsn | kMaxReads;

// 0.08 ms: a receive that comes soon, not the 655 ms of code 0 that the kernel's CM offers.
inline constexpr uint8_t kShortRnrTimer = 6;

struct QpAttributes {
  State state = State::Reset;
  uint32_t mask = 0;  // QpAttribute bits: the fields below that count
  uint16_t pkey_index = 0;
  uint8_t port = 1;
  uint8_t access = 0;          // Access: what the peer may do at all
  const Flow* flow = nullptr;  // address vector; must outlive its use by the queue pair
  uint32_t path_mtu = 0;       // bytes: 256, 512, 1024, 2048 or 4096
  uint32_t destination_qpn = 0;
  uint32_t receive_psn = 0;                // the peer's first PSN
  uint32_t send_psn = 0;                   // our first PSN
  uint8_t max_dest_reads = 0;              // inbound READs we serve at a time (responder resources)
  uint8_t max_reads = 0;                   // outbound READs at a time (initiator depth)
  uint8_t min_rnr_timer = kShortRnrTimer;  // code we put in RNR NAKs
  uint8_t timeout = 14;                    // local ACK timeout, 4.096 us * 2^n; 0: none
  uint8_t retry_count = 7;
  uint8_t rnr_retry = 7;  // 7: for ever
  uint32_t qkey = 0;      // UD: what a datagram must bring
};

// Whether `from` -> attributes.state is a legal move with exactly these attributes, each in its
// range. EINVAL and a sentence that names what is wrong.
Result<void> check_move(QpType type, State from, const QpAttributes& attributes);
// What `from` -> `to` requires: for callers that set everything they have. 0 when there is no move.
uint32_t required_attributes(QpType type, State from, State to);

}  // namespace nvmeof::rdma::soft
