// The memory of one client: made and mapped here, its size sealed, so that the client cannot
// shorten it under our feet and have us killed by SIGBUS. What is in it is the client's word.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "client/ring_layout.h"
#include "reactor/result.h"

namespace nvmeof::attach {

class SharedMemory {
 public:
  static Result<std::unique_ptr<SharedMemory>> create(uint32_t entries, uint64_t data_bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  uint8_t* base() const { return base_; }
  uint8_t* data() const { return base_ + layout_.data; }
  uint64_t data_bytes() const { return layout_.total - layout_.data; }
  const nvmeof_ring_layout& layout() const { return layout_; }
  int fd() const { return fd_; }
  void close_fd();  // after it was passed on

 private:
  SharedMemory() = default;
  int fd_ = -1;
  uint8_t* base_ = nullptr;
  nvmeof_ring_layout layout_{};
};

}  // namespace nvmeof::attach
