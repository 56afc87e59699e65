// What the control plane asks of the target engine: binding, answers to handed-up commands, aborts,
// namespaces; and the counters.
#include <algorithm>
#include <bit>

#include "nvmf/target_impl.h"

namespace nvmeof::nvmf {

void TargetEngineImpl::bind(uint32_t id, const BindOptions& options) {
  TargetQueue* queue = queue_by_id(id);
  if (!queue) return;
  queue->bound = true;
  queue->qid = options.qid;
  queue->cntlid = options.cntlid;
  queue->flow_control_disabled = options.flow_control_disabled;
  queue->table = tables_.get(options.table);
  queue->port = options.port;
  queue->view = queue->table->view(options.port);
  queue->lease = options.lease;
}

void TargetEngineImpl::renew_by(uint32_t id, std::shared_ptr<reactor::Lease> lease) {
  if (TargetQueue* queue = queue_by_id(id)) queue->lease = std::move(lease);
}

// A sign of life that comes when the lease is over does not bring it back: the process, or the
// machine, was stopped, and the host may have given the controller up.
void TargetEngineImpl::keep_alive(TargetQueue* queue) {
  if (queue->lease && !queue->lease->renew(reactor::Lease::clock())) kill(queue, kOverdue);
}

void TargetEngineImpl::complete(uint32_t id, uint32_t tag, uint64_t result, uint16_t status,
                                std::span<const uint8_t> data) {
  TargetQueue* queue = queue_by_id(id);
  const uint32_t slot = tag & 0xFFFF;
  if (!queue || slot >= queue->slot_count) return;
  Command* command = &queue->slots[slot];
  if (command->state != CommandState::Control || command->tag() != tag) return;
  if (!queue->answers()) return release(command);
  command->result = result;
  command->status = status;
  command->answered_above = true;
  uint32_t bytes = 0;
  if (to_host(command->transfer) && command->block.kind == DataBlock::Kind::Keyed)
    bytes = static_cast<uint32_t>(std::min<size_t>(data.size(), command->block.length));
  if (bytes > control_->pool.largest()) {
    command->status = status::kInternalError;
    bytes = 0;
  }
  command->data_length = bytes;
  if (bytes == 0) return finish(command);
  command->parked = std::make_unique<uint8_t[]>(bytes);
  std::memcpy(command->parked.get(), data.data(), bytes);
  need_buffer(command, control_.get(), bytes);
}

bool TargetEngineImpl::abort(uint32_t id, uint16_t cid) {
  TargetQueue* queue = queue_by_id(id);
  if (!queue || !queue->alive()) return false;
  take_waiting(queue, kWholeTurn);
  launch_arrivals();
  for (uint32_t i = 0; i < queue->slot_count; i++) {
    Command* command = &queue->slots[i];
    if (!command->row || command->cid() != cid) continue;
    switch (command->state) {
      case CommandState::Waiting:
        refuse(command, {status::kAbortRequested, kNoParameter});
        return true;
      case CommandState::Fetching:
        if (!command->posted) {
          refuse(command, {status::kAbortRequested, kNoParameter});
          return true;
        }
        [[fallthrough]];
      case CommandState::Executing:
        command->aborted = true;  // what holds it ends first
        return true;
      default:
        return false;  // its answer stands already
    }
  }
  return false;
}

// ---- namespaces

void TargetEngineImpl::set_namespace(uint32_t table, uint32_t nsid, const NamespaceEntry& entry,
                                     ChangeDone done, void* context) {
  if (nsid == 0 || nsid == kNsidAll)
    return tables_.fail(table, nsid, {EINVAL, "namespace id 0 or FFFFFFFFh"}, done, context);
  if (entry.ana_group == 0 || entry.ana_group > kAnaGroups)
    return tables_.fail(table, nsid, {EINVAL, "ANA group 0 or above 128"}, done, context);
  if (tables_.get(table)->dying())
    return tables_.fail(table, nsid, {ENOENT, "the namespace table is being destroyed"}, done,
                        context);
  const block::FixedBuffer buffers = memory_->whole();
  auto channel = entry.backing->open_channel(reactor_, &buffers, 1);
  if (!channel) return tables_.fail(table, nsid, channel.error(), done, context);
  if ((*channel)->buffers_refused()) reactor::add_relaxed(counters_.unregistered_channels, 1);
  auto fresh = std::make_unique<Namespace>();
  fresh->nsid = nsid;
  fresh->backing = entry.backing;
  fresh->channel = std::move(*channel);
  fresh->write_protected = entry.write_protected;
  fresh->block_shift = static_cast<uint32_t>(std::countr_zero(entry.backing->block_size()));
  fresh->max_transfer_bytes = entry.max_transfer_bytes;
  fresh->ana_group = entry.ana_group;
  expose_resident(*fresh);
  if (reactor_) {
    reactor_->add(fresh->channel.get(), reactor::Stage::Block);
    reactor_->remove(&flusher_);  // stays behind the channels
    reactor_->add(&flusher_, reactor::Stage::Block);
  }
  tables_.replace(table, nsid, std::move(fresh), time() + kDrainPatience, done, context);
  tables_changed();
}

// Only where no other reactor can write while a packet is made, and where it costs nothing: a
// region of an RDMA device is pinned.
void TargetEngineImpl::expose_resident(Namespace& entry) {
  const block::FixedBuffer memory = entry.backing->resident();
  if (memory.base == nullptr || !limits_.sole_reactor || !device_->capabilities().free_registration)
    return;
  auto region = pd_->register_memory(memory.base, memory.length, rdma::kLocalWrite);
  if (!region) return;  // then by way of a buffer
  entry.region = std::move(*region);
  entry.resident = static_cast<uint8_t*>(memory.base);
}

void TargetEngineImpl::remove_namespace(uint32_t table, uint32_t nsid, ChangeDone done,
                                        void* context) {
  tables_.replace(table, nsid, nullptr, time() + kDrainPatience, done, context);
}

void TargetEngineImpl::destroy_table(uint32_t table, ChangeDone done, void* context) {
  tables_.destroy(table, time() + kDrainPatience, done, context);
}

// ---- counters

uint32_t TargetEngineImpl::live_queues() const {
  return static_cast<uint32_t>(by_id_.size());
}

const QueueStatistics* TargetEngineImpl::statistics(uint32_t id) const {
  const TargetQueue* queue = queue_by_id(id);
  return queue && queue->bound && queue->qid != 0 ? &queue->statistics : nullptr;
}

const rdma::QueuePairCounters* TargetEngineImpl::transport(uint32_t id) const {
  const TargetQueue* queue = queue_by_id(id);
  return queue && queue->qp ? queue->qp->counters() : nullptr;
}

void TargetEngineImpl::refresh_live_counters() {
  TargetCounters::set(counters_.live_queues, by_id_.size());
  TargetCounters::set(counters_.live_commands, live_commands_);
  TargetCounters::set(counters_.live_buffers, data_->pool.live() + control_->pool.live());
  TargetCounters::set(counters_.live_buffer_bytes, data_->pool.used() + control_->pool.used());
  TargetCounters::set(counters_.live_receives,
                      limits_.shared_receives - posted_receives_ - idle_receives_);
}

void TargetEngineImpl::tables_changed() {
  TargetCounters::set(counters_.live_namespaces, tables_.live());
}

std::vector<rdma::CounterValue> TargetEngineImpl::counters() const {
  const auto get = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  std::vector<rdma::CounterValue> values;
  static constexpr const char* kCommandNames[kIoRows] = {"target.commands.read",
                                                         "target.commands.write",
                                                         "target.commands.flush",
                                                         "target.commands.writeZeroes",
                                                         "target.commands.datasetManagement",
                                                         "target.commands.compare",
                                                         "target.commands.verify"};
  for (unsigned i = 0; i < kIoRows; i++)
    values.push_back({kCommandNames[i], get(counters_.commands[i])});
  values.push_back({"target.commands.control", get(counters_.control_commands)});
  values.push_back({"target.bytes.read", get(counters_.bytes_read)});
  values.push_back({"target.bytes.written", get(counters_.bytes_written)});
  values.push_back({"target.errors", get(counters_.errors)});
  values.push_back({"target.bufferWaits", get(counters_.buffer_waits)});
  values.push_back({"target.buffer_bytes", get(counters_.buffer_bytes)});
  values.push_back({"target.queueFailures", get(counters_.queue_failures)});
  values.push_back({"target.unregisteredChannels", get(counters_.unregistered_channels)});
  values.push_back({"live.targetQueues", get(counters_.live_queues)});
  values.push_back({"live.targetCommands", get(counters_.live_commands)});
  values.push_back({"live.targetBuffers", get(counters_.live_buffers)});
  values.push_back({"live.targetBufferBytes", get(counters_.live_buffer_bytes)});
  values.push_back({"live.targetReceives", get(counters_.live_receives)});
  values.push_back({"live.targetNamespaces", get(counters_.live_namespaces)});
  return values;
}

}  // namespace nvmeof::nvmf
