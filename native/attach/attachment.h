// An attached namespace: a lane on each reactor that has one of its queues, and the servers that
// other processes use it through.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "attach/client/client_counters.h"
#include "attach/consumer.h"
#include "attach/nbd/connection_group.h"

namespace nvmeof::attach {

class Attachment {
 public:
  struct Place {
    nvmf::CommandQueues* engine;
    reactor::Reactor* reactor;
    uint32_t queue;
    LaneLimits limits;
  };

  // On a control thread, as everything here.
  static Result<std::unique_ptr<Attachment>> create(const std::vector<Place>& places,
                                                    const Geometry& geometry);
  ~Attachment();  // after finish()

  // Clients find it at the Unix socket `path`.
  Result<void> serve_nbd(const std::string& path, std::string description,
                         nbd::NbdCounters* counters);
  // The same for clients over shared memory (native/client).
  Result<void> serve_clients(const std::string& path, ClientCounters* counters);

  // Takes the servers away. Requests that are in flight end when the controller answers, or with
  // their queue.
  void begin_stop();
  // begin_stop(), and waits for the last request; then nothing is left of it on any reactor.
  // Several threads may call it.
  void finish();

 private:
  Attachment() = default;

  std::vector<std::unique_ptr<NamespaceLane>> lanes_;
  std::vector<LaneOnReactor> on_;
  std::mutex mutex_;         // of the following
  std::mutex finish_mutex_;  // one finish() at a time
  bool stopping_ = false;
  std::vector<std::unique_ptr<Consumer>> consumers_;
};

}  // namespace nvmeof::attach
