#include "cli/demo/stage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "cli/demo/runner.h"
#include "cli/process.h"
#include "protocol/paths.h"

namespace nvshare::cli::demo {
namespace {

namespace fs = std::filesystem;

constexpr auto kStartPatience = std::chrono::seconds(10);
constexpr double kProbeLimitS = 60;
constexpr char kLibraryPath[] = "LD_LIBRARY_PATH";

// What of the caller's environment would change the demo.
bool is_ours(const std::string& name) { return name.rfind("NVSHARE_", 0) == 0 || name.rfind("SIMGPU_", 0) == 0 || name == "LD_PRELOAD"; }

// The GPU's own words, by the job program: nvsharectl loads no CUDA.
Result<Gpu> probe(const std::string& job_program, const Environment& environment) {
  const std::vector<JobSpec> specs = {{{job_program, "--probe", "yes"}, environment}};
  auto result = run_jobs(specs, kProbeLimitS, [](const std::vector<JobState>&, double) {});
  if (!result) return result.error();
  const JobState& job = result->jobs.front();
  if (job.exit_code != 0 || job.gpu_bytes == 0) {
    return error_format("%s --probe: %s", job_program.c_str(), job.last_words.empty() ? "no answer" : job.last_words.c_str());
  }
  Gpu gpu;
  gpu.name = job.gpu_name;
  gpu.total = job.gpu_bytes;
  return gpu;
}

}  // namespace

Stage::Stage(Stage&& other) noexcept
    : directory_(std::move(other.directory_)),
      stand_in_state_(std::move(other.stand_in_state_)),
      job_program_(std::move(other.job_program_)),
      environment_(std::move(other.environment_)),
      gpu_(std::move(other.gpu_)) {
  other.directory_.clear();
  other.stand_in_state_.clear();
}

Stage::~Stage() {
  std::error_code ignored;
  if (!directory_.empty()) fs::remove_all(directory_, ignored);
  if (!stand_in_state_.empty()) fs::remove(stand_in_state_, ignored);
}

Result<Stage> Stage::open(const Installation& installation, bool stand_in) {
  Stage stage;
  auto job = installation.program("nvshare-demo-job");
  if (!job) return job.error();
  stage.job_program_ = *job;
  char directory[] = "/tmp/nvshare-demo-XXXXXX";
  if (mkdtemp(directory) == nullptr) return error_format("cannot make a directory in /tmp: %s", strerror(errno));
  stage.directory_ = directory;
  stage.environment_ = current_environment();
  std::erase_if(stage.environment_, [](const auto& entry) { return is_ours(entry.first); });
  if (auto ok = stage.choose_gpu(installation, stand_in); !ok) return ok.error();
  return stage;
}

Result<void> Stage::choose_gpu(const Installation& installation, bool stand_in) {
  if (!stand_in && access("/proc/driver/nvidia/version", F_OK) == 0) {
    auto gpu = probe(job_program_, environment_);
    if (!gpu)
      return error_format("there is an NVIDIA driver, but its GPU cannot be used (%.120s); --stand-in runs without it", gpu.error().text);
    gpu_ = *gpu;
    return {};
  }
  std::string libraries;
  for (const std::string& place : {installation.root + "/simgpu", installation.root + "/lib/nvshare/simgpu"}) {
    if (access((place + "/libcuda.so.1").c_str(), R_OK) == 0) {
      libraries = place;
      break;
    }
  }
  if (libraries.empty()) return error_format("there is no NVIDIA driver, and no stand-in GPU at %s/simgpu", installation.root.c_str());
  stand_in_state_ = fmt::format("/dev/shm/nvshare-demo-{}", getpid());
  environment_["SIMGPU_STATE"] = stand_in_state_;
  environment_["SIMGPU_MEMORY_MB"] = std::to_string(kStandInMemoryMb);
  environment_["SIMGPU_CONTEXT_MB"] = std::to_string(kStandInContextMb);
  environment_["SIMGPU_LINK_MBPS"] = std::to_string(kStandInLinkMbps);
  std::string& path = environment_[kLibraryPath];
  path = path.empty() ? libraries : libraries + ":" + path;
  auto gpu = probe(job_program_, environment_);
  if (!gpu) return gpu.error();
  gpu_ = *gpu;
  gpu_.stand_in = true;
  return {};
}

DemoScheduler::DemoScheduler(DemoScheduler&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), admin_(std::move(other.admin_)), environment_(std::move(other.environment_)) {}

DemoScheduler::~DemoScheduler() {
  if (pid_ <= 0) return;
  kill(pid_, SIGTERM);
  for (int tries = 0; tries < 200; ++tries) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

Result<DemoScheduler> DemoScheduler::start(const Installation& installation, const Stage& stage, const Plan& plan) {
  auto program = installation.program("nvshare-scheduler");
  if (!program) return program.error();
  auto library = installation.library();
  if (!library) return library.error();

  const std::string runtime = stage.directory() + "/run";
  Environment environment = stage.environment();
  environment[protocol::kRuntimeDirectoryVariable] = runtime;
  environment["NVSHARE_SWITCH_TIME_MODE"] = "fixed";
  environment["NVSHARE_SWITCH_TIME_FIXED"] = fmt::format("{:.3f}", plan.switch_time_s);
  if (stage.gpu().stand_in) {
    // The computed reserve of 500 MiB is more than this GPU has.
    environment["NVSHARE_MEMORY_RESERVE_PERCENT"] = "10";
    environment["NVSHARE_LOCK_DIR"] = runtime + "/locks";
  }
  if (plan.configured) environment["NVSHARE_GPU_PHYSICAL_MEMORY_MB"] = std::to_string(plan.gpu_bytes >> 20);

  const std::string log_path = stage.directory() + "/scheduler.log";
  const FileDescriptor log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  Spawn daemon;
  daemon.argv = {*program};
  daemon.environment = environment;
  daemon.output = log.get();
  daemon.no_input = true;
  daemon.dies_with_us = true;
  daemon.own_session = true;  // Ctrl-C is ours to handle
  auto pid = spawn(daemon);
  if (!pid) return pid.error();
  const auto deadline = std::chrono::steady_clock::now() + kStartPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    if (auto admin = AdminConnection::open(runtime)) {
      DemoScheduler scheduler(*pid, std::move(*admin));
      scheduler.environment_ = stage.environment();
      scheduler.environment_[protocol::kRuntimeDirectoryVariable] = runtime;
      scheduler.environment_["LD_PRELOAD"] = *library;
      return scheduler;
    }
    if (waitpid(*pid, nullptr, WNOHANG) == *pid) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return error_format("%s does not answer: %s", program->c_str(), last_line_of(log_path).c_str());
}

}  // namespace nvshare::cli::demo
