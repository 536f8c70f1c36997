// How clients share GPUs where memory fits: which are attached to an MPS daemon (mps_service.h), which take turns, which are measured. The
// policy is told when that changes. One thread, the engine's.
#pragma once

#include "policy/policy.h"
#include "scheduler/clients/clients.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/gpus/mps_groups.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class ClientSharing {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Settings& settings;
    Clients& clients;
    const Tenants& tenants;
    PolicyDriver& policy;
  };
  explicit ClientSharing(const Neighbours& neighbours) : at_(neighbours) {}

  // Which processes are attached to a trust group's MPS daemon, all of them. Those of other users are not believed.
  void mps_seen(const MpsGroups::Attached& seen, policy::Instant now);
  // Settings, tenants or the client may have changed.
  void tell(policy::Instant now);
  void tell(RegisteredClient& client, policy::Instant now);

 private:
  const Neighbours at_;
};

}  // namespace nvshare::scheduler
