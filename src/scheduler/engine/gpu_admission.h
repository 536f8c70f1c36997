// The GPUs that clients name: admitted, locked and sized; and which of them is forgotten where another needs its place (gpus.h). One
// thread, the engine's.
#pragma once

#include <set>
#include <string>

#include "base/result.h"
#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/clients/departures.h"
#include "scheduler/clients/known_clients.h"
#include "scheduler/clients/usage_totals.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/host/host_lender.h"
#include "scheduler/memory/memory_limits.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/identity.h"

namespace nvshare::scheduler {

GpuUuid uuid_of(const protocol::Register& message);

class GpuAdmission {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Settings& settings;
    Gpus& gpus;
    Departures& departures;
    const HostLender& host;
    const KnownClients& known;
    MemoryLimits& limits;
    UsageTotals& usage_totals;
    PolicyDriver& policy;
  };
  explicit GpuAdmission(const Neighbours& neighbours) : at_(neighbours) {}

  // The one that the message names, which the scheduler has locked then.
  Result<policy::GpuId> gpu_of(const protocol::Register& message, const Peer& peer, policy::Instant now);

 private:
  void size(policy::GpuId gpu, int64_t claimed, policy::Instant now);
  std::set<policy::GpuId> that_count(policy::Instant now) const;
  bool make_room(const std::string* account, policy::Instant now);

  const Neighbours at_;
};

}  // namespace nvshare::scheduler
