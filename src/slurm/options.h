// What a job asks for (--nvshare=..., SLURM_NVSHARE...), what the site allows (nvshare.conf), and what follows from both. Pure functions on
// text, thread-safe; errors name the thing and what is accepted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "protocol/paths.h"

namespace nvshare::slurm {

// Of --nvshare=memory=20G,cores=30,priority=5. Each may be missing.
struct Request {
  std::optional<int64_t> memory;  // bytes of GPU memory, on each GPU
  std::optional<int> cores;       // percent of each GPU's time
  std::optional<int> priority;
};

inline constexpr int kSuspendTimeMax = 600;

// nvshare.conf: NAME = VALUE, one a line; '#' begins a comment.
struct Site {
  std::string runtime_dir = protocol::kRuntimeDirectoryDefault;
  std::string library = "/usr/lib/nvshare/libnvshare.so";
  bool all_jobs = false;  // jobs = all: also those that do not ask
  Request defaults;
  int64_t max_memory = 0;  // 0 = none
  int max_cores = 100;
  int max_priority = 0;
  int shards_per_gpu = 0;        // 0: shards say nothing
  int64_t memory_per_shard = 0;  // 0: its part of the GPU's memory
  int suspend_time = 30;         // seconds that a suspended step may run on until its memory is out
  bool comment = false;          // at a job's end its GPU time goes into its AdminComment
};

// What holds for a job on this node.
struct Grant {
  int64_t memory = 0;      // bytes, 0 = none
  int memory_percent = 0;  // of the GPU, besides; 0 = none
  int cores = 100;         // a ceiling; 100 = none
  bool by_shards = false;  // shards grant the cores: they are a reservation as well
  int priority = 0;
};

// The argument of --nvshare, and of the variable SLURM_NVSHARE; empty asks for what the site gives by default.
Result<Request> parse_request(std::string_view text);

// `request` with what the variables SLURM_NVSHARE_MEMORY, _CORES and _PRIORITY say where it says nothing.
using Lookup = std::function<std::optional<std::string>(const char* variable)>;
Result<Request> with_environment(Request request, const Lookup& environment);

// Whether one of the variables is there: then a job asks for nvshare without the option.
bool asks_by_environment(const Lookup& environment);

// At submission: what lies above the site's maxima is refused. On the node the lower one holds.
Result<void> check(const Site& site, const Request& request);
Grant decide(const Site& site, const Request& request, int shards);

Result<Site> parse_site(std::string_view text);
// No file: the defaults.
Result<Site> read_site(const std::string& file);

}  // namespace nvshare::slurm
