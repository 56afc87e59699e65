// The I/O commands that native executes, one row each: what they carry, what they need, and the
// steps of block requests they are made of. Everything else about them (SGL, buffers, transport) is
// the engine's. Pure but for the requests it fills in. Reactor's thread.
#pragma once
#include <cstdint>

#include "nvmf/target_command.h"

namespace nvmeof::nvmf {

// How much data the SGL must name.
enum class LengthRule : uint8_t {
  None,    // no data moves; the SGL is not looked at
  Blocks,  // NLB blocks exactly
  Ranges,  // at least the ranges of Dataset Management; more is accepted
};

enum class Step : uint8_t {
  Submit,  // command.request is to be submitted to command.entry
  End,     // command.status is the answer
};

struct IoRow {
  uint8_t opcode;
  const char* name;
  Transfer transfer;
  LengthRule rule;
  bool has_range;    // SLBA and NLB
  bool needs_write;  // refused on a write-protected namespace
  bool broadcast;    // NSID FFFFFFFFh is allowed
  uint32_t copies;   // private buffers of data_length bytes that the command needs
  // The first (`first` true) or next step; then command.error is how the last request ended.
  Step (*step)(Command& command, bool first);
};

inline constexpr unsigned kIoRows = 7;
const IoRow* io_row(uint8_t opcode);  // nullptr: not in the table
unsigned io_row_index(const IoRow* row);

// What the checks need to know of the queue.
struct IoContext {
  const NamespaceTable* table;  // may be null
  uint32_t in_capsule;          // data bytes received behind the SQE
  uint32_t max_transfer_bytes;
  const AccessView* view = &kOpenView;
};

// Fills row, entry, block, ranges and lengths of `command` from its SQE, or says what is wrong with
// it. Holds nothing yet.
Rejection parse_io(Command& command, const IoContext& context);

// Bytes of private buffer the command needs besides its capsule; 0: none.
uint32_t io_buffer_bytes(const Command& command);

inline constexpr uint32_t kVerifyChunk = 128 * 1024;

}  // namespace nvmeof::nvmf
