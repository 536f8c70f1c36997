#include "scheduler/engine/kept_accounts.h"

#include <algorithm>
#include <string>

#include "policy/parts.h"

namespace nvshare::scheduler {

void KeptAccounts::keep(policy::Instant now) {
  const policy::State& state = at_.policy.state();
  const auto has_accounts = [](const auto& entry) { return !entry.second.accounts.empty(); };
  bool any_is_shared = false;
  for (policy::GpuId id = 0; id < at_.gpus.size(); ++id) any_is_shared = any_is_shared || policy::shares_by_limits(state, id);
  if (!any_is_shared && std::none_of(at_.tenants.all().begin(), at_.tenants.all().end(), has_accounts)) return;
  for (const policy::GpuView& gpu : policy::view_of_tenants(state, now)) {
    const std::string& uuid = at_.gpus[gpu.gpu].uuid_text;
    const bool is_shared = policy::shares_by_limits(state, gpu.gpu);
    for (const auto& [key, known] : at_.tenants.all()) {
      Tenant* tenant = at_.tenants.find(known.id);
      const auto account = std::ranges::lower_bound(gpu.tenants, known.id, {}, &policy::TenantView::tenant);
      if (is_shared && account != gpu.tenants.end() && account->tenant == known.id) {
        tenant->accounts[uuid] = {now - account->since_joined, account->debt, account->used, account->throttled_time};
      } else {
        tenant->accounts.erase(uuid);
      }
    }
  }
  at_.tenants.save();
}

void KeptAccounts::take_over(policy::TenantId id, policy::GpuId gpu, policy::Instant now) {
  Tenant* tenant = at_.tenants.find(id);
  if (tenant == nullptr) return;
  const auto former = tenant->former_accounts.find(at_.gpus[gpu].uuid_text);
  if (former == tenant->former_accounts.end()) return;
  const KeptAccount account = former->second;
  tenant->former_accounts.erase(former);
  if (account.joined_at > now) return;  // by the clock of another boot
  at_.policy.apply(policy::AccountKept{id, gpu, account.joined_at, account.debt, account.used, account.throttled_time}, now);
}

}  // namespace nvshare::scheduler
