// Who is at the other end of a socket: never what it says of itself, always what the kernel says. Reads /proc; pure where marked.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace nvshare::scheduler {

struct Peer {
  pid_t pid = 0;  // in our PID namespace; 0 if it is in one that we do not see
  uid_t uid = 0;
  uint64_t start_time = 0;     // in clock ticks since boot: with the pid, names one process for good (with pid 0: identity.cc)
  FileDescriptor pidfd;        // readable once the process has ended; none on kernels without
  std::string account;         // whose bounds it counts against (connection_bounds.h); empty: none
  uint64_t pid_namespace = 0;  // of root's process that is in no unit: the one below ours that it is in (pid_namespace_below)
};

// The process that connected (SO_PEERCRED), even if a forked child of it holds the socket by now. An error: the kernel does not say, or the
// process has ended, so that its number may be another's.
Result<Peer> peer_of(int socket);

// Its number and user alone: one system call.
struct PeerNumber {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<PeerNumber> number_of_peer(int socket);

// 0 if there is no such process.
uint64_t start_time_of(pid_t pid);
// 0, too, if it has ended and was not waited for yet.
uint64_t start_time_if_alive(pid_t pid);
using StartTimeOf = std::function<uint64_t(pid_t)>;  // the same, of processes that a test makes up
pid_t parent_of(pid_t pid);
// Whether that process has ended; false where there is no pidfd.
bool has_ended(const FileDescriptor& pidfd);
// Whether the process has ended that had this number and started then; all of its threads, if it was not waited for yet.
bool process_has_ended(pid_t pid, uint64_t start_time);
std::string short_name_of(pid_t pid);

// The text of /proc/PID/cgroup, empty if there is no such process. Kernels before 6.8 show no line of it where one of the process's cgroups
// lies deeper than a path is long (4096), and a user may make such a one of its own: whose the process is nobody knows then.
inline constexpr std::string_view kUnreadableCgroups = "?";
std::string cgroups_of(pid_t pid);
std::string cgroups_in(const char* file);  // the same of that file

// The PID namespace just below ours that the process is in, by its inode; 0: it is in ours, or that cannot be seen.
uint64_t pid_namespace_below(pid_t pid);

// A process' number as another sees it, in that one's PID namespace; 0 if it does not see it there, or one of them has ended.
pid_t pid_as_seen_by(pid_t viewer, pid_t pid);
// The same of the texts of both /proc/PID/status; same_namespace: their namespaces are one. Pure.
pid_t pid_as_seen_by(std::string_view viewer_status, std::string_view status, bool same_namespace);

}  // namespace nvshare::scheduler
