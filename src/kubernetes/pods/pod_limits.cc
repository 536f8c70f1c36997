#include "kubernetes/pods/pod_limits.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json_nesting.h"
#include "base/parse.h"
#include "base/printable.h"
#include "kubernetes/devices/container_edits.h"
#include "protocol/json_record.h"

namespace nvshare::kubernetes {
namespace {

using Json = nlohmann::json;
using protocol::admin::PodRequest;

constexpr int kFormat = 1;        // of the record: that of the oldest plugin that may read it
constexpr size_t kShownMax = 60;  // bytes of a value that somebody else wrote
constexpr char kOverGrant[] = "is more than the pod was granted; its limit is ";
constexpr char kOverNamespace[] = "is more than a pod of its namespace may have; its limit is ";
// What an annotation stands for that cannot be read, while no former value of it is known: a typing error is to give no pod more.
constexpr int64_t kMemoryOfBadValue = int64_t{1} << 20;
constexpr int kCoreOfBadValue = 1;
constexpr char kNamespaceReported[] = "namespace";  // in Pod::reported, for what no annotation says

std::string text_at(const Json& json, const char* field) {
  auto found = json.is_object() ? json.find(field) : json.end();
  return json.is_object() && found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

const Json& at(const Json& json, const char* field) {
  static const Json none;
  if (!json.is_object()) return none;
  auto found = json.find(field);
  return found == json.end() ? none : *found;
}

// Of one container and of a pod: no node has as much, and sums stay far from overflowing.
constexpr int64_t kAmountMax = int64_t{1} << 40;
using protocol::admin::kMemoryMost;

// A whole number as the API server writes it: 12, 8k (8000), 2Mi, 1e3.
std::optional<int64_t> read_quantity(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  Result<int64_t> number = parse_integer(text.substr(0, digits), 0, kAmountMax);
  if (digits == 0 || digits > 18) return std::nullopt;
  int64_t value = number ? *number : kAmountMax;
  std::string_view suffix = text.substr(digits);
  int64_t factor = 1000;
  int times = 0;
  if (suffix.size() > 1 && (suffix[0] == 'e' || suffix[0] == 'E')) {
    Result<int64_t> exponent = parse_integer(suffix.substr(1), 0, 18);
    if (!exponent) return std::nullopt;
    factor = 10;
    times = static_cast<int>(*exponent);
  } else if (!suffix.empty()) {
    if (suffix.size() == 2 && suffix[1] == 'i' && suffix[0] != 'k') {
      factor = 1024;
      suffix = suffix[0] == 'K' ? "k" : suffix.substr(0, 1);
    }
    constexpr std::string_view kSuffixes = "kMGTPE";
    const size_t place = suffix.size() == 1 ? kSuffixes.find(suffix[0]) : std::string_view::npos;
    if (place == std::string_view::npos) return std::nullopt;
    times = static_cast<int>(place) + 1;
  }
  for (; times > 0; --times) value = std::min(value * factor, kAmountMax);
  return value;
}

// How many of a resource the container asks for; the API server has made sure that it is a whole number. What cannot be read all the same
// is remembered in `problem`.
int64_t amount_of(const Json& container, const std::string& resource, std::string* problem) {
  if (resource.empty()) return 0;
  const Json& amount = at(at(at(container, "resources"), "limits"), resource.c_str());
  if (amount.is_null()) return 0;
  if (amount.is_number_integer()) return std::clamp<int64_t>(amount.get<int64_t>(), 0, kAmountMax);
  if (amount.is_string()) {
    if (auto value = read_quantity(amount.get_ref<const std::string&>())) return *value;
  }
  *problem = resource + " is no whole number";
  return 0;
}

// What the pod's containers have of one resource at the same time. Nothing: one of them that has a GPU asks for none of it.
struct Sum {
  int64_t running = 0;  // containers and sidecars
  int64_t first = 0;    // the largest init container
  bool bounded = true;
  std::optional<int64_t> total() const {
    const int64_t most = std::max(running, first);
    return bounded && most > 0 ? std::optional(most) : std::nullopt;
  }
  void add(int64_t amount, bool has_gpu, bool init) {
    if (has_gpu && amount == 0) bounded = false;
    if (init) {
      first = std::max(first, amount);
    } else {
      running = std::min(running + amount, kMemoryMost);
    }
  }
};

void read_grants(const Json& spec, const ResourceNames& names, WatchedPod* pod, std::string* problem) {
  Sum memory;
  Sum core;
  for (const char* list : {"containers", "initContainers"}) {
    for (const Json& container : at(spec, list)) {
      const bool has_gpu = amount_of(container, names.gpu, problem) > 0;
      const bool init = list[0] == 'i' && text_at(container, "restartPolicy") != "Always";
      const int64_t units = std::min(amount_of(container, names.memory, problem), kMemoryMost / names.division.memory_unit);
      memory.add(memory_of_container(units, has_gpu, names.division), has_gpu, init);
      core.add(amount_of(container, names.core, problem), has_gpu, init);
      pod->ours = pod->ours || has_gpu;
    }
  }
  pod->memory_granted = memory.total().value_or(0);
  if (auto percent = core.total()) pod->core_granted = pod->core_reserved = static_cast<int>(std::min<int64_t>(*percent, 100));
}

// Which tool wrote each annotation last: metadata.managedFields, which the API server keeps.
void read_managers(const Json& metadata, WatchedPod* pod) {
  for (const Json& entry : at(metadata, "managedFields")) {
    const Json& fields = at(at(at(entry, "fieldsV1"), "f:metadata"), "f:annotations");
    for (const auto& [name, value] : pod->annotations) {
      if (fields.is_object() && fields.contains("f:" + name)) pod->annotated_by[name] = text_at(entry, "manager");
    }
  }
}

// The claims themselves, those made from templates, and the one that stands for an extended resource.
void read_claims(const Json& pod, WatchedPod* into) {
  const auto add = [&](const Json& from) {
    if (std::string name = text_at(from, "resourceClaimName"); !name.empty()) into->claims.insert(std::move(name));
  };
  const Json& status = at(pod, "status");
  for (const Json& claim : at(at(pod, "spec"), "resourceClaims")) add(claim);
  for (const Json& claim : at(status, "resourceClaimStatuses")) add(claim);
  add(at(status, "extendedResourceClaimStatus"));
}

std::string shown(const std::string& text) {
  const std::string line = printable(text);
  return line.size() <= kShownMax ? "'" + line + "'" : "'" + line.substr(0, kShownMax) + "...'";
}

std::string memory_text(int64_t bytes) { return bytes == 0 ? "none" : limit_text(bytes); }
std::string core_text(int percent) { return percent == 100 ? "none" : std::to_string(percent); }

std::string audit_line(const WatchedPod& pod, const char* annotation, const std::string& before, const std::string& after) {
  auto by = pod.annotated_by.find(annotation);
  const Json line = {{"audit", "limit"},
                     {"pod", pod.name_space + "/" + pod.name},
                     {"uid", pod.uid},
                     {"annotation", annotation},
                     {"by", by != pod.annotated_by.end()           ? by->second
                            : pod.annotations.contains(annotation) ? "unknown"
                                                                   : "removal or grant"},
                     {"old", before},
                     {"new", after}};
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Result<WatchedPod> read_pod(std::string_view text, const ResourceNames& resources) {
  const Json json = nests_too_deep(text) ? Json() : Json::parse(text, nullptr, false);
  const Json& metadata = at(json, "metadata");
  WatchedPod pod;
  pod.uid = text_at(metadata, "uid");
  pod.name_space = text_at(metadata, "namespace");
  pod.name = text_at(metadata, "name");
  if (!protocol::admin::is_pod_uid(pod.uid) || pod.name_space.empty() || pod.name.empty()) {
    return error_format("what the API server sent is no pod");
  }
  const std::string phase = text_at(at(json, "status"), "phase");
  pod.ended = phase == "Succeeded" || phase == "Failed";
  pod.runs = phase == "Running";
  pod.ends = !text_at(metadata, "deletionTimestamp").empty();
  pod.mirror_of = text_at(at(metadata, "annotations"), kMirrorAnnotation);
  if (!protocol::admin::is_pod_uid(pod.mirror_of)) pod.mirror_of.clear();
  for (const char* name : {kCoreAnnotation, kMemoryAnnotation, kPriorityAnnotation}) {
    const Json& value = at(at(metadata, "annotations"), name);
    if (value.is_string()) pod.annotations[name] = value.get<std::string>();
  }
  pod.ours = !pod.annotations.empty();
  std::string problem;
  read_grants(at(json, "spec"), resources, &pod, &problem);
  if (!problem.empty()) return error_format("pod %.60s/%.60s: %.100s", pod.name_space.c_str(), pod.name.c_str(), problem.c_str());
  read_managers(metadata, &pod);
  read_claims(json, &pod);
  return pod;
}

void PodLimits::Changes::add(Changes other) {
  std::move(other.limits.begin(), other.limits.end(), std::back_inserter(limits));
  std::move(other.notices.begin(), other.notices.end(), std::back_inserter(notices));
  std::move(other.audit.begin(), other.audit.end(), std::back_inserter(audit));
}

PodLimits::Notice PodLimits::notice_of(const Pod& pod, bool warning, const char* reason, const std::string& text) {
  return {pod.seen.uid, pod.seen.name_space, pod.seen.name, warning, reason, text};
}

void PodLimits::complain(Pod& pod, const char* annotation, const char* reason, const std::string& text, Changes* changes) {
  const std::string& value = pod.seen.annotations.at(annotation);
  if (auto reported = pod.reported.find(annotation); reported != pod.reported.end() && reported->second == value) return;
  pod.reported[annotation] = value;
  changes->notices.push_back(notice_of(pod, true, reason, std::string(annotation) + ": " + shown(value) + " " + text));
}

// What the annotations can only lower.
void PodLimits::find_most(Pod& pod, Changes* changes) const {
  const WatchedPod& seen = pod.seen;
  pod.most = {seen.uid, seen.name_space + "/" + seen.name, seen.memory_granted, seen.core_granted, false};
  pod.most.gpu_core_reserved = seen.core_reserved;
  lower_to(maximum_of(maxima_, seen.name_space), &pod.most);
  std::string text;
  if (seen.memory_granted != 0 && pod.most.gpu_memory_limit < seen.memory_granted) {
    text = "of the " + memory_text(seen.memory_granted) + " of GPU memory that it was granted a pod of its namespace may have " +
           memory_text(pod.most.gpu_memory_limit);
  }
  if (seen.core_granted != 100 && pod.most.gpu_core_limit < seen.core_granted) {
    text += std::string(text.empty() ? "" : "; ") + "of the " + std::to_string(seen.core_granted) +
            " % of GPU time that it was granted a pod of its namespace may have " + std::to_string(pod.most.gpu_core_limit) + " %";
  }
  if (text.empty()) {
    pod.reported.erase(kNamespaceReported);
  } else if (std::exchange(pod.reported[kNamespaceReported], text) != text) {
    changes->notices.push_back(notice_of(pod, true, "LimitClamped", text));
  }
}

void PodLimits::read_memory(Pod& pod, Changes* changes) {
  auto given = pod.seen.annotations.find(kMemoryAnnotation);
  if (given == pod.seen.annotations.end()) {
    pod.memory.reset();
    pod.reported.erase(kMemoryAnnotation);
    return;
  }
  Result<int64_t> bytes = parse_pod_memory(given->second);
  if (!bytes) {
    const char* then = pod.memory ? "is no limit; the one before stays; " : "is no limit; until it is put right 1Mi holds; ";
    complain(pod, kMemoryAnnotation, "BadLimit", std::string(then) + bytes.error().text, changes);
    if (!pod.memory) pod.memory = kMemoryOfBadValue;
    return;
  }
  pod.memory = *bytes;
  if (pod.most.gpu_memory_limit != 0 && *bytes > pod.most.gpu_memory_limit) {
    const char* bound = pod.most.gpu_memory_limit != pod.seen.memory_granted ? kOverNamespace : kOverGrant;
    complain(pod, kMemoryAnnotation, "LimitClamped", bound + memory_text(pod.most.gpu_memory_limit), changes);
  } else {
    pod.reported.erase(kMemoryAnnotation);
  }
}

void PodLimits::read_core(Pod& pod, Changes* changes) {
  auto given = pod.seen.annotations.find(kCoreAnnotation);
  if (given == pod.seen.annotations.end()) {
    pod.core.reset();
    pod.reported.erase(kCoreAnnotation);
    return;
  }
  Result<int64_t> percent = parse_integer(given->second, 1, 100);
  if (!percent) {
    const char* then = pod.core ? "is no limit; the one before stays; " : "is no limit; until it is put right 1 % holds; ";
    complain(pod, kCoreAnnotation, "BadLimit", std::string(then) + "accepted: percent of each GPU's time, an integer from 1 to 100",
             changes);
    if (!pod.core) pod.core = kCoreOfBadValue;
    return;
  }
  pod.core = static_cast<int>(*percent);
  if (*pod.core > pod.most.gpu_core_limit) {
    const char* bound = pod.most.gpu_core_limit != pod.seen.core_granted ? kOverNamespace : kOverGrant;
    complain(pod, kCoreAnnotation, "LimitClamped", bound + std::to_string(pod.most.gpu_core_limit) + " %", changes);
  } else {
    pod.reported.erase(kCoreAnnotation);
  }
}

void PodLimits::read_priority(Pod& pod, Changes* changes) {
  using protocol::admin::kPriorityMax;
  using protocol::admin::kPriorityMin;
  auto given = pod.seen.annotations.find(kPriorityAnnotation);
  if (given == pod.seen.annotations.end()) {
    pod.priority.reset();
    pod.reported.erase(kPriorityAnnotation);
    return;
  }
  Result<int64_t> priority = parse_integer(given->second, kPriorityMin, kPriorityMax);
  if (!priority) {
    return complain(pod, kPriorityAnnotation, "BadPriority",
                    "is no priority; the one before stays; accepted: an integer from " + std::to_string(kPriorityMin) + " to " +
                        std::to_string(kPriorityMax),
                    changes);
  }
  pod.priority = std::min(static_cast<int>(*priority), priority_max_);
  if (*priority > priority_max_) {
    complain(pod, kPriorityAnnotation, "PriorityClamped",
             "is more than pods of this node may have; its priority is " + std::to_string(priority_max_), changes);
  } else {
    pod.reported.erase(kPriorityAnnotation);
  }
}

PodLimits::Changes PodLimits::update(const WatchedPod& seen) {
  // One that has nothing of ours any more goes on without limits, which has to be said: one that is gone keeps what it had.
  if (seen.ended || (!seen.ours && !pods_.contains(seen.uid))) return remove(seen.uid);
  Changes changes;
  auto [found, is_new] = pods_.try_emplace(seen.uid);
  Pod& pod = found->second;
  pod.seen = seen;
  find_most(pod, &changes);
  read_memory(pod, &changes);
  read_core(pod, &changes);
  read_priority(pod, &changes);
  const PodRequest before = pod.limits;
  pod.limits = pod.most;
  lower_to({pod.memory.value_or(0), pod.core.value_or(100)}, &pod.limits);
  if (annotations_reserve_ && pod.core && *pod.core < 100) pod.limits.gpu_core_reserved = pod.limits.gpu_core_limit;
  const bool memory_changed = pod.limits.gpu_memory_limit != before.gpu_memory_limit;
  pod.limits.priority = pod.priority.value_or(0);
  pod.limits.ends = seen.ends;
  const bool priority_changed = pod.limits.priority != before.priority;
  const bool core_changed = pod.limits.gpu_core_limit != before.gpu_core_limit;
  if (memory_changed) {
    changes.audit.push_back(
        audit_line(seen, kMemoryAnnotation, memory_text(before.gpu_memory_limit), memory_text(pod.limits.gpu_memory_limit)));
  }
  if (core_changed) {
    changes.audit.push_back(audit_line(seen, kCoreAnnotation, core_text(before.gpu_core_limit), core_text(pod.limits.gpu_core_limit)));
  }
  if (priority_changed) {
    changes.audit.push_back(audit_line(seen, kPriorityAnnotation, std::to_string(before.priority), std::to_string(pod.limits.priority)));
  }
  const bool reserve_changed = pod.limits.gpu_core_reserved != before.gpu_core_reserved;
  if (is_new || memory_changed || core_changed || reserve_changed || priority_changed || pod.limits.ends != before.ends)
    changes.limits.push_back(pod.limits);
  return changes;
}

PodLimits::Changes PodLimits::remove(const std::string& uid) {
  Changes changes;
  if (pods_.erase(uid) == 0) return changes;
  PodRequest gone;
  gone.uid = uid;
  gone.gone = true;
  changes.limits.push_back(gone);
  return changes;
}

PodLimits::Changes PodLimits::replace(const std::vector<WatchedPod>& pods) {
  std::set<std::string> listed;
  for (const WatchedPod& pod : pods) listed.insert(pod.uid);
  std::vector<std::string> gone;
  for (const auto& [uid, pod] : pods_) {
    if (!listed.contains(uid)) gone.push_back(uid);
  }
  Changes changes;
  for (const std::string& uid : gone) changes.add(remove(uid));
  for (const WatchedPod& pod : pods) changes.add(update(pod));
  return changes;
}

std::vector<PodRequest> PodLimits::all() const {
  std::vector<PodRequest> limits;
  for (const auto& [uid, pod] : pods_) limits.push_back(pod.limits);
  return limits;
}

const PodRequest* PodLimits::find(const std::string& uid) const {
  const auto found = pods_.find(uid);
  return found == pods_.end() ? nullptr : &found->second.limits;
}

std::optional<int> PodLimits::annotated_priority(const std::string& uid) const {
  const auto found = pods_.find(uid);
  return found == pods_.end() ? std::nullopt : found->second.priority;
}

const std::string& PodLimits::mirror_of(const std::string& uid) const {
  static const std::string none;
  const auto found = pods_.find(uid);
  return found == pods_.end() ? none : found->second.seen.mirror_of;
}

std::string PodLimits::record() const {
  Json pods = Json::array();
  for (const auto& [uid, pod] : pods_) {
    Json one = {{"uid", uid},
                {"namespace", pod.seen.name_space},
                {"name", pod.seen.name},
                {"gpu_memory_limit", pod.limits.gpu_memory_limit},
                {"gpu_core_limit", pod.limits.gpu_core_limit},
                {"gpu_core_reserved", pod.limits.gpu_core_reserved},
                {"priority", pod.limits.priority},
                {"ends", pod.limits.ends},
                {"told", pod.reported}};
    if (!pod.seen.mirror_of.empty()) one["mirror_of"] = pod.seen.mirror_of;
    if (pod.memory) one["annotated_memory"] = *pod.memory;
    if (pod.core) one["annotated_core"] = *pod.core;
    if (pod.priority) one["annotated_priority"] = *pod.priority;
    pods.push_back(std::move(one));
  }
  return Json{{"format", kFormat}, {"pods", pods}}.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::vector<std::string>> PodLimits::restore(const std::string& record) {
  using protocol::admin::kPriorityMax;
  using protocol::admin::kPriorityMin;
  std::map<std::string, Pod> pods;
  std::vector<std::string> left_out;
  if (nests_too_deep(record)) return error_format("it nests deeper than %d", kJsonNestingMax);
  try {
    const Json json = protocol::parse_record(record);
    if (const int format = json.at("format").get<int>(); format > kFormat) {
      return error_format("it has format %d, of a later release; known is %d", format, kFormat);
    }
    for (const Json& one : json.at("pods")) {
      Pod pod;
      one.at("uid").get_to(pod.seen.uid);
      one.at("namespace").get_to(pod.seen.name_space);
      one.at("name").get_to(pod.seen.name);
      pod.limits.uid = pod.seen.uid;
      pod.limits.name = pod.seen.name_space + "/" + pod.seen.name;
      one.at("gpu_memory_limit").get_to(pod.limits.gpu_memory_limit);
      one.at("gpu_core_limit").get_to(pod.limits.gpu_core_limit);
      pod.limits.gpu_core_reserved = one.value("gpu_core_reserved", 0);
      pod.limits.priority = one.value("priority", 0);
      pod.limits.ends = one.value("ends", false);
      pod.seen.mirror_of = one.value("mirror_of", "");
      pod.reported = one.value("told", std::map<std::string, std::string>());
      if (one.contains("annotated_memory")) pod.memory = one["annotated_memory"].get<int64_t>();
      if (one.contains("annotated_core")) pod.core = one["annotated_core"].get<int>();
      if (one.contains("annotated_priority")) pod.priority = std::min(one["annotated_priority"].get<int>(), priority_max_);
      const bool possible = pod.limits.gpu_memory_limit >= 0 && pod.limits.gpu_memory_limit <= kMemoryMost && pod.memory.value_or(1) > 0 &&
                            pod.memory.value_or(1) <= kMemoryMost && pod.limits.gpu_core_limit >= 1 && pod.limits.gpu_core_limit <= 100 &&
                            pod.core.value_or(1) >= 1 && pod.core.value_or(1) <= 100 && pod.limits.gpu_core_reserved >= 0 &&
                            pod.limits.gpu_core_reserved <= pod.limits.gpu_core_limit && pod.limits.priority >= kPriorityMin &&
                            pod.limits.priority <= kPriorityMax;
      if (!possible || !protocol::admin::is_pod_uid(pod.seen.uid)) {
        left_out.push_back("pod '" + printable(pod.seen.uid).substr(0, kShownMax) + "' has " +
                           (possible ? "no UID of hexadecimal digits and '-'" : "an impossible limit") + "; it is left out");
        continue;
      }
      lower_to(maximum_of(maxima_, pod.seen.name_space), &pod.limits);
      pod.limits.priority = std::min(pod.limits.priority, priority_max_);
      pods[pod.seen.uid] = std::move(pod);
    }
  } catch (const Json::exception& problem) {
    return error_format("it cannot be read: %.160s", problem.what());
  }
  pods_ = std::move(pods);
  return left_out;
}

}  // namespace nvshare::kubernetes
