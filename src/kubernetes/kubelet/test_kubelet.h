// A kubelet for tests: the Registration service and the pod resources service on real sockets. As the real one it deletes every socket in
// its folder when it starts, dials back inside Register, watches each plugin's devices, hands out devices without asking which GPU they
// are of, lists their holders, and writes that down in its checkpoint. No gRPC in this header.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace nvshare::kubernetes {

class TestKubelet {
 public:
  struct Answer {  // of Allocate, all resources of a container together
    std::map<std::string, std::string> variables;
    std::map<std::string, std::string> mounts;  // container path -> host path
    std::vector<std::string> cdi_devices;
  };

  // Pod -> resource -> device IDs. Each pod is in namespace default and has one container, main.
  using Pods = std::map<std::string, std::map<std::string, std::set<std::string>>>;

  // `folder` gets device-plugins/ and pod-resources/. `pods`: what they hold, from an earlier kubelet's checkpoint.
  explicit TestKubelet(std::string folder, Pods pods = {});
  ~TestKubelet();  // the socket files stay, as a stopped kubelet leaves them

  // Where plugins are to look.
  static std::string plugins(const std::string& folder) { return folder + "/device-plugins"; }
  static std::string pod_resources(const std::string& folder) { return folder + "/pod-resources/kubelet.sock"; }

  // Resource -> devices that its plugin lists as healthy; only plugins that are registered with this kubelet and watched.
  std::map<std::string, std::set<std::string>> healthy() const;
  // Device -> NUMA node, of those that say one.
  std::map<std::string, int64_t> numa_nodes() const;
  // As if another plugin offered these, from now on.
  void offer_elsewhere(const std::string& resource, const std::set<std::string>& ids);
  int registrations() const;
  // Why a Register was refused or a dial back failed; empty: never.
  std::string trouble() const;

  // Admits a container as the kubelet does: checks amounts, asks for preferences, allocates each resource. Not started yet.
  Result<Answer> admit(const std::string& pod, const std::map<std::string, int>& amounts, bool ask_preference = true);
  // PreStartContainer for each of the container's resources; an error is the plugin's message in full.
  std::optional<std::string> start(const std::string& pod);
  // A pod with an init container, both admitted at once as the kubelet does: the later container's devices are the init container's as far
  // as those reach. Not in the list, but in the checkpoint, as [uid, "init", resource, ids].
  Result<Answer> admit_with_init(const std::string& pod, const std::map<std::string, int>& init_amounts,
                                 const std::map<std::string, int>& amounts);
  std::optional<std::string> start_init(const std::string& pod);
  void remove(const std::string& pod);
  std::set<std::string> devices_of(const std::string& pod, const std::string& resource) const;

  Pods pods() const;
  // Of the pod's metadata and cgroups: the same for the same name, in every kubelet of this process.
  static std::string uid_of(const std::string& pod);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace nvshare::kubernetes
