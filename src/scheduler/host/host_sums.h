// Sums over who holds which segment of the host's memory for swapping, in all and by tenant: a question about all clients costs as much
// with ten thousand of them as with one. Pure; not thread-safe. Amounts are bytes, and none is negative.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "policy/policy.h"

namespace nvshare::scheduler {

class HostSums {
 public:
  struct Totals {
    int64_t lent = 0;             // to clients
    int64_t lent_scheduler = 0;   // of that, the scheduler's own memory
    int64_t unbuilt = 0;          // of lent, not ready yet: it will come out of what the machine has
    int64_t used = 0;             // of lent, by swapped memory
    int64_t empty = 0;            // ready and unused
    int64_t empty_scheduler = 0;  // of that, in the scheduler's own memory
    int64_t pooled = 0;
    int64_t leaving = 0;
    int64_t coming_back = 0;       // of leaving, what nobody is known to keep
    int64_t making = 0;            // for clients or nobody
    int64_t making_unowned = 0;    // of that, for clients that have left
    int64_t scheduler_owners = 0;  // clients that ask for the scheduler's memory
    int64_t tenants = 0;           // of clients

    bool operator==(const Totals&) const = default;
  };
  Totals all;

  struct OfTenant {
    int64_t clients = 0;
    int64_t held = 0;
    int64_t held_scheduler = 0;
    int64_t segments = 0;
    int64_t leaving = 0;  // how many segments
    int64_t used = 0;     // by clients, and what leaves

    bool uses() const { return clients > 0 || leaving > 0; }
    bool operator==(const OfTenant&) const = default;
  };
  template <typename Change>
  void change_tenant(policy::TenantId tenant, Change change) {
    const auto [at, is_new] = tenants_.try_emplace(tenant);
    if (!is_new && at->second.uses()) used_by_tenant_.erase(used_by_tenant_.find(at->second.used));
    all.tenants -= at->second.clients > 0 ? 1 : 0;
    const int64_t used_before = at->second.used;
    change(at->second);
    if (at->second.used != used_before) changed_.insert(tenant);
    all.tenants += at->second.clients > 0 ? 1 : 0;
    if (at->second.uses()) used_by_tenant_.insert(at->second.used);
    if (at->second == OfTenant{}) tenants_.erase(at);
  }

  // Lent, pooled, leaving, or in the making for nobody.
  int64_t held_by(policy::TenantId tenant, bool of_scheduler_only) const {
    const auto at = tenants_.find(tenant);
    if (at == tenants_.end()) return 0;
    return of_scheduler_only ? at->second.held_scheduler : at->second.held;
  }
  // Lent, pooled or leaving.
  int64_t segments_of(policy::TenantId tenant) const {
    const auto at = tenants_.find(tenant);
    return at != tenants_.end() ? at->second.segments : 0;
  }
  // What tenants use, leaving memory included: the most that one does, of those below `bound`.
  std::optional<int64_t> most_used_below(int64_t bound) const {
    const auto at = used_by_tenant_.lower_bound(bound);
    return at != used_by_tenant_.begin() ? std::optional(*std::prev(at)) : std::nullopt;
  }

  int64_t used_by(policy::TenantId tenant) const {
    const auto at = tenants_.find(tenant);
    return at != tenants_.end() ? at->second.used : 0;
  }
  // Tenants whose use has changed since this was last asked.
  std::set<policy::TenantId> take_changed() { return std::exchange(changed_, {}); }

  // Of each tenant, in the order of tenants.
  template <typename Look>
  void each_used(Look look) const {
    for (const auto& [tenant, of] : tenants_) look(tenant, of.used);
  }

  // But for what has changed.
  bool operator==(const HostSums& other) const {
    return all == other.all && tenants_ == other.tenants_ && used_by_tenant_ == other.used_by_tenant_;
  }

 private:
  std::map<policy::TenantId, OfTenant> tenants_;
  std::multiset<int64_t> used_by_tenant_;
  std::set<policy::TenantId> changed_;
};

}  // namespace nvshare::scheduler
