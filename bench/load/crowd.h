// Thousands of processes for one program to play: each is a task of its own to the kernel (a number, a death, SO_PEERCRED), but shares
// memory and descriptors with the program, so that the program speaks for all of them from one loop. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/fd.h"

namespace nvshare::bench {

struct Member {
  pid_t pid = -1;
  FileDescriptor socket;  // connected by that process, non-blocking; none: it could not connect
};

class Crowd {
 public:
  explicit Crowd(std::string socket_path) : socket_path_(std::move(socket_path)) {}
  ~Crowd();
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  // A new process that connects, and sleeps until it is killed.
  Member enter();
  void kill(pid_t pid);  // and waits for its end
  void kill_all();

 private:
  struct Process {
    pid_t pid = -1;
    size_t stack = 0;
  };
  const std::string socket_path_;
  std::vector<Process> living_;
  std::vector<void*> stacks_;
  std::vector<size_t> free_stacks_;
};

}  // namespace nvshare::bench
