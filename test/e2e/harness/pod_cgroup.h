// A pod's cgroup as a kubelet makes one, so that the kernel says of a test's program that it is in that pod. Needs the right to make
// cgroups (root, on most machines): in whichever hierarchy lets us.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace nvshare::e2e {

class PodCgroup {
 public:
  // Nothing: no hierarchy lets us.
  static std::optional<PodCgroup> make(const std::string& uid);
  ~PodCgroup();  // its processes must have ended
  PodCgroup(PodCgroup&& other) noexcept;
  PodCgroup(const PodCgroup&) = delete;
  PodCgroup& operator=(const PodCgroup&) = delete;

  // The command that moves itself there and becomes that program.
  std::vector<std::string> inside(const std::vector<std::string>& command) const;

 private:
  explicit PodCgroup(std::vector<std::string> folders) : folders_(std::move(folders)) {}
  std::vector<std::string> folders_;  // outermost first
};

}  // namespace nvshare::e2e
