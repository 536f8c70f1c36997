// What clients that have left did on each GPU, so that counts shown for a tenant or a GPU never go back. The policy counts for each client
// and forgets it with its client; here those counts are added up. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "protocol/admin.h"

namespace nvshare::scheduler {

class UsageTotals {
 public:
  using UsageReport = protocol::admin::UsageReport;

  // What a client of that tenant says that it has allocated, before and now.
  void allocates(policy::TenantId tenant, policy::GpuId gpu, int64_t before, int64_t now);
  // `views`: how things stand before the client joins or leaves.
  void joins(policy::TenantId tenant, policy::GpuId gpu, const std::vector<policy::GpuView>& views);
  void leaves(policy::ClientId client, const std::vector<policy::GpuView>& views);
  // Forgets tenants that are not known any more; what they did stays counted for their GPUs.
  void keep_only(const std::function<bool(policy::TenantId)>& known, const std::vector<policy::GpuView>& views);
  // Another GPU has its number from now on.
  void forget_gpu(policy::GpuId gpu);

  // Those that are there, as the view shows them, included: of each tenant that ever had a client there, by its id.
  std::vector<std::pair<policy::TenantId, UsageReport>> of_tenants(const policy::GpuView& gpu, const std::string& uuid) const;
  // Of one of them, or nothing.
  std::optional<UsageReport> of_tenant(policy::TenantId tenant, const policy::GpuView& gpu, const std::string& uuid) const;
  UsageReport of_gpu(const policy::GpuView& gpu, const std::string& uuid) const;

 private:
  struct Share {
    UsageReport left;         // clients that have left, and compute accounts that are closed
    int64_t billed_then = 0;  // of the compute account, when its tenant's last client left
    int64_t throttled_then = 0;
    int64_t allocated = 0;  // by all its clients, now and at most
    int64_t peak = 0;
  };

  // Of one GPU, by the tenants' ids, in order. In a row: each report goes over all of them, and from one to the next is no wait for memory.
  using Shares = std::vector<std::pair<policy::TenantId, std::unique_ptr<Share>>>;

  Share& share_of(policy::TenantId tenant, policy::GpuId gpu);
  const Shares& shares_on(policy::GpuId gpu) const;
  // The policy closes a tenant's compute account some time after its last client; what was on it is kept then.
  void close_account(policy::TenantId tenant, policy::GpuId gpu, Share& share, const std::vector<policy::GpuView>& views);

  std::map<policy::GpuId, Shares> shares_;
  std::map<policy::GpuId, UsageReport> left_of_gpu_;  // the shares' `left` included, also those of forgotten tenants
};

}  // namespace nvshare::scheduler
