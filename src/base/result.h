// Result<T>: a value, or an Error that says what was tried, on what, and what to do next.
//
// Used on both sides: in the daemons and inside guest processes, so it neither throws nor allocates. Not thread-safe, like any value.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <new>
#include <type_traits>
#include <utility>

namespace nvshare {

// A message for a person, cut at 255 bytes.
struct Error {
  char text[256] = {};
};

[[gnu::format(printf, 1, 2)]] inline Error error_format(const char* format, ...) {
  Error error;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error.text, sizeof error.text, format, arguments);
  va_end(arguments);
  return error;
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : has_value_(true) { new (&value_) T(std::move(value)); }  // NOLINT(google-explicit-constructor)
  Result(Error error) : error_(error), has_value_(false) {}                  // NOLINT(google-explicit-constructor)
  Result(Result&& other) noexcept : has_value_(other.has_value_) {
    if (has_value_) {
      new (&value_) T(std::move(other.value_));
    } else {
      error_ = other.error_;
    }
  }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  Result& operator=(Result&&) = delete;
  ~Result() {
    if (has_value_) value_.~T();
  }

  explicit operator bool() const { return has_value_; }
  // Only when there is a value.
  T& operator*() { return value_; }
  const T& operator*() const { return value_; }
  T* operator->() { return &value_; }
  const T* operator->() const { return &value_; }
  // Only when there is none.
  const Error& error() const { return error_; }

 private:
  union {
    T value_;
    Error error_;
  };
  bool has_value_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(error), has_value_(false) {}  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return has_value_; }
  const Error& error() const { return error_; }

 private:
  Error error_;
  bool has_value_ = true;
};

}  // namespace nvshare
