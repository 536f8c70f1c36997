// A child process of a test: started with an environment of its own, its output collected in a file, its end waited for with a deadline.
// A child never outlives the test program, and killing it kills what it forked. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"

namespace nvshare::e2e {

using Clock = std::chrono::steady_clock;
using Duration = std::chrono::nanoseconds;

// CLOCK_MONOTONIC in nanoseconds, as the scheduler's trace has it.
int64_t now_ns();

class Child {
 public:
  struct Spec {
    std::string name;                  // for people
    std::vector<std::string> command;  // the program's path first
    std::map<std::string, std::string> environment;
    std::string log_file;  // standard output and error are appended
  };
  explicit Child(Spec spec);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& name() const { return spec_.name; }
  pid_t pid() const { return pid_; }

  bool running();
  // Its exit status: 0..255, or 128 + the signal that killed it. Nullopt: still running at the end of the patience.
  std::optional<int> wait(Duration patience);
  // When its end was noticed by wait() or running(); what the kernel says of the process's death, not of its forked children's.
  int64_t ended_at_ns() const { return ended_at_ns_; }

  void signal(int number) const;  // to the process alone
  void kill_family();             // SIGKILL to it and everything in its process group

  std::string log() const;
  bool logged(const std::string& text) const { return log().find(text) != std::string::npos; }

 private:
  void reap();

  Spec spec_;
  pid_t pid_ = -1;
  FileDescriptor pidfd_;
  std::optional<int> status_;
  int64_t ended_at_ns_ = 0;
};

}  // namespace nvshare::e2e
