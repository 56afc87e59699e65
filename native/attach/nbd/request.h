// Requests and replies of the transmission phase as bytes, and which requests are refused. Pure.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "attach/nbd/export.h"
#include "attach/nbd/protocol.h"

namespace nvmeof::attach::nbd {

inline constexpr size_t kRequestBytes = 28;

struct Request {
  uint16_t flags = 0;  // command_flag::
  uint16_t type = 0;   // command::
  uint64_t cookie = 0;
  uint64_t offset = 0;
  uint32_t length = 0;
};

// Nothing: these bytes are no request, and what follows cannot be told from noise.
std::optional<Request> parse_request(std::span<const uint8_t, kRequestBytes> bytes);

// Why a request is not carried out, as error::; 0: it may be.
uint32_t refusal(const Request& request, const Export& served);

// What the lane is asked to do. For requests that are not refused; not for a disconnect.
Operation operation_of(const Request& request);

// The error of a reply for the end of a request; 0: success.
uint32_t error_of(IoEnd end, uint16_t status, bool write);

// The head of a reply; the data of a read that succeeded follows it.
struct ReplyHead {
  std::array<uint8_t, 28> bytes;
  uint8_t length = 0;
};
// `structured`: negotiated. Then reads are answered by one chunk, of data or an error.
ReplyHead make_reply(const Request& request, uint32_t failure, bool structured);

}  // namespace nvmeof::attach::nbd
