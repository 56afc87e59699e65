// Work that may block, on one of Node's worker threads, with a Promise for JavaScript.
#pragma once
#include <napi.h>

#include <functional>
#include <utility>

#include "addon/errors.h"

namespace nvmeof::addon {

class Async final : public Napi::AsyncWorker {
 public:
  using Blocking = std::function<Result<void>()>;            // worker thread
  using Finish = std::function<Napi::Value(Napi::Env env)>;  // JavaScript thread, after success

  using Always = std::function<void(Napi::Env env)>;  // JavaScript thread, before either outcome

  static Napi::Promise run(
      Napi::Env env, Blocking execute, Finish finish, Always always = [](Napi::Env) {}) {
    auto* work = new Async(env, std::move(execute), std::move(finish), std::move(always));
    const Napi::Promise promise = work->deferred_.Promise();
    work->Queue();
    return promise;
  }

 protected:
  void Execute() override { outcome_ = execute_(); }
  void OnOK() override {
    const Napi::HandleScope scope(Env());
    always_(Env());
    if (outcome_) {
      deferred_.Resolve(finish_(Env()));
    } else {
      deferred_.Reject(make_error(Env(), outcome_.error()).Value());
    }
  }

 private:
  Async(Napi::Env env, Blocking execute, Finish finish, Always always)
      : Napi::AsyncWorker(env),
        deferred_(Napi::Promise::Deferred::New(env)),
        execute_(std::move(execute)),
        finish_(std::move(finish)),
        always_(std::move(always)) {}

  Napi::Promise::Deferred deferred_;
  Blocking execute_;
  Finish finish_;
  Always always_;
  Result<void> outcome_;
};

}  // namespace nvmeof::addon
