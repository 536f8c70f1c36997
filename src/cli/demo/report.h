// The demo's outcome: what must hold, the table, the JSON line. Pure, thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/demo/plan.h"
#include "cli/demo/runner.h"

namespace nvshare::cli::demo {

// What the demo promises.
inline constexpr double kRatioMax = 1.10;
inline constexpr double kSoloBusyMin = 0.90;
inline constexpr int kSwitchesMin = 12;

struct Outcome {
  Gpu gpu;
  Plan plan;
  std::vector<JobState> solo;
  PhaseResult shared;
  uint64_t switches = 0;
  std::optional<PhaseResult> paging;
  double load_average = 0;  // of the machine's last minute
  double processors = 0;    // of the machine; 0: not known

  double sequential_s() const;
  double ratio() const;  // makespan under nvshare / sequential_s; 0 when a phase did not run
  double solo_busy_min() const;
  bool all_correct() const;  // every job of the solo and the shared runs ended well, and the results are equal
};

// What does not hold, in sentences; empty: everything does.
std::vector<std::string> failures_of(const Outcome& outcome);

std::string draw_outcome(const Outcome& outcome);

// One line without its newline; begins with jobs, all_correct, makespan_s, sequential_s, ratio, switches.
std::string json_of(const Outcome& outcome);

}  // namespace nvshare::cli::demo
