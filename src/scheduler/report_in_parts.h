// The report for `status` on its way (engine_report.cc): with thousands of clients it is made in parts, so that clients are served in
// between. Each part is as things stand at its time. On the loop's thread.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "protocol/admin.h"

namespace nvshare::scheduler {

class Engine;

class ReportInParts {
 public:
  // The engine outlives it, and may change between the parts.
  ReportInParts(const Engine& engine, policy::Instant now);

  bool go_on(policy::Instant now);  // true: the report is complete
  // Its `changes` are those of its beginning.
  protocol::admin::StatusReport take() { return std::move(report_); }

 private:
  enum class Next { kClients, kTenants, kUse, kRest };
  struct OfGpu {
    size_t index;          // in report_.gpus
    policy::GpuView view;  // its tenants are looked at last
  };

  void add_clients(policy::Instant now);
  void add_tenants();
  void add_use(policy::Instant now);
  bool is_still_there(const OfGpu& gpu) const;  // else another GPU has its number by now

  const Engine& engine_;
  protocol::admin::StatusReport report_;
  std::vector<OfGpu> gpus_;
  Next next_ = Next::kClients;
  size_t at_ = 0;       // in gpus_
  std::string tenant_;  // the key of the last that is in the report
  bool any_tenant_ = false;
  std::map<policy::TenantId, protocol::admin::TenantReport*> of_tenants_;  // in report_; once all are there
};

}  // namespace nvshare::scheduler
