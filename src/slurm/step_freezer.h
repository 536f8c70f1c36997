// The cgroup of a step that Slurm freezes to suspend it: of version 1 the step's own in the hierarchy `freezer`, of version 2 the step's or
// one below it. Empty where Slurm tells jobs apart without cgroups: it stops their processes one by one, then.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nvshare::slurm {

class StepFreezer {
 public:
  StepFreezer() = default;
  // `membership`: /proc/PID/cgroup of a process in the step; `root`: where cgroups are mounted.
  StepFreezer(std::string_view membership, uint32_t job, const std::string& root = "/sys/fs/cgroup");

  bool empty() const { return folders_.empty(); }
  bool is_freezing() const;  // or has: somebody said so
  bool is_frozen() const;    // no process in it runs any more
  void thaw();
  void freeze();  // what thaw() has thawed
  bool contains(std::string_view membership) const;
  bool join(std::string_view membership) const;  // the calling process goes where that one is; false: it is inside, or cannot be joined

 private:
  std::vector<std::string> folders_;  // of which one may be frozen; the innermost first
  std::string mount_;
  std::string step_;    // the outermost, as /proc/PID/cgroup names it
  std::string thawed_;  // of `folders_`
  bool version_2_ = false;
};

std::string membership_of(pid_t pid);  // /proc/PID/cgroup; empty: there is none

}  // namespace nvshare::slurm
