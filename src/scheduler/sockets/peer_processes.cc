#include "scheduler/sockets/peer_processes.h"

#include <utility>

#include "scheduler/tenants/identity.h"

namespace nvshare::scheduler {
namespace {

constexpr int kEndsPerWake = 16;  // before others have their turn

}  // namespace

void PeerProcesses::end_if_dead(pid_t pid) {
  const auto at = numbered_.find(pid);
  if (at == numbered_.end()) return;
  const std::shared_ptr<Process> process = at->second;
  if (!has_ended(process->pidfd)) return;
  while (!process->connections.empty()) end_first_of(*process);
}

void PeerProcesses::join(uint64_t connection, pid_t pid, FileDescriptor pidfd) {
  if (!pidfd) return;
  std::shared_ptr<Process>& process = of_[connection];
  if (const auto at = numbered_.find(pid); at != numbered_.end()) {
    process = at->second;
  } else {
    process = std::make_shared<Process>();
    process->pid = pid;
    process->pidfd = std::move(pidfd);
    process->watch = Watch(loop_, process->pidfd.get(), [this, watched = std::weak_ptr(process)] {
      if (const std::shared_ptr<Process> still = watched.lock()) look_at(still);
    });
    if (pid > 0) numbered_.emplace(pid, process);
  }
  process->connections.insert(connection);
}

void PeerProcesses::leave(uint64_t connection) {
  const auto at = of_.find(connection);
  if (at == of_.end()) return;
  Process& process = *at->second;
  process.connections.erase(connection);
  if (process.connections.empty() && process.pid > 0) numbered_.erase(process.pid);
  of_.erase(at);
}

// A watch may wake up for what its descriptor's number was before: of a process that went in the same round of the loop. It wakes up again
// for those that this round did not come to.
void PeerProcesses::look_at(const std::shared_ptr<Process>& process) {
  if (!has_ended(process->pidfd)) return;
  for (int i = 0; i < kEndsPerWake && !process->connections.empty(); ++i) end_first_of(*process);
}

void PeerProcesses::end_first_of(const Process& process) {
  const uint64_t connection = *process.connections.begin();
  ended_(connection);
  leave(connection);
}

}  // namespace nvshare::scheduler
