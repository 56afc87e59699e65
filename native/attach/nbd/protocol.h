// The numbers of the NBD protocol (doc/proto.md of the NBD project) that this server uses. All of
// it is big-endian on the wire.
#pragma once
#include <endian.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nvmeof::attach::nbd {

inline uint16_t get16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return be16toh(value);
}
inline uint32_t get32(const uint8_t* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return be32toh(value);
}
inline uint64_t get64(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  return be64toh(value);
}
inline void put16(uint8_t* to, uint16_t value) {
  value = htobe16(value);
  std::memcpy(to, &value, sizeof value);
}
inline void put32(uint8_t* to, uint32_t value) {
  value = htobe32(value);
  std::memcpy(to, &value, sizeof value);
}
inline void put64(uint8_t* to, uint64_t value) {
  value = htobe64(value);
  std::memcpy(to, &value, sizeof value);
}

inline constexpr uint64_t kGreetingMagic = 0x4E42444D41474943;     // "NBDMAGIC"
inline constexpr uint64_t kOptionMagic = 0x49484156454F5054;       // "IHAVEOPT"
inline constexpr uint64_t kOptionReplyMagic = 0x0003E889045565A9;  //
inline constexpr uint32_t kRequestMagic = 0x25609513;
inline constexpr uint32_t kSimpleReplyMagic = 0x67446698;
inline constexpr uint32_t kStructuredReplyMagic = 0x668E33EF;

// Handshake flags of the server, and the client's answer: same bits.
inline constexpr uint32_t kFixedNewstyle = 1, kNoZeroes = 2;

namespace option {
inline constexpr uint32_t kExportName = 1, kAbort = 2, kList = 3, kInfo = 6, kGo = 7,
                          kStructuredReply = 8;
}
namespace option_reply {
inline constexpr uint32_t kAck = 1, kServer = 2, kInfo = 3, kError = 1u << 31,
                          kUnsupported = kError + 1, kInvalid = kError + 3, kUnknown = kError + 6,
                          kTooBig = kError + 9;
}
namespace info {
inline constexpr uint16_t kExport = 0, kName = 1, kDescription = 2, kBlockSize = 3;
}

namespace transmission {
inline constexpr uint16_t kHasFlags = 1, kReadOnly = 2, kFlush = 4, kFua = 8, kTrim = 32,
                          kWriteZeroes = 64, kDontFragment = 128, kMultiConn = 256;
}

namespace command {
inline constexpr uint16_t kRead = 0, kWrite = 1, kDisconnect = 2, kFlush = 3, kTrim = 4,
                          kWriteZeroes = 6;
}
namespace command_flag {
inline constexpr uint16_t kFua = 1, kNoHole = 2, kDontFragment = 4;
}

namespace chunk {
inline constexpr uint16_t kDone = 1;  // flag: the last of a reply
inline constexpr uint16_t kNone = 0, kOffsetData = 1, kError = 0x8001;
}  // namespace chunk

// Errors of replies: errno values of Linux, whatever the host has.
namespace error {
inline constexpr uint32_t kPermission = 1, kIo = 5, kInvalid = 22, kNoSpace = 28,
                          kNotSupported = 95, kShutdown = 108;
}

// A string is at most this long.
inline constexpr uint32_t kStringMax = 4096;

}  // namespace nvmeof::attach::nbd
