#include "cli/demo/plan.h"

#include <algorithm>

namespace nvshare::cli::demo {
namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kGiB = 1ull << 30;
constexpr uint64_t kBlocks = 24;

}  // namespace

Plan make_plan(const Gpu& gpu, uint64_t host_available, int jobs) {
  Plan plan;
  plan.jobs = jobs;
  if (gpu.stand_in) {
    plan.gpu_bytes = gpu.total;
    plan.paging_limit_s = 60;
  } else {
    // All jobs together hold 0.75 * jobs of this, and all of it may be in host memory at once; beyond 12 GiB the demo only takes longer.
    const auto by_host = static_cast<uint64_t>(static_cast<double>(host_available) * 0.7 / (0.75 * jobs));
    plan.gpu_bytes = std::min({gpu.total, by_host, 12 * kGiB}) / kMiB * kMiB;
    plan.configured = plan.gpu_bytes < gpu.total;
  }
  plan.job_bytes = plan.gpu_bytes / 4 * 3 / (kBlocks * kMiB) * (kBlocks * kMiB);
  plan.block_bytes = plan.job_bytes / kBlocks;
  // 0.4 s of computing for one way through the memory; in all more than three turns, so at least four. A real GPU moves 9 GiB at each
  // switch, which longer turns have to pay for.
  plan.steps = gpu.stand_in ? 30 : 44;
  plan.compute_us = 384'000 / kBlocks;
  plan.switch_time_s = gpu.stand_in ? 3.5 : 5.5;
  return plan;
}

std::vector<std::string> job_arguments(const Plan& plan, int index, const std::string& memory) {
  return {"--bytes",      std::to_string(plan.job_bytes),
          "--block",      std::to_string(plan.block_bytes),
          "--steps",      std::to_string(plan.steps),
          "--compute-us", std::to_string(plan.compute_us),
          "--memory",     memory,
          "--seed",       std::to_string(index + 1)};
}

}  // namespace nvshare::cli::demo
