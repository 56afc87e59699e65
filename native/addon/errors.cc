// Errors for JavaScript; see errors.h.
#include "addon/errors.h"

#include <cstring>

namespace nvmeof::addon {

std::string errno_name(int code) {
  const char* name = strerrorname_np(code);
  return name ? name : "E" + std::to_string(code);
}

Napi::Error make_error(Napi::Env env, const Error& error) {
  const std::string name = errno_name(error.code);
  Napi::Error thrown = Napi::Error::New(env, error.message.empty() ? name : error.message);
  thrown.Set("code", Napi::String::New(env, name));
  return thrown;
}

}  // namespace nvmeof::addon
