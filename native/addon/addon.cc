// Entry point of the addon.
#include <napi.h>

static Napi::Object init(Napi::Env, Napi::Object exports) { return exports; }
NODE_API_MODULE(nvmeof, init)
