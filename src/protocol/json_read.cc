#include "protocol/json_read.h"

#include <nlohmann/json.hpp>

#include "base/json_nesting.h"

namespace nvshare::protocol {
namespace {

using Json = nlohmann::json;

// What the library's parser calls back. False ends it.
class Reader final : public nlohmann::json_sax<Json> {
 public:
  explicit Reader(JsonPlace place) : next_(place) {}

  const char* wrong_key() const { return key_.c_str(); }
  const char* accepted() const { return accepted_; }  // null: it was no JSON

  bool null() override {
    take_next();
    return true;
  }
  bool boolean(bool value) override {
    const JsonPlace place = take_next();
    return place.kind == nullptr || (place.kind->boolean != nullptr && place.kind->boolean(place.at, value)) || refuse(place);
  }
  bool number_integer(number_integer_t value) override { return integer(value < 0, static_cast<uint64_t>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return integer(false, value); }
  bool number_float(number_float_t value, const string_t& /*as written*/) override {
    const JsonPlace place = take_next();
    return place.kind == nullptr || (place.kind->fraction != nullptr && place.kind->fraction(place.at, value)) || refuse(place);
  }
  bool string(string_t& value) override {
    const JsonPlace place = take_next();
    return place.kind == nullptr || (place.kind->text != nullptr && place.kind->text(place.at, value)) || refuse(place);
  }
  bool binary(binary_t& /*of other formats*/) override { return false; }
  bool start_object(std::size_t /*not known*/) override {
    const JsonPlace place = take_next();
    if (place.kind != nullptr && place.kind->member == nullptr) return refuse(place);
    return open(place);
  }
  bool key(string_t& name) override {
    const JsonPlace& object = open_.back();
    if (object.kind == nullptr) return true;
    next_ = object.kind->member(object.at, name);
    key_ = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*not known*/) override {
    const JsonPlace place = take_next();
    if (place.kind != nullptr && place.kind->element == nullptr) return refuse(place);
    return open(place);
  }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t /*at*/, const std::string& /*last*/, const nlohmann::detail::exception& /*why*/) override { return false; }

 private:
  // Of the value that has come: in an array the next element's.
  JsonPlace take_next() {
    if (!open_.empty() && open_.back().kind != nullptr && open_.back().kind->element != nullptr) {
      return open_.back().kind->element(open_.back().at);
    }
    return std::exchange(next_, {});
  }
  bool integer(bool negative, uint64_t bits) {
    const JsonPlace place = take_next();
    return place.kind == nullptr || (place.kind->integer != nullptr && place.kind->integer(place.at, negative, bits)) || refuse(place);
  }
  bool refuse(JsonPlace place) {
    accepted_ = place.kind->accepted;
    return false;
  }
  bool open(JsonPlace place) {
    open_.push_back(place);
    return open_.size() <= static_cast<size_t>(kJsonNestingMax);
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonPlace next_;
  std::vector<JsonPlace> open_;  // objects and arrays
  std::string key_;              // the last one that is known
  const char* accepted_ = nullptr;
};

}  // namespace

Result<void> read_json(std::string_view text, JsonPlace place) {
  Reader reader(place);
  if (Json::sax_parse(text, &reader)) return {};
  if (reader.accepted() == nullptr) return error_format("it is no JSON, or nests deeper than %d", kJsonNestingMax);
  if (*reader.wrong_key() == 0) return error_format("it must be %s", reader.accepted());
  return error_format("'%.60s' must be %s", reader.wrong_key(), reader.accepted());
}

}  // namespace nvshare::protocol
