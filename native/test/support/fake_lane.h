// A lane over plain memory: requests end inside submit(), or when the test lets them.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "attach/namespace_lane.h"

namespace nvmeof::test {

class FakeMemory final : public nvmf::RegisteredMemory {
 public:
  FakeMemory(uint8_t* at, size_t bytes, std::atomic<int>* live)
      : RegisteredMemory({at, bytes, nullptr}), live_(live) {
    live_->fetch_add(1);
  }
  ~FakeMemory() override { live_->fetch_sub(1); }

 private:
  std::atomic<int>* const live_;
};

class FakeLane final : public attach::NamespaceLane {
 public:
  using Operation = attach::Operation;
  using IoEnd = attach::IoEnd;
  struct Seen {
    Operation operation;
    bool fua, deallocate;
    uint64_t offset, length;
  };

  explicit FakeLane(uint64_t bytes, uint32_t lba_bytes = 512) : memory(bytes) {
    shape.nsid = 1;
    shape.lba_bytes = lba_bytes;
    shape.lba_count = bytes / lba_bytes;
    shape.transfer_max = 128 * 1024;
    shape.can_write_zeroes = shape.can_deallocate = shape.volatile_write_cache = true;
  }

  void submit(attach::IoRequest* request) override {
    live_++;
    seen.push_back(
        {request->operation, request->fua, request->deallocate, request->offset, request->length});
    held.push_back(request);
    if (!hold) release(1);
  }
  // Ends the oldest requests.
  void release(size_t count = SIZE_MAX) {
    for (; count > 0 && !held.empty(); count--) {
      attach::IoRequest* const request = held.front();
      held.pop_front();
      if (end == IoEnd::Ok) run(*request);
      live_--;
      request->done(request, end, status);
    }
  }
  Result<std::unique_ptr<nvmf::RegisteredMemory>> register_memory(uint8_t* base,
                                                                  size_t length) override {
    if (refuse_memory) return Error{ENOMEM, "no"};
    return std::unique_ptr<nvmf::RegisteredMemory>(
        std::make_unique<FakeMemory>(base, length, &regions));
  }
  const attach::Geometry& geometry() const override { return shape; }
  uint32_t in_flight() const override { return live_; }

  std::vector<uint8_t> memory;
  attach::Geometry shape;
  std::vector<Seen> seen;
  std::deque<attach::IoRequest*> held;
  bool hold = false, refuse_memory = false;
  IoEnd end = IoEnd::Ok;  // of what ends from now on
  uint16_t status = 0;
  std::atomic<int> regions{0};

 private:
  void run(const attach::IoRequest& request) {
    if (request.length > memory.size() || request.offset > memory.size() - request.length) {
      std::abort();  // the consumer has to check
    }
    uint8_t* const here = memory.data() + request.offset;
    switch (request.operation) {
      case Operation::Read:
      case Operation::Write: {
        if (request.length == 0) return;
        uint8_t* const there = request.memory->base + request.memory_offset;
        if (request.length > request.memory->length ||
            request.memory_offset > request.memory->length - request.length) {
          std::abort();
        }
        const bool read = request.operation == Operation::Read;
        std::memcpy(read ? there : here, read ? here : there, request.length);
        return;
      }
      case Operation::WriteZeroes:
      case Operation::Discard:
        std::memset(here, 0, request.length);
        return;
      case Operation::Flush:
        return;
    }
  }

  uint32_t live_ = 0;
};

}  // namespace nvmeof::test
