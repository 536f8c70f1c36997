#include "scheduler/host_ledger.h"

#include <algorithm>
#include <iterator>

namespace nvshare::scheduler {

template <typename Change>
void HostLedger::change_tenant(policy::TenantId tenant, Change change) {
  const auto [at, is_new] = tenants_.try_emplace(tenant);
  if (!is_new && at->second.uses()) used_by_tenant_.erase(used_by_tenant_.find(at->second.used));
  sums_.tenants -= at->second.clients > 0 ? 1 : 0;
  change(at->second);
  sums_.tenants += at->second.clients > 0 ? 1 : 0;
  if (at->second.uses()) used_by_tenant_.insert(at->second.used);
  if (at->second == OfTenant{}) tenants_.erase(at);
}

// ---- clients ----

const HostLedger::Account* HostLedger::find(policy::ClientId client) const {
  const auto at = accounts_.find(client);
  return at != accounts_.end() ? &at->second : nullptr;
}

std::optional<HostLedger::Account> HostLedger::close(policy::ClientId client) {
  const auto at = accounts_.find(client);
  if (at == accounts_.end()) return std::nullopt;
  count(client, at->second, -1);
  std::optional<Account> closed = std::move(at->second);
  accounts_.erase(at);
  for (const auto& [id, segment] : closed->segments) client_of_.erase(id);
  return closed;
}

// All that this client adds to the sums.
void HostLedger::count(policy::ClientId client, const Account& account, int sign) {
  sums_.lent += sign * account.lent;
  sums_.lent_scheduler += sign * account.lent_scheduler;
  sums_.unbuilt += sign * std::max<int64_t>(0, account.lent - account.ready);
  sums_.used += sign * account.used;
  sums_.empty += sign * account.empty();
  sums_.empty_scheduler += sign * std::min(account.empty(), account.there_scheduler);
  sums_.scheduler_owners += account.owner == Owner::kScheduler ? sign : 0;
  change_tenant(account.tenant, [&](OfTenant& tenant) {
    tenant.clients += sign;
    tenant.held += sign * account.lent;
    tenant.held_scheduler += sign * account.lent_scheduler;
    tenant.segments += sign * static_cast<int64_t>(account.segments.size());
    tenant.used += sign * account.used;
  });
  const auto keep = [&](std::set<policy::ClientId>& set, bool is_in) {
    if (is_in && sign > 0) set.insert(client);
    if (is_in && sign < 0) set.erase(client);
  };
  keep(unanswered_, !account.answered);
  keep(missing_, account.answered && account.missing > 0);
  keep(shrinking_, account.shrinking.has_value());
}

// ---- segments of clients ----

void HostLedger::count_segment(Account* account, const Segment& segment, int sign) {
  account->lent += sign * segment.bytes;
  if (segment.owner != Owner::kScheduler) return;
  account->lent_scheduler += sign * segment.bytes;
  if (segment.there) account->there_scheduler += sign * segment.bytes;
}

void HostLedger::put(policy::ClientId client, SegmentId id, const Segment& segment) {
  change(client, [&](Account& account) {
    const auto [at, is_new] = account.segments.try_emplace(id, segment);
    if (!is_new) return;
    count_segment(&account, segment, +1);
    client_of_[id] = client;
  });
}

void HostLedger::take(SegmentId id) {
  const auto client = client_of_.find(id);
  if (client == client_of_.end()) return;
  change(client->second, [&](Account& account) {
    const auto at = account.segments.find(id);
    count_segment(&account, at->second, -1);
    account.segments.erase(at);
  });
  client_of_.erase(client);
}

void HostLedger::set_there(policy::ClientId client, SegmentId id) {
  change(client, [&](Account& account) {
    const auto at = account.segments.find(id);
    if (at == account.segments.end()) return;
    count_segment(&account, at->second, -1);
    at->second.there = true;
    count_segment(&account, at->second, +1);
  });
}

// ---- segments of nobody ----

void HostLedger::put_making(SegmentId id, const Making& making) {
  take_making(id);
  making_[id] = making;
  sums_.making += making.bytes;
  if (making.client != 0) return;  // its client's segment counts
  sums_.making_nobodys += making.bytes;
  change_tenant(making.tenant, [&](OfTenant& tenant) {
    tenant.held += making.bytes;
    tenant.held_scheduler += making.bytes;
  });
}

std::optional<HostLedger::Making> HostLedger::take_making(SegmentId id) {
  const auto at = making_.find(id);
  if (at == making_.end()) return std::nullopt;
  const Making making = at->second;
  making_.erase(at);
  sums_.making -= making.bytes;
  if (making.client != 0) return making;
  sums_.making_nobodys -= making.bytes;
  change_tenant(making.tenant, [&](OfTenant& tenant) {
    tenant.held -= making.bytes;
    tenant.held_scheduler -= making.bytes;
  });
  return making;
}

void HostLedger::put_pooled(SegmentId id, const Pooled& pooled) {
  pool_[id] = pooled;
  pool_of_.emplace(pooled.tenant, id);
  pool_until_.emplace(pooled.until, id);
  sums_.pooled += pooled.bytes;
  change_tenant(pooled.tenant, [&](OfTenant& tenant) {
    tenant.held += pooled.bytes;
    tenant.held_scheduler += pooled.bytes;
    ++tenant.segments;
  });
}

std::pair<SegmentId, HostLedger::Pooled> HostLedger::take_pooled(SegmentId id) {
  const auto at = pool_.find(id);
  const Pooled pooled = at->second;
  pool_.erase(at);
  pool_of_.erase({pooled.tenant, id});
  pool_until_.erase({pooled.until, id});
  sums_.pooled -= pooled.bytes;
  change_tenant(pooled.tenant, [&](OfTenant& tenant) {
    tenant.held -= pooled.bytes;
    tenant.held_scheduler -= pooled.bytes;
    --tenant.segments;
  });
  return {id, pooled};
}

std::optional<std::pair<SegmentId, HostLedger::Pooled>> HostLedger::take_pooled_of(policy::TenantId tenant) {
  const auto first = pool_of_.lower_bound({tenant, 0});
  if (first == pool_of_.end() || first->first != tenant) return std::nullopt;
  return take_pooled(first->second);
}

std::optional<std::pair<SegmentId, HostLedger::Pooled>> HostLedger::take_oldest_pooled(policy::Instant until) {
  if (pool_until_.empty() || pool_until_.begin()->first > until) return std::nullopt;
  return take_pooled(pool_until_.begin()->second);
}

void HostLedger::count_leaving(SegmentId id, const Leaving& leaving, int sign) {
  sums_.leaving += sign * leaving.bytes;
  sums_.coming_back += leaving.held ? 0 : sign * leaving.bytes;
  change_tenant(leaving.tenant, [&](OfTenant& tenant) {
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

void HostLedger::put_leaving(SegmentId id, const Leaving& leaving) {
  take_leaving(id);
  leaving_[id] = leaving;
  count_leaving(id, leaving, +1);
}

std::optional<HostLedger::Leaving> HostLedger::take_leaving(SegmentId id) {
  const auto at = leaving_.find(id);
  if (at == leaving_.end()) return std::nullopt;
  const Leaving leaving = at->second;
  count_leaving(id, leaving, -1);
  leaving_.erase(at);
  return leaving;
}

const HostLedger::Leaving* HostLedger::leaving(SegmentId id) const {
  const auto at = leaving_.find(id);
  return at != leaving_.end() ? &at->second : nullptr;
}

std::set<SegmentId> HostLedger::left_by(policy::ClientId holder) const {
  const auto at = left_by_.find(holder);
  return at != left_by_.end() ? at->second : std::set<SegmentId>();
}

std::optional<SegmentId> HostLedger::to_look_at(policy::Instant now) const {
  if (look_at_.empty() || look_at_.begin()->first > now) return std::nullopt;
  return look_at_.begin()->second;
}

std::optional<policy::Instant> HostLedger::next_time() const {
  std::optional<policy::Instant> next;
  if (!pool_until_.empty()) next = pool_until_.begin()->first;
  if (!look_at_.empty()) next = std::min(next.value_or(look_at_.begin()->first), look_at_.begin()->first);
  return next;
}

bool HostLedger::knows(SegmentId id) const {
  return client_of_.contains(id) || making_.contains(id) || leaving_.contains(id) || pool_.contains(id);
}

// ---- sums ----

int64_t HostLedger::held_by(policy::TenantId tenant, bool of_scheduler_only) const {
  const auto at = tenants_.find(tenant);
  if (at == tenants_.end()) return 0;
  return of_scheduler_only ? at->second.held_scheduler : at->second.held;
}

int64_t HostLedger::segments_of(policy::TenantId tenant) const {
  const auto at = tenants_.find(tenant);
  return at != tenants_.end() ? at->second.segments : 0;
}

std::optional<int64_t> HostLedger::most_used_below(int64_t bound) const {
  const auto at = used_by_tenant_.lower_bound(bound);
  return at != used_by_tenant_.begin() ? std::optional(*std::prev(at)) : std::nullopt;
}

std::string HostLedger::wrong_in_sums() const {
  HostLedger anew;
  for (const auto& entry : accounts_) {
    const policy::ClientId client = entry.first;
    const Account& account = entry.second;
    anew.open(client, [&](Account& copy) {
      copy = account;
      copy.segments.clear();
      copy.lent = copy.lent_scheduler = copy.there_scheduler = 0;
    });
    for (const auto& [id, segment] : account.segments) anew.put(client, id, segment);
  }
  for (const auto& [id, making] : making_) anew.put_making(id, making);
  for (const auto& [id, pooled] : pool_) anew.put_pooled(id, pooled);
  for (const auto& [id, leaving] : leaving_) anew.put_leaving(id, leaving);
  if (anew.sums_ != sums_) return "the sums over all clients";
  if (anew.tenants_ != tenants_ || anew.used_by_tenant_ != used_by_tenant_) return "the sums of tenants";
  if (anew.client_of_ != client_of_) return "whose segment is whose";
  if (anew.unanswered_ != unanswered_ || anew.missing_ != missing_ || anew.shrinking_ != shrinking_) return "the lists of clients";
  if (anew.pool_of_ != pool_of_ || anew.pool_until_ != pool_until_) return "the order of what is kept for a tenant's next use";
  if (anew.left_by_ != left_by_ || anew.look_at_ != look_at_) return "the order of what leaves";
  return {};
}

}  // namespace nvshare::scheduler
