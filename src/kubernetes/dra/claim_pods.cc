#include "kubernetes/dra/claim_pods.h"

#include <algorithm>

namespace nvshare::kubernetes::dra {
namespace {

using protocol::admin::PodRequest;

// What a pod has on a GPU of a claim that counts for another pod: too little for any program, and not "no limit".
constexpr int64_t kMemoryOfUncounted = kMemoryStep;

}  // namespace

ClaimPods::Groups ClaimPods::groups_of(const ClaimAllocations& claims) const {
  Groups groups;
  std::map<std::string, std::string> first_of;  // pod -> the first pod of its tenant
  for (const auto& [uid, claim] : claims.claims()) {
    first_of[claim.pod_uid] = claim.pod_uid;
    groups[claim.pod_uid].pods[claim.pod_uid] = claim.name_space + "/" + claim.pod;
    groups[claim.pod_uid].heeded.insert(claim.pod_uid);
  }
  const auto join = [&](const Claim& claim, const std::string& uid, const std::string& name, bool heeded) {
    const std::string& first = first_of.try_emplace(uid, claim.pod_uid).first->second;
    Group& group = groups[first];
    group.pods.try_emplace(uid, claim.name_space + "/" + name);
    if (heeded) group.heeded.insert(uid);
    if (first == claim.pod_uid) return;
    for (const Share& share : claim.shares) group.uncounted.insert(share.gpu);
  };
  for (const auto& [claim_uid, claim] : claims.claims()) {
    for (const ClaimPod& member : claim.members) join(claim, member.uid, member.name, true);
    for (const auto& [uid, pod] : seen_) {
      if (pod.name_space == claim.name_space && pod.claims.contains(claim.name)) join(claim, uid, pod.name, pod.runs);
    }
  }
  return groups;
}

void ClaimPods::lower(const Group& group, PodRequest* limits) const {
  bool any_runs_on = false;
  bool any_ends = false;
  std::optional<int> priority;
  for (const auto& [uid, name] : group.pods) {
    const PodRequest* annotated = annotated_.find(uid);
    if (annotated == nullptr || !seen_.contains(uid)) continue;
    if (!group.heeded.contains(uid)) continue;
    any_ends = any_ends || annotated->ends;
    any_runs_on = any_runs_on || !annotated->ends;
    lower_to({annotated->gpu_memory_limit, annotated->gpu_core_limit}, limits);
    if (const auto said = annotated_.annotated_priority(uid)) priority = std::min(priority.value_or(*said), *said);
  }
  // Without one of its own, what the annotation says holds, as with the device plugin.
  if (priority) limits->priority = limits->priority == 0 ? *priority : std::min(limits->priority, *priority);
  limits->ends = any_ends && !any_runs_on;
}

std::vector<PodRequest> ClaimPods::limits(const ClaimAllocations& claims) const {
  std::vector<PodRequest> all;
  for (const auto& [first, group] : groups_of(claims)) {
    PodRequest limits = claims.limits_of(first);
    for (const std::string& gpu : group.uncounted) {
      if (limits.gpu_memory_on.size() < protocol::admin::kGpusOfPodMax) limits.gpu_memory_on.try_emplace(gpu, kMemoryOfUncounted);
    }
    lower(group, &limits);
    limits.only_lowers = !heard_;
    all.push_back(limits);
    limits.gpu_core_reserved = 0;  // the claim's, once: a member whose programs began before it was known is a tenant of its own
    for (const auto& [uid, name] : group.pods) {
      if (uid == first) continue;
      limits.uid = uid;
      limits.name = name;
      limits.member_of = first;
      all.push_back(limits);
    }
  }
  return all;
}

std::map<std::string, PodRequest> ClaimPods::granted_to_pods(const ClaimAllocations& claims) const {
  std::map<std::string, PodRequest> granted;
  for (const auto& [first, group] : groups_of(claims)) {
    const PodRequest limits = claims.limits_of(first);
    for (const auto& [uid, name] : group.pods) granted[uid] = limits;
  }
  return granted;
}

// With what it was granted, so that more than that is told of.
PodLimits::Changes ClaimPods::annotate(WatchedPod pod, const std::map<std::string, PodRequest>& granted) {
  if (const auto has = granted.find(pod.uid); has != granted.end()) {
    pod.memory_granted = has->second.gpu_memory_limit;
    pod.core_granted = pod.core_reserved = has->second.gpu_core_limit;
  }
  pod.ours = true;
  return annotated_.update(pod);
}

PodLimits::Changes ClaimPods::update(const WatchedPod& pod, const ClaimAllocations& claims) {
  if (pod.ended || pod.claims.empty()) return remove(pod.uid);
  seen_[pod.uid] = pod;
  return annotate(pod, granted_to_pods(claims));
}

PodLimits::Changes ClaimPods::remove(const std::string& uid) {
  seen_.erase(uid);
  return annotated_.remove(uid);
}

PodLimits::Changes ClaimPods::replace(const std::vector<WatchedPod>& pods, const ClaimAllocations& claims) {
  seen_.clear();
  for (const WatchedPod& pod : pods) {
    if (!pod.ended && !pod.claims.empty()) seen_[pod.uid] = pod;
  }
  heard_ = true;
  // Its own last good values stay for those that are still there.
  PodLimits::Changes changes;
  for (const PodRequest& former : annotated_.all()) {
    if (!seen_.contains(former.uid)) changes.add(annotated_.remove(former.uid));
  }
  changes.add(compare(claims));
  return changes;
}

PodLimits::Changes ClaimPods::compare(const ClaimAllocations& claims) {
  const auto granted = granted_to_pods(claims);
  PodLimits::Changes changes;
  for (const auto& [uid, pod] : seen_) changes.add(annotate(pod, granted));
  return changes;
}

}  // namespace nvshare::kubernetes::dra
