#include "scheduler/settings.h"

#include <toml++/toml.h>

#include <sstream>

#include "scheduler/http_address.h"

namespace nvshare::scheduler {
namespace {

// As its option or its variable is called, it is another setting's name.
Error unknown(const std::string& name) {
  std::string meant;
  for (const char c : name) meant += c == '-' ? '_' : static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  meant.erase(0, meant.find_first_not_of('_'));
  if (meant.starts_with("nvshare_")) meant.erase(0, sizeof "nvshare_" - 1);
  const SettingSpec* spec = settings::find(setting_specs(), meant);
  if (spec == nullptr) return error_format("'%.80s' is no setting; 'nvshare-scheduler --help' lists them", name.c_str());
  return error_format("'%.80s' is no setting; did you mean %s?", name.c_str(), spec->name);
}

// What the settings must satisfy together.
Result<void> check_together(const Settings& settings) {
  if (settings.policy.switch_time_min > settings.policy.switch_time_max) {
    return error_format(
        "switch_time_min (%s) is %g s and switch_time_max %g s; accepted: a minimum that is no longer; both can be set at once",
        variable_of("switch_time_min").c_str(), static_cast<double>(settings.policy.switch_time_min) / 1e9,
        static_cast<double>(settings.policy.switch_time_max) / 1e9);
  }
  if (!settings.page_address.empty() && settings.page_token_file.empty() && !is_loopback(settings.page_address)) {
    return error_format("%s: %.80s can be reached from other machines, so the page needs a token there: set %s, or take 127.0.0.1",
                        variable_of("page_address").c_str(), settings.page_address.c_str(), variable_of("page_token_file").c_str());
  }
  return {};
}

std::string text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  std::ostringstream stream;
  node.visit([&](const auto& value) {
    if constexpr (toml::is_value<decltype(value)>) stream << value;
  });
  return stream.str();
}

Result<void> apply_file(Settings& settings, std::string_view file_name, std::string_view file_text) {
  toml::table table;
  std::string name(file_name);
  try {
    table = toml::parse(file_text, name);
  } catch (const toml::parse_error& problem) {
    return error_format("%s, line %u: %.160s", name.c_str(), problem.source().begin.line, std::string(problem.description()).c_str());
  }
  for (const auto& [key, node] : table) {
    const SettingSpec* spec = settings::find(setting_specs(), key.str());
    if (spec == nullptr) {
      return error_format("%s, line %u: '%.80s' is no setting; `nvshare-scheduler --help` lists them", name.c_str(),
                          node.source().begin.line, std::string(key.str()).c_str());
    }
    if (!node.is_value()) {
      return error_format("%s, line %u: %s is a list or a table; accepted: %.120s", name.c_str(), node.source().begin.line, spec->name,
                          spec->accepted.c_str());
    }
    if (auto ok = settings::apply(settings, *spec, text_of(node), name + ": " + spec->name); !ok) return ok;
  }
  return {};
}

}  // namespace

Result<Settings> load_settings(std::string_view file_name, std::string_view file_text, const settings::Lookup& environment,
                               const Texts& command_line) {
  Settings settings;
  if (auto ok = apply_file(settings, file_name, file_text); !ok) return ok.error();
  if (auto ok = settings::apply_all(settings, setting_specs(), environment, command_line); !ok) return ok.error();
  if (auto ok = check_together(settings); !ok) return ok.error();
  return settings;
}

Result<Settings> change_settings(const Settings& settings, const Texts& changes) {
  Settings changed = settings;
  for (const auto& [name, text] : changes) {
    const SettingSpec* spec = settings::find(setting_specs(), name);
    if (spec == nullptr) return unknown(name);
    if (!spec->live)
      return error_format("%s does not change while the scheduler runs; set it in scheduler.toml, or as %s, and restart the scheduler",
                          spec->name, variable_of(spec->name).c_str());
    if (auto ok = settings::apply(changed, *spec, text, name); !ok) return ok.error();
  }
  if (auto ok = check_together(changed); !ok) return ok.error();
  return changed;
}

}  // namespace nvshare::scheduler
