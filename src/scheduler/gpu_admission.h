// The GPUs that clients name: admitted, locked and sized; and which of them is forgotten where another needs its place (gpus.h). One
// thread, the engine's.
#pragma once

#include <set>
#include <string>

#include "base/result.h"
#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/departures.h"
#include "scheduler/gpus.h"
#include "scheduler/host_lender.h"
#include "scheduler/identity.h"
#include "scheduler/known_clients.h"
#include "scheduler/memory_limits.h"
#include "scheduler/policy_driver.h"
#include "scheduler/settings.h"
#include "scheduler/usage_totals.h"

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
