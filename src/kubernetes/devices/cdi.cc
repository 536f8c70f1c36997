#include "kubernetes/devices/cdi.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kubernetes/files.h"

namespace nvshare::kubernetes {
namespace {

using nlohmann::json;

constexpr char kCdiVersion[] = "0.5.0";
constexpr int64_t kCdiLimitsMax = 4096;

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
    : settings_(settings),
      gpu_file_(settings.cdi_dir + "/nvshare.com-gpu.json"),
      names_file_(settings.cdi_dir + "/nvshare.com-gpu-names.json"),
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
  std::map<std::string, std::vector<std::string>> uuids_by_name;
  for (const std::string& name : gpu_names_) uuids_by_name[name] = uuids_of(name);
  return gpu_spec_of(uuids_by_name);
}

std::string CdiSpecs::gpu_spec_of(const std::map<std::string, std::vector<std::string>>& uuids_by_name) const {
  json devices = json::array();
  for (const auto& [name, uuids] : uuids_by_name) {
    devices.push_back({{"name", name}, {"containerEdits", {{"env", variables_json(gpu_variables(settings_, uuids))}}}});
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

Result<void> CdiSpecs::describe_names(const std::map<std::string, std::vector<std::string>>& uuids_by_name) {
  return write_file_atomically(names_file_, gpu_spec_of(uuids_by_name));
}

Result<std::string> write_cdi_for_people(const Settings& settings, const InstalledFiles& files, const std::vector<Gpu>& gpus,
                                         const std::vector<Gpu>& all) {
  std::map<std::string, std::vector<std::string>> names;
  std::vector<std::vector<std::string>> alone;
  int64_t largest = 0;
  for (const Gpu& gpu : gpus) {
    alone.push_back({gpu.uuid});
    names["all"].push_back(gpu.uuid);
    const auto at = std::find_if(all.begin(), all.end(), [&](const Gpu& one) { return one.uuid == gpu.uuid; });
    if (at != all.end()) names[std::to_string(at - all.begin())] = {gpu.uuid};
    largest = std::max(largest, gpu.physical);
  }
  const int64_t unit = settings.division.memory_unit;
  std::vector<std::string> limits;
  for (int64_t units = 1; units <= std::min<int64_t>(largest / unit, kCdiLimitsMax); ++units) limits.push_back(limit_text(units * unit));
  CdiSpecs specs(settings, files);
  if (auto ok = specs.describe_gpus(alone); !ok) return ok.error();
  if (auto ok = specs.describe_names(names); !ok) return ok.error();
  if (auto ok = specs.describe_memory(limits); !ok) return ok.error();
  std::string said = "wrote " + settings.cdi_dir + "/nvshare.com-*.json:";
  for (const auto& [name, uuids] : names) said += " nvshare.com/gpu=" + name;
  for (const Gpu& gpu : gpus) said += " nvshare.com/gpu=" + gpu.uuid;
  if (!limits.empty()) said += "; nvshare.com/gpu-memory=" + limits.front() + " to " + limits.back();
  return said;
}

}  // namespace nvshare::kubernetes
