#include "kubernetes/pod_grants.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_nesting.h"
#include "base/printable.h"

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
const char* grant_fault(const std::string& uid, const PodGrants::Pod& pod) {
  if (!protocol::admin::is_pod_uid(uid)) return "no pod's UID";
  const PodGrant& grant = pod.grant;
  const auto possible = [](int64_t bytes) { return bytes >= 0 && bytes <= protocol::admin::kMemoryMost; };
  const bool memory = possible(grant.memory) &&
                      std::all_of(grant.memory_on.begin(), grant.memory_on.end(), [&](const auto& on) { return possible(on.second); });
  if (!memory || grant.core < 1 || grant.core > 100 || !is_possible_unit(pod.memory_unit)) return "an impossible grant";
  return nullptr;
}

}  // namespace

void PodGrants::name(Pod& pod) const {
  for (const std::string& gpu : pod.grant.gpus) {
    if (auto holder = holders_.find(gpu); holder != holders_.end()) {
      pod.name = holder->second;
      return;
    }
  }
}

void PodGrants::read(const Checkpoint& checkpoint) {
  std::map<std::string, Pod> pods;
  for (const auto& [uid, devices] : checkpoint.pods) {
    const auto former = pods_.find(uid);
    const bool sure = checkpoint.whole && !checkpoint.half_read.contains(uid);
    Pod pod = former != pods_.end() ? former->second : Pod{{}, true, "", division_.memory_unit};
    if (sure) {
      pod.grant = grant_of(devices, with_unit(division_, pod.memory_unit));
      pod.sure = true;
    } else if (former == pods_.end()) {
      pod.grant.gpus = devices_of(devices);
      pod.sure = false;
    }
    if (!pod.grant.gpus.empty() || !pod.sure) pods.emplace(uid, std::move(pod));
  }
  if (!checkpoint.whole) {
    // Who is missing may be what could not be read; but not one whose virtual GPUs are another's by now.
    std::set<std::string> taken;
    for (const auto& [uid, pod] : pods) taken.insert(pod.grant.gpus.begin(), pod.grant.gpus.end());
    for (const auto& [uid, pod] : pods_) {
      const auto& gpus = pod.grant.gpus;
      if (std::none_of(gpus.begin(), gpus.end(), [&](const std::string& gpu) { return taken.contains(gpu); })) pods.emplace(uid, pod);
    }
  }
  // The last list may be older than this: a virtual GPU that has gone from one pod to another is its former pod's there.
  for (const auto& [uid, pod] : pods_) {
    if (pods.contains(uid)) continue;
    for (const std::string& gpu : pod.grant.gpus) holders_.erase(gpu);
  }
  pods_ = std::move(pods);
  for (auto& [uid, pod] : pods_) {
    if (pod.name.empty()) name(pod);
  }
  known_ = known_ || checkpoint.whole;
}

void PodGrants::named(const std::vector<HeldDevices>& listed) {
  holders_.clear();
  for (const HeldDevices& held : listed) {
    for (const std::string& gpu : held.gpus) holders_[gpu] = held.name_space + "/" + held.pod;
  }
  for (auto& [uid, pod] : pods_) name(pod);
}

const PodGrants::Pod* PodGrants::find(const std::string& uid) const {
  const auto found = pods_.find(uid);
  return found == pods_.end() ? nullptr : &found->second;
}

bool PodGrants::all_named() const {
  return std::all_of(pods_.begin(), pods_.end(), [](const auto& entry) { return !entry.second.name.empty(); });
}

// ---- over a restart of this program ----

std::string PodGrants::record() const {
  Json pods = Json::array();
  for (const auto& [uid, pod] : pods_) {
    pods.push_back({{"uid", uid},
                    {"name", pod.name},
                    {"sure", pod.sure},
                    {"memory_unit", pod.memory_unit},
                    {"gpus", pod.grant.gpus},
                    {"memory", pod.grant.memory},
                    {"memory_on", pod.grant.memory_on},
                    {"core", pod.grant.core}});
  }
  return Json{{"format", kGrantsFormat}, {"pods", pods}}.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<std::string>> PodGrants::restore(const std::string& record) {
  std::map<std::string, Pod> pods;
  std::vector<std::string> left_out;
  if (nests_too_deep(record)) return error_format("it nests deeper than %d", kJsonNestingMax);
  try {
    const Json json = Json::parse(record);
    if (const int format = json.at("format").get<int>(); format > kGrantsFormat) {
      return error_format("it has format %d, of a later release; known is %d", format, kGrantsFormat);
    }
    for (const Json& one : json.at("pods")) {
      const auto uid = one.at("uid").get<std::string>();
      Pod pod;
      one.at("name").get_to(pod.name);
      one.at("sure").get_to(pod.sure);
      one.at("memory_unit").get_to(pod.memory_unit);
      one.at("gpus").get_to(pod.grant.gpus);
      one.at("memory").get_to(pod.grant.memory);
      one.at("memory_on").get_to(pod.grant.memory_on);
      one.at("core").get_to(pod.grant.core);
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
