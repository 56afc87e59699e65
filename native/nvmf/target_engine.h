// The target's half of NVMe over RDMA on one reactor: queues of one device, from capsule to
// completion. Reads, writes and the other commands of the I/O table (io_commands.h) run here; every
// other capsule goes up through the EventSink with its data and comes back through complete().
// Knows nothing of sockets, libibverbs or Node.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "block/backing.h"
#include "nvmf/event_sink.h"
#include "nvmf/queue_statistics.h"
#include "rdma/provider.h"
#include "reactor/reactor.h"

namespace nvmeof::nvmf {

struct TargetLimits {
  uint32_t arena_bytes = 64u << 20;  // data buffers of this reactor and device
  uint32_t shared_receives =
      4096;  // SRQ entries: commands that can be waiting at once, over all queues
  uint32_t in_capsule_bytes = 4096;        // largest in-capsule data any listener offers
  uint32_t max_transfer_bytes = 1u << 20;  // MDTS
  // No other reactor of the process writes to namespaces: what lies in memory may be sent as it is.
  bool sole_reactor = false;
};

// ANA groups are 1 to this.
inline constexpr uint32_t kAnaGroups = 128;

struct AcceptOptions {
  uint32_t depth;  // submission queue entries
  uint32_t in_capsule_bytes;
  rdma::ConnectionParameters parameters;
};

struct BindOptions {
  uint32_t table;
  uint16_t qid;
  uint16_t cntlid;
  bool flow_control_disabled;
  uint32_t port = 0;  // whose view of the table it has
  // Of the controller: it changes data only while this holds. Null: whenever.
  std::shared_ptr<reactor::Lease> lease = nullptr;
};

struct NamespaceEntry {
  block::Backing* backing;  // outlives the entry; the owner removes it after the change's `done`
  bool write_protected;
  uint32_t max_transfer_bytes;
  uint32_t ana_group = 1;
};

// What commands on the namespaces of a group get through a port; status 0: they run.
struct AccessRule {
  uint32_t port;
  uint32_t group;
  uint16_t status;
};

// Runs once on the reactor's thread when the change holds and nothing of the old entry is in
// flight.
using ChangeDone = void (*)(void* context);

class TargetEngine : public reactor::Poller, public rdma::ConnectionHandler {
 public:
  // On the reactor's thread; adds itself to the reactor.
  static Result<std::unique_ptr<TargetEngine>> create(rdma::Device* device,
                                                      reactor::Reactor* reactor, EventSink* sink,
                                                      const TargetLimits& limits);

  // All on the reactor's thread. `queue` ids are given by the caller, unique in the process.
  virtual Result<void> accept(uint32_t queue, rdma::ConnectionId connection,
                              const AcceptOptions& options) = 0;
  virtual void bind(uint32_t queue, const BindOptions& options) = 0;
  // Keep Alives that arrive at this queue, which is an admin queue, renew the lease.
  virtual void renew_by(uint32_t queue, std::shared_ptr<reactor::Lease> lease) = 0;
  // Unknown queues and tags are ignored: the queue may have died meanwhile.
  virtual void complete(uint32_t queue, uint32_t tag, uint64_t result, uint16_t status,
                        std::span<const uint8_t> data) = 0;
  virtual bool abort(uint32_t queue, uint16_t cid) = 0;
  virtual void close(uint32_t queue) = 0;

  virtual void set_namespace(uint32_t table, uint32_t nsid, const NamespaceEntry& entry,
                             ChangeDone done, void* context) = 0;
  virtual void remove_namespace(uint32_t table, uint32_t nsid, ChangeDone done, void* context) = 0;
  virtual void destroy_table(uint32_t table, ChangeDone done, void* context) = 0;
  // Holds at once for every command that has not begun in a backing; `done` runs when the commands
  // that it refuses have left theirs. Those are not cancelled: other ports share the channel.
  virtual void set_access(uint32_t table, const AccessRule& rule, ChangeDone done,
                          void* context) = 0;

  // During ChangeDone: why set_namespace() could not be done (the backing's channel did not open;
  // the old entry, if any, stays), or nullptr.
  virtual const Error* change_error() const = 0;

  virtual uint32_t live_queues() const = 0;
  // Of an I/O queue; nullptr: it is none, or gone.
  virtual const QueueStatistics* statistics(uint32_t queue) const = 0;
  // Of its queue pair; nullptr also where the device does not tell.
  virtual const rdma::QueuePairCounters* transport(uint32_t queue) const = 0;
  virtual std::vector<rdma::CounterValue> counters() const = 0;  // any thread
};

}  // namespace nvmeof::nvmf
