// The scripted backing's execution and its channel.
#include "support/scripted_backing.h"

#include <cstring>

namespace nvmeof::test {

class ScriptedChannel : public block::Channel {
 public:
  explicit ScriptedChannel(ScriptedBacking* backing) : backing_(backing) {
    backing_->open_channels++;
  }
  ~ScriptedChannel() override { backing_->open_channels--; }
  int poll(reactor::TimeNs) override { return 0; }
  void submit(block::Request* request) override {
    backing_->seen.push_back({request->operation, request->fua, request->may_deallocate,
                              request->offset, request->length});
    if (backing_->hold) {
      backing_->waiting.push_back(request);
      return;
    }
    request->done(request, backing_->execute(request));
  }
  void prefetch(uint64_t, uint64_t) override { backing_->prefetches++; }
  uint32_t in_flight() const override { return static_cast<uint32_t>(backing_->held()); }
  void cancel_all() override {
    backing_->cancels++;
    if (backing_->cancellable) backing_->release_all(ECANCELED);
  }
  bool buffers_refused() const override { return backing_->refuses_buffers; }
  bool synchronous() const override { return !backing_->hold; }

 private:
  ScriptedBacking* backing_;
};

Result<std::unique_ptr<block::Channel>> ScriptedBacking::open_channel(reactor::Reactor*,
                                                                      const block::FixedBuffer*,
                                                                      uint32_t) {
  if (refuses_channels) return Error{EMFILE, "no channel today"};
  return std::unique_ptr<block::Channel>(std::make_unique<ScriptedChannel>(this));
}

int ScriptedBacking::execute(block::Request* request) {
  if (const auto fault = faults.find(request->operation); fault != faults.end()) {
    const int error = fault->second;
    faults.erase(fault);
    return error;
  }
  if (request->length > bytes.size() || request->offset > bytes.size() - request->length)
    return ERANGE;
  uint64_t at = request->offset;
  for (uint32_t i = 0; i < request->iov_count; i++) {
    const iovec& part = request->iov[i];
    if (request->operation == block::Operation::Read)
      std::memcpy(part.iov_base, bytes.data() + at, part.iov_len);
    else if (request->operation == block::Operation::Write)
      std::memcpy(bytes.data() + at, part.iov_base, part.iov_len);
    at += part.iov_len;
  }
  if (request->operation == block::Operation::WriteZeroes ||
      request->operation == block::Operation::Deallocate)
    std::memset(bytes.data() + request->offset, 0, request->length);
  return 0;
}

void ScriptedBacking::release_one(int error) {
  if (waiting.empty()) return;
  block::Request* request = waiting.front();
  waiting.pop_front();
  request->done(request, error ? error : execute(request));
}

void ScriptedBacking::release_all(int error) {
  for (size_t count = waiting.size(); count > 0; count--) release_one(error);
}

}  // namespace nvmeof::test
