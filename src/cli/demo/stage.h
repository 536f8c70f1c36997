// Where the demo plays: a private directory, the GPU (real or stand-in), a scheduler of its own. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "cli/admin_connection.h"
#include "cli/demo/plan.h"
#include "cli/environment.h"
#include "cli/scheduler_link.h"

namespace nvshare::cli::demo {

// Owns the private directory and the stand-in's state, and removes both.
class Stage {
 public:
  // Takes the machine's GPU where there is an NVIDIA driver, else the stand-in that is part of this installation. `stand_in` asks for that.
  static Result<Stage> open(const Installation& installation, bool stand_in);

  Stage(Stage&& other) noexcept;
  Stage& operator=(Stage&&) = delete;
  ~Stage();

  const Gpu& gpu() const { return gpu_; }
  const std::string& directory() const { return directory_; }
  const std::string& job_program() const { return job_program_; }
  // For a job without nvshare, and for the scheduler.
  const Environment& environment() const { return environment_; }

 private:
  Stage() = default;
  Result<void> choose_gpu(const Installation& installation, bool stand_in);

  std::string directory_;
  std::string stand_in_state_;
  std::string job_program_;
  Environment environment_;
  Gpu gpu_;
};

// A scheduler for the demo alone; ends with this object, and with this process.
class DemoScheduler {
 public:
  static Result<DemoScheduler> start(const Installation& installation, const Stage& stage, const Plan& plan);

  DemoScheduler(DemoScheduler&& other) noexcept;
  DemoScheduler& operator=(DemoScheduler&&) = delete;
  ~DemoScheduler();

  Result<protocol::admin::StatusReport> status() { return admin_.status(); }
  // For a job under nvshare.
  const Environment& environment() const { return environment_; }

 private:
  DemoScheduler(pid_t pid, AdminConnection admin) : pid_(pid), admin_(std::move(admin)) {}

  pid_t pid_;
  AdminConnection admin_;
  Environment environment_;
};

}  // namespace nvshare::cli::demo
