#include "scheduler/settings.h"

#include <arpa/inet.h>
#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

#include "base/parse.h"
#include "scheduler/http_server.h"

namespace nvshare::scheduler {
namespace {

using policy::Duration;

constexpr Duration kMillisecond = 1'000'000;
constexpr Duration kSecond = 1'000'000'000;
constexpr Duration kDay = 86'400 * kSecond;

using settings::take_choice;
using settings::take_duration;
using settings::take_path;

Result<void> set_switch_time_mode(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"auto", "fixed"}); !ok) return ok;
  settings.policy.switch_time_mode = text == "auto" ? policy::SwitchTimeMode::kAuto : policy::SwitchTimeMode::kFixed;
  return {};
}

Result<void> set_switch_time_fixed(Settings& settings, std::string_view text) {
  return take_duration(text, kMillisecond, kDay, &settings.policy.switch_time_fixed);
}

Result<void> set_switch_time_multiplier(Settings& settings, std::string_view text) {
  Result<int64_t> value = parse_integer(text, 1, 1000);
  if (!value) return value.error();
  settings.policy.switch_time_multiplier = *value;
  return {};
}

Result<void> set_switch_time_min(Settings& settings, std::string_view text) {
  return take_duration(text, kMillisecond, kDay, &settings.policy.switch_time_min);
}

Result<void> set_switch_time_max(Settings& settings, std::string_view text) {
  return take_duration(text, kMillisecond, kDay, &settings.policy.switch_time_max);
}

Result<void> set_memory_reserve_percent(Settings& settings, std::string_view text) {
  Result<int64_t> value = parse_integer(text, 0, 90);
  if (!value) return value.error();
  settings.policy.memory_reserve_percent = static_cast<int>(*value);
  return {};
}

Result<void> set_unanswered_grace(Settings& settings, std::string_view text) {
  return take_duration(text, kMillisecond, kDay, &settings.policy.unanswered_grace);
}

Result<void> set_gang_turns(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"on", "off", "true", "false"}); !ok) return ok;
  settings.policy.gang_turns = text == "on" || text == "true";
  return {};
}

Result<void> set_scheduling_mode(Settings& settings, std::string_view text) {
  using policy::SchedulingMode;
  for (const SchedulingMode mode : {SchedulingMode::kAuto, SchedulingMode::kWeighted, SchedulingMode::kSerial, SchedulingMode::kDynamic,
                                    SchedulingMode::kRoundRobin, SchedulingMode::kConcurrent}) {
    if (text != policy::name_of(mode)) continue;
    settings.policy.scheduling_mode = mode;
    return {};
  }
  return error_format("'%.*s' is not one of them", settings::shown(text), text.data());
}

// Plain milliseconds; auto: 0.
Result<void> take_milliseconds(std::string_view text, int64_t minimum, int64_t maximum, Duration* out) {
  *out = 0;
  if (text == "auto") return {};
  Result<int64_t> value = parse_integer(text, minimum, maximum);
  if (!value) return value.error();
  *out = *value * kMillisecond;
  return {};
}

Result<void> take_percent(std::string_view text, std::optional<int>* out) {
  out->reset();
  if (text == "auto") return {};
  Result<int64_t> value = parse_integer(text, 0, 100);
  if (!value) return value.error();
  *out = static_cast<int>(*value);
  return {};
}

Result<void> set_compute_window_ms(Settings& settings, std::string_view text) {
  return take_milliseconds(text, 10, 600'000, &settings.policy.compute_window);
}

Result<void> set_quota_sample_interval_ms(Settings& settings, std::string_view text) {
  return take_milliseconds(text, 1, 10'000, &settings.policy.quota_sample_interval);
}

Result<void> set_scheduling_slice_ms(Settings& settings, std::string_view text) {
  return take_milliseconds(text, 1, 60'000, &settings.policy.scheduling_slice);
}

Result<void> set_quota_carryover_percent(Settings& settings, std::string_view text) {
  return take_percent(text, &settings.policy.quota_carryover_percent);
}

Result<void> set_drop_tail_billing_percent(Settings& settings, std::string_view text) {
  return take_percent(text, &settings.policy.drop_tail_billing_percent);
}

Result<void> set_gpu_physical_memory_mb(Settings& settings, std::string_view text) {
  Result<int64_t> value = parse_integer(text, 64, 1 << 24);
  if (!value) return value.error();
  settings.gpu_physical_memory = *value << 20;
  return {};
}

Result<void> set_gpu_memory_oversub_ratio(Settings& settings, std::string_view text) {
  Result<double> value = parse_decimal(text, 0.1, 100);
  if (!value) return value.error();
  settings.gpu_memory_oversub_ratio = *value;
  return {};
}

Result<void> set_host_memory_budget(Settings& settings, std::string_view text) {
  Result<uint64_t> value = parse_bytes(text);
  if (!value) return value.error();
  settings.host_memory_budget = static_cast<int64_t>(*value);
  return {};
}

Result<void> set_host_memory_kept_free(Settings& settings, std::string_view text) {
  Result<uint64_t> value = parse_bytes(text);
  if (!value) return value.error();
  settings.host_memory_kept_free = static_cast<int64_t>(*value);
  return {};
}

Result<void> set_host_arena(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"auto", "process", "scheduler"}); !ok) return ok;
  settings.host_arena = text == "auto" ? HostArena::kAuto : text == "process" ? HostArena::kProcess : HostArena::kScheduler;
  return {};
}

Result<void> set_skip_unchanged(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"on", "off", "true", "false"}); !ok) return ok;
  settings.skip_unchanged = text == "on" || text == "true";
  return {};
}

Result<void> set_prefetch(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"on", "off", "true", "false"}); !ok) return ok;
  settings.policy.prefetch = text == "on" || text == "true";
  return {};
}

Result<void> set_sharing(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"together", "turns", "auto"}); !ok) return ok;
  settings.sharing = *sharing_of(text);
  return {};
}

Result<void> set_latency_target(Settings& settings, std::string_view text) {
  return take_duration(text, kMillisecond, 10 * kSecond, &settings.policy.latency_target);
}

Result<void> set_mps(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"on", "off", "true", "false"}); !ok) return ok;
  settings.mps = text == "on" || text == "true";
  return {};
}

Result<void> set_take_over_patience(Settings& settings, std::string_view text) {
  return take_duration(text, 0, kDay, &settings.take_over_patience);
}

Result<void> set_exit_when_idle(Settings& settings, std::string_view text) {
  Duration value = 0;
  if (auto ok = take_duration(text, 0, kDay, &value); !ok) return ok;
  settings.exit_when_idle = value;
  return {};
}

Result<void> set_restart_grace(Settings& settings, std::string_view text) {
  return take_duration(text, 0, 60 * kSecond, &settings.restart_grace);
}

Result<void> set_nvml_interval(Settings& settings, std::string_view text) {
  return take_duration(text, 10 * kMillisecond, 60 * kSecond, &settings.nvml_interval);
}

Result<void> set_nvml(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"on", "off", "true", "false"}); !ok) return ok;
  settings.nvml = text == "on" || text == "true";
  return {};
}

// An IP address and a port; "off": empty. Names are not taken: what they stand for may change, and looking them up may take long.
Result<void> take_address(std::string_view text, std::string* out) {
  out->clear();
  if (text == "off") return {};
  const size_t colon = text.rfind(':');
  const std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string ip(bracketed ? host.substr(1, host.size() - 2) : host);
  in6_addr ignored{};
  if (inet_pton(bracketed ? AF_INET6 : AF_INET, ip.c_str(), &ignored) != 1) {
    return error_format("'%.*s' is no IP address and port", settings::shown(text), text.data());
  }
  Result<int64_t> port = parse_integer(text.substr(colon + 1), 0, 65535);
  if (!port) return port.error();
  *out = text;
  return {};
}

Result<void> set_metrics_address(Settings& settings, std::string_view text) { return take_address(text, &settings.metrics_address); }
Result<void> set_page_address(Settings& settings, std::string_view text) { return take_address(text, &settings.page_address); }
Result<void> set_page_token_file(Settings& settings, std::string_view text) { return take_path(text, &settings.page_token_file); }

Result<void> set_metrics_tenants(Settings& settings, std::string_view text) {
  Result<int64_t> value = parse_integer(text, 0, 10'000);
  if (!value) return value.error();
  settings.metrics_tenants = static_cast<int>(*value);
  return {};
}

Result<void> take_count(std::string_view text, int64_t minimum, int64_t maximum, int64_t* out) {
  Result<int64_t> value = parse_integer(text, minimum, maximum);
  if (!value) return value.error();
  *out = *value;
  return {};
}

Result<void> set_bypass(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"report", "refuse-turns"}); !ok) return ok;
  settings.bypass = text == "report" ? Bypass::kReport : Bypass::kRefuseTurns;
  return {};
}

Result<void> set_connections_per_tenant(Settings& settings, std::string_view text) {
  return take_count(text, 1, 1'000'000, &settings.connections_per_tenant);
}
Result<void> set_connections_per_user(Settings& settings, std::string_view text) {
  return take_count(text, 1, 1'000'000, &settings.connections_per_user);
}
Result<void> set_gpus_per_user(Settings& settings, std::string_view text) { return take_count(text, 1, 1024, &settings.gpus_per_user); }

Result<void> set_runtime_dir(Settings& settings, std::string_view text) { return take_path(text, &settings.runtime_dir); }
Result<void> set_lock_dir(Settings& settings, std::string_view text) { return take_path(text, &settings.lock_dir); }

Result<void> set_log_level(Settings& settings, std::string_view text) {
  if (auto ok = take_choice(text, {"error", "warning", "info", "debug"}); !ok) return ok;
  settings.log_level = text;
  settings.policy.explains = text == "debug";
  return {};
}

Result<void> set_trace(Settings& settings, std::string_view text) {
  settings.trace_file = text;
  return {};
}

// What the settings must satisfy together.
Result<void> check_together(const Settings& settings) {
  if (settings.policy.switch_time_min > settings.policy.switch_time_max) {
    return error_format("%s is larger than %s", variable_of("switch_time_min").c_str(), variable_of("switch_time_max").c_str());
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
    if (auto ok = settings::apply(settings, *spec, text_of(node), name + ": " + spec->name); !ok) return ok;
  }
  return {};
}

}  // namespace

std::optional<Sharing> sharing_of(std::string_view text) {
  if (text == "together") return Sharing::kTogether;
  if (text == "turns") return Sharing::kTurns;
  if (text == "auto") return Sharing::kAuto;
  return std::nullopt;
}

const std::vector<SettingSpec>& setting_specs() {
  static const std::vector<SettingSpec> specs = {
      {"switch_time_mode", "auto or fixed", "how long a turn lasts while others wait", true, set_switch_time_mode},
      {"switch_time_fixed", "a duration from 1ms to 24h, plain numbers are seconds", "a turn's length in mode fixed (60)", true,
       set_switch_time_fixed},
      {"switch_time_multiplier", "an integer from 1 to 1000", "mode auto: a turn lasts the cost of its swap times this (5)", true,
       set_switch_time_multiplier},
      {"switch_time_min", "a duration from 1ms to 24h, plain numbers are seconds", "mode auto: at least so long (10)", true,
       set_switch_time_min},
      {"switch_time_max", "a duration from 1ms to 24h, plain numbers are seconds", "mode auto: at most so long (300)", true,
       set_switch_time_max},
      {"memory_reserve_percent", "an integer from 0 to 90", "GPU memory kept free, instead of the computed reserve", true,
       set_memory_reserve_percent},
      {"unanswered_grace", "a duration from 1ms to 24h, plain numbers are seconds",
       "a client that leaves a drop unanswered for so long no longer holds up neighbours that fit (30)", true, set_unanswered_grace},
      {"gang_turns", "on or off", "a tenant on several GPUs has its turns on all of them together (on)", true, set_gang_turns},
      {"scheduling_mode", "auto, weighted, serial, dynamic, round-robin or concurrent",
       "how tenants share a GPU on which one has a compute limit (auto: in turns those that saturate it, together those that leave gaps)",
       true, set_scheduling_mode},
      {"compute_window_ms", "auto, or milliseconds from 10 to 600000",
       "compute limits hold in each such window, what is not used in one is lost (auto: saved up and owed without borders)", true,
       set_compute_window_ms},
      {"quota_sample_interval_ms", "auto, or milliseconds from 1 to 10000", "how often compute limits are looked at (auto: when due)", true,
       set_quota_sample_interval_ms},
      {"quota_carryover_percent", "auto, or an integer from 0 to 100", "of the time used past a limit, how much is owed later (auto: all)",
       true, set_quota_carryover_percent},
      {"drop_tail_billing_percent", "auto, or an integer from 0 to 100",
       "of the time from a drop to its answer, how much is billed (auto: all but what a hand-over takes)", true,
       set_drop_tail_billing_percent},
      {"scheduling_slice_ms", "auto, or milliseconds from 1 to 60000", "beside compute limits, a turn's length (auto; round-robin: 100)",
       true, set_scheduling_slice_ms},
      {"gpu_physical_memory_mb", "MiB, an integer from 64 to 16777216", "treat each GPU as this large, at most as it is", false,
       set_gpu_physical_memory_mb},
      {"gpu_memory_oversub_ratio", "a number from 0.1 to 100",
       "what `nvsharectl run --reserve-memory` reserves on a GPU may be this many times its memory in sum (1.0)", true,
       set_gpu_memory_oversub_ratio},
      {"host_memory_budget", "an amount of memory such as 64Gi", "host memory for swapped GPU memory (80 % of what is free at start)", true,
       set_host_memory_budget},
      {"host_memory_kept_free", "an amount of memory such as 8Gi",
       "host memory that swapping leaves to others (20 % of what is free at start)", true, set_host_memory_kept_free},
      {"host_arena", "auto, process or scheduler",
       "whose memory swapped memory lies in: the program's where its cgroup has room, else the scheduler's (auto)", true, set_host_arena},
      {"skip_unchanged", "on or off",
       "memory of programs that start from now on leaves the GPU without a copy if it has not changed since it came in (off)", true,
       set_skip_unchanged},
      {"prefetch", "on or off", "while a program runs, the memory of the one that comes next moves in beside it, as far as it fits (off)",
       true, set_prefetch},
      {"sharing", "together, turns or auto",
       "how tenants share a GPU where memory fits and no compute limit applies: together, as the driver runs them, in turns of 100 ms, "
       "which saturating programs get more done in, or as measured, whichever gets more done (together)",
       true, set_sharing},
      {"latency_target", "a duration from 1ms to 10s, plain numbers are seconds",
       "where tenants take turns without moving memory, one that gives the GPU up by itself has waited for at most so long (50ms)", true,
       set_latency_target},
      {"mps", "on or off",
       "programs of `nvsharectl run` share the GPU under an MPS daemon of their user's, which the scheduler starts and looks after; a "
       "program "
       "that faults takes its user's others down (off)",
       false, set_mps},
      {"take_over_patience", "a duration from 0 to 24h, plain numbers are seconds",
       "wait so long for another scheduler that serves the same folder to end, instead of ending with an error (0)", false,
       set_take_over_patience},
      {"exit_when_idle", "a duration from 0 to 24h, plain numbers are seconds",
       "end when no client was there for so long (never; the flag alone: 60)", false, set_exit_when_idle, "60"},
      {"restart_grace", "a duration from 0 to 60s, plain numbers are seconds", "after a restart, wait so long for clients known before (2)",
       false, set_restart_grace},
      {"nvml_interval", "a duration from 10ms to 60s, plain numbers are seconds", "between two looks at the GPUs' memory (0.25)", false,
       set_nvml_interval},
      {"nvml", "on or off", "ask NVML about memory that others use (on)", false, set_nvml},
      {"metrics_address", "off, or an IP address and a port such as 127.0.0.1:9402 or [::]:9402 (port 0: any free one)",
       "serve metrics for Prometheus there, to anybody who can reach it (off)", false, set_metrics_address},
      {"metrics_tenants", "an integer from 0 to 10000", "so many tenants have metrics of their own, the others are summed up (200)", false,
       set_metrics_tenants},
      {"page_address", "off, or an IP address and a port such as 127.0.0.1:9402 (port 0: any free one)",
       "serve a page for browsers there that shows what `nvsharectl status` says; other addresses than the loopback's need page_token_file "
       "(off)",
       false, set_page_address},
      {"page_token_file", "an absolute path", "a file with the token that the page asks for, readable by its owner alone (none)", false,
       set_page_token_file},
      {"bypass", "report or refuse-turns",
       "a tenant with limits of which a process uses a GPU past the library is shown, or its programs' turns end and none begins meanwhile "
       "(report)",
       true, set_bypass},
      {"connections_per_tenant", "an integer from 1 to 1000000",
       "a container, pod or unit has at most so many connections: one for each process and GPU (4096)", false, set_connections_per_tenant},
      {"connections_per_user", "an integer from 1 to 1000000", "the same of a user outside containers; root is not bound (4096)", false,
       set_connections_per_user},
      {"gpus_per_user", "an integer from 1 to 1024", "without NVML, a tenant or user may name so many GPUs (64)", false, set_gpus_per_user},
      {"runtime_dir", "an absolute path", "where the sockets are (/run/nvshare)", false, set_runtime_dir},
      {"lock_dir", "an absolute path", "where GPUs are locked (root: /run/nvshare-locks; a user: /run/lock/nvshare-locks-UID)", false,
       set_lock_dir},
      {"log_level", "error, warning, info or debug", "what is logged (info)", true, set_log_level},
      {"trace", "a path", "append every policy event to this file", false, set_trace},
  };
  return specs;
}

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
    if (spec == nullptr) return error_format("'%.80s' is no setting", name.c_str());
    if (!spec->live) return error_format("%s needs a restart of the scheduler", name.c_str());
    if (auto ok = settings::apply(changed, *spec, text, name); !ok) return ok.error();
  }
  if (auto ok = check_together(changed); !ok) return ok.error();
  return changed;
}

}  // namespace nvshare::scheduler
