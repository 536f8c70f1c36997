// What an engine consists of, to read: for reports, and for those that ask. The parts stay where they are as long as the engine does.
#pragma once

#include <cstdint>

#include "policy/policy.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/departures.h"
#include "scheduler/clients/usage_totals.h"
#include "scheduler/engine/bypass_watch.h"
#include "scheduler/engine/policy_steps.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/host/host_lender.h"
#include "scheduler/memory/memory_ledger.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/pod_notices.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

struct EngineParts {
  const uint64_t epoch;
  const policy::Instant started;
  const Settings& settings;
  const PolicySteps& steps;
  const Clients& clients;
  const Departures& departures;
  const Gpus& gpus;
  const Tenants& tenants;
  const MemoryLedger& ledger;
  const HostLender& host;
  const UsageTotals& usage_totals;
  const BypassWatch& bypasses;
  const PodNotices& notices;  // what pods' owners should be told
};

}  // namespace nvshare::scheduler
