// What the receive of a datagram begins with: its IP header as far as a socket knows it, where
// verbs have the global route header (IBTA A17.4.5.2). Pure, any thread.
#pragma once
#include <cstdint>

#include "rdma/soft/link.h"

namespace nvmeof::rdma::soft {

// `grh`: kGrhBytes. IPv6: the header; IPv4: it stands at the end, behind zeros.
void write_grh(uint8_t* grh, const Arrival& arrival);

}  // namespace nvmeof::rdma::soft
