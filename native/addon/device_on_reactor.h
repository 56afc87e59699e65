// One device on one reactor: its two engines, made when first needed, and what the addon keeps
// beside them. All on the reactor's thread, but for what says otherwise.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "addon/commands_on_reactor.h"
#include "addon/event_ring.h"
#include "addon/tables.h"
#include "nvmf/host_engine.h"
#include "nvmf/multipath/multipath_engine.h"
#include "nvmf/target_engine.h"
#include "rdma/provider.h"

namespace nvmeof::addon {

// Sits between the engines and the reactor's ring: gives listeners the ids that JavaScript knows,
// and sees which queues have ended.
class DeviceOnReactor final : public nvmf::EventSink {
 public:
  // `multipath`: whose paths its queues may be.
  DeviceOnReactor(rdma::Device* device, reactor::Reactor* reactor, EventRing* ring,
                  nvmf::MultipathEngine* multipath, const TableMirror* tables,
                  const nvmf::TargetLimits& limits);

  Result<nvmf::TargetEngine*> target();
  Result<nvmf::HostEngine*> host();

  void accept(uint32_t queue, rdma::ConnectionId connection, nvmf::AcceptOptions options,
              const std::vector<uint8_t>& private_data);
  void connect(uint32_t queue, const sockaddr_storage& peer, uint16_t port,
               nvmf::HostQueueOptions options, const std::vector<uint8_t>& private_data);
  void close(uint32_t queue);
  void change(const Change& change);
  void name_listener(uint32_t device_listener, uint32_t listener);
  void forget_listener(uint32_t device_listener) { listeners_.erase(device_listener); }
  // Closes the queues, which takes all keys from the peers, and ends the tables of the engine. Done
  // when busy() is false.
  void begin_close();
  // Ends everything: what had no last event gets it now.
  void tear_down();

  void push(nvmf::EventKind kind, uint32_t id, uint32_t tag, uint32_t code, uint64_t value,
            std::span<const uint8_t> first, std::span<const uint8_t> second) override;

  // Any thread.
  bool busy() const { return live_queues_.load() > 0 || live_tables_.load() > 0; }
  // The JavaScript thread, which alone has tear_down() run: the engines stay while it looks.
  nvmf::TargetEngine* target_if_made() const {
    return target_seen_.load(std::memory_order_acquire);
  }
  nvmf::HostEngine* host_if_made() const { return host_seen_.load(std::memory_order_acquire); }

  nvmf::TargetEngine* target_on_thread() { return target_.get(); }
  CommandsOnReactor* commands() { return &commands_; }
  reactor::Reactor* reactor() const { return reactor_; }

 private:
  struct PendingChange {
    Operation* operation;
    DeviceOnReactor* on;
  };
  static void changed(void* context);

  void track(uint32_t queue);

  rdma::Device* device_;
  reactor::Reactor* reactor_;
  EventRing* ring_;
  nvmf::MultipathEngine* multipath_;
  const TableMirror* tables_;
  const nvmf::TargetLimits limits_;
  std::unique_ptr<nvmf::TargetEngine> target_;
  std::unique_ptr<nvmf::HostEngine> host_;
  std::map<uint32_t, uint32_t> listeners_;  // the device's id → JavaScript's
  std::set<uint32_t> queues_;               // their last event has not come
  std::set<PendingChange*> changes_;
  CommandsOnReactor commands_;
  std::atomic<uint32_t> live_queues_{0}, live_tables_{0};
  std::atomic<nvmf::TargetEngine*> target_seen_{nullptr};
  std::atomic<nvmf::HostEngine*> host_seen_{nullptr};
};

// Connection events of accepted queues come on the thread of the queue's reactor: to that reactor's
// engine, whichever engine listened.
class ListenRouter final : public rdma::ConnectionHandler {
 public:
  void set(unsigned reactor, DeviceOnReactor* on);
  void on_connect_request(const rdma::ConnectRequest& request) override;
  void on_connect_response(rdma::ConnectionId id, const rdma::ConnectResponse& response) override;
  void on_connect_failed(rdma::ConnectionId id, const rdma::ConnectFailed& failed) override;
  void on_established(rdma::ConnectionId id) override;
  void on_disconnected(rdma::ConnectionId id, const std::string& reason) override;

 private:
  nvmf::TargetEngine* here() const;
  std::vector<DeviceOnReactor*> on_;  // by reactor index; set before the device listens
};

}  // namespace nvmeof::addon
