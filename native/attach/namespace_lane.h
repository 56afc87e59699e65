// A remote namespace as the consumers of one reactor use it (NBD connections, clients over shared
// memory): byte ranges in, NVMe commands out. Splits what is larger than one command may be, keeps
// what finds no free command in order of arrival, and ends each request exactly once. One lane per
// reactor and attached namespace, over one I/O queue of that reactor; everything on its thread.
#pragma once
#include <cstdint>
#include <memory>

#include "nvmf/command_queues.h"

namespace nvmeof::attach {

// What the controller said of the namespace; from Identify, in TypeScript.
struct Geometry {
  uint32_t nsid = 0;
  uint32_t lba_bytes = 0;  // a power of two
  uint64_t lba_count = 0;
  uint32_t transfer_max = 0;          // bytes of one command's data: MDTS, a multiple of lba_bytes
  bool read_only = false;             // NSATTR bit 0
  bool can_write_zeroes = false;      // ONCS bit 3
  bool can_deallocate = false;        // ONCS bit 2
  bool volatile_write_cache = false;  // VWC bit 0: without it a flush has nothing to do
  uint64_t write_zeroes_max = 0;      // blocks of one command: WZSL; 0: no limit of its own
  uint64_t discard_max = 0;           // blocks of one range: DMRSL and DMSL; 0: no limit
};

enum class Operation : uint8_t { Read, Write, Flush, WriteZeroes, Discard };

// How a request ended. `status` of Failed: the NVMe status field, SCT << 8 | SC.
enum class IoEnd : uint8_t { Ok, Failed, TimedOut, Disconnected };

struct IoRequest;
// May submit again from inside. The request is the caller's again when this is called.
using IoDone = void (*)(IoRequest* request, IoEnd end, uint16_t status);

// Owned by the caller until `done`. Offset and length are bytes, multiples of lba_bytes within the
// namespace (the consumer checks: it knows how to say no in its own protocol); `memory` holds
// [memory_offset, memory_offset + length) and is registered for this lane, Read and Write only.
struct IoRequest {
  Operation operation = Operation::Read;
  bool fua = false;         // Write, WriteZeroes: on stable media before `done`
  bool deallocate = false;  // WriteZeroes: the blocks may become unallocated (NBD without NO_HOLE)
  uint64_t offset = 0;
  uint64_t length = 0;
  const nvmf::HostMemory* memory = nullptr;
  uint64_t memory_offset = 0;
  IoDone done = nullptr;
  void* context = nullptr;

  // The lane's.
  uint64_t issued = 0;     // bytes that commands took
  uint32_t in_flight = 0;  // commands
  IoEnd end = IoEnd::Ok;   // the first that was not Ok
  uint16_t status = 0;
  IoRequest* next = nullptr;
};

struct LaneLimits {
  uint32_t depth;  // commands in flight at most; what the queue takes
  // A command without an answer for so long is given up, and its request ends with TimedOut as soon
  // as nothing reaches the request's memory any more (HostEngine::cancel). 0: never.
  reactor::TimeNs command_time = 0;
};

class NamespaceLane {
 public:
  // Registers a page for the ranges of Dataset Management. On any thread but another reactor's, as
  // register_memory() and the end.
  static Result<std::unique_ptr<NamespaceLane>> create(nvmf::CommandQueues* engine,
                                                       reactor::Reactor* reactor, uint32_t queue,
                                                       const LaneLimits& limits,
                                                       const Geometry& geometry);
  virtual ~NamespaceLane() = default;  // with nothing in flight, and not inside a `done`

  virtual void submit(IoRequest* request) = 0;
  // What requests name. ENOTCONN: the queue is closed.
  virtual Result<std::unique_ptr<nvmf::RegisteredMemory>> register_memory(uint8_t* base,
                                                                          size_t length) = 0;
  virtual const Geometry& geometry() const = 0;
  virtual uint32_t in_flight() const = 0;  // requests that did not end
};

}  // namespace nvmeof::attach
