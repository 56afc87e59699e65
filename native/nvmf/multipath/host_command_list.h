// A list of commands by their own links, oldest first. A command is in one list at most.
#pragma once
#include "nvmf/command_queues.h"

namespace nvmeof::nvmf {

class HostCommandList {
 public:
  bool empty() const { return head_ == nullptr; }
  uint32_t size() const { return size_; }
  HostCommand* front() const { return head_; }

  void push_back(HostCommand* command) {
    command->route.next = nullptr;
    command->route.previous = tail_;
    (tail_ != nullptr ? tail_->route.next : head_) = command;
    tail_ = command;
    size_++;
  }
  void remove(HostCommand* command) {
    Route& route = command->route;
    (route.previous != nullptr ? route.previous->route.next : head_) = route.next;
    (route.next != nullptr ? route.next->route.previous : tail_) = route.previous;
    route.previous = route.next = nullptr;
    size_--;
  }
  HostCommand* pop_front() {
    HostCommand* const command = head_;
    remove(command);
    return command;
  }
  // Moves those out for which `which` is true, in order.
  template <typename Which>
  HostCommandList take(Which&& which) {
    HostCommandList taken;
    for (HostCommand* command = head_; command != nullptr;) {
      HostCommand* const next = command->route.next;
      if (which(*command)) {
        remove(command);
        taken.push_back(command);
      }
      command = next;
    }
    return taken;
  }

 private:
  HostCommand* head_ = nullptr;
  HostCommand* tail_ = nullptr;
  uint32_t size_ = 0;
};

}  // namespace nvmeof::nvmf
