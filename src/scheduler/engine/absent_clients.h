// Clients of an earlier scheduler that are not back: what others ask for waits for them for a while, and what they may have counts under
// their tenants' limits until they have ended. What they may have on their GPUs: departures.h. One thread, the engine's.
#pragma once

#include <optional>
#include <utility>

#include "policy/policy.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/departures.h"
#include "scheduler/clients/known_clients.h"
#include "scheduler/engine/believed_memory.h"
#include "scheduler/engine/gpu_looks.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/engine/restart_hold.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/memory/memory_limits.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class AbsentClients {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Settings& settings;
    KnownClients& known;
    Clients& clients;
    const Gpus& gpus;
    Tenants& tenants;
    MemoryLimits& limits;
    Departures& departures;
    BelievedMemory& believed;
    GpuLooks& looks;
    PolicyDriver& policy;
  };
  AbsentClients(const Neighbours& neighbours, Departures::IsAlive is_alive) : at_(neighbours), is_alive_(std::move(is_alive)) {}

  // If there are any, nothing is granted until they are back, or the time for that is over.
  void await(policy::Duration grace, policy::Instant now);
  RestartHold& hold() { return hold_; }
  const RestartHold& hold() const { return hold_; }
  void one_is_back(policy::Instant now) { end_hold_without_absent(now); }
  std::optional<policy::Instant> next_deadline() const { return hold_.until(); }
  void deadline_reached(policy::Instant now);

  // One may be stopped, and goes on with what it holds: that is nobody else's of its tenant meanwhile.
  void count(policy::Instant now);
  // Those that have ended, or are another client by now.
  void forget(policy::Instant now);

 private:
  void end_hold_without_absent(policy::Instant now);
  void end_hold(policy::Instant now);

  const Neighbours at_;
  const Departures::IsAlive is_alive_;
  RestartHold hold_;
};

}  // namespace nvshare::scheduler
