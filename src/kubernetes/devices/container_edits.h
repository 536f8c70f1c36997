// What a container is given: variables, mounts, CDI devices. Pure functions.
//
// The kubelet keeps the answer and gives it to every later start of the container, so each path and each name in it must stay good for as
// long as the container may live: libraries are installed beside older ones (install.h), CDI names are never taken back (cdi.h).
// A pod's own variables go before ours; CDI's go before the pod's. What must hold against the tenant is the scheduler's to enforce.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kubernetes/devices/device_ids.h"
#include "kubernetes/settings.h"

namespace nvshare::kubernetes {

struct Mount {
  std::string container_path, host_path;
  bool operator==(const Mount&) const = default;
};

struct ContainerEdits {
  std::map<std::string, std::string> variables;
  std::vector<Mount> mounts;  // all read-only
  std::vector<std::string> cdi_devices;
};

// Where a container finds things, whatever the host's paths are.
inline constexpr char kContainerLibrary[] = "/usr/lib/nvshare/libnvshare.so";
inline constexpr char kContainerPreload[] = "/etc/ld.so.preload";
inline constexpr char kContainerClientDir[] = "/run/nvshare/client";

// Files on the host, from install.h.
struct InstalledFiles {
  std::string library;  // libnvshare.so under a name that no other version has
  std::string preload;  // its content is kContainerLibrary
};

std::vector<Mount> mounts_of(const Settings& settings, const InstalledFiles& files);

// The distinct GPUs of these virtual GPUs, sorted.
std::vector<std::string> distinct_gpus(const std::vector<std::string>& ids);

// As NVIDIA_VISIBLE_DEVICES has them: "GPU-a,GPU-b".
std::string joined(const std::vector<std::string>& uuids);

// "4096Mi", or in bytes where MiB do not divide it.
std::string limit_text(int64_t bytes);

// For virtual GPUs, and for units of memory.
ContainerEdits gpu_edits(const Settings& settings, const InstalledFiles& files, const std::vector<std::string>& ids);
ContainerEdits memory_edits(const Settings& settings, int64_t units);

// The variables alone, which with CDI are in its specification.
std::map<std::string, std::string> gpu_variables(const Settings& settings, const std::vector<std::string>& uuids);
std::map<std::string, std::string> memory_variables(const std::string& limit);

// The name of a CDI device for these GPUs, without the kind: their UUIDs with ':' between them.
std::string cdi_gpus_name(const std::vector<std::string>& uuids);

}  // namespace nvshare::kubernetes
