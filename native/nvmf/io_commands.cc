// The I/O command table: parsing with every range check (NVM Command Set 1.1, section 3.2 and 3.3),
// and the step functions that turn a command into block requests.
#include "nvmf/io_commands.h"

#include <algorithm>
#include <array>

namespace nvmeof::nvmf {

namespace {

void fill(Command& command, block::Operation operation, uint64_t offset, uint64_t length) {
  block::Request& request = command.request;
  request.operation = operation;
  request.fua = command.fua;
  request.may_deallocate = command.may_deallocate;
  request.offset = offset;
  request.length = length;
  request.iov = nullptr;
  request.iov_count = 0;
}

void fill_data(Command& command, block::Operation operation, uint8_t* data, uint64_t offset,
               uint64_t length) {
  fill(command, operation, offset, length);
  command.iov = {data, length};
  command.request.iov = &command.iov;
  command.request.iov_count = 1;
}

Step end(Command& command) {
  command.status = status_of_error(command.error, command.request.operation);
  return Step::End;
}

Step step_read(Command& command, bool first) {
  if (!first) return end(command);
  fill_data(command, block::Operation::Read, command.payload, command.offset, command.length);
  return Step::Submit;
}

Step step_write(Command& command, bool first) {
  if (!first) return end(command);
  fill_data(command, block::Operation::Write, command.payload, command.offset, command.length);
  return Step::Submit;
}

Step step_write_zeroes(Command& command, bool first) {
  if (!first) return end(command);
  fill(command, block::Operation::WriteZeroes, command.offset, command.length);
  return Step::Submit;
}

// NSID FFFFFFFFh flushes every namespace of the table; the engine moves `entry` on between steps.
Step step_flush(Command& command, bool first) {
  if (!first) return end(command);
  fill(command, block::Operation::Flush, 0, 0);
  return Step::Submit;
}

Step step_compare(Command& command, bool first) {
  uint8_t* stored = command.block.kind == DataBlock::Kind::Keyed
                        ? command.buffer + command.data_length
                        : command.buffer;
  if (first) {
    fill_data(command, block::Operation::Read, stored, command.offset, command.length);
    return Step::Submit;
  }
  if (command.error) return end(command);
  command.status = std::memcmp(stored, command.payload, command.length) == 0
                       ? status::kSuccess
                       : status::kCompareFailure;
  return Step::End;
}

// Reads the range piece by piece and looks at nothing but the errors.
Step step_verify(Command& command, bool first) {
  if (!first && command.error) return end(command);
  if (!first) command.cursor += command.request.length;
  if (command.cursor == command.length) return end(command);
  const uint64_t piece = std::min<uint64_t>(kVerifyChunk, command.length - command.cursor);
  fill_data(command, block::Operation::Read, command.buffer, command.offset + command.cursor,
            piece);
  return Step::Submit;
}

struct Range {
  uint64_t offset, length;  // bytes
};

bool ranges_fit(uint64_t slba, uint64_t blocks, const Namespace& entry) {
  const uint64_t limit = entry.backing->size() >> entry.block_shift;
  return blocks <= limit && slba <= limit - blocks;
}

// Attributes other than AD are hints: success without doing anything (NVM 3.3.3). All ranges are
// checked before the first is touched.
Step step_dataset_management(Command& command, bool first) {
  const uint32_t count = bits(load32(command.sqe + sqe::kCdw10), 0, 8) + 1;
  const Namespace& entry = *command.entry;
  const auto range = [&](uint64_t index) {
    const uint8_t* at = command.payload + index * kDsmRangeBytes;
    const uint64_t blocks = load32(at + kDsmBlocks);
    return Range{load64(at + kDsmSlba) << entry.block_shift, blocks << entry.block_shift};
  };
  if (first) {
    for (uint32_t i = 0; i < count; i++) {
      const uint8_t* at = command.payload + i * kDsmRangeBytes;
      if (!ranges_fit(load64(at + kDsmSlba), load32(at + kDsmBlocks), entry)) {
        command.status = status::kLbaOutOfRange;
        return Step::End;
      }
    }
    if (!bits(load32(command.sqe + sqe::kCdw11), kAttributeDeallocateBit, 1) ||
        !entry.backing->can_deallocate())
      return Step::End;
  } else {
    if (command.error == EOPNOTSUPP) command.error = 0;  // it is advice: not an error
    if (command.error) return end(command);
  }
  while (command.cursor < count && range(command.cursor).length == 0) command.cursor++;
  if (command.cursor == count) return Step::End;
  const Range next = range(command.cursor++);
  fill(command, block::Operation::Deallocate, next.offset, next.length);
  return Step::Submit;
}

constexpr IoRow kTable[kIoRows] = {
    // opcode, name, transfer, length, range, writes, all, copies, step
    {io::kRead, "read", Transfer::ToHost, LengthRule::Blocks, true, false, false, 1, step_read},
    {io::kWrite, "write", Transfer::FromHost, LengthRule::Blocks, true, true, false, 0, step_write},
    {io::kFlush, "flush", Transfer::None, LengthRule::None, false, false, true, 0, step_flush},
    {io::kWriteZeroes, "writeZeroes", Transfer::None, LengthRule::None, true, true, false, 0,
     step_write_zeroes},
    {io::kDatasetManagement, "datasetManagement", Transfer::FromHost, LengthRule::Ranges, false,
     true, false, 0, step_dataset_management},
    {io::kCompare, "compare", Transfer::FromHost, LengthRule::Blocks, true, false, false, 1,
     step_compare},
    {io::kVerify, "verify", Transfer::None, LengthRule::None, true, false, false, 0, step_verify},
};

constexpr std::array<int8_t, 256> index_rows() {
  std::array<int8_t, 256> index{};
  index.fill(-1);
  for (unsigned i = 0; i < kIoRows; i++) index[kTable[i].opcode] = static_cast<int8_t>(i);
  return index;
}
constexpr std::array<int8_t, 256> kIndex = index_rows();

// SLBA, NLB and the bits of CDW12.
Rejection parse_range(Command& command) {
  const Namespace& entry = *command.entry;
  const uint64_t slba = load64(command.sqe + sqe::kCdw10);
  const uint32_t cdw12 = load32(command.sqe + sqe::kCdw12);
  const uint32_t blocks = bits(cdw12, 0, 16) + 1;
  if (!ranges_fit(slba, blocks, entry)) return {status::kLbaOutOfRange, sqe::kCdw10};
  command.offset = slba << entry.block_shift;
  command.length = uint64_t{blocks} << entry.block_shift;
  if (command.row->needs_write) command.fua = bits(cdw12, kFuaBit, 1);
  if (command.row->opcode == io::kWriteZeroes) command.may_deallocate = bits(cdw12, kDeacBit, 1);
  return {};
}

Rejection check_length(Command& command, const IoContext& context) {
  if (command.row->rule == LengthRule::None) return {};
  if (command.row->rule == LengthRule::Ranges) {
    const uint32_t count = bits(load32(command.sqe + sqe::kCdw10), 0, 8) + 1;
    command.data_length = count * kDsmRangeBytes;
    if (command.block.length < command.data_length)
      return {status::kSglLengthInvalid, sqe::kSglLength};
    return {};
  }
  uint64_t limit = context.max_transfer_bytes;
  if (command.entry->max_transfer_bytes)
    limit = std::min<uint64_t>(limit, command.entry->max_transfer_bytes);
  if (command.length > limit) return {status::kInvalidField, sqe::kCdw12};
  if (command.block.length != command.length) return {status::kSglLengthInvalid, sqe::kSglLength};
  command.data_length = static_cast<uint32_t>(command.length);
  return {};
}

}  // namespace

const IoRow* io_row(uint8_t opcode) {
  return kIndex[opcode] < 0 ? nullptr : &kTable[kIndex[opcode]];
}
unsigned io_row_index(const IoRow* row) {
  return static_cast<unsigned>(row - kTable);
}

Rejection parse_io(Command& command, const IoContext& context) {
  if (const Rejection refused = check_flags(command.sqe)) return refused;
  const IoRow* row = io_row(command.sqe[sqe::kOpcode]);
  if (!row) return {status::kInvalidOpcode, sqe::kOpcode};
  const uint32_t nsid = load32(command.sqe + sqe::kNsid);
  Namespace* entry = nullptr;
  if (context.table)
    entry =
        nsid == kNsidAll && row->broadcast ? context.table->after(0) : context.table->find(nsid);
  if (!entry) return {status::kInvalidNamespace, sqe::kNsid};
  if (const uint16_t refusal = context.view->refusal[entry->ana_group])
    return {refusal, sqe::kNsid};
  command.row = row;
  command.entry = entry;
  command.transfer = row->transfer;
  // A command without data may leave its SGL undefined: nothing is read from it.
  if (row->transfer != Transfer::None)
    if (const Rejection refused =
            parse_sgl(command.sqe, from_host(row->transfer), context.in_capsule, &command.block))
      return refused;
  if (row->has_range)
    if (const Rejection refused = parse_range(command)) return refused;
  if (row->needs_write && (entry->write_protected || entry->backing->read_only()))
    return {status::kNamespaceWriteProtected, sqe::kNsid};
  return check_length(command, context);
}

uint32_t io_buffer_bytes(const Command& command) {
  if (command.row->opcode == io::kVerify)
    return static_cast<uint32_t>(std::min<uint64_t>(command.length, kVerifyChunk));
  return command.data_length * (command.row->copies + (command.fetches() ? 1 : 0));
}

}  // namespace nvmeof::nvmf
