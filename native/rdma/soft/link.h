// How packets leave and arrive: the seam between the transport (pure state machines) and the world.
// UdpLink (real sockets, GSO/GRO) and the simulated network in the tests implement it; the
// transport calls send() with whole trains and is called back, packet by packet, by whoever
// received them.
#pragma once
#include <netinet/in.h>

#include <cstdint>
#include <span>

#include "reactor/reactor.h"

namespace nvmeof::rdma::soft {

using reactor::TimeNs;

// One direction between two UDP endpoints. Built once per peer (and per destination reactor), then
// only read. The addresses and ports are those that stand on the wire, because the ICRC covers
// them.
struct Flow {
  sockaddr_storage local;   // source address and source port
  sockaddr_storage remote;  // destination address and port (4791)
  uint8_t traffic_class = 0;
  uint8_t train_key =
      0;  // packets with different keys never share a train (one destination reactor each)
  uint32_t icrc_base = 0;  // see icrc.h: CRC state over what does not change from packet to packet
};

// Packets of equal size (the last may be shorter), back to back in `bytes`, to one flow.
// Segment i of a train leaves with IPv4 identification i (PROTOCOL.md 2.2), which its ICRC already
// covers.
struct Train {
  const Flow* flow;
  const uint8_t* bytes;
  uint32_t total_bytes;
  uint16_t segment_bytes;
  uint16_t segments;
};

class Link {
 public:
  virtual ~Link() = default;
  // Sends or drops (the transport repairs losses); never blocks, never keeps the bytes.
  virtual void send(std::span<const Train> trains) = 0;
  // The largest train the path takes: segments (1: no GSO) and bytes.
  virtual uint16_t segments_max() const = 0;
  virtual uint32_t train_bytes_max() const = 0;
};

// What was seen of the IPv4 header (header_witness.h): nothing in general. Of a message that the
// kernel merged, the header of the first packet.
struct SeenHeader {
  enum class Of : uint8_t { Nothing, ThisPacket, FirstOfMessage };
  Of of = Of::Nothing;
  bool restarts = false;  // the kernel merges packets whatever their identification
  uint16_t identification = 0, flags = 0;  // flags with the fragment offset, as on the wire
  // Where two headers may be the packet's: it was sent twice, and one of the two may be lost.
  uint16_t other_identification = 0, other_flags = 0;
};

// What a receiver knows of a packet besides its bytes (UDP payload: BTH .. ICRC).
struct Arrival {
  const sockaddr_storage* source;       // address and UDP port
  const sockaddr_storage* destination;  // our address (and port 4791)
  const uint8_t* bytes;
  uint32_t length;
  int32_t ip_id;  // the IPv4 identification where known, -1: unknown, recover it from the ICRC
                  // (PROTOCOL.md 2.3)
  uint8_t traffic_class;
  SeenHeader seen{};
};

}  // namespace nvmeof::rdma::soft
