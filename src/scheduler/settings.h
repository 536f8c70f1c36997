// The scheduler's settings and where they come from: command line, then environment, then file (TOML), then default. Every setting has
// one name in scheduler.toml (switch_time_mode), one variable (NVSHARE_SWITCH_TIME_MODE) and one flag (--switch-time-mode); one table in
// setting_rows.cc declares them. A wrong value is refused with the name under which it was given and what is accepted.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/settings_table.h"
#include "policy/policy.h"
#include "scheduler/bounds.h"

namespace nvshare::scheduler {

inline constexpr char kSettingsFile[] = "/etc/nvshare/scheduler.toml";

// Whose memory swapped memory lies in: the program's own where its cgroup has room for it (kAuto), or always the one or the other's.
enum class HostArena { kAuto, kProcess, kScheduler };

// What happens to a tenant with limits of which a process uses a GPU past the library: it is shown, or its programs get no turns either.
enum class Bypass { kReport, kRefuseTurns };

// How programs share a GPU where memory fits and no compute limit applies: as the driver runs them, a slice each, or
// whichever gets more done, as measured.
enum class Sharing { kTogether, kTurns, kAuto };
std::optional<Sharing> sharing_of(std::string_view text);  // as settings write it

struct Settings {
  policy::Config policy;
  std::string runtime_dir = "/run/nvshare";
  std::string lock_dir;  // empty: as gpu_lock.h says
  std::string log_level = "info";
  std::string trace_file;                        // empty: none
  std::optional<int64_t> gpu_physical_memory;    // bytes; each GPU is treated as this large, at most as it is
  std::optional<int64_t> host_memory_kept_free;  // bytes that swapping leaves to others; unset: a fifth of what was available at start
  std::optional<int64_t> host_memory_budget;     // bytes lent for swapping, node-wide; unset: 80 % of what was available at start
  double gpu_memory_oversub_ratio = 1.0;         // what runs reserved on a GPU, in sum, over its memory
  HostArena host_arena = HostArena::kAuto;
  bool skip_unchanged = false;  // what did not change since it came in leaves without a copy
  Sharing sharing = Sharing::kAuto;
  bool mps = false;                                // one MPS daemon for each user whose programs ask for it
  policy::Duration take_over_patience = 0;         // so long another scheduler that serves the same folder may take to end
  std::optional<policy::Duration> exit_when_idle;  // ends when no client was there for so long
  policy::Duration restart_grace = 2'000'000'000;  // how long known clients are waited for after a restart
  policy::Duration nvml_interval = 250'000'000;    // between two looks at the GPUs' memory
  bool nvml = true;
  bool real_time = true;        // while there are viewers, the thread that grants goes before ordinary ones, where the kernel lets it
  std::string metrics_address;  // "127.0.0.1:9402"; empty: none are served
  int metrics_tenants = 200;    // that have series of their own
  std::string page_address;     // "127.0.0.1:9402"; empty: there is no page. Beyond the loopback only with a token
  std::string page_token_file;  // empty: the page asks for no token
  Bypass bypass = Bypass::kReport;
  int64_t connections_per_tenant = bounds::kConnectionsPerTenant;
  int64_t connections_per_user = bounds::kConnectionsPerUser;
  policy::Duration register_within = bounds::kRegisterWithinMs * 1'000'000;  // for tests
  int64_t gpus_per_user = bounds::kGpusPerUser;                              // where NVML does not run
};

using settings::Texts;

// A member of the policy's configuration as traces have it, durations in nanoseconds: none, a number, or a choice's name.
using TraceValue = std::variant<std::monostate, bool, int64_t, std::string>;
struct Traced {
  std::function<TraceValue(const policy::Config& config)> get;
  std::function<bool(policy::Config& config, const TraceValue& value)> set;  // false: it cannot be that
};

// One row of the table (base/settings_table.h).
struct SettingSpec {
  const char* name;
  std::string accepted;  // for people
  std::string help;
  bool live;  // may be changed by an admin request
  std::function<Result<void>(Settings& settings, std::string_view text)> apply;
  const char* flag_alone = nullptr;   // the value of a flag that is given without one; null: not allowed
  std::optional<Traced> traced = {};  // of a setting of the policy's, else none
};

const std::vector<SettingSpec>& setting_specs();

// "switch_time_mode" -> "NVSHARE_SWITCH_TIME_MODE" and "--switch-time-mode".
using settings::flag_of;
using settings::variable_of;

// From the lowest to the highest: the file's text, the environment, the command line.
Result<Settings> load_settings(std::string_view file_name, std::string_view file_text, const settings::Lookup& environment,
                               const Texts& command_line);

// Applies an admin request to a copy: either all of it or an error. Refuses settings that need a restart.
Result<Settings> change_settings(const Settings& settings, const Texts& changes);

}  // namespace nvshare::scheduler
