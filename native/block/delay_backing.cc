#include "block/delay_backing.h"

#include <algorithm>

namespace nvmeof::block {
namespace {

// Holds requests in the order they came: all for the same time, so the oldest is due first.
class DelayChannel final : public Channel {
 public:
  DelayChannel(std::unique_ptr<Channel> inner, reactor::TimeNs delay)
      : inner_(std::move(inner)), delay_(delay) {}

  void submit(Request* request) override {
    if (!changes_data(request->operation)) return inner_->submit(request);
    request->next = nullptr;
    request->scratch[0] = reactor::monotonic_now() + delay_;
    (tail_ ? tail_->next : head_) = request;
    tail_ = request;
    held_++;
  }

  int poll(reactor::TimeNs now) override {
    int due = 0;
    for (; head_ && head_->scratch[0] <= reactor::monotonic_now(); due++) inner_->submit(pop());
    return due + inner_->poll(now);
  }

  reactor::TimeNs next_deadline() const override {
    return std::min(inner_->next_deadline(), head_ ? head_->scratch[0] : reactor::kNever);
  }
  bool arm() override { return inner_->arm(); }
  void prefetch(uint64_t offset, uint64_t length) override { inner_->prefetch(offset, length); }
  uint32_t in_flight() const override { return held_ + inner_->in_flight(); }
  void cancel_all() override {
    while (head_) {
      Request* request = pop();
      request->done(request, ECANCELED);
    }
    inner_->cancel_all();
  }
  bool buffers_refused() const override { return inner_->buffers_refused(); }
  bool synchronous() const override { return false; }

 private:
  Request* pop() {
    Request* request = head_;
    head_ = request->next;
    if (!head_) tail_ = nullptr;
    held_--;
    return request;
  }

  std::unique_ptr<Channel> inner_;
  reactor::TimeNs delay_;
  Request* head_ = nullptr;
  Request* tail_ = nullptr;
  uint32_t held_ = 0;
};

// What lies in memory is not shown: it would be read past the writes that are held.
class DelayBacking final : public Backing {
 public:
  DelayBacking(std::unique_ptr<Backing> inner, uint32_t milliseconds)
      : inner_(std::move(inner)), milliseconds_(milliseconds) {}

  Kind kind() const override { return inner_->kind(); }
  uint64_t size() const override { return inner_->size(); }
  uint32_t block_size() const override { return inner_->block_size(); }
  bool read_only() const override { return inner_->read_only(); }
  bool volatile_write_cache() const override { return inner_->volatile_write_cache(); }
  bool can_deallocate() const override { return inner_->can_deallocate(); }
  bool marks() const override { return inner_->marks(); }
  Result<void> set_mark(uint64_t mark, bool on) override { return inner_->set_mark(mark, on); }
  Result<bool> marked_elsewhere(uint64_t mark) const override {
    return inner_->marked_elsewhere(mark);
  }
  Result<void> resize(uint64_t size) override { return inner_->resize(size); }
  Result<std::unique_ptr<Channel>> open_channel(reactor::Reactor* reactor,
                                                const FixedBuffer* buffers,
                                                uint32_t buffer_count) override {
    auto channel = inner_->open_channel(reactor, buffers, buffer_count);
    if (!channel) return channel.error();
    return std::unique_ptr<Channel>(
        new DelayChannel(std::move(*channel), reactor::TimeNs{milliseconds_} * 1'000'000));
  }
  std::string describe() const override {
    return inner_->describe() + ", writes held for " + std::to_string(milliseconds_) + " ms";
  }

 private:
  std::unique_ptr<Backing> inner_;
  uint32_t milliseconds_;
};

}  // namespace

std::unique_ptr<Backing> delay_writes(std::unique_ptr<Backing> inner, uint32_t milliseconds) {
  return std::unique_ptr<Backing>(new DelayBacking(std::move(inner), milliseconds));
}

}  // namespace nvmeof::block
