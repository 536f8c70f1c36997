// Fields of JSON that others wrote: absent, or of another type, is an answer and no exception. Pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json_nesting.h"

namespace nvshare::kubernetes::dra {

using Json = nlohmann::json;

// Discarded (is_discarded, and no object) where it is no JSON or nests too deep.
inline Json parse_json(std::string_view text) {
  return nests_too_deep(text) ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
}

// Null where `object` is no object or has no such field.
inline const Json* field_of(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// Through several objects: path_of(claim, {"status", "allocation"}).
inline const Json* path_of(const Json& object, std::initializer_list<const char*> names) {
  const Json* at = &object;
  for (const char* name : names) {
    at = field_of(*at, name);
    if (at == nullptr) return nullptr;
  }
  return at;
}

// Empty where it is not there or no text.
inline std::string text_of(const Json& object, const char* name) {
  const Json* field = field_of(object, name);
  return field != nullptr && field->is_string() ? field->get<std::string>() : std::string();
}

// `otherwise` where it is not there or no integer of 64 bits.
inline int64_t integer_of(const Json& object, const char* name, int64_t otherwise) {
  const Json* field = field_of(object, name);
  if (field == nullptr || !field->is_number_integer()) return otherwise;
  if (field->is_number_unsigned() && field->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return otherwise;
  return field->get<int64_t>();
}

inline bool is_true(const Json& object, const char* name) {
  const Json* field = field_of(object, name);
  return field != nullptr && field->is_boolean() && field->get<bool>();
}

// The elements of an array; none where it is something else.
inline const Json& list_of(const Json& object, const char* name) {
  static const Json kNone = Json::array();
  const Json* field = field_of(object, name);
  return field != nullptr && field->is_array() ? *field : kNone;
}

}  // namespace nvshare::kubernetes::dra
