// What is looked after about once a second, a part at a time so that clients are served in between; and the tenants' file, which is written
// soon after clients have joined or left. One thread, the engine's.
#pragma once

#include <optional>

#include "policy/policy.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/departures.h"
#include "scheduler/clients/known_clients.h"
#include "scheduler/clients/usage_totals.h"
#include "scheduler/engine/absent_clients.h"
#include "scheduler/engine/believed_memory.h"
#include "scheduler/engine/host_desk.h"
#include "scheduler/engine/kept_accounts.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/memory/memory_limits.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class Housekeeping {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Settings& settings;
    const Clients& clients;
    const Gpus& gpus;
    Tenants& tenants;
    KnownClients& known;
    UsageTotals& usage_totals;
    BelievedMemory& believed;
    MemoryLimits& limits;
    Departures& departures;
    AbsentClients& absent;
    HostDesk& host;
    KeptAccounts& accounts;
    PolicyDriver& policy;
  };
  explicit Housekeeping(const Neighbours& neighbours) : at_(neighbours) {}

  // Not `all`: the next part. True: that was the last.
  bool go_on(policy::Instant now, bool all);
  void forget_totals(policy::Instant now);  // of tenants that are no more

  // Tenants have changed by clients that join or leave. Nothing that a restart needs is lost by waiting: what people set is kept at once,
  // and which tenants' clients live is in KnownClients.
  void save_tenants_soon(policy::Instant now);
  std::optional<policy::Instant> next_deadline() const { return save_at_; }
  void deadline_reached(policy::Instant now);

 private:
  enum class Part { kTenants, kTotals, kMemory, kClients, kKnown, kAccounts };
  bool next_part(policy::Instant now);
  void look_after_memory(policy::Instant now);
  bool keep_some_clients();  // false: there are no more

  const Neighbours at_;
  Part next_ = Part::kTenants;
  policy::ClientId client_ = 0;  // the last that was looked at
  std::optional<policy::Instant> save_at_;
};

}  // namespace nvshare::scheduler
