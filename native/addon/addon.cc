// Entry point: the door's functions under their names, each with the number of arguments it needs.
#include <napi.h>

#include <cstdio>

#include "addon/instance.h"

namespace nvmeof::addon {

namespace {

struct Function {
  const char* name;
  uint32_t arguments;  // that must be given; the same number stands in native/index.ts
  Napi::Value (*call)(const Arguments& arguments);
  bool submits = false;  // all others send what was submitted before them on its way
};

constexpr Function kFunctions[] = {
    {"start", 1, start},
    {"stop", 0, stop},
    {"drain", 1, drain},
    {"reactors", 0, reactors},
    {"counters", 0, counters},
    {"queueStatistics", 0, queue_statistics},
    {"openDevice", 1, open_device},
    {"deviceInfo", 1, device_info},
    {"closeDevice", 1, close_device},
    {"setFaults", 2, set_faults},
    {"openBacking", 1, open_backing},
    {"backingInfo", 1, backing_info},
    {"resizeBacking", 2, resize_backing},
    {"setMark", 3, set_mark},
    {"markedElsewhere", 2, marked_elsewhere},
    {"closeBacking", 1, close_backing},
    {"createTable", 0, create_table},
    {"setNamespace", 3, set_namespace},
    {"removeNamespace", 2, remove_namespace},
    {"destroyTable", 1, destroy_table},
    {"setAccess", 4, set_access},
    {"listen", 2, listen},
    {"unlisten", 1, unlisten},
    {"accept", 2, accept},
    {"reject", 3, reject},
    {"bindQueue", 2, bind_queue},
    {"openLease", 0, open_lease},
    {"renewLeaseBy", 2, renew_lease_by},
    {"setLease", 2, set_lease},
    {"leaseLeft", 1, lease_left},
    {"closeLease", 1, close_lease},
    {"complete", 4, complete},
    {"abort", 2, abort_command},
    {"connect", 2, connect},
    {"submit", 4, submit, true},
    {"submitBuffer", 6, submit_buffer, true},
    {"flush", 0, flush},
    {"cancel", 2, cancel},
    {"openPathQueue", 2, open_path_queue},
    {"configurePathQueue", 2, configure_path_queue},
    {"setPath", 3, set_path},
    {"removePath", 2, remove_path},
    {"releasePath", 4, release_path},
    {"setPathsFailing", 2, set_failing},
    {"allocateBuffer", 2, allocate_buffer},
    {"freeBuffer", 1, free_buffer},
    {"bench", 1, bench},
    {"attach", 1, attach_namespace},
    {"serveNbd", 3, serve_nbd},
    {"serveClients", 2, serve_clients},
    {"detach", 1, detach},
    {"closeQueue", 1, close_queue},
    {"notifyService", 2, notify_service},
};

Napi::Value call(const Napi::CallbackInfo& info) {
  const auto& function = *static_cast<const Function*>(info.Data());
  if (info.Length() < function.arguments) {
    throw Napi::TypeError::New(info.Env(), std::string(function.name) + ": needs " +
                                               std::to_string(function.arguments) + " arguments");
  }
  if (!function.submits) Instance::of(info.Env()).submissions.flush();
  return function.call(Arguments(info, function.name));
}

Napi::Object init(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new Instance(env));
  for (const Function& function : kFunctions) {
    Napi::Function value =
        Napi::Function::New(env, call, function.name, const_cast<Function*>(&function));
    value.DefineProperty(
        Napi::PropertyDescriptor::Value("length", Napi::Number::New(env, function.arguments)));
    exports.Set(function.name, value);
  }
  return exports;
}

}  // namespace

}  // namespace nvmeof::addon

static Napi::Object nvmeof_init(Napi::Env env, Napi::Object exports) {
  return nvmeof::addon::init(env, exports);
}
NODE_API_MODULE(nvmeof, nvmeof_init)
