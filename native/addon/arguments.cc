// Unpacking of arguments; see arguments.h.
#include "addon/arguments.h"

#include <cmath>
#include <cstring>
#include <sstream>

namespace nvmeof::addon {

std::string Argument::name() const {
  return function_ == nullptr ? name_ : std::string(function_) + ": " + given_;
}

void Argument::refuse(const std::string& expected) const {
  throw Napi::TypeError::New(value_.Env(), name() + " must be " + expected);
}

void Argument::out_of_range(const std::string& expected) const {
  throw Napi::RangeError::New(value_.Env(), name() + " must be " + expected);
}

Argument Argument::operator[](const char* field) const {
  if (!value_.IsObject()) refuse("an object");
  return Argument(value_.As<Napi::Object>().Get(field), name() + "." + field);
}

double Argument::number() const {
  double given;
  if (napi_get_value_double(value_.Env(), value_, &given) != napi_ok) refuse("a number");
  if (std::trunc(given) != given || std::isinf(given)) refuse("an integer");
  return given;
}

uint32_t Argument::u32(uint32_t least, uint32_t most) const {
  const double given = number();
  if (given < least || given > most) {
    out_of_range("an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<uint32_t>(given);
}

uint32_t Argument::u32_or(uint32_t fallback, uint32_t least, uint32_t most) const {
  return absent() ? fallback : u32(least, most);
}

int32_t Argument::i32(int32_t least, int32_t most) const {
  const double given = number();
  if (given < least || given > most) {
    out_of_range("an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<int32_t>(given);
}

uint64_t Argument::size(uint64_t most) const {
  const double given = number();
  constexpr double exact = 9007199254740992.0;  // 2^53
  if (given < 0 || given > exact || static_cast<uint64_t>(given) > most) {
    out_of_range("an integer from 0 to " + std::to_string(most));
  }
  return static_cast<uint64_t>(given);
}

double Argument::real_or(double fallback, double least, double most) const {
  if (absent()) return fallback;
  if (!value_.IsNumber()) refuse("a number");
  const double given = value_.As<Napi::Number>().DoubleValue();
  // Not a number is neither.
  if (!(given >= least && given <= most)) {
    std::ostringstream range;
    range << "a number from " << least << " to " << most;
    out_of_range(range.str());
  }
  return given;
}

uint64_t Argument::u64() const {
  if (!value_.IsBigInt()) refuse("a bigint");
  bool lossless = false;
  const uint64_t given = value_.As<Napi::BigInt>().Uint64Value(&lossless);
  if (!lossless) out_of_range("a bigint from 0 to 2^64 - 1");
  return given;
}

uint64_t Argument::u64_or(uint64_t fallback) const {
  return absent() ? fallback : u64();
}

bool Argument::boolean() const {
  if (!value_.IsBoolean()) refuse("a boolean");
  return value_.As<Napi::Boolean>().Value();
}

bool Argument::boolean_or(bool fallback) const {
  return absent() ? fallback : boolean();
}

std::string Argument::text() const {
  if (!value_.IsString()) refuse("a string");
  std::string given = value_.As<Napi::String>().Utf8Value();
  if (given.find('\0') != std::string::npos) refuse("a string without NUL characters");
  return given;
}

std::string Argument::text_or(const char* fallback) const {
  return absent() ? fallback : text();
}

size_t Argument::word(std::initializer_list<const char*> words) const {
  if (value_.IsString()) {
    // Longer than any word of ours when it fills the buffer.
    char given[32];
    size_t length = 0;
    napi_get_value_string_utf8(value_.Env(), value_, given, sizeof given, &length);
    size_t index = 0;
    for (const char* known : words) {
      if (std::string_view(given, length) == known) return index;
      index++;
    }
  }
  std::string all;
  for (const char* known : words) all += (all.empty() ? "'" : ", '") + std::string(known) + "'";
  refuse("one of " + all);
}

size_t Argument::word_or(size_t fallback, std::initializer_list<const char*> words) const {
  return absent() ? fallback : word(words);
}

std::span<uint8_t> Argument::bytes(size_t least, size_t most) const {
  // One call, where Napi::Uint8Array would make five: commands of JavaScript come through here.
  napi_typedarray_type type;
  size_t length;
  void* data;
  if (napi_get_typedarray_info(value_.Env(), value_, &type, &length, &data, nullptr, nullptr) !=
          napi_ok ||
      type != napi_uint8_array) {
    refuse("a Uint8Array");
  }
  if (length < least || length > most) {
    out_of_range(least == most ? std::to_string(least) + " bytes long"
                               : "from " + std::to_string(least) + " to " + std::to_string(most) +
                                     " bytes long");
  }
  if (length == 0) return {};
  return {static_cast<uint8_t*>(data), length};
}

std::vector<uint8_t> Argument::copied_bytes(size_t most) const {
  const auto given = bytes(0, most);
  return {given.begin(), given.end()};
}

Napi::Array Argument::list() const {
  if (!value_.IsArray()) refuse("an array");
  return value_.As<Napi::Array>();
}

std::vector<uint32_t> Argument::u32_list(size_t most) const {
  const Napi::Array array = list();
  if (array.Length() == 0 || array.Length() > most) {
    out_of_range("a list of 1 to " + std::to_string(most) + " entries");
  }
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < array.Length(); i++) {
    all.push_back(Argument(array.Get(i), name() + "[" + std::to_string(i) + "]").u32());
  }
  return all;
}

Napi::Function Argument::function() const {
  if (!value_.IsFunction()) refuse("a function");
  return value_.As<Napi::Function>();
}

}  // namespace nvmeof::addon
