// One run of a plan: everything that takes part in it, and what it is held to. A plan and a commit give the same run every time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "canaries.h"
#include "checks.h"
#include "node.h"
#include "plan.h"
#include "process.h"

namespace nvshare::simulation {

class Run {
 public:
  struct Options {
    Canary canary = Canary::kNone;
    std::string folder;
    bool tells = false;
    std::string recording = {};  // a file for what its schedulers record; none: they record nothing
  };
  Run(const Plan& plan, const Options& options);
  ~Run();

  // Until everybody has ended, or something is wrong, which it returns.
  const std::string& play();

  const std::string& story() const { return world_.story(); }
  uint64_t steps() const { return world_.steps(); }
  Duration elapsed() const { return world_.elapsed(); }
  std::string describe();

  const Plan& plan() const { return plan_; }
  Canary canary() const { return canary_; }
  World& world() { return world_; }
  Node& node() { return node_; }
  Checks& checks() { return checks_; }
  std::vector<std::unique_ptr<Process>>& processes() { return processes_; }
  // A program comes to that moment.
  void moment(const Process& process, Moment moment);
  Bytes resident_on(int gpu) const;
  Bytes contexts_on(int gpu) const;
  // By children of programs that have ended, without their contexts; `earlier`: of these only such as no scheduler that lives has known.
  Bytes kept_on(int gpu, bool earlier = false) const;
  Bytes foreign_on(int gpu) const { return foreign_[static_cast<size_t>(gpu)].bytes; }
  Bytes free_on(int gpu) const;        // for allocations that ask nobody: less what is reserved
  Bytes driver_has_on(int gpu) const;  // all that is not in use
  Bytes host_use(pid_t pid) const;     // for swapping, made and not given back; 0: of all processes

 private:
  scheduler::GpuSample nvml_on(int gpu) const;
  void happen(const Fault& fault);
  void take_host(Bytes bytes, Duration lasts);
  void take_foreign(const Fault& fault, int gpu);

  const Plan plan_;
  const Canary canary_;
  World world_;
  Node node_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<const Fault*> awaited_;  // faults that wait for a moment
  Bytes host_taken_ = 0;               // of host memory, by others than the programs
  struct Foreign {
    Bytes bytes = 0, listed = 0;
  };
  std::vector<Foreign> foreign_;  // on each GPU
  Checks checks_;
};

struct Failure {
  Plan plan;  // the smallest that still fails
  std::string problem;
  std::string story;
  std::string state;
};

// The plan without all that the failure does not need.
Failure shrink(const Plan& plan, Run::Options options);

}  // namespace nvshare::simulation
