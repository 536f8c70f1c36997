// The tenants' memory limits towards the clients: what they say of headroom goes to the ledger (memory_ledger.h), what the ledger decides
// becomes messages; leases are persisted before a client hears of them. Names the tenants that are over their limits, and refusals. One
// thread, the engine's.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/result.h"
#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/clients/client_messenger.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/known_clients.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/memory/memory_ledger.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/pod_notices.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class MemoryLimits {
 public:
  // What it reads and where it writes. All of it outlives this.
  struct Neighbours {
    const Clients& clients;
    const Gpus& gpus;
    const Tenants& tenants;
    const ClientMessenger& messenger;
    KnownClients& known;
    PodNotices& notices;
  };
  explicit MemoryLimits(const Neighbours& neighbours) : at_(neighbours) {}

  const MemoryLedger& ledger() const { return ledger_; }

  // What a client says.
  void ask(const RegisteredClient& client, const protocol::AskHeadroom& message, policy::Instant now);
  void returned(const RegisteredClient& client, const protocol::HeadroomReturned& message, policy::Instant now);
  void taken(const RegisteredClient& client, const protocol::HeadroomTaken& message, policy::Instant now);
  void report(const RegisteredClient& client, int64_t charged, policy::Instant now);

  // Whether what the node reserved for the tenant fits beside what it reserved for the others that are on that GPU, or will be on it alone.
  // In sum that is the GPU's size at most, times gpu_memory_oversub_ratio.
  Result<void> admit_reservation(policy::GpuId gpu, const Tenant& tenant, const Settings& settings) const;
  // What is to be performed once the client knows that it has joined.
  MemoryLedger::Decisions join(const MemoryLedger::Member& member, policy::Instant now);
  void perform(const MemoryLedger::Decisions& decisions, policy::Instant now);
  void leave(policy::ClientId client, policy::Instant now) { perform(ledger_.leave(client, now), now); }
  void freeze(bool frozen, policy::Instant now) { perform(ledger_.freeze(frozen, now), now); }
  void set_limit(policy::TenantId tenant, policy::GpuId gpu, int64_t limit, policy::Instant now);
  std::optional<policy::Instant> next_deadline() const { return ledger_.next_deadline(); }
  void deadline_reached(policy::Instant now);

  void send_limit(const RegisteredClient& client) const;
  void keep_lease(policy::ClientId client) {
    const MemoryLedger::ClientView held = ledger_.view_of(client);
    at_.known.keep_lease(client, held.lease, held.charged);
  }
  // Another GPU has its number from now on.
  void forget_gpu(policy::GpuId gpu) {
    std::erase_if(over_limit_, [&](const auto& key) { return key.second == gpu; });
  }

 private:
  void note_over_limit(policy::TenantId tenant, policy::GpuId gpu);
  void note_refusal(const RegisteredClient& client, int64_t bytes, policy::Instant now);
  std::string users_of(policy::TenantId tenant, policy::GpuId gpu) const;

  const Neighbours at_;
  MemoryLedger ledger_;
  std::set<std::pair<policy::TenantId, policy::GpuId>> over_limit_;  // that were told in the log
};

}  // namespace nvshare::scheduler
