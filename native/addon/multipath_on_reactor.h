// The queues over several paths of one reactor, with JavaScript's commands for them. Made with the
// reactor, ended when no device is left. All on the reactor's thread, but for what says otherwise.
#pragma once
#include "addon/commands_on_reactor.h"
#include "nvmf/multipath/multipath_engine.h"

namespace nvmeof::addon {

class MultipathOnReactor final : public nvmf::EventSink {
 public:
  MultipathOnReactor(reactor::Reactor* reactor, EventRing* ring)
      : ring_(ring), commands_(reactor, ring, false), engine_(reactor, this) {
    commands_.use(&engine_);
  }
  ~MultipathOnReactor() override { commands_.drop_regions(); }

  void push(nvmf::EventKind kind, uint32_t id, uint32_t tag, uint32_t code, uint64_t value,
            std::span<const uint8_t> first, std::span<const uint8_t> second) override {
    if (kind == nvmf::EventKind::QueueClosed) commands_.drop_regions_of(id);
    ring_->push(kind, id, tag, code, value, first, second);
  }

  // Any thread.
  nvmf::MultipathEngine* engine() { return &engine_; }
  CommandsOnReactor* commands() { return &commands_; }

 private:
  EventRing* const ring_;
  CommandsOnReactor commands_;
  nvmf::MultipathEngine engine_;
};

}  // namespace nvmeof::addon
