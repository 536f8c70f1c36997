#include "kubernetes/dra/claim_allocations.h"

#include <algorithm>
#include <set>

#include "kubernetes/dra/quantity.h"

namespace nvshare::kubernetes::dra {
namespace {

struct Amounts {
  int64_t memory = 0;
  int cores = 0;
};
using ByGpu = std::map<std::string, Amounts>;  // UUID

// Of a pod that may look at a GPU and has no share of it: its programs that work there all the same.
constexpr Amounts kToLookAt{kMemoryStep, 1};

// Nothing for admin access.
void add_shares(const Claim& claim, ByGpu* sums) {
  for (const Share& share : claim.shares) {
    if (share.admin) continue;
    Amounts& sum = (*sums)[share.gpu];
    sum.memory += share.memory;
    sum.cores += share.cores;
  }
}

// Of two shares' ways "turns", which holds for both, and the shorter turns.
void join_turns(const ShareConfig& config, protocol::admin::PodRequest* limits) {
  if (limits->sharing == "node" && !config.sharing.empty()) limits->sharing = config.sharing;
  if (config.sharing == "turns") limits->sharing = config.sharing;
  if (config.turn_seconds == 0) return;
  limits->turn_seconds = limits->turn_seconds == 0 ? config.turn_seconds : std::min(limits->turn_seconds, config.turn_seconds);
}

}  // namespace

const Claim* ClaimAllocations::find(const std::string& claim_uid) const {
  const auto found = claims_.find(claim_uid);
  return found == claims_.end() ? nullptr : &found->second;
}

Result<void> ClaimAllocations::check_pod(const Claim& claim) const {
  std::set<std::string> gpus;
  for (const Share& share : claim.shares) gpus.insert(share.gpu);
  for (const auto& [uid, other] : claims_) {
    for (const Share& share : other.shares) {
      if (other.pod_uid == claim.pod_uid) gpus.insert(share.gpu);
    }
  }
  if (gpus.size() <= protocol::admin::kGpusOfPodMax) return {};
  return error_format("its pod would have %zu GPUs; accepted: up to %zu", gpus.size(), protocol::admin::kGpusOfPodMax);
}

Result<void> ClaimAllocations::admit(const Claim& claim, const DeviceModels& devices) {
  if (const Claim* known = find(claim.uid)) {
    if (known->shares == claim.shares) return {};
    return error_format("it is prepared already, with other devices or amounts");
  }
  const Claim led = with_first_pod(claim);
  if (auto ok = check_pod(led); !ok) return ok;
  ByGpu held;
  ByGpu wanted;
  for (const auto& [uid, other] : claims_) add_shares(other, &held);
  add_shares(claim, &wanted);
  for (const auto& [gpu, amounts] : wanted) {
    const auto device = std::find_if(devices.begin(), devices.end(), [&, uuid = gpu](const DeviceModel& one) { return one.uuid == uuid; });
    if (device == devices.end()) return error_format("this node has no GPU %.64s", gpu.c_str());
    const Amounts& others = held[gpu];
    if (others.memory + amounts.memory > device->memory) {
      return error_format("%.100s has %s of memory on offer, of which other claims have %s; %s do not fit", device->shown.c_str(),
                          bytes_quantity(device->memory).c_str(), bytes_quantity(others.memory).c_str(),
                          bytes_quantity(amounts.memory).c_str());
    }
    if (others.cores + amounts.cores > kCoresOfDevice) {
      return error_format("%.100s has 100 cores (percent of its time), of which other claims have %d; %d do not fit", device->shown.c_str(),
                          others.cores, amounts.cores);
    }
  }
  claims_.emplace(led.uid, led);
  return {};
}

Claim ClaimAllocations::with_first_pod(const Claim& claim) const {
  Claim led = claim;
  const std::set<std::string> first = first_pods();
  if (first.contains(led.pod_uid)) return led;
  for (ClaimPod& member : led.members) {
    if (!first.contains(member.uid)) continue;
    std::swap(member.uid, led.pod_uid);
    std::swap(member.name, led.pod);
    break;
  }
  return led;
}

protocol::admin::PodRequest ClaimAllocations::limits_of(const std::string& pod_uid) const {
  protocol::admin::PodRequest limits;
  limits.uid = pod_uid;
  ByGpu sums;
  int priority = protocol::admin::kPriorityMax;
  bool has_priority = false;
  std::set<std::string> looked_at;
  for (const auto& [uid, claim] : claims_) {
    if (claim.pod_uid != pod_uid) continue;
    limits.name = claim.name_space + "/" + claim.pod;
    add_shares(claim, &sums);
    for (const Share& share : claim.shares) {
      if (share.admin) looked_at.insert(share.gpu);
      has_priority = has_priority || share.config.priority;
      priority = std::min(priority, share.config.priority.value_or(protocol::admin::kPriorityMax));
      join_turns(share.config, &limits);
    }
  }
  limits.gone = sums.empty() && looked_at.empty();
  const bool only_looks = sums.empty();
  for (const std::string& gpu : looked_at) {
    if (sums.contains(gpu)) continue;
    limits.gpu_memory_on[gpu] = kToLookAt.memory;
    limits.gpu_memory_limit = std::max(limits.gpu_memory_limit, kToLookAt.memory);
    if (only_looks) limits.gpu_core_limit = kToLookAt.cores;
  }
  for (const auto& [gpu, amounts] : sums) {
    limits.gpu_memory_on[gpu] = amounts.memory;
    limits.gpu_memory_limit = std::max(limits.gpu_memory_limit, amounts.memory);
    limits.gpu_core_limit = std::min(limits.gpu_core_limit, amounts.cores);
  }
  limits.gpu_core_reserved = only_looks ? 0 : limits.gpu_core_limit;
  limits.priority = has_priority ? priority : 0;
  return limits;
}

std::set<std::string> ClaimAllocations::first_pods() const {
  std::set<std::string> pods;
  for (const auto& [uid, claim] : claims_) pods.insert(claim.pod_uid);
  return pods;
}

}  // namespace nvshare::kubernetes::dra
