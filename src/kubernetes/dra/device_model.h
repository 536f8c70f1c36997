// What of a GPU is published: a DRA device that many claims may share, its capacities, attributes and taints. Pure functions.
//
// Names come from UUIDs, so that they stay the same when GPUs are added, taken away or numbered otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kubernetes/devices/device_ids.h"

namespace nvshare::kubernetes::dra {

inline constexpr int64_t kMemoryStep = 1 << 20;  // bytes; claims have multiples of it
inline constexpr int kCoresOfDevice = 100;       // percent of the GPU's time

// What is known of a GPU. What is empty or negative is not published.
struct DeviceFacts {
  Gpu gpu;
  std::string product_name, architecture, driver_version, cuda_version;
  std::string pcie_root;  // "pci0000:00"
  std::string ailment;    // why it gets no more claims; empty: it is well
  // The GPUs of this node that NVLink joins it to. nullopt: not known.
  std::optional<std::vector<std::string>> nvlink_peers = std::nullopt;
};

struct DeviceModel {
  std::string name;    // "gpu-<uuid in small letters>", of a MIG device "mig-..."
  std::string uuid;    // as NVML writes it
  int64_t memory = 0;  // bytes on offer, a multiple of kMemoryStep
  std::map<std::string, std::string> texts, versions;
  std::map<std::string, int64_t> integers;
  std::string ailment;
  std::string shown;  // for people: "GPU 0 (GPU-...)"
  bool operator==(const DeviceModel&) const = default;
};
using DeviceModels = std::vector<DeviceModel>;

// A name for a GPU's group: the same for GPUs of which NVLink joins each to all others, and none to a GPU outside. Empty: it is joined to
// none, or that is not known.
std::string nvlink_group_of(const DeviceFacts& facts);

// Errors name the GPU: a UUID that gives no name for a device, or memory below one step.
Result<DeviceModel> model_of(const DeviceFacts& facts, const Division& division);

// By a device's name; null: there is none.
const DeviceModel* find_device(const DeviceModels& devices, std::string_view name);

// Of a GPU; empty: that UUID gives none.
std::string device_name(const std::string& uuid);

// "535.183.01" as a semantic version, "535.183.1"; empty: it is none.
std::string semantic_version(std::string_view text);

}  // namespace nvshare::kubernetes::dra
