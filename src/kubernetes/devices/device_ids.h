// What a node offers to the kubelet, as names: virtual GPUs, units of GPU memory, percents of compute. Pure functions.
//
// A virtual GPU's name carries its GPU ("GPU-<uuid>::3"). Units carry none ("memory-00042"): the kubelet hands out any of them, and the
// container's virtual GPU says which GPU they are of (allocations.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kubernetes/division.h"

namespace nvshare::kubernetes {

enum class Resource { kGpu, kMemory, kCore };

struct Gpu {
  std::string uuid;      // as NVML writes it
  int64_t physical = 0;  // bytes that programs can use
  bool healthy = true;
  int numa_node = -1;  // that its PCI slot is nearest to; -1 = unknown, or the machine has one
  int number = -1;     // NVML's, of a MIG device that of its GPU; -1 = unknown
};

// For people: "GPU 0 (GPU-...)", of a MIG device "GPU 0 (MIG-...)"; the UUID alone where the number is unknown.
std::string shown(const Gpu& gpu);

struct Device {
  std::string id;
  bool healthy = true;
  int numa_node = -1;
  bool operator==(const Device&) const = default;
};

std::string virtual_gpu_id(std::string_view uuid, int index);
// The GPU's UUID in a virtual GPU's name; nothing if it is none.
std::optional<std::string_view> gpu_of(std::string_view id);

std::string unit_id(Resource resource, int64_t index);

// Units of memory, or percents, that a GPU has.
int64_t units_of(Resource resource, const Gpu& gpu, const Division& division);

// Bytes that a container has with so many units of memory: the default if it has none, but a GPU. 0 = none counted, no limit.
int64_t memory_of_container(int64_t units, bool has_gpu, const Division& division);
// What a container with several GPUs has on each of them, rounded up.
int64_t part_of(int64_t amount, size_t gpus);

// The list that ListAndWatch sends. Of the units, as many are unhealthy as unhealthy GPUs have: those first that no container holds, so
// that a container on a healthy GPU does not seem to have lost its memory.
std::vector<Device> virtual_gpus(const std::vector<Gpu>& gpus, const Division& division);
std::vector<Device> units(Resource resource, const std::vector<Gpu>& gpus, const Division& division, const std::set<std::string>& in_use);

}  // namespace nvshare::kubernetes
