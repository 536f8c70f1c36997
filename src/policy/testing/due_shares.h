// The rule of the user guide for shares of a GPU's time, written down once more and in another way than the policy works it out: tests
// compare the two. In percent.
#pragma once

#include <map>

#include "policy/policy.h"

namespace nvshare::policy::testing {

struct Ask {
  double reserved = 0;
  double ceiling = 100;
};

// Of tenants that are active on one GPU.
std::map<TenantId, double> due_shares(const std::map<TenantId, Ask>& asked);
// Their reservations, scaled where they pass what may be reserved.
std::map<TenantId, double> due_reservations(const std::map<TenantId, Ask>& asked);

}  // namespace nvshare::policy::testing
