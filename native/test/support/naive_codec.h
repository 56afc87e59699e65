// A second, deliberately naive RoCEv2 codec, written from the specification with none of the shared
// tables: bit by bit CRC, header by header, opcode by opcode. The tests hold the real one against
// it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nvmeof::test {

using Bytes = std::vector<uint8_t>;

// CRC-32 (IEEE 802.3), one bit at a time.
uint32_t naive_crc32(const Bytes& bytes);

// The ICRC of a whole IP packet (IP header .. pad .. ICRC place); the last four bytes are ignored.
uint32_t naive_icrc(Bytes ip_packet);

// Fields of a UDP payload by name ("opcode", "psn", "reth.va", ...); empty when malformed.
std::map<std::string, uint64_t> naive_decode(const Bytes& udp, Bytes& payload);
// The inverse: all but the ICRC.
Bytes naive_encode(const std::map<std::string, uint64_t>& fields, const Bytes& payload);

}  // namespace nvmeof::test
