// Sends a piece of work to a reactor from the JavaScript thread (or a worker thread).
#pragma once
#include <sched.h>

#include <memory>
#include <utility>

#include "reactor/reactor.h"

namespace nvmeof::addon {

// The task runs once on the reactor's thread, after everything this thread posted before. Waits
// while the reactor's ring of tasks is full: it never waits for JavaScript, so room comes.
inline void post(reactor::Reactor& reactor, const reactor::Task& task) {
  while (!reactor.post(task)) sched_yield();
}

// The same with anything that can be called.
template <typename Work>
void post(reactor::Reactor& reactor, Work work) {
  post(reactor, reactor::Task{[](void* context, uint64_t) {
                                const std::unique_ptr<Work> mine(static_cast<Work*>(context));
                                (*mine)();
                              },
                              new Work(std::move(work)), 0});
}

}  // namespace nvmeof::addon
