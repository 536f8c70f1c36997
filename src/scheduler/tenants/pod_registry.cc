#include "scheduler/tenants/pod_registry.h"

namespace nvshare::scheduler {

PodLimits lowest_of(const PodLimits& held, PodLimits told) {
  told.gpu_memory_limit = lower_limit(held.gpu_memory_limit, told.gpu_memory_limit);
  told.core_limit = std::min(held.core_limit, told.core_limit);
  told.core_reserved = std::min(held.core_reserved, told.core_limit);
  for (const auto& [gpu, bytes] : held.memory_on) told.memory_on[gpu] = lower_limit(bytes, told.memory_on[gpu]);
  told.priority = held.priority;
  told.turn_seconds = static_cast<int>(lower_limit(held.turn_seconds, told.turn_seconds));
  told.ends = held.ends || told.ends;
  if (!held.name.empty()) told.name = held.name;
  if (told.member_of.empty()) told.member_of = held.member_of;
  return told;
}

void PodRegistry::put_gone(const std::string& uid, const PodLimits& limits, const std::function<bool(const std::string& uid)>& is_used) {
  std::erase(gone_, uid);
  pods_.erase(uid);
  if (limits.limits_nothing()) return;
  pods_[uid] = limits;
  gone_.push_back(uid);
  if (gone_.size() <= kGoneMax) return;
  auto least = std::find_if_not(gone_.begin(), gone_.end(), is_used);
  if (least == gone_.end()) least = gone_.begin();
  if (const auto oldest = pods_.find(*least); oldest != pods_.end() && oldest->second.gone) pods_.erase(oldest);
  gone_.erase(least);
}

void PodRegistry::restore(const std::string& uid, const PodLimits& limits) {
  if (limits.gone) gone_.push_back(uid);
  pods_[uid] = limits;
}

void PodRegistry::clear() {
  pods_.clear();
  gone_.clear();
}

const PodLimits* PodRegistry::find(const std::string& uid) const {
  const auto told = pods_.find(uid);
  return told == pods_.end() ? nullptr : &told->second;
}

const std::string& PodRegistry::leader_of(const std::string& uid) const {
  const PodLimits* told = find(uid);
  return told == nullptr || told->member_of.empty() ? uid : told->member_of;
}

}  // namespace nvshare::scheduler
