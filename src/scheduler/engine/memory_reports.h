// What a client reports of its memory, to all who count it. One thread, the engine's.
#pragma once

#include <cstdint>

#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/usage_totals.h"
#include "scheduler/engine/host_desk.h"
#include "scheduler/memory/memory_limits.h"

namespace nvshare::scheduler {

class MemoryReports {
 public:
  // All of it outlives this.
  struct Neighbours {
    UsageTotals& usage_totals;
    MemoryLimits& limits;
    HostDesk& host;
  };
  explicit MemoryReports(const Neighbours& neighbours) : at_(neighbours) {}

  // How much more of its segments in host memory is in use.
  int64_t take(RegisteredClient& client, const protocol::MemoryReport& memory, policy::Instant now) const {
    at_.usage_totals.allocates(client.tenant, client.gpu, bounded(client.memory.allocated), bounded(memory.allocated));
    client.report(memory);
    at_.limits.report(client, bounded(memory.charged), now);
    return at_.host.report(client);
  }

 private:
  const Neighbours at_;
};

}  // namespace nvshare::scheduler
