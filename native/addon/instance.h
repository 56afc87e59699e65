// What one Node environment has of the addon: the objects behind the ids that JavaScript holds. All
// on the JavaScript thread; the reactors see only what they are sent.
#pragma once
#include <napi.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "addon/arguments.h"
#include "addon/buffers.h"
#include "addon/connected_queue.h"
#include "addon/device_on_reactor.h"
#include "addon/event_ring.h"
#include "addon/multipath_on_reactor.h"
#include "addon/registry.h"
#include "addon/staging.h"
#include "addon/submissions.h"
#include "addon/tables.h"
#include "addon/wake.h"
#include "reactor/lease.h"
#include "reactor/reactor.h"

namespace nvmeof::addon {

class BenchRun;
struct AttachEntry;

// One reactor, and what belongs to it.
struct ReactorSide {
  explicit ReactorSide(Wake* wake) : ring(wake) {}
  ~ReactorSide() { end_multipath(); }
  void end_multipath() {
    if (reactor && multipath) reactor->run_and_wait([this] { multipath.reset(); });
  }
  EventRing ring;
  std::unique_ptr<MultipathOnReactor> multipath;  // ends on the reactor's thread
  std::unique_ptr<reactor::Reactor> reactor;      // after the ring: stops before it goes
  clockid_t cpu_clock = 0;
  // The reactor's thread only.
  TableMirror tables;
  std::vector<DeviceOnReactor*> devices;
};

struct Runtime {
  Wake wake;
  std::vector<std::unique_ptr<ReactorSide>> sides;
  std::vector<std::shared_ptr<Staging>> multipath_staging;  // by reactor index
  size_t drain_next = 0;
  bool running = false;
};

struct Device {
  std::unique_ptr<rdma::Device> device;
  std::string asked_provider;
  ListenRouter router;
  std::vector<std::unique_ptr<DeviceOnReactor>> on;  // by reactor index
  std::vector<std::shared_ptr<Staging>> staging;     // by reactor index
};

struct Listener {
  uint32_t device;
  uint32_t device_listener;
};

// In place of a device: what belongs to queues over several paths.
inline constexpr uint32_t kMultipath = 0;

struct Queue {
  uint32_t device;  // or kMultipath
  uint32_t reactor;
  bool host;
};

struct SubmittedEntry {
  std::unique_ptr<SubmittedCommand> command;
  std::shared_ptr<Staging> staging;  // empty for submitBuffer
  StagingSlot slot;
};

// A buffer as JavaScript knows it.
struct BufferEntry {
  std::unique_ptr<Buffer> buffer;
  Napi::Reference<Napi::ArrayBuffer> memory;  // weak
};

struct Instance {
  explicit Instance(Napi::Env env);
  ~Instance();

  static Instance& of(Napi::Env env) { return *env.GetInstanceData<Instance>(); }
  // Throws when the runtime was not started.
  static Instance& running(Napi::Env env);

  // runtime.cc
  void stop();
  ReactorSide& side(uint32_t reactor) { return *runtime->sides[reactor]; }
  void update_keep_alive();
  // nullptr for a queue that was and is no more; throws where there never was one.
  const Queue* queue_or_gone(Napi::Env env, uint32_t id);
  // Of a queue of a device.
  DeviceOnReactor* on(const Queue& queue) {
    return (*devices.find(queue.device))->on[queue.reactor].get();
  }
  // Of a device, or kMultipath; null when it was closed.
  CommandsOnReactor* commands_of(uint32_t device, uint32_t reactor);
  const std::shared_ptr<Staging>& staging_of(const Queue& queue);
  // multipath.cc: around the end of all devices
  void begin_multipath_end();
  void finish_multipath_end();
  Operation& begin_operation();
  void end_operations();
  // tables.cc
  void operation_done(uint32_t id);
  // devices.cc
  void close_device(uint32_t id);
  // drain.cc: bookkeeping when an event leaves for JavaScript; false: it is not for JavaScript.
  bool note_event(RecordHeader& header);
  // buffers.cc
  void free_buffer(uint32_t id);
  void buffer_released(uint32_t id);

  const Napi::Env env;
  std::unique_ptr<Runtime> runtime;  // kept after stop(), so that its last events can be drained
  Registry<std::unique_ptr<Device>> devices{"device"};
  Registry<Listener> listeners{"listener"};
  std::map<uint64_t, uint32_t> connections;  // requests that wait for an answer → device
  Registry<Queue> queues{"queue"};
  Registry<std::shared_ptr<Backing>> backings{"backing"};
  Registry<Table> tables{"table"};
  Registry<std::shared_ptr<reactor::Lease>> leases{"lease"};
  Registry<std::unique_ptr<Operation>> operations{"operation"};
  Registry<BufferEntry> buffers{"buffer"};
  std::vector<SubmittedEntry> commands;
  std::vector<uint32_t> free_commands;
  uint32_t next_tag = 1;
  Submissions submissions;
  std::set<std::shared_ptr<BenchRun>> benches;
  Registry<std::shared_ptr<AttachEntry>> attachments{"attachment"};
  bool tearing_down = false;  // the environment ends: JavaScript must not be touched any more
};

// The functions of the door, by family.
// runtime.cc
Napi::Value start(const Arguments& arguments);
Napi::Value stop(const Arguments& arguments);
Napi::Value reactors(const Arguments& arguments);
// drain.cc
Napi::Value drain(const Arguments& arguments);
// counters.cc
Napi::Value counters(const Arguments& arguments);
// statistics.cc
Napi::Value queue_statistics(const Arguments& arguments);
// devices.cc
Napi::Value open_device(const Arguments& arguments);
Napi::Value device_info(const Arguments& arguments);
Napi::Value close_device(const Arguments& arguments);
// faults.cc
Napi::Value set_faults(const Arguments& arguments);
// backings.cc
Napi::Value open_backing(const Arguments& arguments);
Napi::Value backing_info(const Arguments& arguments);
Napi::Value resize_backing(const Arguments& arguments);
Napi::Value set_mark(const Arguments& arguments);
Napi::Value marked_elsewhere(const Arguments& arguments);
Napi::Value close_backing(const Arguments& arguments);
// tables.cc
Napi::Value create_table(const Arguments& arguments);
Napi::Value set_namespace(const Arguments& arguments);
Napi::Value remove_namespace(const Arguments& arguments);
Napi::Value destroy_table(const Arguments& arguments);
Napi::Value set_access(const Arguments& arguments);
// target_queues.cc
Napi::Value listen(const Arguments& arguments);
Napi::Value unlisten(const Arguments& arguments);
Napi::Value accept(const Arguments& arguments);
Napi::Value reject(const Arguments& arguments);
Napi::Value bind_queue(const Arguments& arguments);
Napi::Value open_lease(const Arguments& arguments);
Napi::Value renew_lease_by(const Arguments& arguments);
Napi::Value set_lease(const Arguments& arguments);
Napi::Value lease_left(const Arguments& arguments);
Napi::Value close_lease(const Arguments& arguments);
Napi::Value complete(const Arguments& arguments);
Napi::Value abort_command(const Arguments& arguments);
// host_queues.cc
Napi::Value connect(const Arguments& arguments);
Napi::Value submit(const Arguments& arguments);
Napi::Value submit_buffer(const Arguments& arguments);
Napi::Value flush(const Arguments& arguments);
Napi::Value cancel(const Arguments& arguments);
Napi::Value close_queue(const Arguments& arguments);
// Of a list of their ids; `function`: for the error when one is none.
std::vector<ConnectedQueue> connected_queues(Instance& instance, const char* function,
                                             const Argument& ids);
// multipath.cc
Napi::Value open_path_queue(const Arguments& arguments);
Napi::Value configure_path_queue(const Arguments& arguments);
Napi::Value set_path(const Arguments& arguments);
Napi::Value remove_path(const Arguments& arguments);
Napi::Value release_path(const Arguments& arguments);
Napi::Value set_failing(const Arguments& arguments);
// buffers.cc
Napi::Value allocate_buffer(const Arguments& arguments);
Napi::Value free_buffer(const Arguments& arguments);
// bench.cc
Napi::Value bench(const Arguments& arguments);
// attach.cc
Napi::Value attach_namespace(const Arguments& arguments);
Napi::Value serve_nbd(const Arguments& arguments);
Napi::Value serve_clients(const Arguments& arguments);
Napi::Value detach(const Arguments& arguments);

// service.cc
Napi::Value notify_service(const Arguments& arguments);

}  // namespace nvmeof::addon
