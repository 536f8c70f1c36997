// Processes of limited tenants that use a GPU past the library: found among those that NVML lists, named, and answered where the setting
// `bypass` says so. One thread, the engine's.
#pragma once

#include "policy/policy.h"
#include "scheduler/bypass_watch.h"
#include "scheduler/clients.h"
#include "scheduler/departures.h"
#include "scheduler/gpus.h"
#include "scheduler/known_clients.h"
#include "scheduler/memory_watch.h"
#include "scheduler/pod_notices.h"
#include "scheduler/policy_driver.h"
#include "scheduler/settings.h"
#include "scheduler/tenants.h"

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
