// Reports read from JSON, field by field, without a tree of values in between: a viewer of hundreds of clients reads many of them a second.
// The library's parser calls back with each value (SAX); what has been declared with NVSHARE_REPORT (json_text.h) says where it belongs.
// Fields may be missing, and unknown ones are passed over; null is as if missing. Not thread-safe, like any value.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace nvshare::protocol {

struct JsonKind;

// Where a value is read into. Without a kind it is passed over.
struct JsonPlace {
  void* at = nullptr;
  const JsonKind* kind = nullptr;
};

// What a type takes. Null: it takes no such value. False: it has no room for that one.
struct JsonKind {
  const char* accepted;  // "an integer"
  bool (*boolean)(void* at, bool value);
  bool (*integer)(void* at, bool negative, uint64_t bits);  // bits: of two's complement
  bool (*fraction)(void* at, double value);
  bool (*text)(void* at, std::string& value);
  JsonPlace (*member)(void* at, const std::string& key);  // of an object
  JsonPlace (*element)(void* at);                         // of an array: the next one
};

template <typename Value>
JsonPlace json_place(Value& value);

// Finds a field by its name; NVSHARE_REPORT declares one for each struct.
class JsonFields {
 public:
  explicit JsonFields(std::string_view key) : key_(key) {}

  template <typename Value>
  void field(std::string_view name, Value& value) {
    if (place_.kind == nullptr && name == key_) place_ = json_place(value);
  }
  JsonPlace place() const { return place_; }

 private:
  std::string_view key_;
  JsonPlace place_;
};

namespace json_read {

template <std::integral Number>
bool take_integer(void* at, bool negative, uint64_t bits) {
  if (negative ? !std::in_range<Number>(static_cast<int64_t>(bits)) : !std::in_range<Number>(bits)) return false;
  *static_cast<Number*>(at) = static_cast<Number>(bits);
  return true;
}

template <typename Value>
struct Kind;

template <>
struct Kind<bool> {
  static bool take(void* at, bool value) {
    *static_cast<bool*>(at) = value;
    return true;
  }
  static constexpr JsonKind kKind{"true or false", take, nullptr, nullptr, nullptr, nullptr, nullptr};
};

template <std::integral Number>
struct Kind<Number> {
  static constexpr JsonKind kKind{"an integer of its size", nullptr, take_integer<Number>, nullptr, nullptr, nullptr, nullptr};
};

template <>
struct Kind<double> {
  static bool take(void* at, double value) {
    *static_cast<double*>(at) = value;
    return true;
  }
  static bool take_whole(void* at, bool negative, uint64_t bits) {
    return take(at, negative ? static_cast<double>(static_cast<int64_t>(bits)) : static_cast<double>(bits));
  }
  static constexpr JsonKind kKind{"a number", nullptr, take_whole, take, nullptr, nullptr, nullptr};
};

template <>
struct Kind<std::string> {
  static bool take(void* at, std::string& value) {
    *static_cast<std::string*>(at) = std::move(value);
    return true;
  }
  static constexpr JsonKind kKind{"text", nullptr, nullptr, nullptr, take, nullptr, nullptr};
};

template <typename Value>
struct Kind<std::vector<Value>> {
  static JsonPlace next(void* at) { return json_place(static_cast<std::vector<Value>*>(at)->emplace_back()); }
  static constexpr JsonKind kKind{"a list", nullptr, nullptr, nullptr, nullptr, nullptr, next};
};

template <>
struct Kind<std::map<std::string, int64_t>> {
  static JsonPlace find(void* at, const std::string& key) { return json_place((*static_cast<std::map<std::string, int64_t>*>(at))[key]); }
  static constexpr JsonKind kKind{"an object of integers", nullptr, nullptr, nullptr, nullptr, find, nullptr};
};

template <typename Report>
requires requires(Report& report, JsonFields& fields) { find_field(report, fields); }
struct Kind<Report> {
  static JsonPlace find(void* at, const std::string& key) {
    JsonFields fields(key);
    find_field(*static_cast<Report*>(at), fields);
    return fields.place();
  }
  static constexpr JsonKind kKind{"an object", nullptr, nullptr, nullptr, nullptr, find, nullptr};
};

}  // namespace json_read

template <typename Value>
JsonPlace json_place(Value& value) {
  return {&value, &json_read::Kind<Value>::kKind};
}

// The error names the field that does not take its value, with what it accepts.
Result<void> read_json(std::string_view text, JsonPlace place);

}  // namespace nvshare::protocol
