// An account of what the policy promised, kept from its events and actions alone and apart from its own state: the judge in the property
// tests. Says what is wrong as a sentence, the first time that something is.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "policy/policy.h"

namespace nvshare::policy::testing {

class Ledger {
 public:
  explicit Ledger(const Config& config) : config_(config) {}

  // In the order in which step() saw and returned them. Nullopt while all is well.
  std::optional<std::string> saw(const Event& event);
  std::optional<std::string> returned(const Actions& actions);

  Bytes safe_limit(GpuId gpu) const;
  Bytes promised(GpuId gpu) const;             // budgets of holders + resident of the others + departed
  bool anybody_waits(ClientId dropped) const;  // so that there is a reason to drop that one
  bool loads_in_vain(ClientId dropped) const;  // the same: it lacks memory that could not be moved out of a client without the lock
  bool its_gang_runs(ClientId client) const;   // on another GPU
  bool beside_limit(ClientId dropped) const;   // a compute limit on its GPU may be the reason
  bool beside_sharer(ClientId dropped) const;  // the same: groups that share in different ways may take turns
  bool over_limit(ClientId dropped) const;     // the same: what runs on its GPUs does not fit together

 private:
  struct Account {
    GpuId gpu = 0;
    TenantId tenant = 0;
    Memory memory;
    Bytes overhead = 0;
    GrantId grant = 0;
    Bytes budget = 0;
    uint64_t sequence = 0;
    bool waits = false;
    bool came_with_lock = false;
    Bytes wanted = 0;
    bool dropping = false;
    uint64_t attempt = 0;     // of the last drop
    bool drained = false;     // it said so
    bool catches_up = false;  // and was told to go on
    bool gave_up = false;     // its drain, by itself
    bool paused = false;      // it said so
    bool evicting = false;
    PrefetchId prefetch = 0;    // under way
    Bytes prefetch_budget = 0;  // of it
    uint64_t group = 0;         // ClientShares
    bool measured = false;
    Bytes resident_asked = 0;  // what its last eviction was to leave on the GPU
    bool move_failed = false;  // and more than that stayed
  };
  struct Device {
    Bytes total = 0, foreign = 0;
  };
  std::set<TenantId> limited_;  // with a compute limit
  std::set<TenantId> suspended_;
  Bytes needed(GpuId gpu) const;
  Bytes places(GpuId gpu) const;  // that may be kept for members of gangs that run without them

  Config config_;
  std::map<GpuId, Device> gpus_;
  std::map<ClientId, Account> accounts_;
  std::map<ClientId, std::pair<GpuId, Bytes>> departed_;
};

}  // namespace nvshare::policy::testing
