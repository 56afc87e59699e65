#include "attach/client/client_input.h"

#include <bit>
#include <cerrno>
#include <cstring>

namespace nvmeof::attach {

namespace {

struct Rule {
  Operation operation;
  bool has_range, has_data, writes;
  bool (*possible)(const Geometry& geometry);  // null: always
};

constexpr Rule kRules[NVMEOF_RING_OPCODES] = {
    /* READ  */ {Operation::Read, true, true, false, nullptr},
    /* WRITE */ {Operation::Write, true, true, true, nullptr},
    /* FLUSH */ {Operation::Flush, false, false, false, nullptr},
    /* ZERO  */
    {Operation::WriteZeroes, true, false, true,
     [](const Geometry& geometry) { return geometry.can_write_zeroes; }},
    /* TRIM  */
    {Operation::Discard, true, false, true,
     [](const Geometry& geometry) { return geometry.can_deallocate; }},
};

constexpr bool may_have_fua(Operation operation) {
  return operation == Operation::Write || operation == Operation::WriteZeroes;
}

Error refused(const std::string& what) {
  return Error{EPROTO, what};
}

}  // namespace

Result<nvmeof_ring_hello> check_hello(const uint8_t* bytes, size_t length) {
  nvmeof_ring_hello hello;
  if (length != sizeof hello) {
    return refused("a hello has " + std::to_string(sizeof hello) + " bytes, not " +
                   std::to_string(length));
  }
  std::memcpy(&hello, bytes, sizeof hello);
  if (hello.magic != NVMEOF_RING_MAGIC) return refused("this is not the hello of a client");
  if (hello.version != NVMEOF_RING_VERSION) {
    return refused("the client speaks version " + std::to_string(hello.version) +
                   " of the protocol, this process version " + std::to_string(NVMEOF_RING_VERSION) +
                   ": build the client again");
  }
  if (!std::has_single_bit(hello.entries) || hello.entries > NVMEOF_RING_ENTRIES_MAX) {
    return Error{EINVAL, "entries: " + std::to_string(hello.entries) +
                             " is no power of two from 1 to " +
                             std::to_string(NVMEOF_RING_ENTRIES_MAX)};
  }
  if (hello.reserved != 0) return refused("reserved: not 0");
  if (hello.data_bytes == 0 || hello.data_bytes > NVMEOF_RING_DATA_MAX ||
      hello.data_bytes % NVMEOF_RING_PAGE != 0) {
    return Error{EINVAL, "data_bytes: " + std::to_string(hello.data_bytes) + " is no multiple of " +
                             std::to_string(NVMEOF_RING_PAGE) + " up to " +
                             std::to_string(NVMEOF_RING_DATA_MAX)};
  }
  return hello;
}

uint16_t check_entry(const nvmeof_ring_entry& entry, const Geometry& geometry, uint64_t data_bytes,
                     IoRequest* request) {
  if (entry.opcode >= NVMEOF_RING_OPCODES || entry.reserved != 0) return EINVAL;
  const Rule& rule = kRules[entry.opcode];
  if ((entry.flags & ~NVMEOF_RING_FUA) != 0) return EINVAL;
  if (entry.flags != 0 && !may_have_fua(rule.operation)) return EINVAL;
  if (rule.has_range) {
    if (entry.length == 0 || ((entry.offset | entry.length) & (geometry.lba_bytes - 1)) != 0) {
      return EINVAL;
    }
    const uint64_t limit = geometry.lba_count * geometry.lba_bytes;  // the lane checked the product
    if (entry.length > limit || entry.offset > limit - entry.length) return ENOSPC;
  } else if (entry.length != 0 || entry.offset != 0) {
    return EINVAL;
  }
  if (rule.has_data) {
    if (entry.length > data_bytes || entry.data > data_bytes - entry.length) return EINVAL;
  } else if (entry.data != 0) {
    return EINVAL;
  }
  if (rule.writes && geometry.read_only) return EROFS;
  if (rule.possible != nullptr && !rule.possible(geometry)) return EOPNOTSUPP;
  request->operation = rule.operation;
  request->fua = (entry.flags & NVMEOF_RING_FUA) != 0;
  request->deallocate = false;
  request->offset = entry.offset;
  request->length = entry.length;
  request->memory_offset = entry.data;
  return 0;
}

}  // namespace nvmeof::attach
