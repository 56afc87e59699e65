// Unpacks what JavaScript passed. An Argument knows how a person calls it ("accept:
// options.depth"), so that every refusal names it: TypeError for the wrong type, RangeError for a
// value that is out of bounds. JavaScript thread only; throws Napi::Error.
#pragma once
#include <napi.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nvmeof::addon {

class Argument {
 public:
  // Of a call: how it is named is put together only when it is refused.
  Argument(Napi::Value value, const char* function, const char* name)
      : value_(value), function_(function), given_(name) {}
  // A part of another argument.
  Argument(Napi::Value value, std::string name) : value_(value), name_(std::move(name)) {}

  bool absent() const { return value_.IsUndefined(); }
  Napi::Value value() const { return value_; }
  // A property; this must be an object.
  Argument operator[](const char* field) const;

  uint32_t u32(uint32_t least = 0, uint32_t most = UINT32_MAX) const;
  uint32_t u32_or(uint32_t fallback, uint32_t least = 0, uint32_t most = UINT32_MAX) const;
  int32_t i32(int32_t least, int32_t most) const;
  // A number, exact up to 2^53: lengths and offsets.
  uint64_t size(uint64_t most) const;
  double real_or(double fallback, double least, double most) const;
  uint64_t u64() const;  // BigInt
  uint64_t u64_or(uint64_t fallback) const;
  bool boolean() const;
  bool boolean_or(bool fallback) const;
  std::string text() const;
  std::string text_or(const char* fallback) const;
  // Index of the string in `words`.
  size_t word(std::initializer_list<const char*> words) const;
  size_t word_or(size_t fallback, std::initializer_list<const char*> words) const;
  // A Uint8Array's bytes: valid until JavaScript runs again.
  std::span<uint8_t> bytes(size_t least = 0, size_t most = SIZE_MAX) const;
  std::vector<uint8_t> copied_bytes(size_t most) const;
  std::vector<uint32_t> u32_list(size_t most) const;
  Napi::Function function() const;
  Napi::Array list() const;

  [[noreturn]] void refuse(const std::string& expected) const;
  [[noreturn]] void out_of_range(const std::string& expected) const;

 private:
  double number() const;
  std::string name() const;

  Napi::Value value_;
  const char* function_ = nullptr;
  const char* given_ = nullptr;
  std::string name_;  // where function_ is null
};

// The arguments of one call.
class Arguments {
 public:
  Arguments(const Napi::CallbackInfo& info, const char* function)
      : info_(info), function_(function) {}
  Napi::Env env() const { return info_.Env(); }
  Argument at(size_t index, const char* name) const {
    return Argument(info_[index], function_, name);
  }
  const char* function() const { return function_; }

 private:
  const Napi::CallbackInfo& info_;
  const char* function_;
};

}  // namespace nvmeof::addon
