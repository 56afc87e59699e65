#include "attach/nbd/request.h"

namespace nvmeof::attach::nbd {

namespace {

struct Rule {
  bool known;
  bool writes;
  bool transfers;    // its length is that of a payload
  uint16_t offered;  // the transmission flag that allows it; 0: always
  uint16_t flags;    // that it may have
  uint32_t beyond;   // the error of a range beyond the end
  Operation operation;
};

// By command.
constexpr Rule kRules[] = {
    /* READ         */ {true, false, true, 0, command_flag::kFua | command_flag::kDontFragment,
                        error::kInvalid, Operation::Read},
    /* WRITE        */ {true, true, true, 0, command_flag::kFua, error::kNoSpace, Operation::Write},
    /* DISC         */ {true, false, false, 0, 0xFFFF, 0, Operation::Flush},
    /* FLUSH        */
    {true, false, false, transmission::kFlush, command_flag::kFua, error::kInvalid,
     Operation::Flush},
    /* TRIM         */
    {true, true, false, transmission::kTrim, command_flag::kFua, error::kInvalid,
     Operation::Discard},
    /* CACHE        */ {false, false, false, 0, 0, 0, Operation::Read},
    /* WRITE_ZEROES */
    {true, true, false, transmission::kWriteZeroes, command_flag::kFua | command_flag::kNoHole,
     error::kNoSpace, Operation::WriteZeroes},
};

// What the namespace's errors are to an NBD client, by NVMe status (SCT << 8 | SC); others: EIO.
struct Meaning {
  uint16_t status;
  uint32_t of_read, of_write;
};
constexpr Meaning kMeanings[] = {
    {0x001, error::kNotSupported, error::kNotSupported},  // Invalid Command Opcode
    {0x020, error::kPermission, error::kPermission},      // Namespace is Write Protected
    {0x080, error::kInvalid, error::kNoSpace},            // LBA Out of Range
    {0x081, error::kNoSpace, error::kNoSpace},            // Capacity Exceeded
    {0x182, error::kPermission, error::kPermission},      // Attempted Write to Read Only Range
};

}  // namespace

std::optional<Request> parse_request(std::span<const uint8_t, kRequestBytes> bytes) {
  const uint8_t* const at = bytes.data();
  if (get32(at) != kRequestMagic) return std::nullopt;
  return Request{get16(at + 4), get16(at + 6), get64(at + 8), get64(at + 16), get32(at + 24)};
}

uint32_t refusal(const Request& request, const Export& served) {
  if (request.type >= std::size(kRules) || !kRules[request.type].known) return error::kInvalid;
  const Rule& rule = kRules[request.type];
  if (request.type == command::kDisconnect) return 0;
  if (rule.writes && (served.flags & transmission::kReadOnly) != 0) return error::kPermission;
  if ((served.flags & rule.offered) != rule.offered) return error::kInvalid;
  if ((request.flags & ~rule.flags) != 0) return error::kInvalid;
  // A length that no export may have, too: it would never end.
  if (request.length > served.size || request.offset > served.size - request.length) {
    return rule.beyond;
  }
  if (request.offset % served.block_min != 0 || request.length % served.block_min != 0) {
    return error::kInvalid;
  }
  if (rule.transfers && request.length > served.block_max) return error::kInvalid;
  return 0;
}

Operation operation_of(const Request& request) {
  return kRules[request.type].operation;
}

uint32_t error_of(IoEnd end, uint16_t status, bool write) {
  if (end == IoEnd::Ok) return 0;
  if (end == IoEnd::Disconnected) return error::kShutdown;
  if (end == IoEnd::TimedOut) return error::kIo;  // the protocol has none for it
  for (const Meaning& meaning : kMeanings) {
    if (meaning.status == status) return write ? meaning.of_write : meaning.of_read;
  }
  return error::kIo;
}

ReplyHead make_reply(const Request& request, uint32_t failure, bool structured) {
  ReplyHead head;
  uint8_t* const to = head.bytes.data();
  if (!structured || request.type != command::kRead) {
    put32(to, kSimpleReplyMagic);
    put32(to + 4, failure);
    put64(to + 8, request.cookie);
    head.length = 16;
    return head;
  }
  put32(to, kStructuredReplyMagic);
  put16(to + 4, chunk::kDone);
  put64(to + 8, request.cookie);
  if (failure != 0) {
    put16(to + 6, chunk::kError);
    put32(to + 16, 6);
    put32(to + 20, failure);
    put16(to + 24, 0);  // no text
    head.length = 26;
  } else if (request.length == 0) {
    put16(to + 6, chunk::kNone);
    put32(to + 16, 0);
    head.length = 20;
  } else {
    put16(to + 6, chunk::kOffsetData);
    put32(to + 16, request.length + 8);
    put64(to + 20, request.offset);
    head.length = 28;
  }
  return head;
}

}  // namespace nvmeof::attach::nbd
