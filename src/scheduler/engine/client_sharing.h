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
  // The scheduler ends: whoever fits beside the others runs until the next one is there, instead of waiting for a turn that nobody gives.
  void end(policy::Instant now);
  bool hands_over(policy::Instant now) const;  // somebody's turn begins or ends at this moment

 private:
  void set(RegisteredClient& client, uint64_t group, bool measured, policy::Instant now);

  const Neighbours at_;
};

}  // namespace nvshare::scheduler
