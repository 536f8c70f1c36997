// Runs the demo's jobs: starts them, follows their reports, ends them at a limit. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/environment.h"

namespace nvshare::cli::demo {

struct JobSpec {
  std::vector<std::string> argv;
  Environment environment;
};

struct JobState {
  int pid = 0;
  double done = 0;  // 0 .. 1
  bool ended = false;
  int exit_code = -1;    // as a shell tells it
  double wall_s = 0;     // from its start to its end, or to now
  std::string checksum;  // empty until it ended well
  double busy_s = 0;     // the GPU's time for it, as it measured itself
  std::string gpu_name;  // as it reported the GPU
  uint64_t gpu_bytes = 0;
  std::string last_words;  // the last line that was no report: what went wrong

  bool succeeded() const { return ended && exit_code == 0 && !checksum.empty(); }
};

struct PhaseResult {
  std::vector<JobState> jobs;
  double wall_s = 0;         // from the first start to the last end
  bool cut_off = false;      // the limit was reached and the rest killed
  bool interrupted = false;  // INT, TERM or HUP came; the jobs were killed
};

// Called about five times a second and at the end.
using Observer = std::function<void(const std::vector<JobState>& jobs, double elapsed_s)>;

// Starts all at once and waits for all. limit_s = 0: no limit.
Result<PhaseResult> run_jobs(const std::vector<JobSpec>& specs, double limit_s, const Observer& observer);

// Takes one line that a job printed into its state.
void take_report(const std::string& line, JobState& state);

}  // namespace nvshare::cli::demo
