// Offsets and numbers of the NVMe wire format that the target's engine reads and writes: submission
// and completion queue entries, SGL descriptors, I/O commands. Little-endian. References: NVM
// Express Base 2.1 (Base), NVM Command Set 1.1 (NVM). Bytes only.
#pragma once
#include <endian.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "wire/generated/nvme_wire.h"

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

// Short names for what native/wire describes: the numbers stand there, once for both languages.
template <typename T, typename E>
constexpr T number(E value) {
  return static_cast<T>(value);
}
constexpr uint16_t at(const wire::Field& field) {
  return static_cast<uint16_t>(field.offset);
}

inline constexpr size_t kSqeBytes = wire::Sqe::kSize;
inline constexpr size_t kCqeBytes = wire::Cqe::kSize;

// Submission queue entry, Base Figure 91; Fabrics, Base Figure 535.
namespace sqe {
inline constexpr uint16_t kOpcode = at(wire::Sqe::kOpcode), kFlags = at(wire::Sqe::kPsdt),
                          kCid = at(wire::Sqe::kCid), kNsid = at(wire::Sqe::kNsid),
                          kFctype = at(wire::ConnectCommand::kFctype), kSgl1 = at(wire::Sqe::kSgl1),
                          kCdw10 = at(wire::Sqe::kCdw10), kCdw11 = at(wire::Sqe::kCdw11),
                          kCdw12 = at(wire::Sqe::kCdw12);
using Keyed = wire::KeyedDataBlockDescriptor;
inline constexpr uint16_t kSglAddress = kSgl1 + at(Keyed::kAddress),
                          kSglLength = kSgl1 + at(Keyed::kLength),
                          kSglKey = kSgl1 + at(Keyed::kKey), kSglType = kSgl1 + at(Keyed::kType);
}  // namespace sqe

// Flags byte: PSDT in bits 7:6, FUSE in bits 1:0. Fabrics allow SGLs only (01b).
inline constexpr uint8_t kPsdtMask = 0xC0, kPsdtSgl = 1 << wire::Sqe::kPsdt.shift, kFuseMask = 0x03;

// Completion queue entry, Base Figure 96; no phase bit on fabrics.
namespace cqe {
inline constexpr size_t kResult = wire::Cqe::kResult.offset, kSqhd = wire::Cqe::kSqhd.offset,
                        kSqid = wire::Cqe::kSqid.offset, kCid = wire::Cqe::kCid.offset,
                        kStatus = wire::Cqe::kPhase.offset;
}

// One that says nothing but its status (status.h).
inline std::array<uint8_t, kCqeBytes> cqe_with(uint16_t status) {
  std::array<uint8_t, kCqeBytes> made{};
  store16(made.data() + cqe::kStatus, static_cast<uint16_t>(status << 1));
  return made;
}

// SGL descriptor identifiers (type << 4 | subtype), Base 4.3.2.
inline constexpr uint8_t kSglInCapsule = number<uint8_t>(wire::SglIdentifier::kInCapsule);
inline constexpr uint8_t kSglKeyed = number<uint8_t>(wire::SglIdentifier::kKeyed);
inline constexpr uint8_t kSglKeyedInvalidate =
    number<uint8_t>(wire::SglIdentifier::kKeyedInvalidate);

inline constexpr uint8_t kOpcodeFabrics = number<uint8_t>(wire::AdminOpcode::kFabrics);
inline constexpr uint8_t kOpcodeKeepAlive = number<uint8_t>(wire::AdminOpcode::kKeepAlive);
inline constexpr uint8_t kFctypeConnect = number<uint8_t>(wire::FabricsType::kConnect);
inline constexpr uint32_t kNsidAll = 0xFFFFFFFF;

// I/O opcodes, NVM Figure 22.
namespace io {
inline constexpr uint8_t kFlush = number<uint8_t>(wire::IoOpcode::kFlush),
                         kWrite = number<uint8_t>(wire::IoOpcode::kWrite),
                         kRead = number<uint8_t>(wire::IoOpcode::kRead),
                         kCompare = number<uint8_t>(wire::IoOpcode::kCompare),
                         kWriteZeroes = number<uint8_t>(wire::IoOpcode::kWriteZeroes),
                         kDatasetManagement = number<uint8_t>(wire::IoOpcode::kDatasetManagement),
                         kVerify = number<uint8_t>(wire::IoOpcode::kVerify);
}
// CDW12 of commands with an LBA range, NVM Figure 85 and following.
inline constexpr unsigned kFuaBit = wire::BlockCommand::kFua.shift,
                          kDeacBit = wire::BlockCommand::kDeac.shift;
// Dataset Management: CDW11 bit 2 asks for deallocation; range entries of 16 bytes (NVM 3.3.3).
inline constexpr unsigned kAttributeDeallocateBit = wire::DatasetManagementCommand::kAd.shift;
inline constexpr uint32_t kDsmRangeBytes = wire::DatasetManagementRange::kSize;
inline constexpr size_t kDsmBlocks = wire::DatasetManagementRange::kNlb.offset,
                        kDsmSlba = wire::DatasetManagementRange::kSlba.offset;

}  // namespace nvmeof::nvmf
