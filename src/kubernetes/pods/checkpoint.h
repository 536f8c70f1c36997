// What the kubelet wrote down of the devices that pods hold: `kubelet_internal_checkpoint` in its folder of device plugins. It is the only
// thing on a node that names pods by their UID, as their cgroups do, without the API server. It is the kubelet's own file and no
// interface: it is read as far as it is understood, and nothing else rests on it. Pure functions.
//
//   {"Data":{"PodDeviceEntries":[{"PodUID":"0b4e...","ContainerName":"main","ResourceName":"nvshare.com/gpu",
//                                 "DeviceIDs":{"-1":["GPU-...::3"]},"AllocResp":"base64"}],
//            "RegisteredDevices":{...}},"Checksum":1234,"BootID":"..."}
//
// DeviceIDs: by NUMA node, -1 for none; before Kubernetes 1.20 a list. The checksum is over the kubelet's types in its memory: nobody else
// can compute it, so it is not looked at. Pods that have ended stay in the file until the next one comes: no process is in their cgroups.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kubernetes/pods/pod_limits.h"

namespace nvshare::kubernetes {

inline constexpr char kCheckpointName[] = "kubelet_internal_checkpoint";

// Devices of one container, as IDs.
struct ContainerDevices {
  std::set<std::string> gpus, memory, cores;
};
using PodDevices = std::map<std::string, ContainerDevices>;  // by the container's name

// What one pod was granted, all its containers together. A container with several GPUs has an even part of its memory and compute on each.
struct PodAllocation {
  std::set<std::string> gpus;                // virtual GPUs, as device IDs
  int64_t memory = 0;                        // bytes; 0 = no limit, because one of its containers has a GPU and no memory
  int core = 100;                            // percent, on the GPU where it has most; 100 = no limit
  std::map<std::string, int64_t> memory_on;  // by the GPU's UUID; a GPU on which it has no limit is not there
  bool operator==(const PodAllocation&) const = default;
};

PodAllocation allocation_of(const PodDevices& pod, const Division& division);

struct Checkpoint {
  std::map<std::string, PodDevices> pods;  // by UID; those that hold something of ours
  std::set<std::string> half_read;         // of them; some of their entries were not understood
  bool whole = true;                       // false: entries were not understood that may be any pod's
  std::vector<std::string> unread;         // what was not understood, and why
};

Result<Checkpoint> read_checkpoint(std::string_view text, const ResourceNames& resources);

// A pod's limits: what the API server said (null: nothing), lowered by what the kubelet granted (null: nothing), which alone knows the
// GPUs. `name`: of a pod that only the kubelet knows.
protocol::admin::PodRequest limits_with(const protocol::admin::PodRequest* said, const PodAllocation* granted, const std::string& uid,
                                        const std::string& name);

}  // namespace nvshare::kubernetes
