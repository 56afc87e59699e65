// Lays out and registers the memory of a target engine.
#include "nvmf/target_memory.h"

#include <algorithm>
#include <bit>

#include "nvmf/buffer_pool.h"
#include "nvmf/nvme.h"

namespace nvmeof::nvmf {

namespace {

constexpr size_t kHugePage = 2u << 20;
constexpr size_t kControlLeast = 1u << 20;

constexpr size_t round_up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

Result<std::unique_ptr<TargetMemory>> TargetMemory::create(rdma::ProtectionDomain* pd,
                                                           const TargetLimits& limits,
                                                           uint32_t responses) {
  if (limits.shared_receives == 0)
    return Error{EINVAL, "target limits: sharedReceives must be at least 1"};
  if (limits.in_capsule_bytes > (1u << 20))
    return Error{EINVAL, "target limits: inCapsuleBytes is at most 1 MiB"};
  if (limits.max_transfer_bytes < BufferPool::kSmallest ||
      limits.max_transfer_bytes > (16u << 20) - 1)
    return Error{EINVAL, "target limits: maxTransferBytes must be 4 KiB to 16 MiB - 1"};
  std::unique_ptr<TargetMemory> memory(new TargetMemory);
  // Compare holds the host's data and the stored data in one buffer.
  memory->data_largest_ = std::bit_ceil(size_t{limits.max_transfer_bytes} * 2);
  memory->data_length_ = limits.arena_bytes / memory->data_largest_ * memory->data_largest_;
  if (memory->data_length_ == 0)
    return Error{EINVAL, "target limits: arenaBytes must be at least twice maxTransferBytes"};
  memory->control_length_ =
      std::max(kControlLeast, std::bit_ceil(size_t{limits.max_transfer_bytes}));
  memory->receive_bytes_ = static_cast<uint32_t>(kSqeBytes) + limits.in_capsule_bytes;
  memory->stride_ = round_up(memory->receive_bytes_, kAlignment);
  memory->responses_at_ =
      round_up(kLead + memory->stride_ * limits.shared_receives, BufferPool::kSmallest);
  memory->control_at_ = round_up(memory->responses_at_ + size_t{responses} * kCqeBytes, kHugePage);
  memory->data_at_ = round_up(memory->control_at_ + memory->control_length_, kHugePage);
  memory->length_ = round_up(memory->data_at_ + memory->data_length_, kHugePage);

  auto arena = rdma::Arena::map(memory->length_);
  if (!arena)
    return Error{arena.error().code, "cannot map " + std::to_string(memory->length_) +
                                         " bytes of buffers: lower the arena or free memory"};
  memory->arena_ = std::move(*arena);
  memory->base_ = memory->arena_->base();
  auto region = pd->register_memory(memory->base_, memory->length_, rdma::kLocalWrite);
  if (!region) return region.error();
  memory->region_ = std::move(*region);
  return memory;
}

}  // namespace nvmeof::nvmf
