// Reports written as JSON, field by field, without a tree of them in between: with thousands of clients that tree took longer than all
// else of an answer. NVSHARE_REPORT declares a struct's fields once, for both directions.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace nvshare::protocol {

// Appends to a text. Values that NVSHARE_REPORT has declared have each_field().
class JsonText {
 public:
  explicit JsonText(std::string& text) : text_(text) {}

  // {"a":1,...: open() begins an object, field() adds to it, close() ends it.
  void open() { text_ += '{'; }
  void close() { text_ += '}'; }
  template <typename Value>
  void field(std::string_view name, const Value& value) {
    if (text_.back() != '{') text_ += ',';
    text_ += '"';
    text_ += name;  // ours: nothing in it is to be escaped
    text_ += "\":";
    add(value);
  }

 private:
  void add(bool value) { text_ += value ? "true" : "false"; }
  template <std::integral Number>
  void add(Number value) {
    char digits[24];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  void add(double value) {
    if (!std::isfinite(value)) {
      text_ += "null";
      return;
    }
    char digits[40];
    const std::string_view shortest(digits, static_cast<size_t>(std::to_chars(digits, digits + sizeof digits, value).ptr - digits));
    text_ += shortest;
    if (shortest.find_first_of(".e") == std::string_view::npos) text_ += ".0";  // a reader tells it from a whole number
  }
  void add(const std::string& value) {
    const auto is_plain = [](unsigned char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; };
    if (std::all_of(value.begin(), value.end(), is_plain)) {
      ((text_ += '"') += value) += '"';
    } else {  // a program's name may be any bytes: what is not UTF-8 is shown as U+FFFD
      text_ += nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
  }
  template <typename Value>
  void add(const std::vector<Value>& values) {
    text_ += '[';
    for (const Value& value : values) {
      if (&value != values.data()) text_ += ',';
      add(value);
    }
    text_ += ']';
  }
  void add(const std::map<std::string, int64_t>& values) {
    open();
    for (const auto& [name, value] : values) field(name, value);
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
};

}  // namespace nvshare::protocol

// At the namespace of a struct of plain fields: how it is read from JSON (fields may be missing), and written.
#define NVSHARE_REPORT_FIELD(name) text.field(#name, report.name);
#define NVSHARE_REPORT_FIELDS(...) NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NVSHARE_REPORT_FIELD, __VA_ARGS__))
#define NVSHARE_REPORT(Type, ...)                                    \
  NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Type, __VA_ARGS__) \
  inline void each_field(const Type& report, ::nvshare::protocol::JsonText& text) { NVSHARE_REPORT_FIELDS(__VA_ARGS__) }
