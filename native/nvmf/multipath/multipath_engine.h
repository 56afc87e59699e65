// The queues over several paths of one reactor (path_queue.h): finds the queue of each call, and
// keeps their time. On the reactor's thread, except counters().
#pragma once
#include <memory>
#include <unordered_map>
#include <vector>

#include "nvmf/multipath/path_queue.h"
#include "rdma/provider.h"

namespace nvmeof::nvmf {

class MultipathEngine final : public CommandQueues, public reactor::Poller {
 public:
  // Events: PathRefused, PathOverdue, and of each queue QueueClosed once.
  MultipathEngine(reactor::Reactor* reactor, EventSink* sink);
  ~MultipathEngine() override;  // after the engines of its paths, or with nothing sent

  void open(uint32_t queue, const PathQueueOptions& options);
  void close(uint32_t queue);
  // Null: no such queue.
  PathQueue* find(uint32_t queue);

  void submit(uint32_t queue, HostCommand* command) override;
  void cancel(uint32_t queue, uint64_t tag) override;
  Result<std::unique_ptr<RegisteredMemory>> register_memory(uint32_t queue, uint8_t* base,
                                                            size_t length) override;

  // A queue of an engine, or (`queue` 0) the engine, has ended. Before its protection domain goes.
  void queue_gone(const CommandQueues* engine, uint32_t queue);

  int poll(reactor::TimeNs now) override;
  reactor::TimeNs next_deadline() const override { return look_at_; }

  std::vector<rdma::CounterValue> counters() const;  // any thread

 private:
  void finish_closing();

  reactor::Reactor* const reactor_;
  EventSink* const sink_;
  PathQueueCounters counters_{};
  std::unordered_map<uint32_t, std::unique_ptr<PathQueue>> queues_;
  PathQueue* last_ = nullptr;  // that find() found
  std::vector<uint32_t> closing_;
  // Nothing of any queue is due before; early when what set it has ended since.
  reactor::TimeNs look_at_ = reactor::kNever;
};

}  // namespace nvmeof::nvmf
