// The files that a daemon leaves its successor, as JSON: they hold whole numbers only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace nvshare::protocol {

// Throws nlohmann::json::exception where the text is no JSON, or has a number with a fraction or beyond 64 bits: what reading such a one as
// a whole number gives is undefined.
inline nlohmann::json parse_record(const std::string& text) {
  using Json = nlohmann::json;
  const auto check = [](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::value && value.is_number_float())
      throw Json::out_of_range::create(406, "a number is none of 64 bits without a fraction", nullptr);
    return true;
  };
  return Json::parse(text, check);
}

}  // namespace nvshare::protocol
