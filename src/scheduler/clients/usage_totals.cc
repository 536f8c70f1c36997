#include "scheduler/clients/usage_totals.h"

#include <algorithm>

namespace nvshare::scheduler {
namespace {

using protocol::admin::UsageReport;

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

void UsageTotals::close_account(const Key& key, Share& share, const std::vector<policy::GpuView>& views) {
  const policy::GpuView* gpu = gpu_of(key.first, views);
  if (gpu != nullptr && account_of(key.second, *gpu) != nullptr) return;
  for (UsageReport* sum : {&share.left, &left_of_gpu_[key.first]}) {
    sum->billed_ns += share.billed_then;
    sum->throttled_ns += share.throttled_then;
  }
  share.billed_then = share.throttled_then = 0;
}

void UsageTotals::joins(policy::TenantId tenant, policy::GpuId gpu, const std::vector<policy::GpuView>& views) {
  const Key key{gpu, tenant};
  close_account(key, shares_[key], views);
}

void UsageTotals::allocates(policy::TenantId tenant, policy::GpuId gpu, int64_t before, int64_t now) {
  Share& share = shares_[{gpu, tenant}];
  share.allocated += now - before;
  share.peak = std::max(share.peak, share.allocated);
}

void UsageTotals::leaves(policy::ClientId client, const std::vector<policy::GpuView>& views) {
  for (const policy::GpuView& gpu : views) {
    for (const policy::ClientView& view : gpu.clients) {
      if (view.client != client) continue;
      Share& share = shares_[{gpu.gpu, view.tenant}];
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
  for (auto at = shares_.begin(); at != shares_.end();) {
    auto& [key, share] = *at;
    const policy::GpuView* gpu = gpu_of(key.first, views);
    const bool open = gpu != nullptr && account_of(key.second, *gpu) != nullptr;
    if (open || known(key.second)) {
      ++at;
      continue;
    }
    close_account(key, share, views);
    at = shares_.erase(at);
  }
}

void UsageTotals::forget_gpu(policy::GpuId gpu) {
  std::erase_if(shares_, [&](const auto& entry) { return entry.first.first == gpu; });
  left_of_gpu_.erase(gpu);
}

std::vector<std::pair<policy::TenantId, UsageReport>> UsageTotals::of_tenants(const policy::GpuView& gpu, const std::string& uuid) const {
  std::vector<std::pair<policy::TenantId, UsageReport>> all;
  all.reserve(gpu.clients.size());
  for (auto at = shares_.lower_bound({gpu.gpu, 0}); at != shares_.end() && at->first.first == gpu.gpu; ++at) {
    const Share& share = at->second;
    const policy::TenantView* account = account_of(at->first.second, gpu);
    UsageReport& usage = all.emplace_back(at->first.second, share.left).second;
    usage.gpu = uuid;
    usage.memory_peak = share.peak;
    usage.billed_ns += account != nullptr ? account->used : share.billed_then;
    usage.throttled_ns += account != nullptr ? account->throttled_time : share.throttled_then;
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
  for (auto at = shares_.lower_bound({gpu.gpu, 0}); at != shares_.end() && at->first.first == gpu.gpu; ++at) {
    const policy::TenantView* account = account_of(at->first.second, gpu);
    usage.billed_ns += account != nullptr ? account->used : at->second.billed_then;
    usage.throttled_ns += account != nullptr ? account->throttled_time : at->second.throttled_then;
  }
  return usage;
}

}  // namespace nvshare::scheduler
