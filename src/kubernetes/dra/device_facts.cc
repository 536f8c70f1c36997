#include "kubernetes/dra/device_facts.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <system_error>

#include "cuda/nvml.h"
#include "kubernetes/devices/gpus.h"

namespace nvshare::kubernetes::dra {
namespace {

void ask(const cuda::Nvml& nvml, DeviceFacts* facts) {
  Result<cuda::NvmlDevice> device = nvml.device_by_uuid(facts->gpu.uuid.c_str());
  if (!device) return;
  char text[96] = {};
  if (nvml.name_of(*device, text)) facts->product_name = text;
  const cuda::NvmlDevice whole = nvml.gpu_of(*device);  // a MIG device has no address of its own
  if (auto name = nvml.architecture_of(whole)) facts->architecture = *name;
  if (nvml.pci_address_of(whole, text)) facts->pcie_root = pcie_root_of("/sys", text);
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
  std::vector<DeviceFacts> all;
  Result<cuda::Nvml> nvml = cuda::Nvml::load();
  for (const Gpu& gpu : gpus) {
    DeviceFacts& facts = all.emplace_back();
    facts.gpu = gpu;
    if (!nvml) continue;
    ask(*nvml, &facts);
    char version[96] = {};
    if (nvml->driver_version(version)) facts.driver_version = version;
    if (auto number = nvml->cuda_version()) facts.cuda_version = cuda_version_text(*number);
  }
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
