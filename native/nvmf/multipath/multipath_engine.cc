#include "nvmf/multipath/multipath_engine.h"

#include <algorithm>
#include <cerrno>

namespace nvmeof::nvmf {

MultipathEngine::MultipathEngine(reactor::Reactor* reactor, EventSink* sink)
    : reactor_(reactor), sink_(sink), box_(std::make_shared<ErrandBox>(reactor)), errands_(box_) {
  reactor_->add(this, reactor::Stage::Process);
}

MultipathEngine::~MultipathEngine() {
  reactor_->remove(this);
  box_->close();
  run_errands();
  for (const auto& [id, queue] : queues_) {
    queue->begin_close();
    sink_->push(EventKind::QueueClosed, id, 0, 0, 0, {}, {});
  }
}

void MultipathEngine::open(uint32_t queue, const PathQueueOptions& options) {
  const TimeSource time{
      [](const void* from) { return static_cast<const reactor::Reactor*>(from)->now(); }, reactor_};
  queues_.emplace(queue,
                  std::make_unique<PathQueue>(queue, options, time, sink_, &counters_, &look_at_));
}

void MultipathEngine::close(uint32_t id) {
  PathQueue* const queue = find(id);
  if (queue == nullptr || std::ranges::find(closing_, id) != closing_.end()) return;
  closing_.push_back(id);
  queue->begin_close();
  look_at_ = 0;
}

PathQueue* MultipathEngine::find(uint32_t id) {
  if (last_ != nullptr && last_->id() == id) return last_;
  const auto found = queues_.find(id);
  return last_ = found != queues_.end() ? found->second.get() : nullptr;
}

void MultipathEngine::submit(uint32_t id, HostCommand* command) {
  if (PathQueue* const queue = find(id)) {
    queue->submit(command);
    return;
  }
  command->done(command, Outcome::NeverSent, kNoCqe.data());
}

void MultipathEngine::cancel(uint32_t id, uint64_t tag) {
  if (PathQueue* const queue = find(id)) queue->cancel(tag);
}

Result<std::unique_ptr<RegisteredMemory>> MultipathEngine::register_memory(uint32_t id,
                                                                           uint8_t* base,
                                                                           size_t length) {
  PathQueue* const queue = find(id);
  if (queue == nullptr) return Error{ENOTCONN, "the queue is closed"};
  return queue->register_memory(base, length);
}

void MultipathEngine::queue_gone(const CommandQueues* engine, uint32_t gone) {
  for (const auto& [id, queue] : queues_) queue->queue_gone(engine, gone);
  visiting_.queue_gone(engine, gone);
}

std::shared_ptr<CommandQueues> MultipathEngine::remote(uint32_t queue, const QueuePlace& at) {
  std::shared_ptr<CommandQueues> found = remote_[queue].lock();
  if (found == nullptr) {
    std::erase_if(remote_, [](const auto& entry) { return entry.second.expired(); });
    found = std::make_shared<RemoteQueue>(&errands_, at);
    remote_[queue] = found;
  }
  return found;
}

int MultipathEngine::run_errands() {
  int ran = 0;
  for (Errand* errand = box_->take(); errand != nullptr; ran++) {
    Errand* const next = errand->next;
    if (errand->kind == Errand::Kind::Done) {
      RemoteQueue::finish(errands_, errand);
    } else {
      visiting_.serve(errand);
    }
    errand = next;
  }
  return ran;
}

int MultipathEngine::poll(reactor::TimeNs now) {
  const int ran = run_errands();
  if (!closing_.empty()) finish_closing();
  if (now < look_at_) return ran;
  look_at_ = reactor::kNever;
  for (const auto& [id, queue] : queues_) queue->look(now);
  return ran;
}

void MultipathEngine::finish_closing() {
  std::erase_if(closing_, [this](uint32_t id) {
    const auto found = queues_.find(id);
    if (!found->second->over()) return false;
    last_ = nullptr;
    sink_->push(EventKind::QueueClosed, id, 0, 0, 0, {}, {});
    queues_.erase(found);
    return true;
  });
}

std::vector<rdma::CounterValue> MultipathEngine::counters() const {
  const auto read = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {
      {"multipath.failovers", read(counters_.failovers)},
      {"multipath.retries", read(counters_.retries)},
      {"multipath.pathless", read(counters_.pathless)},
      {"multipath.visitors", visiting_.commands()},
      {"live.multipath.visitor_memory", visiting_.registrations()},
      {"live.multipath.parked", read(counters_.parked)},
      {"live.multipath.held", read(counters_.held)},
  };
}

}  // namespace nvmeof::nvmf
