#include "kubernetes/cdi.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kubernetes/install.h"

namespace nvshare::kubernetes {
namespace {

using nlohmann::json;

constexpr char kCdiVersion[] = "0.5.0";

json variables_json(const std::map<std::string, std::string>& variables) {
  json list = json::array();
  for (const auto& [name, value] : variables) list.push_back(name + "=" + value);
  return list;
}

json spec_of(const char* kind, json devices) { return {{"cdiVersion", kCdiVersion}, {"kind", kind}, {"devices", std::move(devices)}}; }

std::vector<std::string> uuids_of(const std::string& name) {
  std::vector<std::string> uuids;
  std::istringstream stream(name);
  for (std::string uuid; std::getline(stream, uuid, ':');) uuids.push_back(uuid);
  return uuids;
}

}  // namespace

CdiSpecs::CdiSpecs(const Settings& settings, const InstalledFiles& files)
    : gpu_file_(settings.cdi_dir + "/nvshare.com-gpu.json"),
      memory_file_(settings.cdi_dir + "/nvshare.com-gpu-memory.json"),
      mounts_(mounts_of(settings, files)) {
  read_names(gpu_file_, &gpu_names_);
  read_names(memory_file_, &memory_names_);
}

void CdiSpecs::read_names(const std::string& path, std::set<std::string>* names) const {
  auto text = read_file(path);
  if (!text) return;  // none yet
  json spec = json::parse(*text, nullptr, false);
  if (!spec.is_object() || !spec.contains("devices") || !spec["devices"].is_array()) return;
  for (const json& device : spec["devices"]) {
    if (device.is_object() && device.contains("name") && device["name"].is_string()) names->insert(device["name"].get<std::string>());
  }
}

std::string CdiSpecs::gpu_spec() const {
  json devices = json::array();
  for (const std::string& name : gpu_names_) {
    devices.push_back({{"name", name}, {"containerEdits", {{"env", variables_json(gpu_variables(uuids_of(name)))}}}});
  }
  json spec = spec_of(kCdiGpuKind, std::move(devices));
  json mounts = json::array();
  for (const Mount& mount : mounts_) {
    mounts.push_back(
        {{"hostPath", mount.host_path}, {"containerPath", mount.container_path}, {"options", {"ro", "nosuid", "nodev", "bind"}}});
  }
  spec["containerEdits"] = {{"mounts", std::move(mounts)}};
  return spec.dump(1) + "\n";
}

std::string CdiSpecs::memory_spec() const {
  json devices = json::array();
  for (const std::string& name : memory_names_) {
    devices.push_back({{"name", name}, {"containerEdits", {{"env", variables_json(memory_variables(name))}}}});
  }
  return spec_of(kCdiMemoryKind, std::move(devices)).dump(1) + "\n";
}

Result<void> CdiSpecs::describe_gpus(const std::vector<std::vector<std::string>>& uuid_sets) {
  size_t before = gpu_names_.size();
  for (const auto& uuids : uuid_sets) {
    if (!uuids.empty()) gpu_names_.insert(cdi_gpus_name(uuids));
  }
  if (gpu_names_.empty() || (gpus_written_ && gpu_names_.size() == before)) return {};
  Result<void> ok = write_file_atomically(gpu_file_, gpu_spec());
  gpus_written_ = static_cast<bool>(ok);
  return ok;
}

Result<void> CdiSpecs::describe_memory(const std::vector<std::string>& limits) {
  size_t before = memory_names_.size();
  memory_names_.insert(limits.begin(), limits.end());
  if (memory_names_.empty() || (memory_written_ && memory_names_.size() == before)) return {};
  Result<void> ok = write_file_atomically(memory_file_, memory_spec());
  memory_written_ = static_cast<bool>(ok);
  return ok;
}

}  // namespace nvshare::kubernetes
