// What each active tenant is entitled to on each GPU (docs/adr/0017): its reservation, and of the rest as much as everybody else up to its
// ceiling. A ceiling only ever takes: no figure here grows for anybody because a ceiling of its own was set.
#include <utility>

#include "policy/concerns.h"

namespace nvshare::policy {

void scale_reservations(std::vector<Claim>& claims) {
  int64_t sum = 0, most = kWholeGpu;
  for (const Claim& claim : claims) {
    sum += claim.reserved;
    if (claim.reserved == 0) most = kWholeGpu - kRestLeast;
  }
  if (sum <= most) return;
  for (Claim& claim : claims) claim.reserved = claim.reserved * most / sum;
}

void share_out(std::vector<Claim>& claims) {
  int64_t ceilings = 0, left = kWholeGpu;
  std::vector<std::pair<int64_t, int>> borders;  // where a share begins to rise with the level, and where it no longer does
  for (const Claim& claim : claims) {
    ceilings += claim.ceiling;
    left -= claim.reserved;
    borders.emplace_back(claim.reserved, 1);
    borders.emplace_back(claim.ceiling, -1);
  }
  int64_t level = kWholeGpu;
  if (ceilings > kWholeGpu) {
    std::sort(borders.begin(), borders.end());
    int64_t rising = 0;
    level = 0;
    for (const auto& [border, change] : borders) {
      if (rising * (border - level) >= left) break;
      left -= rising * (border - level);
      level = border;
      rising += change;
    }
    if (rising > 0) level += std::max<int64_t>(left, 0) / rising;
  }
  for (Claim& claim : claims) claim.share = std::max(claim.reserved, std::min(claim.ceiling, level));
}

namespace {

void look_at_tenants(Context& context, Gpu& gpu) {
  Quota& quota = gpu.quota;
  begin_accounts(gpu, context.now);
  for (const auto& [tenant, clients] : gpu.of_tenant) account_of(context.state, gpu, tenant, context.now);
  quota.limited = false;
  for (auto at = quota.accounts.begin(); at != quota.accounts.end();) {
    Account& account = at->second;
    const TenantId tenant = account.tenant;
    const bool here = gpu.of_tenant.contains(tenant);
    const bool busy =
        any_client(gpu, tenant, [](const Client& client) { return (client.holds_lock() && !client.paused_since) || client.waits(); });
    if (busy) account.last_busy = context.now;
    account.active = busy || (here && account.used && context.now - account.last_busy < kActiveGrace);
    account.present = busy || (here && account.used && context.now - account.last_busy < kPresentGrace);
    account.gang = any_client(gpu, tenant, [&](const Client& client) { return gang_of(context.state, client) != nullptr; });
    quota.limited |= here && account.is_limited();
    // A debt outlives the programs that made it, as long as the largest takes to be paid. Where nobody with a limit is left nothing is
    // earned, so that what the account says is no measure.
    const bool owes =
        (account.has_ceiling() || account.owed > 0) && context.now - account.last_busy <= std::max(kDebtMax, 2 * quota.period);
    if (here || owes) {
      ++at;
    } else {
      at = quota.accounts.erase(at);
    }
  }
  if (quota.limited) {
    context.state.limited.emplace(gpu.id, &gpu);
  } else {
    context.state.limited.erase(gpu.id);
  }
}

Claim claim_of(const Account& account) { return {account.reserved * (kWholeGpu / 100), account.ceiling_rate()}; }

// The claims of the tenants that are active on a GPU.
struct Sharing {
  std::vector<TenantId> tenants;
  std::vector<Claim> claims;
};
using Claims = std::vector<Claim*>;  // of a gang, one for each of its GPUs

int64_t least_share(const Claims& claims) {
  return (*std::min_element(claims.begin(), claims.end(), [](const Claim* a, const Claim* b) { return a->share < b->share; }))->share;
}

// A gang's turns are as long on all its GPUs: its share is the least that it has on one of them. The gang that has least is fixed first;
// what it leaves on its other GPUs is shared by the same rule.
void even_out(std::map<GpuId, Sharing>& gpus, std::map<TenantId, Claims> gangs) {
  for (const auto& [tenant, claims] : gangs) {
    int64_t least = kWholeGpu;
    for (const Claim* claim : claims) least = std::min(least, claim->reserved);
    for (Claim* claim : claims) claim->reserved = least;
  }
  for (;;) {
    for (auto& [id, sharing] : gpus) share_out(sharing.claims);
    if (gangs.empty()) return;
    const auto next = std::min_element(gangs.begin(), gangs.end(),
                                       [](const auto& a, const auto& b) { return least_share(a.second) < least_share(b.second); });
    const int64_t share = least_share(next->second);
    for (Claim* claim : next->second) claim->ceiling = share;
    gangs.erase(next);
  }
}

void set_share(const Config& config, const Gpu& gpu, Account& account, int64_t share, Instant now) {
  const int64_t former = std::exchange(account.quota, share);
  if (!is_windowed(config, gpu)) return;
  // A new quota counts from its window's beginning: what was used stays used. Who comes in mid-window has the rest of it.
  account.balance += former > 0 ? portion(window_of(config, gpu), share - former) : portion(rest_of_window(config, gpu, now), share);
}

// What a tenant that is not active would have if it were.
int64_t share_if_active(const Sharing& sharing, const Account& account) {
  std::vector<Claim> claims = sharing.claims;
  claims.push_back(claim_of(account));
  scale_reservations(claims);
  share_out(claims);
  return claims.back().share;
}

void set_shares(Context& context, Gpu& gpu, const Sharing& sharing) {
  const Config& config = context.config();
  // Each is billed in full there, so that shares say nothing about who works how much: limits are held to one by one.
  const bool one_by_one = config.scheduling_mode == SchedulingMode::kConcurrent;
  const auto in_force = [&](const Account& account, int64_t share) {
    return one_by_one && account.has_ceiling() ? account.ceiling_rate() : share;
  };
  int64_t demand = 0, ceilings = 0;
  for (size_t i = 0; i < sharing.tenants.size(); ++i) {
    Account& account = gpu.quota.accounts.at(sharing.tenants[i]);
    set_share(config, gpu, account, in_force(account, sharing.claims[i].share), context.now);
    demand += account.quota;
    ceilings += account.ceiling_rate();
  }
  std::map<std::pair<int, int>, int64_t> known;
  for (auto& [tenant, account] : gpu.quota.accounts) {
    if (account.active) continue;
    const auto [at, is_new] = known.try_emplace({account.ceiling, account.reserved});
    if (is_new) at->second = share_if_active(sharing, account);
    set_share(config, gpu, account, in_force(account, at->second), context.now);
  }
  if (!one_by_one) note_scale(context, gpu);
  gpu.quota.over_asked = ceilings > kWholeGpu;
  gpu.quota.full_demand = demand >= kWholeGpu - kWholeGpu / 1000;
}

}  // namespace

void settle_shares(Context& context, const std::vector<GpuId>& gpus) {
  std::map<GpuId, Sharing> sharings;
  std::map<TenantId, Claims> gangs;
  for (const GpuId id : gpus) {
    Gpu& gpu = context.state.gpus.at(id);
    if (!gpu.quota.limited && context.state.core_limits.empty()) continue;
    look_at_tenants(context, gpu);
    Sharing& sharing = sharings[id];
    for (const auto& [tenant, account] : gpu.quota.accounts) {
      if (!account.active) continue;
      sharing.tenants.push_back(tenant);
      sharing.claims.push_back(claim_of(account));
    }
    scale_reservations(sharing.claims);
    for (size_t i = 0; gpu.quota.limited && i < sharing.tenants.size(); ++i) {
      if (gpu.quota.accounts.at(sharing.tenants[i]).gang) gangs[sharing.tenants[i]].push_back(&sharing.claims[i]);
    }
  }
  std::erase_if(gangs, [](const auto& gang) { return gang.second.size() < 2; });
  even_out(sharings, std::move(gangs));
  for (const auto& [id, sharing] : sharings) set_shares(context, context.state.gpus.at(id), sharing);
}

}  // namespace nvshare::policy
