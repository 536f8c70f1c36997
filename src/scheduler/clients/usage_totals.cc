#include "scheduler/clients/usage_totals.h"

#include <algorithm>

#include "base/fetch_ahead.h"

namespace nvshare::scheduler {
namespace {

using protocol::admin::UsageReport;

constexpr size_t kAhead = 8;  // shares that are on their way from memory

// `leaves`: its turn ends with it.
void add(UsageReport& sum, const policy::ClientView& client, bool leaves) {
  sum.grants += client.turns;
  // A turn that an earlier scheduler granted is not among the grants.
  const bool unfinished = !leaves && client.turns > 0 && client.in_turn;
  sum.turns += client.turns - (unfinished ? 1 : 0);
  sum.drops += client.drops;
  sum.unanswered += client.unanswered_drops;
  sum.failed_drains += client.failed_drains;
  sum.running_ns += client.time_running;
  sum.waiting_ns += client.time_waiting;
  sum.swapping_ns += client.time_swapping;
  sum.swapped_out += client.swapped_out_total;
  sum.swapped_in += client.swapped_in_total;
  sum.unmoved += client.unmoved_total;
  sum.prefetched += client.prefetched_total;
  sum.prefetched_in_vain += client.prefetched_in_vain_total;
}

const policy::TenantView* account_of(policy::TenantId tenant, const policy::GpuView& gpu) {
  const auto at = std::lower_bound(gpu.tenants.begin(), gpu.tenants.end(), tenant,
                                   [](const policy::TenantView& view, policy::TenantId id) { return view.tenant < id; });
  return at == gpu.tenants.end() || at->tenant != tenant ? nullptr : &*at;
}

// By the tenant's id, in order; end: it is not there.
template <typename Pairs>
auto find(Pairs& all, policy::TenantId tenant) {
  const auto at = std::lower_bound(all.begin(), all.end(), tenant, [](const auto& pair, policy::TenantId id) { return pair.first < id; });
  return at == all.end() || at->first != tenant ? all.end() : at;
}

const policy::GpuView* gpu_of(policy::GpuId id, const std::vector<policy::GpuView>& views) {
  auto at = std::find_if(views.begin(), views.end(), [&](const policy::GpuView& view) { return view.gpu == id; });
  return at == views.end() ? nullptr : &*at;
}

}  // namespace

UsageTotals::Share& UsageTotals::share_of(policy::TenantId tenant, policy::GpuId gpu) {
  Shares& shares = shares_[gpu];
  const auto at =
      std::lower_bound(shares.begin(), shares.end(), tenant, [](const auto& pair, policy::TenantId id) { return pair.first < id; });
  if (at != shares.end() && at->first == tenant) return *at->second;
  return *shares.emplace(at, tenant, std::make_unique<Share>())->second;
}

const UsageTotals::Shares& UsageTotals::shares_on(policy::GpuId gpu) const {
  static const Shares none;
  const auto at = shares_.find(gpu);
  return at == shares_.end() ? none : at->second;
}

void UsageTotals::close_account(policy::TenantId tenant, policy::GpuId id, Share& share, const std::vector<policy::GpuView>& views) {
  const policy::GpuView* gpu = gpu_of(id, views);
  if (gpu != nullptr && account_of(tenant, *gpu) != nullptr) return;
  for (UsageReport* sum : {&share.left, &left_of_gpu_[id]}) {
    sum->billed_ns += share.billed_then;
    sum->throttled_ns += share.throttled_then;
  }
  share.billed_then = share.throttled_then = 0;
}

void UsageTotals::joins(policy::TenantId tenant, policy::GpuId gpu, const std::vector<policy::GpuView>& views) {
  close_account(tenant, gpu, share_of(tenant, gpu), views);
}

void UsageTotals::allocates(policy::TenantId tenant, policy::GpuId gpu, int64_t before, int64_t now) {
  Share& share = share_of(tenant, gpu);
  share.allocated += now - before;
  share.peak = std::max(share.peak, share.allocated);
}

void UsageTotals::leaves(policy::ClientId client, const std::vector<policy::GpuView>& views) {
  for (const policy::GpuView& gpu : views) {
    for (const policy::ClientView& view : gpu.clients) {
      if (view.client != client) continue;
      Share& share = share_of(view.tenant, gpu.gpu);
      add(share.left, view, true);
      add(left_of_gpu_[gpu.gpu], view, true);
      if (const policy::TenantView* account = account_of(view.tenant, gpu)) {
        share.billed_then = account->used;
        share.throttled_then = account->throttled_time;
      }
    }
  }
}

void UsageTotals::keep_only(const std::function<bool(policy::TenantId)>& known, const std::vector<policy::GpuView>& views) {
  for (auto& [id, shares] : shares_) {
    const policy::GpuView* gpu = gpu_of(id, views);
    std::erase_if(shares, [&, id = id](const auto& entry) {
      const auto& [tenant, share] = entry;
      if ((gpu != nullptr && account_of(tenant, *gpu) != nullptr) || known(tenant)) return false;
      close_account(tenant, id, *share, views);
      return true;
    });
  }
}

void UsageTotals::forget_gpu(policy::GpuId gpu) {
  shares_.erase(gpu);
  left_of_gpu_.erase(gpu);
}

std::vector<std::pair<policy::TenantId, UsageReport>> UsageTotals::of_tenants(const policy::GpuView& gpu, const std::string& uuid) const {
  std::vector<std::pair<policy::TenantId, UsageReport>> all;
  const Shares& shares = shares_on(gpu.gpu);
  all.reserve(shares.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    if (i + kAhead < shares.size()) fetch_lines_of(*shares[i + kAhead].second);
    const auto& [tenant, share] = shares[i];
    const policy::TenantView* account = account_of(tenant, gpu);
    UsageReport& usage = all.emplace_back(tenant, share->left).second;
    usage.gpu = uuid;
    usage.memory_peak = share->peak;
    usage.billed_ns += account != nullptr ? account->used : share->billed_then;
    usage.throttled_ns += account != nullptr ? account->throttled_time : share->throttled_then;
  }
  for (const policy::ClientView& client : gpu.clients) {
    if (const auto at = find(all, client.tenant); at != all.end()) add(at->second, client, false);
  }
  return all;
}

std::optional<UsageReport> UsageTotals::of_tenant(policy::TenantId tenant, const policy::GpuView& gpu, const std::string& uuid) const {
  auto all = of_tenants(gpu, uuid);
  const auto at = find(all, tenant);
  return at == all.end() ? std::nullopt : std::optional(std::move(at->second));
}

UsageReport UsageTotals::of_gpu(const policy::GpuView& gpu, const std::string& uuid) const {
  UsageReport usage;
  if (auto left = left_of_gpu_.find(gpu.gpu); left != left_of_gpu_.end()) usage = left->second;
  usage.gpu = uuid;
  for (const policy::ClientView& client : gpu.clients) add(usage, client, false);
  for (const auto& [tenant, share] : shares_on(gpu.gpu)) {
    const policy::TenantView* account = account_of(tenant, gpu);
    usage.billed_ns += account != nullptr ? account->used : share->billed_then;
    usage.throttled_ns += account != nullptr ? account->throttled_time : share->throttled_then;
  }
  return usage;
}

}  // namespace nvshare::scheduler
