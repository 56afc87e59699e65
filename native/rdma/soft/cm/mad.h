// Connection management datagrams (IBTA 12.6 and 13.4.2, PROTOCOL.md 4): decoding untrusted bytes
// into messages and encoding them, all 256 bytes of each. Pure data, any thread. What the messages
// mean is the agent's business.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <variant>

#include "rdma/soft/flow.h"

namespace nvmeof::rdma::soft::cm {

inline constexpr size_t kMadBytes = 256;
using MadBytes = std::array<uint8_t, kMadBytes>;
using soft::to_string;  // of addresses

enum class Attribute : uint16_t {
  Req = 0x10,
  Mra = 0x11,
  Rej = 0x12,
  Rep = 0x13,
  Rtu = 0x14,
  Dreq = 0x15,
  Drep = 0x16,
  SidrReq = 0x17,
  SidrRep = 0x18,
};
const char* to_string(Attribute attribute);

// REJ reasons (IBTA table 109) that we send or treat specially.
namespace reject {
inline constexpr uint16_t kNoResources = 3, kTimeout = 4, kUnsupported = 5, kInvalidCommId = 6,
                          kInvalidServiceId = 8, kInvalidTransport = 9, kStaleConnection = 10,
                          kInvalidGid = 12, kInvalidMtu = 26, kConsumer = 28;
}
const char* reject_reason_text(uint16_t reason);

// Which message a REJ or MRA speaks of.
enum class About : uint8_t { Req = 0, Rep = 1, Other = 2 };

struct PathFields {
  uint16_t local_lid = 0, remote_lid = 0;
  Gid local_gid{}, remote_gid{};
  uint32_t flow_label = 0;  // 20 bits
  uint8_t packet_rate = 0;  // 6 bits
  uint8_t traffic_class = 0, hop_limit = 0;
  uint8_t service_level = 0;  // 4 bits
  bool subnet_local = false;
  uint8_t ack_timeout = 0;  // 5 bits: 4.096 us * 2^n
};

struct Req {
  uint32_t local_comm_id = 0;
  uint32_t vendor_id = 0;  // 24 bits
  uint64_t service_id = 0;
  uint64_t ca_guid = 0;
  uint32_t qkey = 0;
  uint32_t qpn = 0;
  uint8_t responder_resources = 0, initiator_depth = 0;
  uint32_t local_eecn = 0, remote_eecn = 0;
  uint8_t remote_response_timeout = 0, local_response_timeout = 0;  // 5 bits
  uint8_t transport_type = 0;                                       // 0: RC
  bool end_to_end_flow = false;
  uint32_t starting_psn = 0;  // at which the message's receiver begins to send (12.7.31)
  uint8_t retry_count = 0;    // 3 bits
  uint16_t pkey = 0;
  uint8_t path_mtu = 0;  // code
  bool rdc_exists = false;
  uint8_t rnr_retry_count = 0;  // 3 bits
  uint8_t max_cm_retries = 0;   // 4 bits
  bool srq = false;
  uint8_t extended_transport = 0;  // 3 bits
  PathFields primary, alternate;
  std::array<uint8_t, 92> private_data{};
};

struct Rep {
  uint32_t local_comm_id = 0, remote_comm_id = 0;
  uint32_t qkey = 0;
  uint32_t qpn = 0;
  uint32_t local_eecn = 0;
  uint32_t vendor_id = 0;     // 24 bits, spread over three bytes
  uint32_t starting_psn = 0;  // at which the message's receiver begins to send (12.7.31)
  uint8_t responder_resources = 0, initiator_depth = 0;
  uint8_t target_ack_delay = 0;   // 5 bits
  uint8_t failover_accepted = 0;  // 2 bits
  bool end_to_end_flow = false;
  uint8_t rnr_retry_count = 0;  // 3 bits
  bool srq = false;
  uint64_t ca_guid = 0;
  std::array<uint8_t, 196> private_data{};
};

struct Rtu {
  uint32_t local_comm_id = 0, remote_comm_id = 0;
  std::array<uint8_t, 224> private_data{};
};

struct Mra {
  uint32_t local_comm_id = 0, remote_comm_id = 0;
  About about = About::Req;
  uint8_t service_timeout = 0;  // 5 bits
  std::array<uint8_t, 222> private_data{};
};

struct Rej {
  uint32_t local_comm_id = 0, remote_comm_id = 0;
  About about = About::Req;
  uint8_t info_length = 0;  // 7 bits, bytes of additional reject information
  uint16_t reason = 0;
  std::array<uint8_t, 72> info{};
  std::array<uint8_t, 148> private_data{};
};

struct Dreq {
  uint32_t local_comm_id = 0, remote_comm_id = 0;
  uint32_t remote_qpn = 0;
  std::array<uint8_t, 220> private_data{};
};

struct Drep {
  uint32_t local_comm_id = 0, remote_comm_id = 0;
  std::array<uint8_t, 224> private_data{};
};

struct SidrReq {
  uint32_t request_id = 0;
  uint16_t pkey = 0;
  uint64_t service_id = 0;
  std::array<uint8_t, 216> private_data{};
};

struct SidrRep {
  uint32_t request_id = 0;
  uint8_t status = 0;  // 1: service id not supported
  uint8_t info_length = 0;
  uint32_t qpn = 0;
  uint64_t service_id = 0;
  uint32_t qkey = 0;
  std::array<uint8_t, 72> info{};
  std::array<uint8_t, 136> private_data{};
};

using Message = std::variant<Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep>;

struct Mad {
  uint64_t transaction_id = 0;
  uint32_t attribute_modifier = 0;
  Message message;
};

enum class MadFault : uint8_t {
  None,
  Length,     // not 256 bytes
  Version,    // base version, class or class version
  Method,     // not Send
  Attribute,  // not a message that we know
};

// Reserved fields are ignored.
MadFault decode(std::span<const uint8_t> bytes, Mad& mad);
MadBytes encode(const Mad& mad);

// ---- The RDMA-CM header at the start of a REQ's private data (RDMA IP CM service, IBTA A11)
inline constexpr size_t kIpHeaderBytes = 36;
inline constexpr size_t kConsumerBytesMax = 92 - kIpHeaderBytes;  // 56
struct IpHeader {
  uint16_t source_port = 0;
  sockaddr_storage source{}, destination{};  // without ports
};
// False when the version or the IP version is unknown.
bool decode_ip_header(std::span<const uint8_t> private_data, IpHeader& header);
void encode_ip_header(const IpHeader& header, std::span<uint8_t> private_data);

inline constexpr uint64_t service_id_of_port(uint16_t port) {
  return 0x0000000001060000u | port;
}
inline constexpr bool is_rdma_tcp_service(uint64_t service_id) {
  return service_id >> 16 == 0x0000000001060000u >> 16;
}

}  // namespace nvmeof::rdma::soft::cm
