// What Slurm tells a step's processes by signals, told to the node's scheduler. A process of its own, as root, in the step's container:
// Slurm lets nobody else know. SIGTERM: the job is being ended (a time limit, scancel, preemption), so its programs get the next turn.
// SIGTSTP: in two seconds all of them are stopped (scontrol suspend), so the job is paused and its memory moves out. SIGCONT: it goes on.
//
// What is not out when Slurm stops a step would be in others' way for as long as the job is suspended. Where Slurm freezes the step's
// cgroup, a child of this process outside of that cgroup (the mover) lets the step run on until its memory is out, and freezes it again.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/admin.h"
#include "slurm/step_freezer.h"

namespace nvshare::slurm {

class StepWatch {
 public:
  // `stepd`: the step's slurmstepd. Only what descends from it is ever continued: another step may have been stopped already.
  // `move_seconds`: for which a suspended step may run on until its memory is out; 0: it may not.
  StepWatch(uint32_t job, std::string runtime_dir, pid_t stepd, int move_seconds = 0)
      : job_(job), runtime_dir_(std::move(runtime_dir)), stepd_(stepd), move_seconds_(move_seconds) {}

  // Signals are blocked in the caller's only thread. Never returns.
  [[noreturn]] void run();

  void take(int signal);

 private:
  void tell_of(protocol::admin::JobRequest request);
  void job_stops();
  void job_goes_on();
  // Programs that SIGTSTP has stopped go on for a moment, so that they can give up their memory. False: none has any left to move.
  bool continue_stopped();
  // Those that were continued, and still are who they were: a user can end one and have its number given to somebody else's process.
  void signal_continued(int signal) const;
  bool is_own(pid_t pid) const;
  bool start_mover();
  void end_mover();                        // it leaves the step as Slurm wants it
  void wait_with_mover();                  // until a signal is there
  void move(pid_t watch);                  // the mover's own part; `watch`, this process
  std::vector<pid_t> with_memory() const;  // the step's programs that have memory on the GPU which could move

  struct Shared {
    std::atomic<bool> mover_ends{false};
  };

  uint32_t job_;
  std::string runtime_dir_;
  pid_t stepd_;
  int move_seconds_;
  StepFreezer freezer_;
  Shared* shared_ = nullptr;  // with the mover
  pid_t mover_ = 0;
  bool suspended_ = false;
  struct Continued {
    pid_t pid;
    uint64_t started;
  };
  std::vector<Continued> continued_;  // by us, since the last SIGTSTP
};

struct ProcessState {
  pid_t parent = 0;
  bool stopped = false;  // by job control
  uint64_t started = 0;  // clock ticks since boot
};
std::optional<ProcessState> state_of_process(pid_t pid);  // nothing: there is none
bool descends_from(pid_t pid, pid_t ancestor);            // or is it
bool has_pending(pid_t pid, int signal);

}  // namespace nvshare::slurm
