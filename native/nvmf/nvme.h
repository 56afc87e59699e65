// Offsets and numbers of the NVMe wire format that the target's engine reads and writes: submission
// and completion queue entries, SGL descriptors, I/O commands. Little-endian. References: NVM
// Express Base 2.1 (Base), NVM Command Set 1.1 (NVM). Bytes only.
#pragma once
#include <endian.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nvmeof::nvmf {

inline uint16_t load16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return le16toh(value);
}
inline uint32_t load32(const uint8_t* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return le32toh(value);
}
inline uint64_t load64(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return le64toh(value);
}
inline void store16(uint8_t* to, uint16_t value) {
  value = htole16(value);
  std::memcpy(to, &value, sizeof value);
}
inline void store32(uint8_t* to, uint32_t value) {
  value = htole32(value);
  std::memcpy(to, &value, sizeof value);
}
inline void store64(uint8_t* to, uint64_t value) {
  value = htole64(value);
  std::memcpy(to, &value, sizeof value);
}
// `count` bits of `word` from bit `shift` up.
constexpr uint32_t bits(uint32_t word, unsigned shift, unsigned count) {
  return (word >> shift) & ((1u << count) - 1);
}

inline constexpr size_t kSqeBytes = 64;
inline constexpr size_t kCqeBytes = 16;

// Submission queue entry, Base Figure 91; Fabrics, Base Figure 535.
namespace sqe {
inline constexpr uint16_t kOpcode = 0, kFlags = 1, kCid = 2, kNsid = 4, kFctype = 4, kSgl1 = 24,
                          kCdw10 = 40, kCdw11 = 44, kCdw12 = 48;
inline constexpr uint16_t kSglAddress = kSgl1, kSglLength = kSgl1 + 8, kSglKey = kSgl1 + 11,
                          kSglType = kSgl1 + 15;
}  // namespace sqe

// Flags byte: PSDT in bits 7:6, FUSE in bits 1:0. Fabrics allow SGLs only (01b).
inline constexpr uint8_t kPsdtMask = 0xC0, kPsdtSgl = 0x40, kFuseMask = 0x03;

// Completion queue entry, Base Figure 96; no phase bit on fabrics.
namespace cqe {
inline constexpr size_t kResult = 0, kSqhd = 8, kSqid = 10, kCid = 12, kStatus = 14;
}

// SGL descriptor identifiers (type << 4 | subtype), Base 4.3.2.
inline constexpr uint8_t kSglInCapsule = 0x01;  // data block, offset subtype
inline constexpr uint8_t kSglKeyed = 0x40;
inline constexpr uint8_t kSglKeyedInvalidate = 0x4F;

inline constexpr uint8_t kOpcodeFabrics = 0x7F;
inline constexpr uint8_t kFctypeConnect = 0x01;
inline constexpr uint32_t kNsidAll = 0xFFFFFFFF;

// I/O opcodes, NVM Figure 22.
namespace io {
inline constexpr uint8_t kFlush = 0x00, kWrite = 0x01, kRead = 0x02, kCompare = 0x05,
                         kWriteZeroes = 0x08, kDatasetManagement = 0x09, kVerify = 0x0C;
}
// CDW12 of commands with an LBA range, NVM Figure 85 and following.
inline constexpr unsigned kFuaBit = 30, kDeacBit = 25;
// Dataset Management: CDW11 bit 2 asks for deallocation; range entries of 16 bytes (NVM 3.3.3).
inline constexpr unsigned kAttributeDeallocateBit = 2;
inline constexpr uint32_t kDsmRangeBytes = 16;
inline constexpr size_t kDsmBlocks = 4, kDsmSlba = 8;

}  // namespace nvmeof::nvmf
