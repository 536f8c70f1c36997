// What the demo runs on and how large: derived from the GPU and the host. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nvshare::cli::demo {

struct Gpu {
  bool stand_in = false;
  std::string name;
  uint64_t total = 0;  // bytes
};

struct Plan {
  int jobs = 4;
  uint64_t gpu_bytes = 0;   // what the GPU counts as
  bool configured = false;  // less than it has: the scheduler is configured so
  uint64_t job_bytes = 0;   // 75 % of that
  uint64_t block_bytes = 0;
  uint64_t steps = 0;         // through all its memory
  uint64_t compute_us = 0;    // for each block
  double switch_time_s = 0;   // fixed length of a turn
  double paging_limit_s = 0;  // after which demand paging is cut off; 0: not run
};

// The stand-in's size and speed, for its environment: a 141 GB card on a link of 55 GB/s (bench/results has the measurements), made smaller
// by the same factor as its turns are shorter than a minute. Small enough that the CPU, which does the copying, is not what is measured.
inline constexpr uint64_t kStandInMemoryMb = 128;
inline constexpr uint64_t kStandInContextMb = 1;
inline constexpr uint64_t kStandInLinkMbps = 850;

// `host_available` bytes bound what a real GPU counts as: all jobs' memory must fit into the host's.
Plan make_plan(const Gpu& gpu, uint64_t host_available, int jobs);

// Arguments of nvshare-demo-job for job `index`; `memory` is "plain" or "managed".
std::vector<std::string> job_arguments(const Plan& plan, int index, const std::string& memory);

}  // namespace nvshare::cli::demo
