// How a process that has said which GPU it uses becomes a client, and is none any more: what is known of it from before, whose limits hold
// for it, what it and the policy are told, what of its stays. Its connection is the engine's. One thread, the engine's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/clients/client_messenger.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/departures.h"
#include "scheduler/clients/known_clients.h"
#include "scheduler/clients/usage_totals.h"
#include "scheduler/engine/absent_clients.h"
#include "scheduler/engine/believed_memory.h"
#include "scheduler/engine/client_sharing.h"
#include "scheduler/engine/host_desk.h"
#include "scheduler/engine/housekeeping.h"
#include "scheduler/engine/kept_accounts.h"
#include "scheduler/engine/memory_reports.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/engine/tenant_orders.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/log.h"
#include "scheduler/memory/export_broker.h"
#include "scheduler/memory/memory_limits.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/identity.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class ClientMembership {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Settings& settings;
    Clients& clients;
    Gpus& gpus;
    KnownClients& known;
    Tenants& tenants;
    UsageTotals& usage_totals;
    Departures& departures;
    MemoryLimits& limits;
    HostDesk& host;
    const MemoryReports& reports;
    BelievedMemory& believed;
    const ClientMessenger& messenger;
    PolicyDriver& policy;
    AbsentClients& absent;
    Housekeeping& housekeeping;
    KeptAccounts& accounts;
    const TenantOrders& orders;
    ClientSharing& sharing;
    ExportBroker& exports;
    RepeatedWarnings& warnings;
  };
  ClientMembership(const Neighbours& neighbours, Departures::IsAlive is_alive) : at_(neighbours), is_alive_(std::move(is_alive)) {}

  struct Newcomer {
    ConnectionId connection;
    const Peer& peer;
    policy::GpuId gpu;
    const protocol::Register& message;
    std::optional<policy::ClientId>& id;  // set as soon as there is a client, so that who fails later knows of it
  };
  // Of the process's client that this one replaces.
  struct Replaced {
    ClaimBound claims;
    int64_t allocated;  // that was believed of it
  };
  // An error: its tenant's reservation does not fit, and there is no client.
  Result<void> join(const Newcomer& newcomer, const std::optional<Replaced>& replaced, policy::Instant now);
  // memory_freed: what it had on its GPU is free already. `why`: the end of a line that people read.
  void leave(policy::ClientId client, bool memory_freed, const char* why, policy::Instant now);

 private:
  using Client = RegisteredClient;
  // What is known of a process that registers.
  struct Former {
    std::optional<ClaimBound> claims;        // of its client that has just left
    int64_t allocated = 0;                   // that was believed of that
    std::vector<policy::ClientId> replaced;  // whose memory is the newcomer's now
    bool returns = false;                    // it was a client of an earlier scheduler
    policy::ClientId id = 0;                 // then
    policy::TenantId tenant = 0;             // then
  };
  Former take_former(const Newcomer& newcomer, const std::optional<Replaced>& replaced);
  Client& add_client(const Newcomer& newcomer, const Tenant& tenant, const Former& former, policy::Instant now);
  policy::ClientJoined begin_client(Client& client, const Tenant& tenant, const protocol::Register& message, Former former,
                                    policy::Instant now);
  void tell_client(const Client& client, const Tenant& tenant);
  void log_joined(const Client& client, const Tenant& tenant, const protocol::Register& message, const Former& former, policy::Instant now);
  void record_names(const Client& client, const std::string& tenant, policy::Instant now);

  const Neighbours at_;
  const Departures::IsAlive is_alive_;
  TenantLines lines_;  // of joins and leaves
};

}  // namespace nvshare::scheduler
