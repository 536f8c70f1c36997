// Settings of a daemon as one table: each has one name (switch_time_mode), one variable (NVSHARE_SWITCH_TIME_MODE), one flag
// (--switch-time-mode), a sentence on what is accepted and one function that reads its text. A wrong value is refused with the name under
// which it was given and what is accepted. For daemons and tools (it allocates); pure functions, thread-safe.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/parse.h"
#include "base/result.h"

namespace nvshare::settings {

using Texts = std::vector<std::pair<std::string, std::string>>;  // name -> value as text
using Lookup = std::function<const char*(const char* variable)>;

// One line of a table. A daemon whose lines say more has a struct of its own, with at least these members.
template <typename Settings>
struct Spec {
  const char* name;
  const char* accepted;  // for people
  const char* help;
  Result<void> (*apply)(Settings& settings, std::string_view text);
};

inline std::string variable_of(std::string_view name) {
  std::string variable = "NVSHARE_";
  for (char c : name) variable += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return variable;
}

inline std::string flag_of(std::string_view name) {
  std::string flag = "--";
  for (char c : name) flag += c == '_' ? '-' : c;
  return flag;
}

inline int shown(std::string_view text) { return static_cast<int>(std::min<size_t>(text.size(), 80)); }

inline Result<void> take_choice(std::string_view text, std::initializer_list<std::string_view> choices) {
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return {};
  return error_format("'%.*s' is not one of them", shown(text), text.data());
}

inline Result<void> take_path(std::string_view text, std::string* out) {
  if (text.empty() || text[0] != '/') return error_format("'%.*s' is not an absolute path", shown(text), text.data());
  *out = text;
  return {};
}

inline Result<void> take_duration(std::string_view text, int64_t minimum_ns, int64_t maximum_ns, int64_t* out) {
  Result<int64_t> value = parse_duration_ns(text);
  if (!value) return value.error();
  if (*value < minimum_ns || *value > maximum_ns) return error_format("'%.*s' is out of range", shown(text), text.data());
  *out = *value;
  return {};
}

// Null: there is no such setting.
template <typename Spec>
const Spec* find(const std::vector<Spec>& specs, std::string_view name) {
  auto at = std::find_if(specs.begin(), specs.end(), [&](const Spec& spec) { return spec.name == name; });
  return at == specs.end() ? nullptr : &*at;
}

template <typename Settings, typename Spec>
Result<void> apply(Settings& settings, const Spec& spec, std::string_view text, const std::string& given_as) {
  Result<void> ok = spec.apply(settings, text);
  if (ok) return ok;
  return error_format("%s: %.120s; accepted: %s", given_as.c_str(), ok.error().text, std::string(spec.accepted).c_str());
}

// The environment first, the command line over it. An empty variable is one that is not set, as service managers write it.
template <typename Settings, typename Spec>
Result<void> apply_all(Settings& settings, const std::vector<Spec>& specs, const Lookup& environment, const Texts& command_line) {
  for (const Spec& spec : specs) {
    std::string variable = variable_of(spec.name);
    const char* text = environment(variable.c_str());
    if (text == nullptr || *text == 0) continue;
    if (auto ok = apply(settings, spec, text, variable); !ok) return ok;
  }
  for (const auto& [name, text] : command_line) {
    const Spec* spec = find(specs, name);
    if (spec == nullptr) return error_format("%s is no setting", flag_of(name).c_str());
    if (auto ok = apply(settings, *spec, text, flag_of(name)); !ok) return ok;
  }
  return {};
}

}  // namespace nvshare::settings
