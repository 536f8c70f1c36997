#include "scheduler/identity.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
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

std::string read_proc(pid_t pid, const char* file) {
  std::ifstream stream("/proc/" + std::to_string(pid) + "/" + file);
  std::ostringstream text;
  if (stream) text << stream.rdbuf();
  return text.str();
}

// Field `number` (from 1) of /proc/PID/stat, for numbers past the program's name, which may hold anything.
uint64_t stat_field(pid_t pid, int number) {
  std::string stat = read_proc(pid, "stat");
  size_t end_of_name = stat.rfind(')');
  if (end_of_name == std::string::npos) return 0;
  std::istringstream fields(stat.substr(end_of_name + 1));
  std::string field;
  for (int i = 3; i <= number; ++i) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

FileDescriptor pidfd_of(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof fd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return FileDescriptor(fd);
  }
  if (pid <= 0) return FileDescriptor();
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

bool is_hex_id(std::string_view text) {
  return text.size() >= 32 && text.size() <= 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }
bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

std::string_view without_suffix(std::string_view text, std::string_view suffix) {
  return ends_with(text, suffix) ? text.substr(0, text.size() - suffix.size()) : text;
}

// The name of the container or pod that this folder of a cgroup path stands for, or empty.
std::string container_of(std::string_view folder, std::string_view parent) {
  std::string_view name = without_suffix(folder, ".scope");
  if (starts_with(name, "lxc.payload.")) return std::string(name.substr(12));
  if (starts_with(name, "machine-")) return std::string(name.substr(8));  // systemd-nspawn, libvirt
  if (parent == "lxc") return std::string(name);
  std::string_view id = name.substr(name.rfind('-') == std::string_view::npos ? 0 : name.rfind('-') + 1);
  bool known_runtime = starts_with(name, "docker-") || starts_with(name, "cri-containerd-") || starts_with(name, "crio-") ||
                       starts_with(name, "libpod-") || parent == "docker" || parent == "libpod_parent" || starts_with(parent, "pod") ||
                       parent.find("-pod") != std::string_view::npos;
  return known_runtime && is_hex_id(id) ? std::string(id) : std::string();
}

// A pod's UID: a UUID, or for static pods 32 hexadecimal digits.
bool is_uid(std::string_view text) {
  if (text.size() == 32) return is_hex_id(text);
  if (text.size() != 36) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash != (text[i] == '-')) return false;
    if (!dash && std::string_view("0123456789abcdef").find(text[i]) == std::string_view::npos) return false;
  }
  return true;
}

// The UID of the pod that this folder stands for, by either cgroup driver (/kubepods/burstable/pod<uid>, and
// /kubepods.slice/...-pod<uid with _>.slice), or empty. `below_kubepods`: a folder above it is the kubelet's, or may be one that this
// cgroup namespace does not show.
std::string pod_of(std::string_view folder, bool below_kubepods) {
  const size_t root = folder.find("kubepods");
  const size_t at = root == std::string_view::npos ? root : folder.find("-pod", root);
  std::string uid;
  if (at != std::string_view::npos && ends_with(folder, ".slice")) {
    uid = without_suffix(folder, ".slice").substr(at + 4);
    std::replace(uid.begin(), uid.end(), '_', '-');
  } else if (below_kubepods && starts_with(folder, "pod")) {
    uid = folder.substr(3);
  }
  return is_uid(uid) ? uid : std::string();
}

bool is_own_unit(std::string_view folder) {
  if (ends_with(folder, ".service")) return !starts_with(folder, "user@");
  if (!ends_with(folder, ".scope")) return false;
  return !starts_with(folder, "session-") && !starts_with(folder, "vte-spawn-") && folder != "init.scope";
}

std::optional<CgroupIdentity> identify_path(std::string_view path) {
  std::optional<CgroupIdentity> found;
  std::string_view parent;
  bool below_kubepods = starts_with(path, "/../");
  while (!path.empty()) {
    size_t slash = path.find('/');
    std::string_view folder = path.substr(0, slash);
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
    if (folder.empty()) continue;
    if (std::string pod = pod_of(folder, below_kubepods); !pod.empty()) {
      return CgroupIdentity{CgroupIdentity::Kind::kPod, pod, std::string(path.substr(0, path.find('/')))};
    }
    if (std::string id = container_of(folder, parent); !id.empty()) return CgroupIdentity{CgroupIdentity::Kind::kContainer, id, ""};
    if (is_own_unit(folder)) found = CgroupIdentity{CgroupIdentity::Kind::kUnit, std::string(folder), ""};
    below_kubepods = below_kubepods || folder == "kubepods";
    parent = folder;
  }
  return found;
}

bool is_contained(const std::optional<CgroupIdentity>& identity) { return identity && identity->kind != CgroupIdentity::Kind::kUnit; }

}  // namespace

Result<Peer> peer_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return error_format("the kernel does not say who connected (SO_PEERCRED): %s", std::strerror(errno));
  }
  Peer peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.pidfd = pidfd_of(socket, credentials.pid);
  peer.start_time = start_time_of(credentials.pid);
  return peer;
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

std::string cgroups_of(pid_t pid) { return pid > 0 ? read_proc(pid, "cgroup") : std::string(); }

std::optional<CgroupIdentity> identify_cgroup(std::string_view cgroups) {
  std::optional<CgroupIdentity> found;
  while (!cgroups.empty()) {
    size_t newline = cgroups.find('\n');
    std::string_view line = cgroups.substr(0, newline);
    cgroups = newline == std::string_view::npos ? std::string_view() : cgroups.substr(newline + 1);
    size_t first = line.find(':');
    size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    std::optional<CgroupIdentity> here = identify_path(line.substr(second + 1));
    if (!here) continue;
    const bool pods = found && found->kind == CgroupIdentity::Kind::kPod && here->kind == CgroupIdentity::Kind::kPod;
    if (pods && found->name != here->name) return CgroupIdentity{CgroupIdentity::Kind::kContainer, found->name + " and " + here->name, ""};
    if (!found || (is_contained(here) && !is_contained(found))) found = here;  // in any hierarchy
  }
  return found;
}

bool may_administer(std::string_view peer_cgroups, std::string_view own_cgroups) {
  std::optional<CgroupIdentity> peer = identify_cgroup(peer_cgroups);
  if (!is_contained(peer)) return !peer_cgroups.empty();
  std::optional<CgroupIdentity> own = identify_cgroup(own_cgroups);
  return own && own->kind == peer->kind && own->name == peer->name;
}

}  // namespace nvshare::scheduler
