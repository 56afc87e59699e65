// Posting receives, to a shared queue or to a queue pair's own. Reactor's thread.
#include "rdma/soft/shared_receive.h"

#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {

Result<void> post_receives(ReceiveRing& ring, std::span<const ReceiveWorkRequest> requests) {
  for (const ReceiveWorkRequest& request : requests) {
    const auto accepted = [&] {
      return " (" + std::to_string(&request - requests.data()) + " requests were accepted)";
    };
    if (request.num_sge > ring.max_sge() || (request.num_sge != 0 && request.sg_list == nullptr))
      return Error{EINVAL, "post_receive: more SGEs than the queue takes" + accepted()};
    uint64_t length = 0;
    for (unsigned i = 0; i < request.num_sge; i++) length += request.sg_list[i].length;
    if (length > kMessageBytesMax)
      return Error{EINVAL, "post_receive: longer than 2 GiB" + accepted()};
    if (ring.room() == 0)
      return Error{ENOMEM, "post_receive: the receive queue is full" + accepted()};
    ring.push(request);
  }
  return {};
}

Result<void> SharedReceiveQueue::post_receive(std::span<const ReceiveWorkRequest> requests) {
  return post_receives(ring_, requests);
}

}  // namespace nvmeof::rdma::soft
