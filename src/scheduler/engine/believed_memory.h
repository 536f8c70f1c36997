// What is believed of the clients' memory, by what they say and what they were granted (claims.h); and how much of each GPU they may have,
// kept for a successor before they hear of it. One thread, the engine's.
#pragma once

#include <cstdint>

#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/known_clients.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class BelievedMemory {
 public:
  // What it reads and where it writes. All of it outlives this.
  struct Neighbours {
    Clients& clients;
    const Gpus& gpus;
    const Tenants& tenants;
    KnownClients& known;
  };
  explicit BelievedMemory(const Neighbours& neighbours) : at_(neighbours) {}

  policy::Memory believe(RegisteredClient& client, const protocol::MemoryReport& memory);
  // Before the client hears of it.
  void granted(policy::ClientId client, int64_t budget);
  void promised(const policy::SendPrefetch& prefetch);
  // What it says of a prefetch: the promise ends with it, unless a grant has taken it over.
  void prefetched(RegisteredClient& client, const protocol::SwapProgress& message);
  void keep(const RegisteredClient& client, bool may_lower = false);

 private:
  const Neighbours at_;
};

}  // namespace nvshare::scheduler
