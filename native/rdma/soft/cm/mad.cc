// Layouts of the connection management datagrams; see mad.h. Offsets count from the end of the MAD
// header, as the tables of the specification do.
#include "rdma/soft/cm/mad.h"

#include <algorithm>
#include <cstring>

#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft::cm {
namespace {

constexpr size_t kHeaderBytes = 24;
constexpr uint8_t kBaseVersion = 1, kClassCm = 0x07, kClassVersion = 2, kMethodSend = 0x03;
constexpr size_t kTidAt = 8, kAttributeAt = 16, kModifierAt = 20;

using In = const uint8_t*;
using Out = uint8_t*;

uint8_t high(uint8_t byte, unsigned bits) {
  return static_cast<uint8_t>(byte >> (8 - bits));
}
uint8_t low(uint8_t byte, unsigned bits) {
  return static_cast<uint8_t>(byte & ((1u << bits) - 1));
}
uint8_t join(unsigned a, unsigned shift_a, unsigned b, unsigned shift_b = 0, unsigned c = 0,
             unsigned shift_c = 0) {
  return static_cast<uint8_t>(a << shift_a | b << shift_b | c << shift_c);
}
template <size_t N>
void read(In from, std::array<uint8_t, N>& to) {
  std::copy_n(from, N, to.begin());
}
template <size_t N>
void write(const std::array<uint8_t, N>& from, Out to) {
  std::copy_n(from.begin(), N, to);
}

void read_path(In lids, In gids, In rest, PathFields& path) {
  path.local_lid = get16(lids);
  path.remote_lid = get16(lids + 2);
  std::copy_n(gids, 16, path.local_gid.begin());
  std::copy_n(gids + 16, 16, path.remote_gid.begin());
  path.flow_label = get32(rest) >> 12;
  path.packet_rate = low(rest[3], 6);
  path.traffic_class = rest[4];
  path.hop_limit = rest[5];
  path.service_level = high(rest[6], 4);
  path.subnet_local = (rest[6] & 0x08) != 0;
  path.ack_timeout = high(rest[7], 5);
}
void write_path(const PathFields& path, Out lids, Out gids, Out rest) {
  put16(lids, path.local_lid);
  put16(lids + 2, path.remote_lid);
  std::copy_n(path.local_gid.begin(), 16, gids);
  std::copy_n(path.remote_gid.begin(), 16, gids + 16);
  put32(rest, path.flow_label << 12 | low(path.packet_rate, 6));
  rest[4] = path.traffic_class;
  rest[5] = path.hop_limit;
  rest[6] = join(low(path.service_level, 4), 4, path.subnet_local, 3);
  rest[7] = join(low(path.ack_timeout, 5), 3, 0);
}
constexpr size_t kPrimaryLids = 52, kPrimaryGids = 56, kPrimaryRest = 88;
constexpr size_t kAlternateLids = 96, kAlternateGids = 100, kAlternateRest = 132;

void read_body(In d, Req& m) {
  m.local_comm_id = get32(d);
  m.vendor_id = get24(d + 5);
  m.service_id = get64(d + 8);
  m.ca_guid = get64(d + 16);
  m.qkey = get32(d + 28);
  m.qpn = get24(d + 32);
  m.responder_resources = d[35];
  m.local_eecn = get24(d + 36);
  m.initiator_depth = d[39];
  m.remote_eecn = get24(d + 40);
  m.remote_response_timeout = high(d[43], 5);
  m.transport_type = (d[43] >> 1) & 3;
  m.end_to_end_flow = (d[43] & 1) != 0;
  m.starting_psn = get24(d + 44);
  m.local_response_timeout = high(d[47], 5);
  m.retry_count = low(d[47], 3);
  m.pkey = get16(d + 48);
  m.path_mtu = high(d[50], 4);
  m.rdc_exists = (d[50] & 0x08) != 0;
  m.rnr_retry_count = low(d[50], 3);
  m.max_cm_retries = high(d[51], 4);
  m.srq = (d[51] & 0x08) != 0;
  m.extended_transport = low(d[51], 3);
  read_path(d + kPrimaryLids, d + kPrimaryGids, d + kPrimaryRest, m.primary);
  read_path(d + kAlternateLids, d + kAlternateGids, d + kAlternateRest, m.alternate);
  read(d + 140, m.private_data);
}
void write_body(const Req& m, Out d) {
  put32(d, m.local_comm_id);
  put24(d + 5, m.vendor_id);
  put64(d + 8, m.service_id);
  put64(d + 16, m.ca_guid);
  put32(d + 28, m.qkey);
  put24(d + 32, m.qpn);
  d[35] = m.responder_resources;
  put24(d + 36, m.local_eecn);
  d[39] = m.initiator_depth;
  put24(d + 40, m.remote_eecn);
  d[43] =
      join(low(m.remote_response_timeout, 5), 3, low(m.transport_type, 2), 1, m.end_to_end_flow);
  put24(d + 44, m.starting_psn);
  d[47] = join(low(m.local_response_timeout, 5), 3, low(m.retry_count, 3));
  put16(d + 48, m.pkey);
  d[50] = join(low(m.path_mtu, 4), 4, m.rdc_exists, 3, low(m.rnr_retry_count, 3));
  d[51] = join(low(m.max_cm_retries, 4), 4, m.srq, 3, low(m.extended_transport, 3));
  write_path(m.primary, d + kPrimaryLids, d + kPrimaryGids, d + kPrimaryRest);
  write_path(m.alternate, d + kAlternateLids, d + kAlternateGids, d + kAlternateRest);
  write(m.private_data, d + 140);
}

void read_body(In d, Rep& m) {
  m.local_comm_id = get32(d);
  m.remote_comm_id = get32(d + 4);
  m.qkey = get32(d + 8);
  m.qpn = get24(d + 12);
  m.local_eecn = get24(d + 16);
  m.vendor_id = static_cast<uint32_t>(d[15] << 16 | d[19] << 8 | d[23]);
  m.starting_psn = get24(d + 20);
  m.responder_resources = d[24];
  m.initiator_depth = d[25];
  m.target_ack_delay = high(d[26], 5);
  m.failover_accepted = (d[26] >> 1) & 3;
  m.end_to_end_flow = (d[26] & 1) != 0;
  m.rnr_retry_count = high(d[27], 3);
  m.srq = (d[27] & 0x10) != 0;
  m.ca_guid = get64(d + 28);
  read(d + 36, m.private_data);
}
void write_body(const Rep& m, Out d) {
  put32(d, m.local_comm_id);
  put32(d + 4, m.remote_comm_id);
  put32(d + 8, m.qkey);
  put24(d + 12, m.qpn);
  d[15] = static_cast<uint8_t>(m.vendor_id >> 16);
  put24(d + 16, m.local_eecn);
  d[19] = static_cast<uint8_t>(m.vendor_id >> 8);
  put24(d + 20, m.starting_psn);
  d[23] = static_cast<uint8_t>(m.vendor_id);
  d[24] = m.responder_resources;
  d[25] = m.initiator_depth;
  d[26] = join(low(m.target_ack_delay, 5), 3, low(m.failover_accepted, 2), 1, m.end_to_end_flow);
  d[27] = join(low(m.rnr_retry_count, 3), 5, m.srq, 4);
  put64(d + 28, m.ca_guid);
  write(m.private_data, d + 36);
}

template <typename M>
void read_ids(In d, M& m) {
  m.local_comm_id = get32(d);
  m.remote_comm_id = get32(d + 4);
}
template <typename M>
void write_ids(const M& m, Out d) {
  put32(d, m.local_comm_id);
  put32(d + 4, m.remote_comm_id);
}

void read_body(In d, Rtu& m) {
  read_ids(d, m);
  read(d + 8, m.private_data);
}
void write_body(const Rtu& m, Out d) {
  write_ids(m, d);
  write(m.private_data, d + 8);
}
void read_body(In d, Drep& m) {
  read_ids(d, m);
  read(d + 8, m.private_data);
}
void write_body(const Drep& m, Out d) {
  write_ids(m, d);
  write(m.private_data, d + 8);
}
void read_body(In d, Dreq& m) {
  read_ids(d, m);
  m.remote_qpn = get24(d + 8);
  read(d + 12, m.private_data);
}
void write_body(const Dreq& m, Out d) {
  write_ids(m, d);
  put24(d + 8, m.remote_qpn);
  write(m.private_data, d + 12);
}
void read_body(In d, Mra& m) {
  read_ids(d, m);
  m.about = static_cast<About>(high(d[8], 2));
  m.service_timeout = high(d[9], 5);
  read(d + 10, m.private_data);
}
void write_body(const Mra& m, Out d) {
  write_ids(m, d);
  d[8] = join(static_cast<unsigned>(m.about), 6, 0);
  d[9] = join(low(m.service_timeout, 5), 3, 0);
  write(m.private_data, d + 10);
}
void read_body(In d, Rej& m) {
  read_ids(d, m);
  m.about = static_cast<About>(high(d[8], 2));
  m.info_length = high(d[9], 7);
  m.reason = get16(d + 10);
  read(d + 12, m.info);
  read(d + 84, m.private_data);
}
void write_body(const Rej& m, Out d) {
  write_ids(m, d);
  d[8] = join(static_cast<unsigned>(m.about), 6, 0);
  d[9] = join(low(m.info_length, 7), 1, 0);
  put16(d + 10, m.reason);
  write(m.info, d + 12);
  write(m.private_data, d + 84);
}
void read_body(In d, SidrReq& m) {
  m.request_id = get32(d);
  m.pkey = get16(d + 4);
  m.service_id = get64(d + 8);
  read(d + 16, m.private_data);
}
void write_body(const SidrReq& m, Out d) {
  put32(d, m.request_id);
  put16(d + 4, m.pkey);
  put64(d + 8, m.service_id);
  write(m.private_data, d + 16);
}
void read_body(In d, SidrRep& m) {
  m.request_id = get32(d);
  m.status = d[4];
  m.info_length = d[5];
  m.qpn = get24(d + 8);
  m.service_id = get64(d + 12);
  m.qkey = get32(d + 20);
  read(d + 24, m.info);
  read(d + 96, m.private_data);
}
void write_body(const SidrRep& m, Out d) {
  put32(d, m.request_id);
  d[4] = m.status;
  d[5] = m.info_length;
  put24(d + 8, m.qpn);
  put64(d + 12, m.service_id);
  put32(d + 20, m.qkey);
  write(m.info, d + 24);
  write(m.private_data, d + 96);
}

template <typename M>
void read_as(In body, Message& message) {
  M m;
  read_body(body, m);
  message = m;
}
struct Row {
  Attribute attribute;
  const char* name;
  void (*read)(In, Message&);
};
// In the order of Message's alternatives.
constexpr Row kRows[] = {
    {Attribute::Req, "REQ", read_as<Req>},
    {Attribute::Mra, "MRA", read_as<Mra>},
    {Attribute::Rej, "REJ", read_as<Rej>},
    {Attribute::Rep, "REP", read_as<Rep>},
    {Attribute::Rtu, "RTU", read_as<Rtu>},
    {Attribute::Dreq, "DREQ", read_as<Dreq>},
    {Attribute::Drep, "DREP", read_as<Drep>},
    {Attribute::SidrReq, "SIDR_REQ", read_as<SidrReq>},
    {Attribute::SidrRep, "SIDR_REP", read_as<SidrRep>},
};
static_assert(std::size(kRows) == std::variant_size_v<Message>);

struct ReasonRow {
  uint16_t reason;
  const char* text;
};
constexpr ReasonRow kReasons[] = {
    {1, "no queue pair available"},
    {2, "no end-to-end context available"},
    {3, "no resources available"},
    {4, "timeout"},
    {5, "unsupported request"},
    {6, "invalid communication id"},
    {7, "invalid communication instance"},
    {8, "invalid service id (nobody listens on the port)"},
    {9, "invalid transport service type"},
    {10, "stale connection"},
    {11, "reliable datagram channel does not exist"},
    {12, "invalid GID"},
    {13, "invalid LID"},
    {14, "invalid service level"},
    {15, "invalid traffic class"},
    {16, "invalid hop limit"},
    {17, "invalid packet rate"},
    {24, "port and connection management redirection"},
    {25, "port redirection"},
    {26, "invalid path MTU"},
    {27, "insufficient responder resources"},
    {28, "rejected by the peer's application"},
    {29, "invalid RNR retry count"},
    {30, "duplicate local communication id"},
    {31, "invalid class version"},
    {32, "invalid flow label"},
    {33, "invalid alternate flow label"},
    {35, "vendor option not supported"},
};

}  // namespace

const char* to_string(Attribute attribute) {
  for (const Row& row : kRows)
    if (row.attribute == attribute) return row.name;
  return "unknown";
}

const char* reject_reason_text(uint16_t reason) {
  for (const ReasonRow& row : kReasons)
    if (row.reason == reason) return row.text;
  return "unknown reason";
}

MadFault decode(std::span<const uint8_t> bytes, Mad& mad) {
  if (bytes.size() != kMadBytes) return MadFault::Length;
  const uint8_t* p = bytes.data();
  if (p[0] != kBaseVersion || p[1] != kClassCm || p[2] != kClassVersion) return MadFault::Version;
  if (p[3] != kMethodSend) return MadFault::Method;
  const auto attribute = static_cast<Attribute>(get16(p + kAttributeAt));
  for (const Row& row : kRows) {
    if (row.attribute != attribute) continue;
    mad.transaction_id = get64(p + kTidAt);
    mad.attribute_modifier = get32(p + kModifierAt);
    row.read(p + kHeaderBytes, mad.message);
    return MadFault::None;
  }
  return MadFault::Attribute;
}

MadBytes encode(const Mad& mad) {
  MadBytes bytes{};
  uint8_t* p = bytes.data();
  p[0] = kBaseVersion;
  p[1] = kClassCm;
  p[2] = kClassVersion;
  p[3] = kMethodSend;
  put64(p + kTidAt, mad.transaction_id);
  put16(p + kAttributeAt, static_cast<uint16_t>(kRows[mad.message.index()].attribute));
  put32(p + kModifierAt, mad.attribute_modifier);
  std::visit([&](const auto& message) { write_body(message, p + kHeaderBytes); }, mad.message);
  return bytes;
}

// IPv4 addresses sit in the last four of sixteen bytes, after zeros.
bool decode_ip_header(std::span<const uint8_t> private_data, IpHeader& header) {
  if (private_data.size() < kIpHeaderBytes) return false;
  const uint8_t* p = private_data.data();
  const bool v4 = (p[1] >> 4) == 4;
  if (p[0] != 0 || (!v4 && (p[1] >> 4) != 6)) return false;
  header.source_port = get16(p + 2);
  const auto address = [&](const uint8_t* at) {
    Gid gid{};
    if (v4) gid[10] = gid[11] = 0xff;
    const size_t from = v4 ? 12 : 0;
    std::copy(at + from, at + 16, gid.begin() + static_cast<long>(from));
    return address_of(gid);
  };
  header.source = address(p + 4);
  header.destination = address(p + 20);
  return true;
}

void encode_ip_header(const IpHeader& header, std::span<uint8_t> private_data) {
  uint8_t* p = private_data.data();
  const bool v4 = header.source.ss_family == AF_INET;
  p[0] = 0;
  p[1] = v4 ? 0x40 : 0x60;
  put16(p + 2, header.source_port);
  const auto put_address = [&](const sockaddr_storage& address, uint8_t* at) {
    const Gid gid = gid_of(address);
    const size_t from = v4 ? 12 : 0;
    std::fill_n(at, from, uint8_t{0});
    std::copy(gid.begin() + static_cast<long>(from), gid.end(), at + from);
  };
  put_address(header.source, p + 4);
  put_address(header.destination, p + 20);
}

}  // namespace nvmeof::rdma::soft::cm
