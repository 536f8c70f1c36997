#include "e2e/harness/pod_cgroup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

namespace nvshare::e2e {
namespace {

std::vector<std::string> hierarchies() {
  std::vector<std::string> found;
  std::ifstream mounts("/proc/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::string device, folder, type;
    std::istringstream(line) >> device >> folder >> type;
    if (type == "cgroup2" || type == "cgroup") found.push_back(folder);
  }
  return found;
}

}  // namespace

std::optional<PodCgroup> PodCgroup::make(const std::string& uid) {
  for (const std::string& root : hierarchies()) {
    std::vector<std::string> folders = {root + "/kubepods", root + "/kubepods/burstable", root + "/kubepods/burstable/pod" + uid};
    folders.push_back(folders.back() + "/" + std::string(64, 'a'));
    PodCgroup made({});
    for (const std::string& folder : folders) {
      if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) break;
      made.folders_.push_back(folder);
    }
    // Some hierarchies (cpuset) take nobody before they are set up.
    if (made.folders_.size() != folders.size()) continue;
    const std::string try_it = "sh -c 'echo $$ > " + folders.back() + "/cgroup.procs' 2> /dev/null";
    if (std::system(try_it.c_str()) == 0) return made;
  }
  return std::nullopt;
}

PodCgroup::PodCgroup(PodCgroup&& other) noexcept : folders_(std::move(other.folders_)) { other.folders_.clear(); }

PodCgroup::~PodCgroup() {
  // A cgroup can be busy for a moment after its last process; those above may be another test's too.
  for (int tries = 0; tries < 200 && !folders_.empty() && rmdir(folders_.back().c_str()) != 0 && errno == EBUSY; ++tries) usleep(10'000);
  for (; !folders_.empty(); folders_.pop_back()) rmdir(folders_.back().c_str());
}

std::vector<std::string> PodCgroup::inside(const std::vector<std::string>& command) const {
  std::vector<std::string> all = {"/bin/sh", "-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"", folders_.back()};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

}  // namespace nvshare::e2e
