// The initiator's half of NVMe over RDMA on one reactor: queues of one device, from submission to
// completion. Fills CID and SGL of each command, exposes exactly its bytes under a key that dies
// with it, and reports each command exactly once. Knows nothing of sockets, libibverbs or Node.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "nvmf/command_queues.h"
#include "nvmf/event_sink.h"
#include "rdma/provider.h"
#include "reactor/reactor.h"

namespace nvmeof::nvmf {

// How long a command that was given up keeps its key. A controller that is only slow still uses it,
// and a key that ended under an RDMA operation costs the queue; so its answer is waited for. A
// controller that is silent for longer than this may lose the queue over it.
inline constexpr reactor::TimeNs kCancelGrace = 2'000'000'000;

inline constexpr reactor::TimeNs kProbeInterval = 20'000'000;

struct HostQueueOptions {
  uint32_t depth;             // submission queue entries; commands in flight at most depth - 1
  uint32_t in_capsule_bytes;  // data the target takes in the capsule of this queue
  rdma::ConnectionParameters parameters;
  uint32_t timeout_ms;
  // Its commands are answered soon: while one waits and nothing else comes for kProbeInterval, the
  // peer is asked whether it lives, which shows a dead one that had acknowledged all it was sent.
  bool probes = false;
};

class HostEngine : public CommandQueues, public reactor::Poller, public rdma::ConnectionHandler {
 public:
  static Result<std::unique_ptr<HostEngine>> create(rdma::Device* device, reactor::Reactor* reactor,
                                                    EventSink* sink);

  // All on the reactor's thread. Events go to the sink: of each queue either ConnectFailed alone,
  // or QueueEstablished and later QueueClosed. close() of a queue that still connects gives
  // ConnectFailed (Cancelled).
  virtual Result<void> connect(uint32_t queue, const sockaddr_storage& peer, uint16_t port,
                               const HostQueueOptions& options) = 0;
  // submit(): commands beyond the depth wait in order.
  //
  // cancel(): a command that exposed no memory ends at once. Another keeps its key until the
  // controller answers, but no longer than kCancelGrace; then the key is ended, and if the
  // controller uses it after that, even by invalidating it, the queue dies. Where keys cannot die
  // alone (no memory windows), it is when the controller answers or the queue closes.
  virtual void close(uint32_t queue) = 0;

  virtual uint32_t live_queues() const = 0;
  virtual std::vector<rdma::CounterValue> counters() const = 0;  // any thread
};

}  // namespace nvmeof::nvmf
