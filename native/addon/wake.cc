// The coalesced wake; see wake.h.
#include "addon/wake.h"

namespace nvmeof::addon {

void Wake::start(Napi::Env env, Napi::Function on_wake) {
  function_ = Function::New(env, on_wake, "nvmeof events", 1, 1, this);
  function_.Unref(env);
  alive_ = false;
  pending_.store(false);
  started_ = true;
}

void Wake::stop() {
  if (!started_) return;
  started_ = false;
  function_.Abort();
}

void Wake::notify() {
  if (!started_ || pending_.exchange(true)) return;
  // A full queue holds a call that has not run yet: that one will see the new events too.
  function_.NonBlockingCall();
}

void Wake::keep_alive(Napi::Env env, bool alive) {
  if (!started_ || alive == alive_) return;
  alive_ = alive;
  if (alive) {
    function_.Ref(env);
  } else {
    function_.Unref(env);
  }
}

void Wake::call(Napi::Env env, Napi::Function on_wake, Wake* wake, void*) {
  // A call that was still queued at stop(): `wake` may be gone.
  if (static_cast<napi_env>(env) == nullptr) return;
  // Before draining, so that an event pushed from now on asks for a wake of its own.
  wake->pending_.exchange(false);
  on_wake.Call({});
}

}  // namespace nvmeof::addon
