// One wake of JavaScript for a batch of events: however many reactors push, at most one call is on
// its way. Any thread calls notify(); the rest on the JavaScript thread.
#pragma once
#include <napi.h>

#include <atomic>

namespace nvmeof::addon {

class Wake {
 public:
  void start(Napi::Env env, Napi::Function on_wake);
  // No notify() may run at the same time: reactors are joined before.
  void stop();
  void notify();
  // Keeps Node's event loop alive, or not.
  void keep_alive(Napi::Env env, bool alive);

 private:
  static void call(Napi::Env env, Napi::Function on_wake, Wake* wake, void*);
  using Function = Napi::TypedThreadSafeFunction<Wake, void, call>;

  Function function_;
  std::atomic<bool> pending_{false};
  bool started_ = false;
  bool alive_ = false;
};

}  // namespace nvmeof::addon
