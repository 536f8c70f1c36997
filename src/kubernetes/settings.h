// The device plugin's settings: command line, then environment, then default. One table in settings.cc declares them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/settings_table.h"
#include "kubernetes/division.h"
#include "kubernetes/namespace_maxima.h"

namespace nvshare::kubernetes {

// What a container's runtime is asked for besides environment and mounts.
enum class Cdi {
  kOff,         // nothing: environment and mounts of the plugin's answer
  kOn,          // our CDI devices instead of them; NVIDIA's runtime brings the GPU, by NVIDIA_VISIBLE_DEVICES
  kWithNvidia,  // the same, and nvidia.com/gpu=UUID, which `nvidia-ctk cdi generate` describes
};

struct Settings {
  std::string gpu_resource = "nvshare.com/gpu";
  std::string memory_resource = "nvshare.com/gpu-memory";  // empty: not offered
  std::string core_resource;                               // empty: not offered
  Division division;
  std::string visible_gpus = "all";  // or UUIDs and numbers, as NVIDIA_VISIBLE_DEVICES has them
  std::string kubelet_dir = "/var/lib/kubelet/device-plugins";
  std::string plugins_dir = "/var/lib/kubelet/plugins";            // the kubelet's, of the DRA driver's socket
  std::string registry_dir = "/var/lib/kubelet/plugins_registry";  // the kubelet's, where it looks for drivers
  std::string pod_resources_socket = "/var/lib/kubelet/pod-resources/kubelet.sock";
  std::string runtime_dir = "/run/nvshare";      // the scheduler's, on the host
  std::string install_dir = "/var/lib/nvshare";  // on the host and here; libraries and the record of grants
  std::string library;                           // what is installed there; empty: libnvshare.so beside this program
  Cdi cdi = Cdi::kOff;
  std::string cdi_dir = "/var/run/cdi";
  std::string runtime_config;                   // the runtime's folder; empty: it is not asked
  int64_t health_interval = 5'000'000'000;      // ns between two looks at the GPUs
  int64_t scheduler_patience = 30'000'000'000;  // ns that the scheduler may be away before GPUs count as unhealthy; 0: it is not asked
  std::string api_server = "auto";              // or "off", or a URL
  std::string service_account = "/var/run/secrets/kubernetes.io/serviceaccount";
  std::string instance;              // of this plugin in its sockets' names, so that two do not take each other's; empty: none
  std::string node_name;             // this node's in the cluster
  bool refuse_other_plugins = true;  // that serve the same GPUs
  int pod_priority_max = 0;          // the highest that a pod's annotation may give it
  bool annotations_reserve = false;  // what an annotation says of GPU time is reserved too
  NamespaceMaxima namespace_maxima;  // what pods of a namespace may have at most
  std::string log_level = "info";
};

using SettingSpec = settings::Spec<Settings>;
const std::vector<SettingSpec>& setting_specs();

Result<Settings> load_settings(const settings::Lookup& environment, const settings::Texts& command_line);

}  // namespace nvshare::kubernetes
