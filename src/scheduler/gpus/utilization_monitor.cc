#include "scheduler/gpus/utilization_monitor.h"

#include <cmath>

namespace nvshare::scheduler {

std::vector<UtilizationMonitor::Change> UtilizationMonitor::update(const UseSample& sample,
                                                                   const std::map<int32_t, policy::TenantId>& tenant_of,
                                                                   const std::map<policy::TenantId, int64_t>& billed, int64_t now) {
  if (!sample.unknown.empty()) {
    forget();
    unknown_ = sample.unknown;
    return {};
  }
  unknown_.clear();
  const bool is_first = !billed_at_;  // what was billed before it nobody compares
  Span span{sample.span, is_first ? 0 : now - *billed_at_, {}, 0};
  for (const auto& [tenant, sum] : billed) {
    const auto then = billed_then_.find(tenant);
    // An account that was opened since begins at nothing, or at what an earlier scheduler had on it.
    int64_t before = sum <= span.billed ? 0 : sum;
    if (then != billed_then_.end() && then->second <= sum) before = then->second;
    span.tenants[tenant].billed = sum - before;
  }
  for (const UseSample::Process& process : sample.processes) {
    const double used = static_cast<double>(process.percent) * static_cast<double>(sample.span);
    auto known = tenant_of.find(process.pid);
    bool is_ours = known != tenant_of.end();
    if (!is_ours) is_ours = (known = tenant_then_.find(process.pid)) != tenant_then_.end();
    (is_ours ? span.tenants[known->second].nvml : span.others) += used;
  }
  billed_at_ = now;
  billed_then_ = billed;
  tenant_then_ = tenant_of;
  if (is_first || span.nvml <= 0) return {};

  span_ += span.nvml;
  billed_span_ += span.billed;
  spans_.push_back(std::move(span));
  while (span_ - spans_.front().nvml >= kWindow) {
    span_ -= spans_.front().nvml;
    billed_span_ -= spans_.front().billed;
    spans_.pop_front();
  }

  std::vector<Change> changes;
  std::erase_if(apart_, [&](const auto& entry) { return entry.first && !billed.contains(*entry.first); });
  if (span_ < kWindow) return changes;
  for (const auto& [tenant, sum] : billed) {
    const Shares shares = of_tenant(tenant).value_or(Shares{});
    judge(tenant, shares, std::abs(shares.nvml - shares.billed) > kBound, now, &changes);
  }
  const Shares others = of_others();
  judge(std::nullopt, others, others.nvml > kOthersLeast, now, &changes);
  return changes;
}

void UtilizationMonitor::judge(std::optional<policy::TenantId> tenant, Shares shares, bool apart, int64_t now,
                               std::vector<Change>* changes) {
  Apart& state = apart_[tenant];
  if (!apart) {
    state.since.reset();
  } else if (!state.since) {
    state.since = now;
  }
  const bool differ = state.since && now - *state.since >= kPatience;
  if (differ == state.told) return;
  state.told = differ;
  shares.differ = differ;
  changes->push_back({tenant, shares});
}

UtilizationMonitor::Shares UtilizationMonitor::shares_of(double nvml, int64_t billed) const {
  Shares shares;
  if (span_ > 0) shares.nvml = nvml / static_cast<double>(span_);
  if (billed_span_ > 0) shares.billed = 100 * static_cast<double>(billed) / static_cast<double>(billed_span_);
  return shares;
}

std::optional<UtilizationMonitor::Shares> UtilizationMonitor::of_tenant(policy::TenantId tenant) const {
  Part sum;
  bool is_known = false;
  for (const Span& span : spans_) {
    const auto part = span.tenants.find(tenant);
    if (part == span.tenants.end()) continue;
    is_known = true;
    sum.nvml += part->second.nvml;
    sum.billed += part->second.billed;
  }
  if (!is_known) return std::nullopt;
  Shares shares = shares_of(sum.nvml, sum.billed);
  const auto apart = apart_.find(tenant);
  shares.differ = apart != apart_.end() && apart->second.told;
  return shares;
}

UtilizationMonitor::Shares UtilizationMonitor::of_others() const {
  double nvml = 0;
  for (const Span& span : spans_) nvml += span.others;
  Shares shares = shares_of(nvml, 0);
  const auto apart = apart_.find(std::nullopt);
  shares.differ = apart != apart_.end() && apart->second.told;
  return shares;
}

}  // namespace nvshare::scheduler
