// What of the policy's events and actions a viewer should see at once (admin::StatusReport::changes), and on which GPUs. Pure; the
// functions are thread-safe.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "policy/policy.h"

namespace nvshare::scheduler {

// A client comes, goes or asks for the lock, a turn begins or ends, a limit changes. Not what only moves figures on, however far.
bool is_visible(const policy::Event& event);
bool is_visible(const policy::Action& action);

// That of a step.
bool is_visible(const policy::Event& event, const policy::Actions& actions);

// The number of the last change that was on each GPU, for viewers that look at some of them. A tenant's is where it has clients; what is of
// no GPU in particular is on all.
class ChangesOfGpus {
 public:
  // Of each visible step, in turn.
  void note(const policy::Event& event, const policy::Actions& actions, uint64_t number);
  void note_on_all(uint64_t number) { on_all_ = number; }

  uint64_t on(policy::GpuId gpu) const;

 private:
  void note_on(policy::GpuId gpu, uint64_t number);
  void note_of(policy::ClientId client, uint64_t number);
  void note_of_tenant(policy::TenantId tenant, uint64_t number);
  void forget(policy::ClientId client);

  struct Place {
    policy::GpuId gpu;
    policy::TenantId tenant;
  };
  std::unordered_map<policy::ClientId, Place> clients_;
  std::unordered_map<policy::TenantId, std::vector<policy::GpuId>> tenants_;  // where their clients are: one for each
  std::vector<uint64_t> on_gpus_;
  uint64_t on_all_ = 0;
};

}  // namespace nvshare::scheduler
