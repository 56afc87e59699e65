// Which reactor's socket a packet goes to. The receive sockets of one address form a SO_REUSEPORT
// group; a classic BPF program picks the member from the destination QPN, whose top six bits are
// the index of its reactor (transport.h). A train is steered by its first packet.
#pragma once
#include <vector>

#include "rdma/provider.h"
#include "reactor/result.h"

namespace nvmeof::rdma::soft {

// Receive sockets on `address`, port 4791, one for each of `members` reactors, in their order. The
// first is bound without SO_REUSEPORT and joins the group afterwards: a second process gets
// EADDRINUSE (with a message that names the holder) instead of half the packets.
Result<std::vector<int>> open_receive_group(const sockaddr_storage& address, unsigned members);

}  // namespace nvmeof::rdma::soft
