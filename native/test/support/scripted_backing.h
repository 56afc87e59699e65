// A namespace backing that does what a test says: keeps requests until told, fails the next one,
// ignores cancellation. Its bytes are a vector. Single thread.
#pragma once
#include <deque>
#include <map>
#include <vector>

#include "block/backing.h"

namespace nvmeof::test {

class ScriptedBacking : public block::Backing {
 public:
  explicit ScriptedBacking(uint64_t size, uint32_t block_size = 512)
      : bytes(size), block_size_(block_size) {}
  block::Kind kind() const override { return block::Kind::Memory; }
  block::FixedBuffer resident() const override {
    return is_resident ? block::FixedBuffer{const_cast<uint8_t*>(bytes.data()), bytes.size()}
                       : block::FixedBuffer{nullptr, 0};
  }
  uint64_t shrinks() const override { return shrunk; }
  uint64_t size() const override { return bytes.size(); }
  uint32_t block_size() const override { return block_size_; }
  bool read_only() const override { return is_read_only; }
  bool volatile_write_cache() const override { return true; }
  bool can_deallocate() const override { return deallocates; }
  Result<void> resize(uint64_t size) override {
    bytes.resize(size);
    return {};
  }
  Result<std::unique_ptr<block::Channel>> open_channel(reactor::Reactor*, const block::FixedBuffer*,
                                                       uint32_t) override;
  std::string describe() const override { return "scripted"; }

  void fail_next(block::Operation operation, int error) { faults[operation] = error; }
  size_t held() const { return waiting.size(); }
  // Ends the oldest held request (executed when `error` is 0), or all of them.
  void release_one(int error = 0);
  void release_all(int error = 0);

  std::vector<uint8_t> bytes;
  bool is_read_only = false, deallocates = true;
  bool hold = false;  // requests wait for release
  bool refuses_buffers = false;
  bool cancellable = true;  // cancel_all() ends held requests
  bool refuses_channels = false;
  bool is_resident = false;  // `bytes` may be sent from, and written to
  uint64_t shrunk = 0;
  int open_channels = 0, prefetches = 0, cancels = 0;
  std::map<block::Operation, int> faults;
  // What was submitted, in order.
  struct Seen {
    block::Operation operation;
    bool fua, may_deallocate;
    uint64_t offset, length;
  };
  std::vector<Seen> seen;
  std::deque<block::Request*> waiting;

 private:
  friend class ScriptedChannel;
  int execute(block::Request* request);
  uint32_t block_size_;
};

}  // namespace nvmeof::test
