// Settings of both daemons: any configuration file, environment and command line is refused with a reason, or gives settings in their
// ranges. Input: a configuration file, a line "%%", then lines NAME=VALUE: the environment, and the same as a command line and as live
// changes.
#include <map>

#include "fuzz.h"
#include "kubernetes/settings.h"
#include "scheduler/settings.h"

namespace {

using namespace nvshare;
using fuzz::require;

constexpr int64_t kSecond = 1'000'000'000;

void check(const scheduler::Settings& settings) {
  require(settings.policy.switch_time_min <= settings.policy.switch_time_max, "the shortest turn is not longer than the longest");
  require(settings.policy.switch_time_min > 0 && settings.policy.switch_time_max <= 24 * 3600 * kSecond, "turns are 1 ms to 24 h");
  require(settings.policy.switch_time_multiplier >= 1 && settings.policy.switch_time_multiplier <= 1000, "the multiplier is 1 to 1000");
  require(settings.metrics_tenants >= 0 && settings.metrics_tenants <= 10'000, "metrics are of up to 10000 tenants");
  require(settings.connections_per_tenant >= 1 && settings.connections_per_user >= 1, "everybody may have one connection");
  require(settings.gpus_per_user >= 1 && settings.gpus_per_user <= 1024, "GPUs of a user are 1 to 1024");
  require(!settings.runtime_dir.empty() && settings.runtime_dir[0] == '/', "the runtime folder is absolute");
}

void check(const kubernetes::Settings& settings) {
  const kubernetes::Division& division = settings.division;
  require(kubernetes::is_possible_unit(division.memory_unit), "a unit of memory is 1Mi to 1Ti");
  require(division.oversubscription >= 0.1 && division.oversubscription <= 100, "oversubscription is 0.1 to 100");
  require(division.virtual_devices >= 1 && division.virtual_devices <= 1000, "virtual GPUs are 1 to 1000");
  require(division.default_memory >= 0, "the default of memory is no less than none");
  require(settings.pod_priority_max >= 0 && settings.pod_priority_max <= 100, "priorities of pods are 0 to 100");
  require(settings.health_interval > 0 && settings.scheduler_patience >= 0, "times are positive");
  for (const auto& [name, maximum] : settings.namespace_maxima) {
    require(!name.empty() && maximum.memory >= 0 && maximum.core >= 1 && maximum.core <= 100, "a namespace's maxima are in range");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  const size_t border = text.find("%%\n");
  const std::string_view file = text.substr(0, border);
  text = border == std::string_view::npos ? std::string_view() : text.substr(border + 3);
  std::map<std::string, std::string> variables;
  settings::Texts texts;
  while (!text.empty()) {
    const std::string_view line = fuzz::take_line(&text);
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(line.substr(0, equals));
    const std::string value(line.substr(equals + 1));
    variables[settings::variable_of(name)] = value;
    texts.emplace_back(name, value);
  }
  const auto lookup = [&](const char* variable) -> const char* {
    const auto found = variables.find(variable);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  const auto nothing = [](const char*) -> const char* { return nullptr; };

  if (auto loaded = scheduler::load_settings("scheduler.toml", file, nothing, {}); fuzz::good(loaded)) check(*loaded);
  if (auto loaded = scheduler::load_settings("scheduler.toml", "", lookup, {}); fuzz::good(loaded)) check(*loaded);
  if (auto loaded = scheduler::load_settings("scheduler.toml", "", nothing, texts); fuzz::good(loaded)) check(*loaded);
  if (auto changed = scheduler::change_settings({}, texts); fuzz::good(changed)) check(*changed);
  if (auto loaded = kubernetes::load_settings(lookup, {}); fuzz::good(loaded)) check(*loaded);
  if (auto loaded = kubernetes::load_settings(nothing, texts); fuzz::good(loaded)) check(*loaded);
  return 0;
}
