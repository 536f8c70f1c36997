// What processes ask of their own tenants (AskOwn), without being root's: how often, of which tenants, and the answer. Nothing of other
// tenants is in it. One thread, the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "policy/policy.h"
#include "protocol/messages.h"
#include "scheduler/clients/clients.h"
#include "scheduler/tenants/identity.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class OwnQuestions {
 public:
  // All of it outlives this.
  struct Neighbours {
    const Clients& clients;
    Tenants& tenants;
  };
  explicit OwnQuestions(const Neighbours& neighbours) : at_(neighbours) {}

  // Counts it. An error: that account asks too often.
  Result<void> asked(const std::string& account, policy::Instant now);
  // The tenant that the process belongs to; and, as long as it is in no container, those of the same user's programs outside containers.
  std::set<policy::TenantId> tenants_of(const Peer& peer);

 private:
  const Neighbours at_;
  policy::Instant since_ = 0;             // a second that began then
  std::map<std::string, int64_t> asked_;  // in it, by account
};

// A report to be handed over: memory that nobody can change any more.
Result<FileDescriptor> sealed(const std::string& text);

}  // namespace nvshare::scheduler
