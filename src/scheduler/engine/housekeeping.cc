#include "scheduler/engine/housekeeping.h"

#include "policy/parts.h"

namespace nvshare::scheduler {
namespace {

constexpr policy::Duration kSaveInterval = 100'000'000;      // many that come or go within it are written together
constexpr policy::Duration kSaveIntervalPerTenant = 50'000;  // and more, as the file is written as a whole
constexpr size_t kClientsKeptAtOnce = 250;                   // some 0.1 ms

}  // namespace

bool Housekeeping::go_on(policy::Instant now, bool all) {
  bool done = next_part(now);
  while (all && !done) done = next_part(now);
  return done;
}

// What comes next is set first: what fails is not done again and again.
bool Housekeeping::next_part(policy::Instant now) {
  switch (next_) {
    case Part::kTenants:
      next_ = Part::kTotals;
      at_.tenants.prune();
      return false;
    case Part::kTotals:
      next_ = Part::kMemory;
      forget_totals(now);
      return false;
    case Part::kMemory:
      next_ = Part::kClients;
      client_ = 0;
      look_after_memory(now);
      return false;
    case Part::kClients:
      if (!keep_some_clients()) next_ = Part::kKnown;
      return false;
    case Part::kKnown:
      next_ = Part::kAccounts;
      at_.known.keep_up();
      return false;
    case Part::kAccounts:
      break;
  }
  next_ = Part::kTenants;
  at_.accounts.keep(now);
  at_.policy.steps().flush();
  return true;
}

void Housekeeping::look_after_memory(policy::Instant now) {
  for (policy::GpuId gpu = 0; gpu < at_.gpus.size(); ++gpu) at_.host.prepare_swaps(gpu);
  at_.host.look(now);
  at_.absent.forget(now);
  at_.policy.apply(at_.departures.look_up(at_.settings.policy, now), now);
  at_.departures.forget_old(at_.settings.policy, now);
}

bool Housekeeping::keep_some_clients() {
  size_t count = 0;
  for (auto at = at_.clients.all().upper_bound(client_); at != at_.clients.all().end(); ++at) {
    if (++count > kClientsKeptAtOnce) return true;
    client_ = at->first;
    at_.limits.keep_lease(at->first);
    at_.believed.keep(at->second, true);
  }
  return false;
}

void Housekeeping::forget_totals(policy::Instant now) {
  at_.usage_totals.keep_only([this](policy::TenantId tenant) { return at_.tenants.find(tenant) != nullptr; },
                             policy::view_of_tenants(at_.policy.state(), now));
}

void Housekeeping::save_tenants_soon(policy::Instant now) {
  if (at_.tenants.is_unsaved() && !save_at_)
    save_at_ = now + kSaveInterval + kSaveIntervalPerTenant * static_cast<int64_t>(at_.tenants.all().size());
}

void Housekeeping::deadline_reached(policy::Instant now) {
  if (!save_at_ || *save_at_ > now) return;
  save_at_.reset();
  if (at_.tenants.is_unsaved()) at_.tenants.save_changes();
}

}  // namespace nvshare::scheduler
