#include "kubernetes/pods/pod_allocations.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_nesting.h"
#include "base/printable.h"
#include "protocol/json_record.h"

namespace nvshare::kubernetes {
namespace {

using Json = nlohmann::json;

constexpr int kGrantsFormat = 1;  // of the record: that of the oldest plugin that may read it

std::set<std::string> devices_of(const PodDevices& pod) {
  std::set<std::string> gpus;
  for (const auto& [name, container] : pod) gpus.insert(container.gpus.begin(), container.gpus.end());
  return gpus;
}

// Null, or what is wrong with it.
const char* grant_fault(const std::string& uid, const PodAllocations::Pod& pod) {
  if (!protocol::admin::is_pod_uid(uid)) return "no pod's UID";
  const PodAllocation& allocation = pod.allocation;
  const auto possible = [](int64_t bytes) { return bytes >= 0 && bytes <= protocol::admin::kMemoryMost; };
  const bool memory = possible(allocation.memory) && std::all_of(allocation.memory_on.begin(), allocation.memory_on.end(),
                                                                 [&](const auto& on) { return possible(on.second); });
  if (!memory || allocation.core < 1 || allocation.core > 100 || !is_possible_unit(pod.memory_unit)) return "an impossible grant";
  return nullptr;
}

}  // namespace

void PodAllocations::name(Pod& pod) const {
  for (const std::string& gpu : pod.allocation.gpus) {
    if (auto holder = holders_.find(gpu); holder != holders_.end()) {
      pod.name = holder->second;
      return;
    }
  }
}

void PodAllocations::read(const Checkpoint& checkpoint) {
  std::map<std::string, Pod> pods;
  for (const auto& [uid, devices] : checkpoint.pods) {
    const auto former = pods_.find(uid);
    const bool sure = checkpoint.whole && !checkpoint.half_read.contains(uid);
    Pod pod = former != pods_.end() ? former->second : Pod{{}, true, "", division_.memory_unit};
    if (sure) {
      pod.allocation = allocation_of(devices, with_unit(division_, pod.memory_unit));
      pod.sure = true;
    } else if (former == pods_.end()) {
      pod.allocation.gpus = devices_of(devices);
      pod.sure = false;
    }
    if (!pod.allocation.gpus.empty() || !pod.sure) pods.emplace(uid, std::move(pod));
  }
  if (!checkpoint.whole) {
    // A missing pod may be what could not be read; but not one whose virtual GPUs are another's by now.
    std::set<std::string> taken;
    for (const auto& [uid, pod] : pods) taken.insert(pod.allocation.gpus.begin(), pod.allocation.gpus.end());
    for (const auto& [uid, pod] : pods_) {
      const auto& gpus = pod.allocation.gpus;
      if (std::none_of(gpus.begin(), gpus.end(), [&](const std::string& gpu) { return taken.contains(gpu); })) pods.emplace(uid, pod);
    }
  }
  // The last list may be older than this: a virtual GPU that has gone from one pod to another is its former pod's there.
  for (const auto& [uid, pod] : pods_) {
    if (pods.contains(uid)) continue;
    for (const std::string& gpu : pod.allocation.gpus) holders_.erase(gpu);
  }
  pods_ = std::move(pods);
  for (auto& [uid, pod] : pods_) {
    if (pod.name.empty()) name(pod);
  }
  known_ = known_ || checkpoint.whole;
}

void PodAllocations::named(const std::vector<HeldDevices>& listed) {
  holders_.clear();
  for (const HeldDevices& held : listed) {
    for (const std::string& gpu : held.gpus) holders_[gpu] = held.name_space + "/" + held.pod;
  }
  for (auto& [uid, pod] : pods_) name(pod);
}

const PodAllocations::Pod* PodAllocations::find(const std::string& uid) const {
  const auto found = pods_.find(uid);
  return found == pods_.end() ? nullptr : &found->second;
}

bool PodAllocations::all_named() const {
  return std::all_of(pods_.begin(), pods_.end(), [](const auto& entry) { return !entry.second.name.empty(); });
}

// ---- over a restart of this program ----

std::string PodAllocations::record() const {
  Json pods = Json::array();
  for (const auto& [uid, pod] : pods_) {
    pods.push_back({{"uid", uid},
                    {"name", pod.name},
                    {"sure", pod.sure},
                    {"memory_unit", pod.memory_unit},
                    {"gpus", pod.allocation.gpus},
                    {"memory", pod.allocation.memory},
                    {"memory_on", pod.allocation.memory_on},
                    {"core", pod.allocation.core}});
  }
  return Json{{"format", kGrantsFormat}, {"pods", pods}}.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<std::string>> PodAllocations::restore(const std::string& record) {
  std::map<std::string, Pod> pods;
  std::vector<std::string> left_out;
  if (nests_too_deep(record)) return error_format("it nests deeper than %d", kJsonNestingMax);
  try {
    const Json json = protocol::parse_record(record);
    if (const int format = json.at("format").get<int>(); format > kGrantsFormat) {
      return error_format("it has format %d, of a later release; known is %d", format, kGrantsFormat);
    }
    for (const Json& one : json.at("pods")) {
      const auto uid = one.at("uid").get<std::string>();
      Pod pod;
      one.at("name").get_to(pod.name);
      one.at("sure").get_to(pod.sure);
      one.at("memory_unit").get_to(pod.memory_unit);
      one.at("gpus").get_to(pod.allocation.gpus);
      one.at("memory").get_to(pod.allocation.memory);
      one.at("memory_on").get_to(pod.allocation.memory_on);
      one.at("core").get_to(pod.allocation.core);
      if (const char* fault = grant_fault(uid, pod)) {
        left_out.push_back("pod '" + printable(uid).substr(0, 64) + "' has " + fault + "; it is left out");
      } else {
        pods.emplace(uid, std::move(pod));
      }
    }
  } catch (const Json::exception& problem) {
    return error_format("it cannot be read: %.160s", problem.what());
  }
  pods_ = std::move(pods);
  return left_out;
}

}  // namespace nvshare::kubernetes
