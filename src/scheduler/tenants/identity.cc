#include "scheduler/tenants/identity.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#ifndef SO_PEERPIDFD  // Linux 6.5; asm-generic/socket.h
#define SO_PEERPIDFD 77
#endif
#ifndef SYS_pidfd_open  // Linux 5.3; the same number everywhere
#define SYS_pidfd_open 434
#endif

namespace nvshare::scheduler {
namespace {

constexpr decltype(statfs::f_type) kPidFs = 0x50494446;  // PID_FS_MAGIC: each process has an inode of its own, for good

// By system calls: the scheduler looks at processes with each message that joins or leaves, and a stream costs several times as much.
// False, with errno: not all of it could be read.
bool read_text(const char* path, std::string* text) {
  const FileDescriptor opened(open(path, O_RDONLY | O_CLOEXEC));
  if (!opened) return false;
  char part[4096];  // all of most files, so that one more call finds the end
  ssize_t length = 0;
  while ((length = read(opened.get(), part, sizeof part)) > 0) text->append(part, static_cast<size_t>(length));
  return length == 0;
}

std::array<char, 64> proc_file(pid_t pid, const char* file) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/%s", pid, file);
  return path;
}

std::string read_proc(pid_t pid, const char* file) {
  std::string text;
  read_text(proc_file(pid, file).data(), &text);
  return text;
}

// Field `number` (from 1) of /proc/PID/stat, for numbers past the program's name, which may hold anything.
uint64_t stat_field(pid_t pid, int number) {
  const std::string stat = read_proc(pid, "stat");
  size_t at = stat.rfind(')');
  for (int field = 2; field < number && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(stat.c_str() + at, nullptr, 10);
}

// None, without an error, where the kernel has none to give, or the process is in a PID namespace that we do not see. Only a kernel without
// SO_PEERPIDFD leaves it to the number, which may be another process's by now.
Result<FileDescriptor> pidfd_of(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof fd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return FileDescriptor(fd);
  }
  if (errno != ENOPROTOOPT) return error_format("the kernel does not say which process connected (SO_PEERPIDFD): %s", std::strerror(errno));
  if (pid <= 0) return FileDescriptor();
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

// In place of its start time. Nothing but its descriptor tells a process from others that we do not see: were they taken for one, they
// would be one tenant, whose programs share host memory and limits. Before Linux 6.9 each connection has a number of its own.
uint64_t number_of_unseen(const FileDescriptor& pidfd) {
  static std::atomic<uint64_t> connections{0};
  struct statfs about {};
  struct stat status {};
  if (pidfd && fstatfs(pidfd.get(), &about) == 0 && about.f_type == kPidFs && fstat(pidfd.get(), &status) == 0) return status.st_ino;
  return ++connections;
}

}  // namespace

bool has_ended(const FileDescriptor& pidfd) {
  pollfd polled{pidfd.get(), POLLIN, 0};
  return pidfd && poll(&polled, 1, 0) == 1;
}

bool process_has_ended(pid_t pid, uint64_t start_time) {
  const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  return start_time_of(pid) != start_time || has_ended(process);  // in this order: the number may be another's by now
}

Result<PeerNumber> number_of_peer(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return error_format("the kernel does not say who connected (SO_PEERCRED): %s", std::strerror(errno));
  }
  return PeerNumber{credentials.pid, credentials.uid};
}

Result<Peer> peer_of(int socket) {
  const Result<PeerNumber> number = number_of_peer(socket);
  if (!number) return number.error();
  Peer peer;
  peer.pid = number->pid;
  peer.uid = number->uid;
  Result<FileDescriptor> pidfd = pidfd_of(socket, peer.pid);
  if (!pidfd) return pidfd.error();
  peer.pidfd = std::move(*pidfd);
  peer.start_time = peer.pid > 0 ? start_time_of(peer.pid) : number_of_unseen(peer.pidfd);
  // Looked at last: while it lives, its number is nobody else's.
  if (has_ended(peer.pidfd)) return error_format("process %d has ended", peer.pid);
  return peer;
}

uint64_t start_time_if_alive(pid_t pid) {
  if (pid <= 0) return 0;
  const FileDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  const uint64_t start_time = start_time_of(pid);
  return has_ended(process) ? 0 : start_time;  // in this order: had it ended, the number might be another's
}

uint64_t start_time_of(pid_t pid) { return pid > 0 ? stat_field(pid, 22) : 0; }

pid_t parent_of(pid_t pid) { return pid > 0 ? static_cast<pid_t>(stat_field(pid, 4)) : 0; }

namespace {

// The process' numbers in all PID namespaces that it is in, the outermost one that we see first.
std::vector<pid_t> numbers_of(std::string_view status) {
  std::vector<pid_t> numbers;
  const size_t at = status.find("\nNSpid:");
  if (at == std::string_view::npos) return numbers;
  std::istringstream line(std::string(status.substr(at + 7, status.find('\n', at + 1) - at - 7)));
  for (pid_t number = 0; line >> number;) numbers.push_back(number);
  return numbers;
}

std::string namespace_of(pid_t pid) {
  char text[64] = {};
  const ssize_t length = readlink(("/proc/" + std::to_string(pid) + "/ns/pid").c_str(), text, sizeof text - 1);
  return length > 0 ? std::string(text, static_cast<size_t>(length)) : std::string();
}

}  // namespace

uint64_t pid_namespace_below(pid_t pid) {
  if (pid <= 0 || numbers_of(read_proc(pid, "status")).size() < 2) return 0;
  const auto inode_of = [](const FileDescriptor& space) {
    struct stat status {};
    return space && fstat(space.get(), &status) == 0 ? static_cast<uint64_t>(status.st_ino) : 0;
  };
  const uint64_t own = inode_of(FileDescriptor(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC)));
  FileDescriptor space(open(("/proc/" + std::to_string(pid) + "/ns/pid").c_str(), O_RDONLY | O_CLOEXEC));
  uint64_t inode = inode_of(space);
  while (inode != 0 && inode != own) {
    FileDescriptor parent(ioctl(space.get(), NS_GET_PARENT));
    const uint64_t above = inode_of(parent);
    if (above == own) return inode;
    space = std::move(parent);
    inode = above;
  }
  return 0;
}

pid_t pid_as_seen_by(std::string_view viewer_status, std::string_view status, bool same_namespace) {
  const std::vector<pid_t> viewer = numbers_of(viewer_status);
  const std::vector<pid_t> numbers = numbers_of(status);
  if (viewer.empty() || numbers.size() < viewer.size()) return 0;
  // As deep as the viewer, but elsewhere. Deeper ones are taken to be below it: they are of the same tenant.
  if (numbers.size() == viewer.size() && !same_namespace) return 0;
  return numbers[viewer.size() - 1];
}

pid_t pid_as_seen_by(pid_t viewer, pid_t pid) {
  return pid_as_seen_by(read_proc(viewer, "status"), read_proc(pid, "status"), namespace_of(viewer) == namespace_of(pid));
}

std::string short_name_of(pid_t pid) {
  std::string name = read_proc(pid, "comm");
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

std::string cgroups_in(const char* file) {
  std::string text;
  if (read_text(file, &text) || errno == ENOENT || errno == ESRCH) return text;
  return std::string(kUnreadableCgroups);
}

std::string cgroups_of(pid_t pid) { return pid > 0 ? cgroups_in(proc_file(pid, "cgroup").data()) : std::string(); }

}  // namespace nvshare::scheduler
