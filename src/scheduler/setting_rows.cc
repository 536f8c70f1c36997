// The table of the scheduler's settings: a row each, from which the parser, --help, the reference page and what a trace has of the policy's
// configuration come.
#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iterator>

#include "base/parse.h"
#include "protocol/paths.h"
#include "scheduler/settings.h"

namespace nvshare::scheduler {
namespace {

using policy::Config;
using policy::Duration;

constexpr Duration kMillisecond = 1'000'000;
constexpr Duration kSecond = 1'000'000'000;
constexpr Duration kHour = 3'600 * kSecond;
constexpr Duration kDay = 24 * kHour;

constexpr std::pair<const char*, Sharing> kSharing[] = {
    {"together", Sharing::kTogether}, {"turns", Sharing::kTurns}, {"auto", Sharing::kAuto}};

// ---- how a setting's text is read: each returns what is accepted, for people, and a function that reads it into that member ----

struct Reader {
  std::string accepted;
  std::function<Result<void>(Settings& settings, std::string_view text)> apply;
  std::optional<Traced> traced = {};  // of a member of the policy's configuration
};

template <typename Value>
Value& place(Settings& settings, Value Settings::*member) {
  return settings.*member;
}

template <typename Value>
Value& place(Settings& settings, Value Config::*member) {
  return settings.policy.*member;
}

// Into a member that may be optional, or a narrower integer that holds all that is accepted.
template <typename Value>
void store(int64_t value, Value* out) {
  *out = static_cast<Value>(value);
}

template <typename Value>
void store(int64_t value, std::optional<Value>* out) {
  *out = static_cast<Value>(value);
}

// ---- what a trace has of a member of the policy's configuration ----

TraceValue traced_value(bool value) { return value; }
TraceValue traced_value(int64_t value) { return value; }

template <typename Value>
TraceValue traced_value(const std::optional<Value>& value) {
  return value ? TraceValue(int64_t{*value}) : TraceValue();
}

bool take_traced(const TraceValue& traced, bool* out) {
  const bool* value = std::get_if<bool>(&traced);
  if (value != nullptr) *out = *value;
  return value != nullptr;
}

template <typename Value>
bool take_traced(const TraceValue& traced, Value* out) {
  const int64_t* value = std::get_if<int64_t>(&traced);
  if (value != nullptr) store(*value, out);
  return value != nullptr;
}

template <typename Value>
bool take_traced(const TraceValue& traced, std::optional<Value>* out) {
  const int64_t* value = std::get_if<int64_t>(&traced);
  if (value != nullptr) {
    store(*value, out);
  } else {
    out->reset();
  }
  return value != nullptr || std::holds_alternative<std::monostate>(traced);
}

template <typename Value>
std::optional<Traced> traced(Value Config::*member) {
  return Traced{[=](const Config& config) { return traced_value(config.*member); },
                [=](Config& config, const TraceValue& value) { return take_traced(value, &(config.*member)); }};
}

template <typename Value>
std::optional<Traced> traced(Value Settings::*) {
  return std::nullopt;
}

Result<void> take_integer(std::string_view text, int64_t minimum, int64_t maximum, auto* out) {
  Result<int64_t> value = parse_integer(text, minimum, maximum);
  if (!value) return value.error();
  store(*value, out);
  return {};
}

std::string from_to(int64_t minimum, int64_t maximum) { return " from " + std::to_string(minimum) + " to " + std::to_string(maximum); }

std::string written(Duration duration) {
  if (duration == 0) return "0";
  if (duration % kHour == 0) return std::to_string(duration / kHour) + "h";
  if (duration % kSecond == 0) return std::to_string(duration / kSecond) + "s";
  return std::to_string(duration / kMillisecond) + "ms";
}

// "a, b or c".
std::string listed(const std::vector<std::string>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) text += (i == 0 ? "" : i + 1 < choices.size() ? ", " : " or ") + choices[i];
  return text;
}

Reader duration(Duration minimum, Duration maximum, auto member) {
  return {"a duration from " + written(minimum) + " to " + written(maximum) + ", plain numbers are seconds",
          [=](Settings& settings, std::string_view text) -> Result<void> {
            Duration value = 0;
            if (auto ok = settings::take_duration(text, minimum, maximum, &value); !ok) return ok;
            store(value, &place(settings, member));
            return {};
          },
          traced(member)};
}

Reader integer(int64_t minimum, int64_t maximum, auto member) {
  return {"an integer" + from_to(minimum, maximum),
          [=](Settings& settings, std::string_view text) { return take_integer(text, minimum, maximum, &place(settings, member)); },
          traced(member)};
}

// `unit`: what one of them is in the member.
Reader auto_or(const char* what, int64_t minimum, int64_t maximum, int64_t unit, auto member) {
  return {std::string("auto, or ") + what + from_to(minimum, maximum),
          [=](Settings& settings, std::string_view text) -> Result<void> {
            auto& out = place(settings, member);
            out = {};
            if (text == "auto") return {};
            int64_t value = 0;
            if (auto ok = take_integer(text, minimum, maximum, &value); !ok) return ok;
            store(value * unit, &out);
            return {};
          },
          traced(member)};
}

Reader milliseconds(int64_t minimum, int64_t maximum, auto member) {
  return auto_or("milliseconds", minimum, maximum, kMillisecond, member);
}

Reader percent(auto member) { return auto_or("an integer", 0, 100, 1, member); }

Reader mebibytes(int64_t minimum, int64_t maximum, auto member) {
  return {"MiB, an integer" + from_to(minimum, maximum),
          [=](Settings& settings, std::string_view text) -> Result<void> {
            int64_t value = 0;
            if (auto ok = take_integer(text, minimum, maximum, &value); !ok) return ok;
            store(value << 20, &place(settings, member));
            return {};
          },
          traced(member)};
}

Reader bytes(const char* example, auto member) {
  return {std::string("an amount of memory such as ") + example + ", from 1Mi on, or 0",
          [=](Settings& settings, std::string_view text) -> Result<void> {
            Result<uint64_t> value = parse_bytes(text);
            if (!value) return value.error();
            if (*value > 0 && *value < 1U << 20)  // a number whose unit was forgotten
              return error_format("'%.*s' is less than 1 MiB", static_cast<int>(std::min<size_t>(text.size(), 60)), text.data());
            store(static_cast<int64_t>(*value), &place(settings, member));
            return {};
          },
          traced(member)};
}

template <typename Value>
using Choices = std::vector<std::pair<std::string_view, Value>>;

// Null: it is none of them.
template <typename Value>
const Value* chosen(const Choices<Value>& choices, std::string_view text) {
  const auto at = std::find_if(choices.begin(), choices.end(), [&](const auto& choice) { return choice.first == text; });
  return at == choices.end() ? nullptr : &at->second;
}

// A trace has the choice by its name.
template <typename Value>
std::optional<Traced> traced(const Choices<Value>& choices, Value Config::*member) {
  return Traced{[=](const Config& config) -> TraceValue {
                  for (const auto& [name, value] : choices) {
                    if (config.*member == value) return std::string(name);
                  }
                  return {};
                },
                [=](Config& config, const TraceValue& traced) {
                  const std::string* text = std::get_if<std::string>(&traced);
                  const Value* value = text != nullptr ? chosen(choices, *text) : nullptr;
                  if (value != nullptr) config.*member = *value;
                  return value != nullptr;
                }};
}

template <typename Value>
std::optional<Traced> traced(const Choices<Value>&, Value Settings::*) {
  return std::nullopt;
}

template <typename Value>
Reader choice(const Choices<Value>& choices, auto member) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) names.emplace_back(name);
  return {listed(names),
          [=](Settings& settings, std::string_view text) -> Result<void> {
            const Value* value = chosen(choices, text);
            if (value == nullptr) return error_format("'%.*s' is not one of them", settings::shown(text), text.data());
            place(settings, member) = *value;
            return {};
          },
          traced(choices, member)};
}

Reader on_or_off(auto member) {
  return {"on or off",
          [=](Settings& settings, std::string_view text) -> Result<void> {
            if (auto ok = settings::take_choice(text, {"on", "off", "true", "false"}); !ok) return ok;
            place(settings, member) = text == "on" || text == "true";
            return {};
          },
          traced(member)};
}

Reader absolute_path(std::string Settings::*member) {
  return {"an absolute path", [=](Settings& settings, std::string_view text) { return settings::take_path(text, &(settings.*member)); }};
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

Reader address(const char* examples, std::string Settings::*member) {
  return {std::string("off, or an IP address and a port such as ") + examples,
          [=](Settings& settings, std::string_view text) { return take_address(text, &(settings.*member)); }};
}

Reader ratio(double minimum, double maximum, double Settings::*member) {
  char accepted[64];
  snprintf(accepted, sizeof accepted, "a number from %g to %g", minimum, maximum);
  return {accepted, [=](Settings& settings, std::string_view text) -> Result<void> {
            Result<double> value = parse_decimal(text, minimum, maximum);
            if (!value) return value.error();
            settings.*member = *value;
            return {};
          }};
}

Reader scheduling_mode() {
  Choices<policy::SchedulingMode> modes;
  for (const policy::SchedulingMode& mode : policy::kSchedulingModes) modes.emplace_back(mode.name, mode);
  return choice(modes, &Config::scheduling_mode);
}

// "beside compute limits, a turn's length (auto; round-robin: 100)".
std::string help_of_slice() {
  std::string text = "beside compute limits, a turn's length (auto";
  for (const policy::SchedulingMode& mode : policy::kSchedulingModes) {
    if (mode.slice_ms > 0) text += "; " + std::string(mode.name) + ": " + std::to_string(mode.slice_ms);
  }
  return text + ")";
}

Reader log_level() {
  return {"error, warning, info or debug", [](Settings& settings, std::string_view text) -> Result<void> {
            if (auto ok = settings::take_choice(text, {"error", "warning", "info", "debug"}); !ok) return ok;
            settings.log_level = text;
            settings.policy.explains = text == "debug";
            return {};
          }};
}

// Where there are sockets, whose names a kernel takes up to a length.
Reader socket_folder(std::string Settings::*member) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - sizeof protocol::kClientSocket;
  static_assert(kMost == 85);
  return {"an absolute path of at most 85 bytes", [=](Settings& settings, std::string_view text) -> Result<void> {
            if (text.size() > kMost) return error_format("'%.*s...' is too long", 40, text.data());
            return settings::take_path(text, &(settings.*member));
          }};
}

Reader any_path(std::string Settings::*member) {
  return {"a path", [=](Settings& settings, std::string_view text) -> Result<void> {
            settings.*member = text;
            return {};
          }};
}

// ---- the table ----

constexpr bool kLive = true;  // may be changed by an admin request
constexpr bool kAtStart = false;

struct Row {
  const char* name;
  Reader reader;
  bool live;
  std::string help;
  const char* flag_alone = nullptr;
};

// Turns, and compute limits.
std::vector<Row> rows_of_turns() {
  using policy::SwitchTimeMode;
  return {
      {"switch_time_mode",
       choice<SwitchTimeMode>({{"auto", SwitchTimeMode::kAuto}, {"fixed", SwitchTimeMode::kFixed}}, &Config::switch_time_mode), kLive,
       "how long a turn lasts while others wait"},
      {"switch_time_fixed", duration(kMillisecond, kDay, &Config::switch_time_fixed), kLive, "a turn's length in mode fixed (60)"},
      {"switch_time_multiplier", integer(1, 1000, &Config::switch_time_multiplier), kLive,
       "mode auto: a turn lasts the cost of its swap times this (5)"},
      {"switch_time_min", duration(kMillisecond, kDay, &Config::switch_time_min), kLive, "mode auto: at least so long (10)"},
      {"switch_time_max", duration(kMillisecond, kDay, &Config::switch_time_max), kLive, "mode auto: at most so long (300)"},
      {"memory_reserve_percent", integer(0, 90, &Config::memory_reserve_percent), kLive,
       "GPU memory kept free, instead of the computed reserve"},
      {"unanswered_grace", duration(kMillisecond, kDay, &Config::unanswered_grace), kLive,
       "a client that leaves a drop unanswered for so long no longer holds up neighbours that fit (30)"},
      {"gang_turns", on_or_off(&Config::gang_turns), kLive, "a tenant on several GPUs has its turns on all of them together (on)"},
      {"scheduling_mode", scheduling_mode(), kLive,
       "how tenants share a GPU on which one has a compute limit (" + std::string(policy::kSchedulingModes[0].name) + ": " +
           std::string(policy::kSchedulingModes[0].summary) + ")"},
      {"compute_window_ms", milliseconds(10, 600'000, &Config::compute_window), kLive,
       "compute limits hold in each such window, what is not used in one is lost (auto: saved up and owed without borders)"},
      {"quota_sample_interval_ms", milliseconds(1, 10'000, &Config::quota_sample_interval), kLive,
       "how often compute limits are looked at (auto: when due)"},
      {"quota_carryover_percent", percent(&Config::quota_carryover_percent), kLive,
       "of the time used past a limit, how much is owed later (auto: all)"},
      {"drop_tail_billing_percent", percent(&Config::drop_tail_billing_percent), kLive,
       "of the time from a drop to its answer, how much is billed (auto: all but what a hand-over takes)"},
      {"scheduling_slice_ms", milliseconds(1, 60'000, &Config::scheduling_slice), kLive, help_of_slice()},
  };
}

// Memory, and how programs share a GPU where it fits.
std::vector<Row> rows_of_memory() {
  return {
      {"gpu_physical_memory_mb", mebibytes(64, 1 << 24, &Settings::gpu_physical_memory), kAtStart,
       "treat each GPU as this large, at most as it is"},
      {"gpu_memory_oversub_ratio", ratio(0.1, 100, &Settings::gpu_memory_oversub_ratio), kLive,
       "what `nvsharectl run --reserve-memory` reserves on a GPU may be this many times its memory in sum (1.0)"},
      {"host_memory_budget", bytes("64Gi", &Settings::host_memory_budget), kLive,
       "host memory for swapped GPU memory (80 % of what is free at start)"},
      {"host_memory_kept_free", bytes("8Gi", &Settings::host_memory_kept_free), kLive,
       "host memory that swapping leaves to others (20 % of what is free at start)"},
      {"host_arena",
       choice<HostArena>({{"auto", HostArena::kAuto}, {"process", HostArena::kProcess}, {"scheduler", HostArena::kScheduler}},
                         &Settings::host_arena),
       kLive, "whose memory swapped memory lies in: the program's where its cgroup has room, else the scheduler's (auto)"},
      {"skip_unchanged", on_or_off(&Settings::skip_unchanged), kLive,
       "memory of programs that start from now on leaves the GPU without a copy if it has not changed since it came in (off)"},
      {"prefetch", on_or_off(&Config::prefetch), kLive,
       "while a program runs, the memory of the one that comes next moves in beside it, as far as it fits (off)"},
      {"sharing", choice<Sharing>({std::begin(kSharing), std::end(kSharing)}, &Settings::sharing), kLive,
       "how tenants share a GPU where memory fits and no compute limit applies: together, as the driver runs them, in turns of 100 ms, "
       "which saturating programs get more done in, or whichever of the two gets more done, as measured (auto)"},
      {"latency_target", duration(kMillisecond, 10 * kSecond, &Config::latency_target), kLive,
       "where tenants take turns without moving memory, one that gives the GPU up by itself has waited for at most so long (50ms)"},
      {"mps", on_or_off(&Settings::mps), kAtStart,
       "programs of `nvsharectl run` share the GPU under an MPS daemon of their user's, which the scheduler starts and looks after; a "
       "program that faults takes its user's others down (off)"},
  };
}

// The daemon: when it starts and ends, what it looks at, what it shows, where things are.
std::vector<Row> rows_of_daemon() {
  return {
      {"take_over_patience", duration(0, kDay, &Settings::take_over_patience), kAtStart,
       "wait so long for another scheduler that serves the same folder to end, instead of ending with an error (0)"},
      {"exit_when_idle", duration(0, kDay, &Settings::exit_when_idle), kAtStart,
       "end when no client was there for so long (never; the flag alone: 60)", "60"},
      {"restart_grace", duration(0, 60 * kSecond, &Settings::restart_grace), kAtStart,
       "after a restart, wait so long for clients known before (2)"},
      {"nvml_interval", duration(10 * kMillisecond, 60 * kSecond, &Settings::nvml_interval), kAtStart,
       "between two looks at the GPUs' memory (0.25)"},
      {"real_time", on_or_off(&Settings::real_time), kAtStart,
       "while there are viewers, the thread that grants is a real-time one (SCHED_RR, 1) where the scheduler may have that (on)"},
      {"nvml", on_or_off(&Settings::nvml), kAtStart, "ask NVML about memory that others use (on)"},
      {"metrics_address", address("127.0.0.1:9402 or [::]:9402 (port 0: any free one)", &Settings::metrics_address), kAtStart,
       "serve metrics for Prometheus there, to anybody who can reach it (off)"},
      {"metrics_tenants", integer(0, 10'000, &Settings::metrics_tenants), kAtStart,
       "so many tenants have metrics of their own, the others are summed up (200)"},
      {"page_address", address("127.0.0.1:9402 (port 0: any free one)", &Settings::page_address), kAtStart,
       "serve a page for browsers there that shows what `nvsharectl status` says; other addresses than the loopback's need page_token_file "
       "(off)"},
      {"page_token_file", absolute_path(&Settings::page_token_file), kAtStart,
       "a file with the token that the page asks for, readable by its owner alone (none)"},
      {"bypass", choice<Bypass>({{"report", Bypass::kReport}, {"refuse-turns", Bypass::kRefuseTurns}}, &Settings::bypass), kLive,
       "a tenant with limits of which a process uses a GPU past the library is shown, or its programs' turns end and none begins meanwhile "
       "(report)"},
      {"connections_per_tenant", integer(1, 1'000'000, &Settings::connections_per_tenant), kAtStart,
       "a container, pod or unit has at most so many connections: one for each process and GPU (4096)"},
      {"connections_per_user", integer(1, 1'000'000, &Settings::connections_per_user), kAtStart,
       "the same of a user outside containers; root is not bound (4096)"},
      {"gpus_per_user", integer(1, 1024, &Settings::gpus_per_user), kAtStart, "without NVML, a tenant or user may name so many GPUs (64)"},
      {"runtime_dir", socket_folder(&Settings::runtime_dir), kAtStart, "where the sockets are (/run/nvshare)"},
      {"lock_dir", absolute_path(&Settings::lock_dir), kAtStart,
       "where GPUs are locked (root: /run/nvshare-locks; a user: /run/lock/nvshare-locks-UID)"},
      {"log_level", log_level(), kLive, "what is logged (info)"},
      {"trace", any_path(&Settings::trace_file), kAtStart, "append every policy event, and what was decided, to this file"},
  };
}

}  // namespace

std::optional<Sharing> sharing_of(std::string_view text) {
  for (const auto& [name, value] : kSharing) {
    if (text == name) return value;
  }
  return std::nullopt;
}

const std::vector<SettingSpec>& setting_specs() {
  static const std::vector<SettingSpec> specs = [] {
    std::vector<SettingSpec> all;
    for (const auto& rows : {rows_of_turns(), rows_of_memory(), rows_of_daemon()}) {
      for (const Row& row : rows) {
        all.push_back({row.name, row.reader.accepted, row.help, row.live, row.reader.apply, row.flag_alone, row.reader.traced});
      }
    }
    return all;
  }();
  return specs;
}

}  // namespace nvshare::scheduler
