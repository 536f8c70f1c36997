// What Slurm tells a step's processes by signals, told to the node's scheduler. A process of its own, as root, in the step's container:
// Slurm lets nobody else know. SIGTERM: the job is being ended (a time limit, scancel, preemption), so its programs get the next turn.
// SIGTSTP: in two seconds all of them are stopped (scontrol suspend), so the job is paused and its memory moves out. SIGCONT: it goes on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/admin.h"

namespace nvshare::slurm {

class StepWatch {
 public:
  // `stepd`: the step's slurmstepd. Only what descends from it is ever continued: another step may have been stopped already.
  StepWatch(uint32_t job, std::string runtime_dir, pid_t stepd) : job_(job), runtime_dir_(std::move(runtime_dir)), stepd_(stepd) {}

  // Signals are blocked in the caller's only thread. Never returns.
  [[noreturn]] void run();

  void take(int signal);

 private:
  void tell_of(protocol::admin::JobRequest request);
  void job_stops();
  void job_goes_on();
  // Programs that SIGTSTP has stopped go on for a moment, so that they can give up their memory. False: none has any left to move.
  bool continue_stopped();

  uint32_t job_;
  std::string runtime_dir_;
  pid_t stepd_;
  bool suspended_ = false;
  std::vector<pid_t> continued_;  // by us, since the last SIGTSTP
};

struct ProcessState {
  pid_t parent = 0;
  bool stopped = false;  // by job control
};
std::optional<ProcessState> state_of_process(pid_t pid);  // nothing: there is none
bool descends_from(pid_t pid, pid_t ancestor);            // or is it

}  // namespace nvshare::slurm
