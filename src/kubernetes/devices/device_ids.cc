#include "kubernetes/devices/device_ids.h"

#include <algorithm>
#include <cstdio>

namespace nvshare::kubernetes {
namespace {

constexpr std::string_view kSeparator = "::";
constexpr int64_t kPercents = 100;

}  // namespace

std::string shown(const Gpu& gpu) { return gpu.number < 0 ? gpu.uuid : "GPU " + std::to_string(gpu.number) + " (" + gpu.uuid + ")"; }

std::string virtual_gpu_id(std::string_view uuid, int index) {
  std::string id(uuid);
  id += kSeparator;
  return id += std::to_string(index);
}

std::optional<std::string_view> gpu_of(std::string_view id) {
  size_t at = id.rfind(kSeparator);
  if (at == std::string_view::npos || at == 0) return std::nullopt;
  std::string_view index = id.substr(at + kSeparator.size());
  if (index.empty() || index.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return id.substr(0, at);
}

std::string unit_id(Resource resource, int64_t index) {
  char text[32];
  std::snprintf(text, sizeof text, "%s-%05lld", resource == Resource::kCore ? "core" : "memory", static_cast<long long>(index));
  return text;
}

int64_t units_of(Resource resource, const Gpu& gpu, const Division& division) {
  if (resource == Resource::kCore) return kPercents;
  int64_t physical = std::min(gpu.physical, division.physical_memory.value_or(gpu.physical));
  return static_cast<int64_t>(static_cast<double>(physical) * division.oversubscription / static_cast<double>(division.memory_unit));
}

int64_t memory_of_container(int64_t units, bool has_gpu, const Division& division) {
  if (units > 0) return units * division.memory_unit;
  return has_gpu ? division.default_memory : 0;
}

int64_t part_of(int64_t amount, size_t gpus) {
  const auto count = static_cast<int64_t>(std::max<size_t>(gpus, 1));
  return (amount + count - 1) / count;
}

std::vector<Device> virtual_gpus(const std::vector<Gpu>& gpus, const Division& division) {
  std::vector<Device> devices;
  for (const Gpu& gpu : gpus) {
    for (int i = 0; i < division.virtual_devices; ++i) devices.push_back({virtual_gpu_id(gpu.uuid, i), gpu.healthy, gpu.numa_node});
  }
  return devices;
}

std::vector<Device> units(Resource resource, const std::vector<Gpu>& gpus, const Division& division, const std::set<std::string>& in_use) {
  int64_t total = 0;
  int64_t lost = 0;
  for (const Gpu& gpu : gpus) {
    int64_t count = units_of(resource, gpu, division);
    total += count;
    if (!gpu.healthy) lost += count;
  }
  std::vector<Device> devices;
  devices.reserve(static_cast<size_t>(total));
  for (int64_t i = 0; i < total; ++i) devices.push_back({unit_id(resource, i), true, -1});
  for (bool used : {false, true}) {
    for (auto device = devices.rbegin(); device != devices.rend() && lost > 0; ++device) {
      if (!device->healthy || (in_use.count(device->id) != 0) != used) continue;
      device->healthy = false;
      --lost;
    }
  }
  return devices;
}

}  // namespace nvshare::kubernetes
