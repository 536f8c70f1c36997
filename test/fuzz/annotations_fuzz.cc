// Pods as the API server writes them, and their annotations: whatever they say, a pod has at most what it was granted and what its
// namespace may have, the scheduler takes what is sent, and the record of it is read again as it was. Input: '{': a pod as JSON. Else
// lines: memory and compute units granted, then the three annotations' values.
#include "fuzz.h"
#include "pods.h"

namespace {

using namespace nvshare;
using namespace nvshare::kubernetes;
using fuzz::require;

constexpr int kPriorityMost = 5;

NamespaceMaxima maxima() { return {{"small", {int64_t{2} << 30, 50}}}; }

WatchedPod made_pod(std::string_view text) {
  WatchedPod pod;
  pod.uid = "0b4e-1";
  pod.name_space = "small";
  pod.name = "train";
  pod.ours = true;
  const uint8_t memory = fuzz::take_byte(&text);
  const uint8_t core = fuzz::take_byte(&text);
  pod.memory_granted = (memory % 16) * (int64_t{1} << 30);
  pod.core_granted = 1 + core % 100;
  for (const char* name : {kMemoryAnnotation, kCoreAnnotation, kPriorityAnnotation}) {
    const std::string_view value = fuzz::take_line(&text);
    if (!value.empty()) pod.annotations[name] = value;
  }
  return pod;
}

void check(const PodLimits& limits, const WatchedPod& pod) {
  for (const auto& one : limits.all()) {
    if (one.uid != pod.uid) continue;
    require(one.gpu_core_limit >= 1 && one.gpu_core_limit <= pod.core_granted, "a pod has no more compute than it was granted");
    require(one.gpu_core_reserved >= 0 && one.gpu_core_reserved <= one.gpu_core_limit, "a pod has no more reserved than its ceiling");
    require(one.priority <= kPriorityMost, "a pod has no higher priority than the node gives");
    if (pod.memory_granted == 0) continue;
    require(one.gpu_memory_limit > 0 && one.gpu_memory_limit <= pod.memory_granted, "a pod has no more memory than it was granted");
    if (pod.name_space == "small") require(one.gpu_memory_limit <= int64_t{2} << 30, "nor than its namespace may have");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  WatchedPod pod;
  if (text.starts_with("{")) {
    auto read = read_pod(text, fuzz::resource_names());
    if (!fuzz::good(read)) return 0;
    pod = std::move(*read);
  } else {
    pod = made_pod(text);
  }
  require(pod.memory_granted >= 0 && pod.memory_granted <= protocol::admin::kMemoryMost, "a grant is possible");
  require(pod.core_granted >= 1 && pod.core_granted <= 100, "a grant is possible");
  PodLimits limits(kPriorityMost, maxima());
  const auto changes = limits.update(pod);
  for (const std::string& line : changes.audit) require(line.find('\n') == std::string::npos, "an audit line is one line");
  for (const auto& notice : changes.notices) require(notice.text.find('\n') == std::string::npos, "an event's text is one line");
  check(limits, pod);
  fuzz::require_sendable(limits.all());
  fuzz::require_sendable(changes.limits);
  require(limits.update(pod).notices.empty(), "what is wrong is said once");

  const std::string record = limits.record();
  PodLimits again(kPriorityMost, maxima());
  const auto left_out = again.restore(record);
  require(fuzz::good(left_out) && left_out->empty(), "the record of limits is read again");
  require(again.record() == record, "the record says the same again");
  check(again, pod);
  fuzz::require_sendable(limits.remove(pod.uid).limits);
  return 0;
}
