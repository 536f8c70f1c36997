// The processes at the other ends of connections: one pidfd for all connections of a process, which tells when it has ended. One thread,
// the loop's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/fd.h"
#include "loop/event_loop.h"

namespace nvshare::scheduler {

class PeerProcesses {
 public:
  // `ended` is called for each connection whose process has ended, and then it has left.
  PeerProcesses(EventLoop& loop, std::function<void(uint64_t)> ended) : loop_(loop), ended_(std::move(ended)) {}

  // Before join(), and after the newcomer's number was seen to be its own (peer_of): a process that had this number and has ended is
  // another one, whose connections end now. One that has not is the newcomer's: while it lives its number is nobody else's.
  void end_if_dead(pid_t pid);
  // `pid` 0: this PID namespace does not show it, so that nobody knows who else it is. No pidfd: nothing will tell of its end.
  void join(uint64_t connection, pid_t pid, FileDescriptor pidfd);
  void leave(uint64_t connection);

 private:
  struct Process {
    pid_t pid = 0;
    FileDescriptor pidfd;
    std::set<uint64_t> connections;
    Watch watch;  // after the descriptor, so that it goes first
  };
  void look_at(const std::shared_ptr<Process>& process);
  void end_first_of(const Process& process);

  EventLoop& loop_;
  const std::function<void(uint64_t)> ended_;
  std::unordered_map<uint64_t, std::shared_ptr<Process>> of_;
  std::unordered_map<pid_t, std::shared_ptr<Process>> numbered_;  // those of of_ that are seen
};

}  // namespace nvshare::scheduler
