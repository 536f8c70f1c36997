// Processes of limited tenants that use a GPU past the library: found among those that NVML lists, named, and answered where the setting
// `bypass` says so. One thread, the engine's.
#pragma once

#include "policy/policy.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/departures.h"
#include "scheduler/clients/known_clients.h"
#include "scheduler/engine/bypass_watch.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/gpus/memory_watch.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/pod_notices.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class BypassGuard {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Settings& settings;
    const Clients& clients;
    const Gpus& gpus;
    const Departures& departures;
    const KnownClients& known;
    Tenants& tenants;
    PodNotices& notices;
    PolicyDriver& policy;
  };
  explicit BypassGuard(const Neighbours& neighbours) : at_(neighbours) {}

  void sampled(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  // Turns of tenants with such a process end, and none begins until it has ended or the setting says that they may go on.
  void refuse_turns(policy::Instant now);
  bool refuses(policy::TenantId tenant) const { return watch_.refuses(tenant); }

  const BypassWatch& watch() const { return watch_; }

 private:
  std::vector<BypassWatch::Process> strangers(policy::GpuId gpu, const GpuSample& sample);
  void note(const BypassWatch::Process& process, policy::GpuId gpu, policy::Instant now);

  const Neighbours at_;
  BypassWatch watch_;
};

}  // namespace nvshare::scheduler
