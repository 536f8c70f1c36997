// nvsharectl run: one program under nvshare.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nvshare::cli {

struct RunOptions {
  std::string gpu_memory_limit;            // text as parse_bytes takes it; empty = none
  std::string reserve_memory;              // the same: of each GPU, for this program alone; it is a limit as well
  int gpu_core_limit = 100;                // percent of each GPU's time, which are reserved too; 100 = none
  int gpu_core_ceiling = 100;              // the same, with nothing reserved
  int priority = 0;                        // protocol::admin::kPriorityMin .. kPriorityMax
  std::optional<std::string> trust_group;  // as protocol/trust_group.h takes it; none: what the variable says
  std::string gpu;                         // "all", or a list of indices and UUIDs; empty = choose
  std::string name;                        // of the tenant; empty = the program's
  bool gang_turns = true;                  // on several GPUs: turns on all of them together
  std::string trace;                       // file for a picture of what the scheduler did meanwhile; empty = none
  bool wait = false;                       // begin when no program uses the GPU
  std::vector<std::string> after;          // names or ids of tenants that have to have ended before
  std::string timeout;                     // of that wait; text as parse_duration_ns takes it; empty = none
  bool quiet = false;                      // no start line
  std::vector<std::string> program;        // with its arguments, not empty
};

// Exit codes of our own, as env(1) and timeout(1) use them; everything else is the program's.
inline constexpr int kExitTimedOut = 124;
inline constexpr int kExitUsage = 125;
inline constexpr int kExitCannotRun = 126;
inline constexpr int kExitNotFound = 127;

// What such a run does without, where the scheduler does not answer this user.
std::string left_out(const RunOptions& options);

// Runs to the program's end and returns the exit code for nvsharectl.
int run_command(const RunOptions& options);

}  // namespace nvshare::cli
