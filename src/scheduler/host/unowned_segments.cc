#include "scheduler/host/unowned_segments.h"

#include <algorithm>

namespace nvshare::scheduler {

void UnownedSegments::put_making(SegmentId id, const Making& making) {
  take_making(id);
  making_[id] = making;
  sums_.all.making += making.bytes;
  if (making.client != 0) return;  // its client's segment counts
  sums_.all.making_unowned += making.bytes;
  sums_.change_tenant(making.tenant, [&](HostSums::OfTenant& tenant) {
    tenant.held += making.bytes;
    tenant.held_scheduler += making.bytes;
  });
}

std::optional<UnownedSegments::Making> UnownedSegments::take_making(SegmentId id) {
  const auto at = making_.find(id);
  if (at == making_.end()) return std::nullopt;
  const Making making = at->second;
  making_.erase(at);
  sums_.all.making -= making.bytes;
  if (making.client != 0) return making;
  sums_.all.making_unowned -= making.bytes;
  sums_.change_tenant(making.tenant, [&](HostSums::OfTenant& tenant) {
    tenant.held -= making.bytes;
    tenant.held_scheduler -= making.bytes;
  });
  return making;
}

void UnownedSegments::put_pooled(SegmentId id, const Pooled& pooled) {
  pool_[id] = pooled;
  pool_of_.emplace(pooled.tenant, id);
  pool_until_.emplace(pooled.until, id);
  sums_.all.pooled += pooled.bytes;
  sums_.change_tenant(pooled.tenant, [&](HostSums::OfTenant& tenant) {
    tenant.held += pooled.bytes;
    tenant.held_scheduler += pooled.bytes;
    ++tenant.segments;
  });
}

std::pair<SegmentId, UnownedSegments::Pooled> UnownedSegments::take_pooled(SegmentId id) {
  const auto at = pool_.find(id);
  const Pooled pooled = at->second;
  pool_.erase(at);
  pool_of_.erase({pooled.tenant, id});
  pool_until_.erase({pooled.until, id});
  sums_.all.pooled -= pooled.bytes;
  sums_.change_tenant(pooled.tenant, [&](HostSums::OfTenant& tenant) {
    tenant.held -= pooled.bytes;
    tenant.held_scheduler -= pooled.bytes;
    --tenant.segments;
  });
  return {id, pooled};
}

std::optional<std::pair<SegmentId, UnownedSegments::Pooled>> UnownedSegments::take_pooled_of(policy::TenantId tenant) {
  const auto first = pool_of_.lower_bound({tenant, 0});
  if (first == pool_of_.end() || first->first != tenant) return std::nullopt;
  return take_pooled(first->second);
}

std::optional<std::pair<SegmentId, UnownedSegments::Pooled>> UnownedSegments::take_oldest_pooled(policy::Instant until) {
  if (pool_until_.empty() || pool_until_.begin()->first > until) return std::nullopt;
  return take_pooled(pool_until_.begin()->second);
}

void UnownedSegments::count_leaving(SegmentId id, const Leaving& leaving, int sign) {
  sums_.all.leaving += sign * leaving.bytes;
  sums_.all.coming_back += leaving.held ? 0 : sign * leaving.bytes;
  sums_.change_tenant(leaving.tenant, [&](HostSums::OfTenant& tenant) {
    tenant.held += sign * leaving.bytes;
    tenant.held_scheduler += leaving.owner == Owner::kScheduler ? sign * leaving.bytes : 0;
    tenant.segments += sign;
    tenant.leaving += sign;
    tenant.used += sign * leaving.bytes;
  });
  if (sign > 0) {
    if (leaving.holder != 0) left_by_[leaving.holder].insert(id);
    if (!leaving.looking) look_at_.emplace(leaving.look_at, id);
    return;
  }
  look_at_.erase({leaving.look_at, id});
  const auto left = left_by_.find(leaving.holder);
  if (left == left_by_.end()) return;
  left->second.erase(id);
  if (left->second.empty()) left_by_.erase(left);
}

void UnownedSegments::put_leaving(SegmentId id, const Leaving& leaving) {
  take_leaving(id);
  leaving_[id] = leaving;
  count_leaving(id, leaving, +1);
}

std::optional<UnownedSegments::Leaving> UnownedSegments::take_leaving(SegmentId id) {
  const auto at = leaving_.find(id);
  if (at == leaving_.end()) return std::nullopt;
  const Leaving leaving = at->second;
  count_leaving(id, leaving, -1);
  leaving_.erase(at);
  return leaving;
}

const UnownedSegments::Leaving* UnownedSegments::leaving(SegmentId id) const {
  const auto at = leaving_.find(id);
  return at != leaving_.end() ? &at->second : nullptr;
}

std::set<SegmentId> UnownedSegments::left_by(policy::ClientId holder) const {
  const auto at = left_by_.find(holder);
  return at != left_by_.end() ? at->second : std::set<SegmentId>();
}

std::optional<SegmentId> UnownedSegments::to_look_at(policy::Instant now) const {
  if (look_at_.empty() || look_at_.begin()->first > now) return std::nullopt;
  return look_at_.begin()->second;
}

std::optional<policy::Instant> UnownedSegments::next_time() const {
  std::optional<policy::Instant> next;
  if (!pool_until_.empty()) next = pool_until_.begin()->first;
  if (!look_at_.empty()) next = std::min(next.value_or(look_at_.begin()->first), look_at_.begin()->first);
  return next;
}

void UnownedSegments::copy_to(UnownedSegments* other) const {
  for (const auto& [id, making] : making_) other->put_making(id, making);
  for (const auto& [id, pooled] : pool_) other->put_pooled(id, pooled);
  for (const auto& [id, leaving] : leaving_) other->put_leaving(id, leaving);
}

const char* UnownedSegments::differs_from(const UnownedSegments& anew) const {
  if (anew.pool_of_ != pool_of_ || anew.pool_until_ != pool_until_) return "the order of what is kept for a tenant's next use";
  if (anew.left_by_ != left_by_ || anew.look_at_ != look_at_) return "the order of what leaves";
  return nullptr;
}

}  // namespace nvshare::scheduler
