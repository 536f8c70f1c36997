// Reports written as JSON, field by field, without a tree of them in between: with thousands of clients that tree took longer than all
// else of an answer. NVSHARE_REPORT declares a struct's fields once, for both directions. In brief, fields that a reader has anyway are
// left out: those as in a report that says nothing.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "protocol/json_read.h"

namespace nvshare::protocol {

// Appends to a text, in pieces, the last with pass_on(). Values that NVSHARE_REPORT has declared have each_field().
class JsonText {
 public:
  explicit JsonText(std::string& text, bool brief = false) : text_(text), brief_(brief) {}
  JsonText(const JsonText&) = delete;
  JsonText& operator=(const JsonText&) = delete;

  // {"a":1,...: open() begins an object, field() adds to it, close() ends it.
  void open() {
    put('{');
    first_ = true;
  }
  void close() {
    put('}');
    first_ = false;
  }
  // "clients":[ row, row ...: open_list() begins it as a field, row() adds to it, close_list() ends it.
  template <size_t size>
  void open_list(const char (&key)[size]) {
    add_key(key);
    put('[');
    first_row_ = true;
  }
  template <typename Report>
  void row(const Report& report) {
    if (!std::exchange(first_row_, false)) put(',');
    add(report);
  }
  void close_list() {
    put(']');
    first_ = false;
  }
  // What a report of its kind says of itself where it says nothing.
  template <size_t size, typename Value>
  void field(const char (&key)[size], const Value& value, const Value& unsaid) {
    if (!brief_ || is_news(value, unsaid)) field(key, value);
  }
  // `key`: "name": with its quotes and colon.
  template <size_t size, typename Value>
  void field(const char (&key)[size], const Value& value) {
    add_key(key);
    add(value);
  }
  void pass_on() {  // to the text all that is not in it yet
    text_.append(piece_.data(), at_);
    at_ = piece_.data();
  }

 private:
  static constexpr size_t kPiece = 1 << 14, kRoom = 64;

  template <typename Value>
  static bool is_news(const Value& value, const Value& unsaid) {
    if constexpr (std::is_arithmetic_v<Value> || std::is_same_v<Value, std::string>) {
      return !(value == unsaid);
    } else if constexpr (requires { value.empty(); }) {
      return !value.empty();
    } else {
      return true;
    }
  }

  void room_for(size_t bytes) {
    if (static_cast<size_t>(piece_.data() + piece_.size() - at_) < bytes) pass_on();
  }
  template <size_t size>
  void add_key(const char (&key)[size]) {
    static_assert(size < kRoom);
    room_for(size);
    if (!std::exchange(first_, false)) *at_++ = ',';
    at_ = std::copy(key, key + size - 1, at_);
  }
  void put(char one) {
    room_for(1);
    *at_++ = one;
  }
  void put(std::string_view bytes) {
    room_for(bytes.size());
    if (bytes.size() <= piece_.size()) {
      at_ = std::copy(bytes.begin(), bytes.end(), at_);
    } else {
      text_ += bytes;
    }
  }

  // ASCII of which nothing is to be escaped. Eight bytes at a time: most texts are numbers of GPUs, which are long.
  static bool is_plain(std::string_view text) {
    constexpr uint64_t kOnes = 0x0101010101010101, kHighs = kOnes << 7;
    const auto has = [](uint64_t bytes, uint64_t byte) {
      const uint64_t others = bytes ^ kOnes * byte;
      return (others - kOnes) & ~others & kHighs;
    };
    const auto is_odd = [&](uint64_t bytes) {
      const uint64_t controls = (bytes - kOnes * 0x20) & ~bytes & kHighs;
      return ((bytes & kHighs) | controls | has(bytes, '"') | has(bytes, '\\') | has(bytes, 0x7f)) != 0;
    };
    for (; text.size() >= sizeof(uint64_t); text.remove_prefix(sizeof(uint64_t))) {
      uint64_t bytes = 0;
      std::memcpy(&bytes, text.data(), sizeof bytes);
      if (is_odd(bytes)) return false;
    }
    uint64_t bytes = kOnes * ' ';
    std::memcpy(&bytes, text.data(), text.size());
    return !is_odd(bytes);
  }

  void add(bool value) { put(value ? std::string_view("true") : std::string_view("false")); }
  template <std::integral Number>
  void add(Number value) {
    room_for(kRoom);
    at_ = std::to_chars(at_, at_ + kRoom, value).ptr;
  }
  void add(double value) {
    if (!std::isfinite(value)) return put("null");
    room_for(kRoom);
    char* const end = std::to_chars(at_, at_ + kRoom, value).ptr;
    const bool whole = std::string_view(at_, static_cast<size_t>(end - at_)).find_first_of(".e") == std::string_view::npos;
    at_ = end;
    if (whole) put(".0");  // a reader tells it from a whole number
  }
  void add(const std::string& value) {
    if (is_plain(value)) {
      put('"');
      put(value);
      put('"');
    } else {  // a program's name may be any bytes: what is not UTF-8 is shown as U+FFFD
      put(nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
  }
  template <typename Value>
  void add(const std::vector<Value>& values) {
    put('[');
    for (const Value& value : values) {
      if (&value != values.data()) put(',');
      add(value);
    }
    put(']');
  }
  void add(const std::map<std::string, int64_t>& values) {
    open();
    for (const auto& [name, value] : values) {
      if (!std::exchange(first_, false)) put(',');
      add(name);
      put(':');
      add(value);
    }
    close();
  }
  template <typename Report>
  requires requires(const Report& report, JsonText& text) { each_field(report, text); }
  void add(const Report& report) {
    open();
    each_field(report, *this);
    close();
  }

  std::string& text_;
  const bool brief_;
  std::array<char, kPiece> piece_;  // what is not in it yet
  char* at_ = piece_.data();
  bool first_ = true;      // nothing is in the object that was opened last
  bool first_row_ = true;  // nothing is in the list
};

}  // namespace nvshare::protocol

// At the namespace of a struct of plain fields: how it is written, and where what is read belongs.
#define NVSHARE_REPORT_FIELD(name) text.field("\"" #name "\":", report.name, unsaid.name);
#define NVSHARE_REPORT_FIELDS(...) NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NVSHARE_REPORT_FIELD, __VA_ARGS__))
#define NVSHARE_FOUND_FIELD(name) fields.field(#name, report.name);
#define NVSHARE_FOUND_FIELDS(...) NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NVSHARE_FOUND_FIELD, __VA_ARGS__))
#define NVSHARE_REPORT(Type, ...)                                                   \
  inline void each_field(const Type& report, ::nvshare::protocol::JsonText& text) { \
    static const Type unsaid;                                                       \
    NVSHARE_REPORT_FIELDS(__VA_ARGS__)                                              \
  }                                                                                 \
  inline void find_field(Type& report, ::nvshare::protocol::JsonFields& fields) { NVSHARE_FOUND_FIELDS(__VA_ARGS__) }
