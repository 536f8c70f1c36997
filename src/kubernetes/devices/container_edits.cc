#include "kubernetes/devices/container_edits.h"

#include <algorithm>

#include "kubernetes/devices/cdi.h"
#include "protocol/paths.h"

namespace nvshare::kubernetes {

std::vector<Mount> mounts_of(const Settings& settings, const InstalledFiles& files) {
  // The folder, not the socket: a scheduler that starts anew makes a new socket.
  std::string client = settings.runtime_dir + protocol::kClientSocket;
  client.resize(client.rfind('/'));
  return {{kContainerLibrary, files.library}, {kContainerPreload, files.preload}, {kContainerClientDir, client}};
}

std::vector<std::string> distinct_gpus(const std::vector<std::string>& ids) {
  std::vector<std::string> uuids;
  for (const std::string& id : ids) {
    if (auto uuid = gpu_of(id)) uuids.emplace_back(*uuid);
  }
  std::sort(uuids.begin(), uuids.end());
  uuids.erase(std::unique(uuids.begin(), uuids.end()), uuids.end());
  return uuids;
}

std::string joined(const std::vector<std::string>& uuids) {
  std::string text;
  for (const std::string& uuid : uuids) text += (text.empty() ? "" : ",") + uuid;
  return text;
}

std::string limit_text(int64_t bytes) { return bytes % (1 << 20) == 0 ? std::to_string(bytes >> 20) + "Mi" : std::to_string(bytes); }

std::string cdi_gpus_name(const std::vector<std::string>& uuids) {
  std::string name = joined(uuids);
  // A CDI name begins and ends with a letter or digit and has besides those only '_', '-', '.', ':'.
  std::replace(name.begin(), name.end(), ',', ':');
  return name;
}

ContainerEdits gpu_edits(const Settings& settings, const InstalledFiles& files, const std::vector<std::string>& ids) {
  ContainerEdits edits;
  std::vector<std::string> uuids = distinct_gpus(ids);
  if (settings.cdi != Cdi::kOff) {
    edits.cdi_devices.push_back(std::string(kCdiGpuKind) + "=" + cdi_gpus_name(uuids));
    for (const std::string& uuid : uuids) {
      if (settings.cdi == Cdi::kWithNvidia) edits.cdi_devices.push_back("nvidia.com/gpu=" + uuid);
    }
    return edits;
  }
  edits.variables = gpu_variables(settings, uuids);
  edits.mounts = mounts_of(settings, files);
  return edits;
}

ContainerEdits memory_edits(const Settings& settings, int64_t units) {
  ContainerEdits edits;
  std::string limit = limit_text(units * settings.division.memory_unit);
  if (settings.cdi != Cdi::kOff) {
    edits.cdi_devices.push_back(std::string(kCdiMemoryKind) + "=" + limit);
  } else {
    edits.variables = memory_variables(limit);
  }
  return edits;
}

// The default, and the number of GPUs that the memory is for, are variables of their own, because what follows from units comes in another
// answer, and of one variable with two values the kubelet takes either.
std::map<std::string, std::string> gpu_variables(const Settings& settings, const std::vector<std::string>& uuids) {
  std::map<std::string, std::string> variables = {{"NVIDIA_VISIBLE_DEVICES", joined(uuids)}};
  const int64_t bytes = settings.division.default_memory;
  if (bytes > 0 && !uuids.empty()) variables["NVSHARE_GPU_MEMORY_GRANT_DEFAULT"] = limit_text(part_of(bytes, uuids.size()));
  if (uuids.size() > 1) variables["NVSHARE_GPU_MEMORY_GRANT_GPUS"] = std::to_string(uuids.size());
  return variables;
}

std::map<std::string, std::string> memory_variables(const std::string& limit) {
  return {{"NVSHARE_GPU_MEMORY_LIMIT", limit}, {"NVSHARE_GPU_MEMORY_GRANT", limit}};
}

}  // namespace nvshare::kubernetes
