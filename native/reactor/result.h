// Errors as values: what every native module returns where an operation can fail.
// The data path is compiled without exceptions; an Error carries an errno-like number for programs
// and one sentence for people that names the object and what to do.
#pragma once
#include <cerrno>
#include <string>
#include <utility>
#include <variant>

namespace nvmeof {

struct Error {
  int code = 0;         // an errno value
  std::string message;  // one sentence: which object, what failed, what to do
};

// A value or an Error. `if (!result) return result.error();`
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  explicit operator bool() const { return state_.index() == 0; }
  T& value() { return std::get<0>(state_); }
  const T& value() const { return std::get<0>(state_); }
  T& operator*() { return value(); }
  T* operator->() { return &value(); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}
  explicit operator bool() const { return !failed_; }
  const Error& error() const { return error_; }

 private:
  Error error_;
  bool failed_ = false;
};

}  // namespace nvmeof
