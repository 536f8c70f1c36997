// A cluster under a day's jobs: placement by what Offers allow, jobs that wait in the order of arrival and pass each other where one
// fits and an earlier one does not. Deterministic; one thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fleet/jobs.h"
#include "fleet/offers.h"
#include "fleet/shared_gpu.h"

namespace nvshare::fleet {

enum class Way { kExclusive, kFractions, kNvshare };
const char* name_of(Way way);

struct Plan {
  Way way = Way::kNvshare;
  int nodes = 1000;
  int gpus_per_node = 8;
  double oversubscription = 2;      // of nvshare
  Nanoseconds warm_up = 6 * kHour;  // before what is counted begins
  Nanoseconds counted = 24 * kHour;
  SharedGpu::Machine machine;
  bool checks = false;  // looks at all sums after each change
};

struct Figures {
  uint64_t arrived = 0, started = 0, ended = 0, waiting_at_end = 0, running_at_end = 0;
  std::vector<double> waits;   // seconds; of a job that waits at the end, until then
  std::vector<double> delays;  // seconds that a burst of work took beyond those that it takes alone
};

struct Outcome {
  std::map<Kind, Figures> kinds;
  double gpu_seconds = 0;  // that there were
  double busy_seconds = 0;
  double taken_seconds = 0;  // of GPUs with at least one job
  SharedGpu::Sums policy;    // summed over GPUs; host_peak: of a GPU
  uint64_t shared_gpus = 0;
  std::string broken;
};

Outcome run_fleet(const Plan& plan, const std::vector<Job>& jobs);

}  // namespace nvshare::fleet
