// The nvshare-scheduler under load: a process of its own in a folder of its own, its use of processor time and memory by /proc, and its
// admin socket.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"

namespace nvshare::bench {

// Of all threads of a process, since it began.
struct ProcessorTime {
  double used_s = 0;
  double held_up_s = 0;  // ready to run, while others had the processors
};
ProcessorTime processor_time(pid_t pid);

class Scheduler {
 public:
  // Ends the bench when it cannot be started. `folder`: an empty one for its files, which is removed in the end; none: one in /tmp.
  Scheduler(const std::string& program, const std::vector<std::string>& flags, const std::string& folder = "");
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  std::string client_socket() const;
  std::string admin_socket() const;
  ProcessorTime processor_time() const;
  double cpu_seconds() const;
  double resident_mib() const;  // now
  bool lives() const;

 private:
  std::string folder_;
  pid_t pid_ = -1;
};

// A connection to the admin socket, blocking.
class Admin {
 public:
  explicit Admin(const std::string& path);
  // One line each way; nothing when the connection broke or no answer came in `patience_s`.
  std::optional<std::string> ask(const std::string& line, int patience_s = 600);
  bool ask_and_forget(const std::string& line);  // waits for the answer's end, and looks at nothing of it

 private:
  template <typename Take>
  bool exchange(const std::string& line, int patience_s, Take take);

  FileDescriptor socket_;
  std::vector<char> part_;
};

int64_t now_ns();  // CLOCK_MONOTONIC

}  // namespace nvshare::bench
