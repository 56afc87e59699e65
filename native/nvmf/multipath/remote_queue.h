// A queue of another reactor, for the paths of this one: a controller may grant fewer queues than
// there are reactors. Commands go there as errands and end here when these are back; memory is
// registered there when a command first names it. On this reactor's thread; allocates when memory
// is made known, and when more errands are on their way than ever before.
#pragma once
#include <memory>

#include "nvmf/multipath/errand.h"

namespace nvmeof::nvmf {

// Where a queue lives.
struct QueuePlace {
  CommandQueues* engine = nullptr;
  std::shared_ptr<ErrandBox> box;  // of its reactor
};

class RemoteQueue final : public CommandQueues {
 public:
  // `errands` outlives this and the memory it makes known.
  RemoteQueue(ErrandPool* errands, QueuePlace at) : errands_(errands), at_(std::move(at)) {}

  void submit(uint32_t queue, HostCommand* command) override;
  void cancel(uint32_t queue, uint64_t tag) override;
  // Never fails: a command whose memory cannot be registered comes back with a path status.
  Result<std::unique_ptr<RegisteredMemory>> register_memory(uint32_t queue, uint8_t* base,
                                                            size_t length) override;

  // An errand is back: its command ends, and it is free.
  static void finish(ErrandPool& errands, Errand* errand);

 private:
  ErrandPool* const errands_;
  const QueuePlace at_;
};

}  // namespace nvmeof::nvmf
