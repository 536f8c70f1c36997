#include "kubernetes/dra/device_facts.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <system_error>

#include "cuda/nvml.h"
#include "kubernetes/devices/gpus.h"

namespace nvshare::kubernetes::dra {
namespace {

void ask(const cuda::Nvml& nvml, cuda::NvmlDevice device, DeviceFacts* facts) {
  char text[96] = {};
  if (nvml.name_of(device, text)) facts->product_name = text;
  const cuda::NvmlDevice whole = nvml.gpu_of(device);  // a MIG device has no address of its own
  if (auto name = nvml.architecture_of(whole)) facts->architecture = *name;
  if (nvml.pci_address_of(whole, text)) facts->pcie_root = pcie_root_of("/sys", text);
}

// Between every two whole GPUs; MIG devices have no links.
void ask_nvlinks(const cuda::Nvml& nvml, const std::vector<Result<cuda::NvmlDevice>>& devices, std::vector<DeviceFacts>* all) {
  const auto is_whole = [&](size_t i) { return devices[i] && (*all)[i].gpu.uuid.starts_with("GPU-"); };
  for (size_t i = 0; i < all->size(); ++i) {
    std::vector<std::string> peers;
    bool is_known = is_whole(i);
    for (size_t j = 0; is_known && j < all->size(); ++j) {
      if (i == j || !is_whole(j)) continue;
      const Result<bool> joined = nvml.nvlink_joins(*devices[i], *devices[j]);
      is_known = static_cast<bool>(joined);
      if (joined && *joined) peers.push_back((*all)[j].gpu.uuid);
    }
    if (is_known) (*all)[i].nvlink_peers = std::move(peers);
  }
}

}  // namespace

std::string cuda_version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

std::string pcie_root_of(const std::string& sysfs, const std::string& pci_address) {
  std::error_code problem;
  const auto path = std::filesystem::canonical(sysfs + "/bus/pci/devices/" + kernel_pci_address(pci_address), problem);
  if (problem) return {};
  for (const auto& part : path) {
    std::string name = part.string();
    if (name.starts_with("pci") && name.find(':') != std::string::npos) return name;
  }
  return {};
}

std::vector<DeviceFacts> facts_of(const std::vector<Gpu>& gpus) {
  std::vector<DeviceFacts> all(gpus.size());
  for (size_t i = 0; i < gpus.size(); ++i) all[i].gpu = gpus[i];
  const Result<cuda::Nvml> nvml = cuda::Nvml::load();
  if (!nvml) return all;
  char version[96] = {};
  const bool has_version = static_cast<bool>(nvml->driver_version(version));
  const Result<int> cuda = nvml->cuda_version();
  std::vector<Result<cuda::NvmlDevice>> devices;
  for (DeviceFacts& facts : all) {
    devices.push_back(nvml->device_by_uuid(facts.gpu.uuid.c_str()));
    if (devices.back()) ask(*nvml, *devices.back(), &facts);
    if (has_version) facts.driver_version = version;
    if (cuda) facts.cuda_version = cuda_version_text(*cuda);
  }
  ask_nvlinks(*nvml, devices, &all);
  return all;
}

DeviceModels models_of(const std::vector<DeviceFacts>& facts, const Division& division) {
  DeviceModels models;
  for (const DeviceFacts& one : facts) {
    Result<DeviceModel> model = model_of(one, division);
    if (model) {
      models.push_back(std::move(*model));
    } else {
      spdlog::error("not offered: {}", model.error().text);
    }
  }
  return models;
}

}  // namespace nvshare::kubernetes::dra
