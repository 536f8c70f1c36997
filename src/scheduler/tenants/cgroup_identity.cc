#include "scheduler/tenants/cgroup_identity.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "base/parse.h"

namespace nvshare::scheduler {
namespace {

using Folders = std::vector<std::string_view>;

bool is_hex_id(std::string_view text) {
  return text.size() >= 32 && text.size() <= 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string_view without_suffix(std::string_view text, std::string_view suffix) {
  return text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text;
}

Folders folders_of(std::string_view path) {
  Folders folders;
  while (!path.empty()) {
    const size_t slash = path.find('/');
    if (const std::string_view folder = path.substr(0, slash); !folder.empty()) folders.push_back(folder);
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  }
  return folders;
}

// The path of the first `count` folders.
std::string path_of(const Folders& folders, size_t count) {
  std::string path;
  for (size_t i = 0; i < count; ++i) path.append("/").append(folders[i]);
  return path;
}

// Calls `see` with the path in each hierarchy of a text of /proc/PID/cgroup, until that says false.
template <typename See>
void each_path(std::string_view cgroups, See see) {
  while (!cgroups.empty()) {
    const size_t newline = cgroups.find('\n');
    const std::string_view line = cgroups.substr(0, newline);
    cgroups = newline == std::string_view::npos ? std::string_view() : cgroups.substr(newline + 1);
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second != std::string_view::npos && !see(line.substr(second + 1))) return;
  }
}

// The name of the container that this folder of a cgroup path stands for, or empty.
std::string container_of(std::string_view folder, std::string_view parent) {
  const std::string_view name = without_suffix(folder, ".scope");
  if (name.starts_with("lxc.payload.")) return std::string(name.substr(12));
  if (name.starts_with("machine-")) return std::string(name.substr(8));  // systemd-nspawn, libvirt
  if (parent == "lxc") return std::string(name);
  const std::string_view id = name.substr(name.rfind('-') == std::string_view::npos ? 0 : name.rfind('-') + 1);
  const bool known_runtime = name.starts_with("docker-") || name.starts_with("cri-containerd-") || name.starts_with("crio-") ||
                             name.starts_with("libpod-") || parent == "docker" || parent == "libpod_parent" || parent == ".." ||
                             parent.starts_with("pod") || parent.find("-pod") != std::string_view::npos;
  return known_runtime && is_hex_id(id) ? std::string(id) : std::string();
}

// Empty unless it is a pod's UID: a UUID, or for static pods 32 hexadecimal digits.
std::string uid_of(std::string_view text, char dash) {
  std::string uid(text);
  std::replace(uid.begin(), uid.end(), dash, '-');
  if (uid.size() == 32) return is_hex_id(uid) ? uid : std::string();
  if (uid.size() != 36 || (dash != '-' && text.find('-') != std::string_view::npos)) return {};
  for (size_t i = 0; i < uid.size(); ++i) {
    const bool is_dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (is_dash != (uid[i] == '-')) return {};
    if (!is_dash && std::string_view("0123456789abcdef").find(uid[i]) == std::string_view::npos) return {};
  }
  return uid;
}

struct PodAt {
  std::string uid;
  size_t folder = 0;  // the number of the pod's own
};

constexpr std::string_view kSlice = ".slice";
constexpr std::string_view kQualities[] = {"burstable", "besteffort"};  // guaranteed pods have no folder between

// The stem of the kubelet's slice, such as "kubepods" or "kubelet-kubepods"; empty: it is none.
std::string_view kubepods_stem(std::string_view folder) {
  if (!folder.ends_with(kSlice)) return {};
  const std::string_view stem = without_suffix(folder, kSlice);
  return stem == "kubepods" || stem.ends_with("-kubepods") ? stem : std::string_view();
}

// What stands in the kubelet's root folder from `at` on, with the cgroupfs driver.
std::optional<PodAt> pod_by_cgroupfs(const Folders& folders, size_t at) {
  if (at < folders.size() && std::find(std::begin(kQualities), std::end(kQualities), folders[at]) != std::end(kQualities)) ++at;
  if (at >= folders.size() || !folders[at].starts_with("pod")) return std::nullopt;
  const std::string uid = uid_of(folders[at].substr(3), '-');
  return uid.empty() ? std::nullopt : std::optional(PodAt{uid, at});
}

// The same with the systemd driver, whose folders repeat their parents' names.
std::optional<PodAt> pod_by_systemd(const Folders& folders, size_t at, std::string_view stem) {
  std::string prefix(stem);
  for (const std::string_view quality : kQualities) {
    const std::string nested = std::string(stem).append("-").append(quality);
    if (at >= folders.size() || folders[at] != nested + std::string(kSlice)) continue;
    prefix = nested;
    ++at;
    break;
  }
  prefix += "-pod";
  if (at >= folders.size() || !folders[at].starts_with(prefix) || !folders[at].ends_with(kSlice)) return std::nullopt;
  const std::string uid = uid_of(without_suffix(folders[at], kSlice).substr(prefix.size()), '_');
  return uid.empty() ? std::nullopt : std::optional(PodAt{uid, at});
}

// With the kubelet's root at folder `root`.
std::optional<PodAt> pod_below(const Folders& folders, size_t root) {
  if (folders[root] == "kubepods") return pod_by_cgroupfs(folders, root + 1);
  const std::string_view stem = kubepods_stem(folders[root]);
  return stem.empty() ? std::nullopt : pod_by_systemd(folders, root + 1, stem);
}

std::optional<PodAt> pod_at_standard_place(const Folders& folders, size_t from) {
  const size_t count = folders.size() - from;
  if (count > 0 && folders[from] == "kubepods") return pod_below(folders, from);
  if (count > 1 && folders[from] == "kubelet" && folders[from + 1] == "kubepods") return pod_below(folders, from + 1);
  // Slices that systemd nested from the root: nobody else can make them there, and it names each after its parent.
  std::string prefix;
  for (size_t i = from; i < folders.size() && folders[i].ends_with(kSlice); ++i) {
    const std::string_view stem = without_suffix(folders[i], kSlice);
    if (!stem.starts_with(prefix) || stem.find('-', prefix.size()) != std::string_view::npos) return std::nullopt;
    if (!kubepods_stem(folders[i]).empty()) return pod_below(folders, i);
    prefix = std::string(stem) + "-";
  }
  return std::nullopt;
}

// A path that leads out of our cgroup namespace ("/../.." and then folder `from`): that folder stands beside one that we are in. So it may
// be anything from the kubelet's root to the pod. Only root makes folders there.
std::optional<PodAt> pod_beside_us(const Folders& folders, size_t from) {
  if (from >= folders.size()) return std::nullopt;
  if (auto pod = pod_at_standard_place(folders, from)) return pod;
  if (auto pod = pod_by_cgroupfs(folders, from)) return pod;
  const size_t name = folders[from].find("kubepods");
  if (name == std::string_view::npos || (name > 0 && folders[from][name - 1] != '-')) return std::nullopt;
  const std::string_view stem = folders[from].substr(0, name + std::string_view("kubepods").size());
  if (auto pod = pod_by_systemd(folders, from, stem)) return pod;
  for (const std::string_view quality : kQualities) {  // beside our own pod, below its quality's folder
    if (auto pod = pod_by_systemd(folders, from, std::string(stem).append("-").append(quality))) return pod;
  }
  return std::nullopt;
}

bool is_own_unit(std::string_view folder) {
  if (folder.ends_with(".service")) return !folder.starts_with("user@");
  if (!folder.ends_with(".scope")) return false;
  return !folder.starts_with("session-") && !folder.starts_with("vte-spawn-") && folder != "init.scope";
}

// The user whose manager this folder is ("user@1000.service"), as names begin that stand below it; else empty.
std::string user_of(std::string_view folder) {
  if (!folder.starts_with("user@") || !folder.ends_with(".service")) return {};
  const std::string_view user = without_suffix(folder, ".service").substr(5);
  return "user-" + std::string(user) + "/";
}

// The outermost folder that names a container or a unit: what is below it may be the tenant's own making.
std::optional<CgroupIdentity> container_or_unit(const Folders& folders) {
  using Kind = CgroupIdentity::Kind;
  std::string user;
  std::string_view parent;
  for (size_t i = 0; i < folders.size(); ++i) {
    if (const std::string id = container_of(folders[i], parent); !id.empty())
      return CgroupIdentity{Kind::kContainer, user + id, path_of(folders, i + 1), 0, ""};
    if (is_own_unit(folders[i])) return CgroupIdentity{Kind::kUnit, user + std::string(folders[i]), path_of(folders, i + 1), 0, ""};
    if (user.empty()) user = user_of(folders[i]);
    parent = folders[i];
  }
  return std::nullopt;
}

// The number that follows `prefix` in a folder's name; nothing: it is not that kind of folder.
std::optional<uint32_t> number_after(std::string_view prefix, std::string_view folder) {
  if (!folder.starts_with(prefix)) return std::nullopt;
  const Result<int64_t> number = parse_integer(folder.substr(prefix.size()), 0, UINT32_MAX);
  return number ? std::optional(static_cast<uint32_t>(*number)) : std::nullopt;
}

// Where root's slurmd makes a job's folder, and nobody else can: directly below the root of a hierarchy of version 1 (/slurm/uid_U/job_N,
// or /slurm_NODE/... where several slurmd share a machine, as Debian builds it), or in the scope that systemd made for it
// (/system.slice/slurmstepd.scope/job_N, or NODE_slurmstepd.scope).
std::optional<CgroupIdentity> job_of(const Folders& folders) {
  size_t at = 0;
  if (folders.size() >= 3 && (folders[0] == "slurm" || folders[0].starts_with("slurm_")) && number_after("uid_", folders[1])) {
    at = 2;
  } else if (folders.size() >= 3 && folders[0] == "system.slice" &&
             (folders[1] == "slurmstepd.scope" || folders[1].ends_with("_slurmstepd.scope"))) {
    at = 2;
  } else {
    return std::nullopt;
  }
  const auto job = number_after("job_", folders[at]);
  if (!job || *job == 0) return std::nullopt;
  return CgroupIdentity{CgroupIdentity::Kind::kJob, std::to_string(*job), path_of(folders, at + 1), *job, ""};
}

bool is_contained(const std::optional<CgroupIdentity>& identity) {
  return identity && (identity->kind == CgroupIdentity::Kind::kContainer || identity->kind == CgroupIdentity::Kind::kPod);
}

// Which of two hierarchies' words counts: nobody but root can move a process out of a pod's or a job's folder, while a user may make a
// folder that is named like a container in a hierarchy that is the user's own.
int rank_of(CgroupIdentity::Kind kind) {
  switch (kind) {
    case CgroupIdentity::Kind::kPod:
      return 3;
    case CgroupIdentity::Kind::kJob:
      return 2;
    case CgroupIdentity::Kind::kContainer:
      return 1;
    case CgroupIdentity::Kind::kUnit:
      break;
  }
  return 0;
}

// Anywhere in the path, whoever made the folder.
bool looks_contained(std::string_view path) {
  std::string_view parent;
  for (const std::string_view folder : folders_of(path)) {
    if (!container_of(folder, parent).empty()) return true;
    parent = folder;
  }
  return false;
}

bool is_same(const CgroupIdentity& a, const CgroupIdentity& b) {
  if (a.kind != b.kind) return false;
  return a.kind == CgroupIdentity::Kind::kPod ? a.name == b.name : a.path == b.path;
}

// The kubelet keeps the files that it mounts into each container (/etc/hosts, say) in a folder of the pod's.
std::string pod_by_mounts(std::string_view mounts) {
  constexpr std::string_view kPods = "/pods/";
  std::istringstream lines{std::string(mounts)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, root, place;
    fields >> id >> parent >> device >> root >> place;
    if (place != "/etc/hosts" && place != "/dev/termination-log") continue;
    const size_t at = root.rfind(kPods);
    if (at == std::string::npos) continue;
    const std::string rest = root.substr(at + kPods.size());
    if (std::string uid = uid_of(std::string_view(rest).substr(0, rest.find('/')), '-'); !uid.empty()) return uid;
  }
  return {};
}

std::string text_of(const char* file) {
  std::ifstream stream(file);
  std::ostringstream text;
  if (stream) text << stream.rdbuf();
  return text.str();
}

}  // namespace

CgroupReader::CgroupReader(std::string_view own_cgroups, std::string_view own_mounts) : own_cgroups_(own_cgroups) {
  bool at_top = !own_cgroups.empty();
  each_path(own_cgroups, [&](std::string_view path) {
    const Folders folders = folders_of(path);
    at_top &= folders.empty();
    for (size_t i = folders.size(); i-- > 0;) {  // the innermost: kind's node is a container itself
      if (!pod_below(folders, i)) continue;
      pods_below_.insert(path_of(folders, i + 1));
      break;
    }
    return true;
  });
  if (at_top) own_pod_ = pod_by_mounts(own_mounts);
}

CgroupReader CgroupReader::here() { return CgroupReader(text_of("/proc/self/cgroup"), text_of("/proc/self/mountinfo")); }

std::optional<CgroupIdentity> CgroupReader::identify_path(std::string_view path) const {
  const Folders folders = folders_of(path);
  const auto ups = static_cast<size_t>(std::find_if(folders.begin(), folders.end(), [](auto f) { return f != ".."; }) - folders.begin());
  // The container that we are in ourselves, and those beside it: nobody else's folders are there.
  if (!own_pod_.empty() && ups <= 1) {
    const std::string container = ups < folders.size() ? std::string(ups == 0 ? "." : folders[ups]) : ".";
    return CgroupIdentity{CgroupIdentity::Kind::kPod, own_pod_, path_of(folders, ups), 0, container};
  }
  std::optional<PodAt> pod;
  for (const std::string& root : pods_below_) {
    const size_t depth = folders_of(root).size();
    if (!pod && folders.size() >= depth && path_of(folders, depth) == root) pod = pod_below(folders, depth - 1);
  }
  if (pods_below_.empty()) pod = ups > 0 ? pod_beside_us(folders, ups) : pod_at_standard_place(folders, 0);
  if (!pod) {
    if (auto job = job_of(folders)) return job;
    return container_or_unit(folders);
  }
  const std::string container = pod->folder + 1 < folders.size() ? std::string(folders[pod->folder + 1]) : std::string();
  return CgroupIdentity{CgroupIdentity::Kind::kPod, pod->uid, path_of(folders, pod->folder + 1), 0, container};
}

std::optional<CgroupIdentity> CgroupReader::identify(std::string_view cgroups) const {
  std::optional<CgroupIdentity> found;
  bool disagree = false;
  each_path(cgroups, [&](std::string_view path) {
    std::optional<CgroupIdentity> here = identify_path(path);
    if (!here) return true;
    const bool pods = found && found->kind == CgroupIdentity::Kind::kPod && here->kind == CgroupIdentity::Kind::kPod;
    if (pods && found->name != here->name) {
      const std::string both = found->path + " and " + here->path;
      found = CgroupIdentity{CgroupIdentity::Kind::kContainer, found->name + " and " + here->name, both, 0, ""};
      disagree = true;
    }
    if (!found || (!disagree && rank_of(here->kind) > rank_of(found->kind))) found = here;  // in any hierarchy
    return !disagree;
  });
  return found;
}

bool CgroupReader::may_administer(std::string_view peer_cgroups) const {
  const std::optional<CgroupIdentity> peer = identify(peer_cgroups);
  bool contained = is_contained(peer);
  each_path(peer_cgroups, [&](std::string_view path) { return !(contained |= looks_contained(path)); });
  if (!contained) return !peer_cgroups.empty();
  const std::optional<CgroupIdentity> own = identify(own_cgroups_);
  return peer && own && is_contained(own) && is_same(*peer, *own);
}

}  // namespace nvshare::scheduler
