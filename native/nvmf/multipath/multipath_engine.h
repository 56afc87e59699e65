// The queues over several paths of one reactor (path_queue.h): finds the queue of each call, and
// keeps their time. Where a controller has no queue on a reactor, it lends commands to the engine
// of another and borrows from there. On the reactor's thread, except counters() and box().
#pragma once
#include <memory>
#include <unordered_map>
#include <vector>

#include "nvmf/multipath/path_queue.h"
#include "nvmf/multipath/remote_queue.h"
#include "nvmf/multipath/visiting_commands.h"
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

  // An engine whose queues paths of this reactor may be, and those of others.
  void engine_made(CommandQueues* engine) { visiting_.engine_made(engine); }
  // A queue of an engine, or (`queue` 0) the engine, has ended. Before its protection domain goes.
  void queue_gone(const CommandQueues* engine, uint32_t queue);

  // Of this reactor, for others.
  const std::shared_ptr<ErrandBox>& box() const { return box_; }
  // Leads to a queue of another reactor; the same object as long as somebody holds it.
  std::shared_ptr<CommandQueues> remote(uint32_t queue, const QueuePlace& at);

  // What has come into the box; how much that was.
  int run_errands();

  int poll(reactor::TimeNs now) override;
  reactor::TimeNs next_deadline() const override { return look_at_; }

  std::vector<rdma::CounterValue> counters() const;  // any thread

 private:
  void finish_closing();

  reactor::Reactor* const reactor_;
  EventSink* const sink_;
  const std::shared_ptr<ErrandBox> box_;
  ErrandPool errands_;  // before the queues, whose memory sends the last of them
  VisitingCommands visiting_;
  std::unordered_map<uint32_t, std::weak_ptr<CommandQueues>> remote_;  // by queue
  PathQueueCounters counters_{};
  std::unordered_map<uint32_t, std::unique_ptr<PathQueue>> queues_;
  PathQueue* last_ = nullptr;  // that find() found
  std::vector<uint32_t> closing_;
  // Nothing of any queue is due before; early when what set it has ended since.
  reactor::TimeNs look_at_ = reactor::kNever;
};

}  // namespace nvmeof::nvmf
