#include "policy/testing/due_shares.h"

#include <algorithm>

namespace nvshare::policy::testing {

std::map<TenantId, double> due_reservations(const std::map<TenantId, Ask>& asked) {
  double sum = 0, may_be_reserved = 100;
  for (const auto& [tenant, ask] : asked) {
    sum += ask.reserved;
    if (ask.reserved == 0) may_be_reserved = 95;
  }
  std::map<TenantId, double> reserved;
  for (const auto& [tenant, ask] : asked) reserved[tenant] = sum > may_be_reserved ? ask.reserved * may_be_reserved / sum : ask.reserved;
  return reserved;
}

std::map<TenantId, double> due_shares(const std::map<TenantId, Ask>& asked) {
  const std::map<TenantId, double> reserved = due_reservations(asked);
  double ceilings = 0;
  for (const auto& [tenant, ask] : asked) ceilings += ask.ceiling;
  const double all = std::min(ceilings, 100.0);
  std::map<TenantId, double> shares;
  double low = 0, high = 100;  // of the level
  for (int i = 0; i < 100; ++i) {
    const double level = (low + high) / 2;
    double sum = 0;
    for (const auto& [tenant, ask] : asked) sum += shares[tenant] = std::max(reserved.at(tenant), std::min(ask.ceiling, level));
    (sum < all ? low : high) = level;
  }
  return shares;
}

}  // namespace nvshare::policy::testing
