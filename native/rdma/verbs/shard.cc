#include "rdma/verbs/shard.h"

#include <utility>

namespace nvmeof::rdma::verbs {

void Shard::post(Message message) {
  bool first;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    first = mailbox_.empty();
    mailbox_.push_back(std::move(message));
    waiting_.store(true, std::memory_order_release);
  }
  if (!first) return;
  // Should the ring be full, the reactor is awake and looks at `waiting_` in its next iteration.
  const auto run = [](void* context, uint64_t) { static_cast<Shard*>(context)->read(); };
  reactor_->post({run, this, 0});
}

int Shard::read() {
  if (!waiting_.load(std::memory_order_acquire)) return 0;
  std::vector<Message> messages;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    messages.swap(mailbox_);
    waiting_.store(false, std::memory_order_relaxed);
  }
  for (const Message& message : messages) message();
  return static_cast<int>(messages.size());
}

ConnectionHandler* Shard::find(ConnectionId id) const {
  const auto found = handlers_.find(id);
  return found == handlers_.end() ? nullptr : found->second;
}

ConnectionHandler* Shard::take(ConnectionId id) {
  ConnectionHandler* const handler = find(id);
  handlers_.erase(id);
  return handler;
}

}  // namespace nvmeof::rdma::verbs
