// Requests in on the unreliable services: UC messages, whose packets must follow one another
// without a gap, and UD datagrams. What cannot be placed is dropped and counted; the receive it
// would have taken serves the next. Reactor's thread. Everything here comes from an untrusted peer.
#include "rdma/soft/grh.h"
#include "rdma/soft/responder.h"
#include "rdma/soft/transport.h"

namespace nvmeof::rdma::soft {

void Responder::drop() {
  message_ = Message::None;
  qp_.transport().count().unreliable_dropped++;
}

// A packet that begins a message is always taken, and its PSN with it: what was unfinished before
// is lost (IBTA 9.8.2.2). Any other must follow the one before.
void Responder::on_unreliable(const Packet& packet) {
  const OpcodeRow& row = *packet.row;
  const uint64_t sequence = expand(packet.psn, expected_);
  if (row.has(kBegins)) {
    expected_ = sequence;
    message_ = Message::None;
    sge_index_ = sge_offset_ = 0;
  } else if (sequence != expected_ || !right_order(row)) {
    return drop();
  }
  if (row.has(kSend))
    on_send(packet);
  else
    on_write(packet);
}

void Responder::on_datagram(const Packet& packet, const Arrival& arrival) {
  if (packet.payload_length > qp_.mtu() || !take_receive()) return drop();
  uint64_t space = 0;
  for (unsigned i = 0; i < receive_sges_; i++) space += receive_sge_list_[i].length;
  if (space < kGrhBytes + packet.payload_length) return drop();
  sge_index_ = sge_offset_ = 0;
  uint8_t grh[kGrhBytes];
  write_grh(grh, arrival);
  if (!scatter(grh, kGrhBytes) || !scatter(packet.payload, packet.payload_length))
    return qp_.enter_error("a receive's buffer is not registered", Status::FlushError,
                           Status::LocalProtectionError);
  received_ = kGrhBytes + packet.payload_length;
  complete_receive(Status::Success, packet.row, packet.immediate, packet.deth.source_qpn);
}

}  // namespace nvmeof::rdma::soft
