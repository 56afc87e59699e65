// A namespace in memory behind the lane's interface: does requests at once, or holds them until
// told. One reactor's thread, or none.
#pragma once
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "attach/namespace_lane.h"

namespace nvmeof::test {

class FakeLane final : public attach::NamespaceLane {
 public:
  explicit FakeLane(uint64_t blocks = 2048, uint32_t block_bytes = 512)
      : bytes(blocks * block_bytes) {
    shape.nsid = 1;
    shape.lba_bytes = block_bytes;
    shape.lba_count = blocks;
    shape.transfer_max = 64 * 1024;
    shape.can_write_zeroes = shape.can_deallocate = shape.volatile_write_cache = true;
  }

  void submit(attach::IoRequest* request) override {
    live++;
    submitted++;
    held.push_back(request);
    if (!hold) release_all();
  }
  Result<std::unique_ptr<rdma::MemoryRegion>> register_memory(uint8_t*, size_t) override {
    if (refuses) return Error{ENOTCONN, "attach: the queue is closed"};
    regions++;
    return std::unique_ptr<rdma::MemoryRegion>(std::make_unique<Region>(this));
  }
  const attach::Geometry& geometry() const override { return shape; }
  uint32_t in_flight() const override { return live; }

  // Ends the oldest request, or all.
  void release_one(attach::IoEnd end = attach::IoEnd::Ok, uint16_t status = 0) {
    attach::IoRequest* const request = held.front();
    held.pop_front();
    if (end == attach::IoEnd::Ok) execute(*request);
    live--;
    request->done(request, end, status);
  }
  void release_all(attach::IoEnd end = attach::IoEnd::Ok) {
    while (!held.empty()) release_one(end);
  }

  attach::Geometry shape;
  std::vector<uint8_t> bytes;
  std::deque<attach::IoRequest*> held;
  bool hold = false;
  bool refuses = false;
  uint32_t live = 0;
  uint64_t submitted = 0;
  int regions = 0;
  bool memory_gone = false;  // a request ran without its memory registered

 private:
  struct Region final : rdma::MemoryRegion {
    explicit Region(FakeLane* owner) : lane(owner) {}
    ~Region() override { lane->regions--; }
    uint32_t lkey() const override { return 1; }
    uint32_t rkey() const override { return 1; }
    FakeLane* lane;
  };

  void execute(const attach::IoRequest& request) {
    uint8_t* const block = bytes.data() + request.offset;
    const size_t length = request.length;
    if (length > bytes.size() || request.offset > bytes.size() - length) std::abort();
    switch (request.operation) {
      case attach::Operation::Read:
      case attach::Operation::Write: {
        if (length > request.memory->length ||
            request.memory_offset > request.memory->length - length)
          std::abort();
        if (regions == 0) memory_gone = true;
        uint8_t* const data = request.memory->base + request.memory_offset;
        if (request.operation == attach::Operation::Read)
          std::memcpy(data, block, length);
        else
          std::memcpy(block, data, length);
        return;
      }
      case attach::Operation::WriteZeroes:
      case attach::Operation::Discard:
        std::memset(block, 0, length);
        return;
      case attach::Operation::Flush:
        return;
    }
  }
};

}  // namespace nvmeof::test
