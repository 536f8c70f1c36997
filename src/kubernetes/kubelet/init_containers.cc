#include "kubernetes/kubelet/init_containers.h"

#include <algorithm>

namespace nvshare::kubernetes {
namespace {

const std::set<std::string>& devices_of(const ContainerDevices& container, Resource resource) {
  switch (resource) {
    case Resource::kGpu:
      return container.gpus;
    case Resource::kMemory:
      return container.memory;
    case Resource::kCore:
      break;
  }
  return container.cores;
}

bool shares_any(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::any_of(a.begin(), a.end(), [&](const std::string& id) { return b.contains(id); });
}

// Of the pod that has these containers.
const HeldDevices* listed_of(const PodDevices& pod, const std::vector<HeldDevices>& listed) {
  for (const HeldDevices& held : listed) {
    if (held.init) continue;
    for (const auto& [name, container] : pod) {
      if (shares_any(container.gpus, held.gpus) || shares_any(container.memory, held.memory)) return &held;
    }
  }
  return nullptr;
}

}  // namespace

std::optional<HeldDevices> init_container_with(const Checkpoint& checkpoint, Resource resource, const std::vector<std::string>& ids,
                                               const std::vector<HeldDevices>& listed) {
  const std::set<std::string> wanted(ids.begin(), ids.end());
  for (const auto& [uid, pod] : checkpoint.pods) {
    for (const auto& [name, container] : pod) {
      if (devices_of(container, resource) != wanted) continue;
      const HeldDevices* sibling = listed_of(pod, listed);
      HeldDevices held{"", uid, name, container.gpus, container.memory, container.cores, true};
      if (sibling != nullptr) {
        held.name_space = sibling->name_space;
        held.pod = sibling->pod;
      }
      return held;
    }
  }
  return std::nullopt;
}

bool is_there(const Checkpoint& checkpoint, const HeldDevices& init) {
  return std::any_of(checkpoint.pods.begin(), checkpoint.pods.end(), [&](const auto& pod) {
    const auto container = pod.second.find(init.container);
    return container != pod.second.end() && container->second.gpus == init.gpus && container->second.memory == init.memory &&
           container->second.cores == init.cores;
  });
}

}  // namespace nvshare::kubernetes
