// How native errors become JavaScript's: an Error with the sentence of the native Error and `code`,
// the errno name. JavaScript thread only.
#pragma once
#include <napi.h>

#include <string>

#include "reactor/result.h"

namespace nvmeof::addon {

// "EADDRINUSE" and so on; "E99999" for a number without a name.
std::string errno_name(int code);

Napi::Error make_error(Napi::Env env, const Error& error);

[[noreturn]] inline void throw_error(Napi::Env env, const Error& error) {
  throw make_error(env, error);
}

template <typename T>
T value_or_throw(Napi::Env env, Result<T> result) {
  if (!result) throw_error(env, result.error());
  return std::move(*result);
}

}  // namespace nvmeof::addon
