#include "kubernetes/pods/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_nesting.h"
#include "base/printable.h"
#include "kubernetes/devices/container_edits.h"

namespace nvshare::kubernetes {
namespace {

using Json = nlohmann::json;
using protocol::admin::PodRequest;

constexpr size_t kEntryShownMax = 64;  // bytes of what somebody else wrote

const Json& member(const Json& json, const char* field) {
  static const Json none;
  if (!json.is_object()) return none;
  auto found = json.find(field);
  return found == json.end() ? none : *found;
}

bool add_list(const Json& list, std::set<std::string>* ids) {
  if (!list.is_array()) return false;
  for (const Json& id : list) {
    if (!id.is_string()) return false;
    ids->insert(id.get<std::string>());
  }
  return true;
}

bool add_ids(const Json& devices, std::set<std::string>* ids) {
  if (devices.is_array()) return add_list(devices, ids);
  if (!devices.is_object()) return false;
  return std::all_of(devices.begin(), devices.end(), [&](const Json& list) { return add_list(list, ids); });
}

// Of one entry. Empty, or what of it was not understood, of a pod that then is `uid`, or of any, where that is empty.
std::string read_entry(const Json& entry, const ResourceNames& resources, Checkpoint* checkpoint, std::string* uid) {
  const Json& resource = member(entry, "ResourceName");
  if (!resource.is_string()) return "an entry has no resource's name";
  const bool is_gpu = resource == resources.gpu;
  const bool is_memory = resource == resources.memory;
  if (resource.get_ref<const std::string&>().empty() || (!is_gpu && !is_memory && resource != resources.core)) return "";
  const std::string given = member(entry, "PodUID").is_string() ? member(entry, "PodUID").get<std::string>() : "";
  if (!protocol::admin::is_pod_uid(given)) return "an entry of '" + printable(given).substr(0, kEntryShownMax) + "' has no pod's UID";
  *uid = given;
  PodDevices& pod = checkpoint->pods[given];
  const std::string name = member(entry, "ContainerName").is_string() ? member(entry, "ContainerName").get<std::string>() : "";
  if (name.empty()) return "an entry of pod " + given + " has no container's name";
  ContainerDevices& container = pod[name];
  if (add_ids(member(entry, "DeviceIDs"), is_gpu ? &container.gpus : is_memory ? &container.memory : &container.cores)) return "";
  return "pod " + given + ", container " + printable(name).substr(0, kEntryShownMax) +
         ": its DeviceIDs are neither a list nor lists by NUMA node";
}

}  // namespace

// An init container's devices are those of the containers after it as well, so units count once. What each has on a GPU is added up: with
// init containers that is more than the pod has, and `memory` bounds it.
PodAllocation allocation_of(const PodDevices& pod, const Division& division) {
  PodAllocation allocation;
  std::set<std::string> units;
  int64_t by_default = 0;
  bool memory_bounded = true;
  bool core_bounded = true;
  std::map<std::string, int64_t> core_on;
  std::set<std::string> unbounded;  // GPUs
  for (const auto& [name, container] : pod) {
    const std::vector<std::string> uuids = distinct_gpus({container.gpus.begin(), container.gpus.end()});
    if (uuids.empty()) continue;  // the plugin refuses to start it
    allocation.gpus.insert(container.gpus.begin(), container.gpus.end());
    units.insert(container.memory.begin(), container.memory.end());
    const int64_t bytes = memory_of_container(std::ssize(container.memory), true, division);
    if (container.memory.empty()) by_default += bytes;
    memory_bounded = memory_bounded && bytes > 0;
    core_bounded = core_bounded && !container.cores.empty();
    for (const std::string& uuid : uuids) {
      if (bytes == 0) unbounded.insert(uuid);
      allocation.memory_on[uuid] += part_of(bytes, uuids.size());
      core_on[uuid] += part_of(std::ssize(container.cores), uuids.size());
    }
  }
  for (const std::string& uuid : unbounded) allocation.memory_on.erase(uuid);
  if (memory_bounded) allocation.memory = std::ssize(units) * division.memory_unit + by_default;
  if (core_bounded) {
    int64_t most = 0;
    for (const auto& [uuid, percent] : core_on) most = std::max(most, percent);
    if (most > 0) allocation.core = static_cast<int>(std::min<int64_t>(most, 100));
  }
  return allocation;
}

Result<Checkpoint> read_checkpoint(std::string_view text, const ResourceNames& resources) {
  if (nests_too_deep(text)) return error_format("it nests deeper than %d", kJsonNestingMax);
  // Other plugins' devices are most of the file.
  const auto wanted = [](int /*depth*/, Json::parse_event_t event, Json& parsed) {
    return event != Json::parse_event_t::key || (parsed != "RegisteredDevices" && parsed != "AllocResp");
  };
  const Json json = Json::parse(text, wanted, false);
  if (json.is_discarded()) return error_format("it is no JSON");
  const Json& data = member(json, "Data");
  const Json& entries = member(data, "PodDeviceEntries");
  if (!data.is_object() || !(entries.is_array() || entries.is_null())) return error_format("it has no list Data.PodDeviceEntries");
  Checkpoint checkpoint;
  for (const Json& entry : entries) {
    std::string uid;
    std::string why = read_entry(entry, resources, &checkpoint, &uid);
    if (why.empty()) continue;
    checkpoint.unread.push_back(std::move(why));
    if (uid.empty()) {
      checkpoint.whole = false;
    } else {
      checkpoint.half_read.insert(uid);
    }
  }
  return checkpoint;
}

PodRequest limits_with(const PodRequest* said, const PodAllocation* granted, const std::string& uid, const std::string& name) {
  PodRequest limits;
  if (said != nullptr) limits = *said;
  limits.uid = uid;
  if (said == nullptr) {
    limits.name = name.empty() ? uid : name;
    if (granted != nullptr) limits.gpu_memory_limit = granted->memory;
    if (granted != nullptr && granted->core < 100) limits.gpu_core_reserved = granted->core;
  }
  if (granted == nullptr) return limits;
  limits.gpu_core_limit = std::min(limits.gpu_core_limit, granted->core);
  limits.gpu_core_reserved = std::min(limits.gpu_core_reserved, limits.gpu_core_limit);
  for (const auto& [gpu, bytes] : granted->memory_on) {
    const bool lower = limits.gpu_memory_limit == 0 || bytes < limits.gpu_memory_limit;
    if (lower && limits.gpu_memory_on.size() < protocol::admin::kGpusOfPodMax) limits.gpu_memory_on[gpu] = bytes;
  }
  return limits;
}

}  // namespace nvshare::kubernetes
