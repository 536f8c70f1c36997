#include "slurm/step_freezer.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

namespace nvshare::slurm {
namespace {

std::string text_of(const std::string& file) {
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

// The folder in the line of the freezer, or of version 2. Nothing: it is in none, or in the root.
struct Line {
  std::string folder;
  bool version_2 = false;
};
Line freezer_line(std::string_view membership) {
  std::istringstream lines{std::string(membership)};
  Line found;
  for (std::string line; std::getline(lines, line);) {
    const size_t names = line.find(':'), path = line.find(':', names + 1);
    if (path == std::string::npos || line.size() <= path + 2) continue;
    const std::string controllers = line.substr(names + 1, path - names - 1);
    if (controllers == "freezer") return {line.substr(path + 1), false};
    if (controllers.empty()) found = {line.substr(path + 1), true};
  }
  return found;
}

bool is_below(std::string_view folder, std::string_view above) {
  return folder.starts_with(above) && (folder.size() == above.size() || folder[above.size()] == '/');
}

}  // namespace

StepFreezer::StepFreezer(std::string_view membership, uint32_t job, const std::string& root) {
  const Line line = freezer_line(membership);
  const std::string of_step = "/job_" + std::to_string(job) + "/step_";
  const size_t at = line.folder.find(of_step);
  if (at == std::string::npos) return;
  version_2_ = line.version_2;
  step_ = line.folder.substr(0, line.folder.find('/', at + of_step.size()));
  mount_ = version_2_ ? root : root + "/freezer";
  for (std::string folder = line.folder; folder.size() >= step_.size(); folder.resize(folder.rfind('/'))) {
    if (version_2_ || folder.size() == step_.size()) folders_.push_back(mount_ + folder);
  }
  if (access((folders_.back() + (version_2_ ? "/cgroup.freeze" : "/freezer.state")).c_str(), W_OK) != 0) folders_.clear();
}

bool StepFreezer::is_freezing() const {
  for (const std::string& folder : folders_) {
    if (version_2_ ? text_of(folder + "/cgroup.freeze").starts_with("1") : !text_of(folder + "/freezer.state").starts_with("THAWED"))
      return true;
  }
  return false;
}

bool StepFreezer::is_frozen() const {
  for (const std::string& folder : folders_) {
    if (version_2_ ? text_of(folder + "/cgroup.events").find("frozen 1") != std::string::npos
                   : text_of(folder + "/freezer.state").starts_with("FROZEN"))
      return true;
  }
  return false;
}

void StepFreezer::thaw() {
  for (const std::string& folder : folders_) {
    if (version_2_ && !text_of(folder + "/cgroup.freeze").starts_with("1")) continue;
    thawed_ = folder;
    std::ofstream(folder + (version_2_ ? "/cgroup.freeze" : "/freezer.state")) << (version_2_ ? "0" : "THAWED") << std::flush;
  }
}

void StepFreezer::freeze() {
  if (thawed_.empty()) return;
  std::ofstream(thawed_ + (version_2_ ? "/cgroup.freeze" : "/freezer.state")) << (version_2_ ? "1" : "FROZEN") << std::flush;
}

bool StepFreezer::contains(std::string_view membership) const {
  const Line line = freezer_line(membership);
  return !empty() && line.version_2 == version_2_ && is_below(line.folder, step_);
}

bool StepFreezer::join(std::string_view membership) const {
  const Line line = freezer_line(membership);
  if (empty() || line.folder.empty() || line.version_2 != version_2_) return false;
  if (!version_2_ && contains(membership)) return false;
  return static_cast<bool>(std::ofstream(mount_ + line.folder + "/cgroup.procs") << getpid() << std::flush);
}

std::string membership_of(pid_t pid) { return text_of("/proc/" + std::to_string(pid) + "/cgroup"); }

}  // namespace nvshare::slurm
