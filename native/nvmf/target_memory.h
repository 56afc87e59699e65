// The registered memory of one target engine: receive buffers, response capsules, data buffers, in
// one mapping that is registered once. Reactor's thread.
#pragma once
#include <memory>
#include <vector>

#include "nvmf/target_engine.h"
#include "rdma/arena.h"

namespace nvmeof::nvmf {

class TargetMemory {
 public:
  static Result<std::unique_ptr<TargetMemory>> create(rdma::ProtectionDomain* pd,
                                                      const TargetLimits& limits,
                                                      uint32_t responses);

  // A receive buffer: the SQE, and behind it data aligned to 512 bytes, for O_DIRECT.
  uint8_t* receive(uint32_t index) const { return base_ + size_t{index} * stride_ + kLead; }
  uint32_t receive_bytes() const { return receive_bytes_; }
  uint8_t* response(uint32_t index) const { return base_ + responses_at_ + size_t{index} * 16; }
  uint32_t lkey() const { return region_->lkey(); }
  block::FixedBuffer whole() const { return {base_, length_}; }

  uint8_t* control_base() const { return base_ + control_at_; }
  size_t control_length() const { return control_length_; }
  uint8_t* data_base() const { return base_ + data_at_; }
  size_t data_length() const { return data_length_; }
  size_t data_largest() const { return data_largest_; }

 private:
  static constexpr size_t kAlignment = 512;
  static constexpr size_t kLead = kAlignment - 64;
  TargetMemory() = default;

  uint8_t* base_ = nullptr;
  size_t length_ = 0, stride_ = 0, responses_at_ = 0, control_at_ = 0, control_length_ = 0,
         data_at_ = 0, data_length_ = 0, data_largest_ = 0;
  uint32_t receive_bytes_ = 0;
  std::unique_ptr<rdma::Arena> arena_;
  std::unique_ptr<rdma::MemoryRegion> region_;  // of the arena: ends before it
};

}  // namespace nvmeof::nvmf
