#include "kubernetes/dra/device_model.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/fnv.h"
#include "base/parse.h"

namespace nvshare::kubernetes::dra {
namespace {

constexpr size_t kDeviceNameMax = 63;  // a DNS label
constexpr size_t kAttributeMax = 64;   // bytes of a text
constexpr char kPcieRootAttribute[] = "resource.kubernetes.io/pcieRoot";

}  // namespace

std::string device_name(const std::string& uuid) {
  std::string name = uuid;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto is_good = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  const bool good = name.size() <= kDeviceNameMax && (name.starts_with("gpu-") || name.starts_with("mig-")) && name.back() != '-' &&
                    std::all_of(name.begin(), name.end(), is_good);
  return good ? name : "";
}

std::string semantic_version(std::string_view text) {
  std::string version;
  int parts = 0;
  while (parts < 3) {
    const size_t end = text.find('.');
    const auto part = parse_integer(text.substr(0, end), 0, 1'000'000);
    if (!part) return "";
    version += (parts++ > 0 ? "." : "") + std::to_string(*part);
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
    if (parts == 3) return "";
  }
  for (; parts < 3; ++parts) version += ".0";
  return version;
}

std::string nvlink_group_of(const DeviceFacts& facts) {
  if (!facts.nvlink_peers || facts.nvlink_peers->empty()) return "";
  // The whole neighbourhood, itself included, is what GPUs of one group have in common.
  std::set<std::string> group(facts.nvlink_peers->begin(), facts.nvlink_peers->end());
  group.insert(facts.gpu.uuid);
  std::string all;
  for (const std::string& uuid : group) all += uuid;
  return "nvlink-" + fnv_1a_text(all);
}

Result<DeviceModel> model_of(const DeviceFacts& facts, const Division& division) {
  DeviceModel model;
  model.uuid = facts.gpu.uuid;
  model.name = device_name(model.uuid);
  model.shown = shown(facts.gpu);
  if (model.name.empty()) return error_format("'%.100s' is no UUID of a GPU", model.uuid.c_str());
  const int64_t physical = std::min(facts.gpu.physical, division.physical_memory.value_or(facts.gpu.physical));
  model.memory = static_cast<int64_t>(static_cast<double>(physical) * division.oversubscription) / kMemoryStep * kMemoryStep;
  if (model.memory < kMemoryStep) return error_format("%.100s has less than 1Mi of memory to offer", model.shown.c_str());
  const auto text = [&](const char* name, const std::string& value) {
    if (!value.empty()) model.texts[name] = value.substr(0, kAttributeMax);
  };
  text("uuid", model.uuid);
  text("type", model.name.substr(0, 3));
  text("productName", facts.product_name);
  text("architecture", facts.architecture);
  text(kPcieRootAttribute, facts.pcie_root);
  const auto version = [&](const char* name, const std::string& value) {
    if (std::string semantic = semantic_version(value); !semantic.empty()) model.versions[name] = semantic;
  };
  version("driverVersion", facts.driver_version);
  version("cudaVersion", facts.cuda_version);
  if (facts.gpu.numa_node >= 0) model.integers["numaNode"] = facts.gpu.numa_node;
  text("nvlinkGroup", nvlink_group_of(facts));
  if (facts.nvlink_peers) model.integers["nvlinkPeers"] = static_cast<int64_t>(facts.nvlink_peers->size());
  model.ailment = !facts.ailment.empty() ? facts.ailment : facts.gpu.healthy ? "" : "unhealthy";
  return model;
}

const DeviceModel* find_device(const DeviceModels& devices, std::string_view name) {
  const auto found = std::find_if(devices.begin(), devices.end(), [&](const DeviceModel& device) { return device.name == name; });
  return found == devices.end() ? nullptr : &*found;
}

}  // namespace nvshare::kubernetes::dra
