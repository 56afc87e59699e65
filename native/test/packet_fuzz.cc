// Any bytes into the packet parser: no crash, no read outside, what it accepts encodes to the same
// covered bytes, and the naive codec accepts the same packets. The input is a UDP payload.
#include <cstdlib>

#include "rdma/soft/flow.h"
#include "rdma/soft/icrc.h"
#include "rdma/soft/packet.h"
#include "support/naive_codec.h"

using namespace nvmeof::rdma::soft;
using nvmeof::test::Bytes;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 8192) return 0;
  const Bytes bytes(data, data + size);
  Packet packet;
  const PacketFault fault = parse(bytes, packet);
  if (to_string(fault) == nullptr) std::abort();
  Bytes payload;
  if ((fault == PacketFault::None) == nvmeof::test::naive_decode(bytes, payload).empty())
    std::abort();
  if (fault == PacketFault::None) {
    Bytes again(packet_bytes(*packet.row, packet.payload_length));
    if (encode(packet, again) + kIcrcBytes != size) std::abort();
    Packet twice;
    if (parse(again, twice) != PacketFault::None || twice.psn != packet.psn ||
        twice.row != packet.row || twice.payload_length != packet.payload_length)
      std::abort();
    // An RNR timer's code is that of its own time, and a congestion notification names its peer.
    const uint64_t timer = rnr_timer_ns(aeth_code(packet.aeth.syndrome));
    if (rnr_timer_ns(rnr_timer_code(timer)) != timer) std::abort();
    Bytes notification(packet_bytes(row_of(PacketOpcode::CongestionNotification), 0));
    write_cnp(notification.data(), packet.dest_qpn);
    if (parse(notification, twice) != PacketFault::None || twice.dest_qpn != packet.dest_qpn)
      std::abort();
  }
  // The receiving side of the ICRC takes any length and both families.
  for (const uint8_t family : {uint8_t{0xff}, uint8_t{0}}) {
    Gid gid{0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, family, family, 10, 0, 0, 1};
    if (family != 0) gid[0] = 0;
    const sockaddr_storage address = address_of(gid, kUdpPort);
    IcrcReceiver receiver;
    const Arrival arrival{&address, &address, bytes.data(), static_cast<uint32_t>(size), -1, 0};
    if (receiver.check(arrival).good && size < kBthBytes + kIcrcBytes) std::abort();
  }
  return 0;
}
