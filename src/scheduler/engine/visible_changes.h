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

// The number of the last change that was on each GPU, for viewers that look at some of them. What is of no GPU in particular is on all.
class ChangesOfGpus {
 public:
  // Of each visible step, in turn.
  void note(const policy::Event& event, const policy::Actions& actions, uint64_t number);
  void note_on_all(uint64_t number) { on_all_ = number; }

  uint64_t on(policy::GpuId gpu) const;

 private:
  void note_on(policy::GpuId gpu, uint64_t number);
  void note_of(policy::ClientId client, uint64_t number);

  std::unordered_map<policy::ClientId, policy::GpuId> clients_;
  std::vector<uint64_t> on_gpus_;
  uint64_t on_all_ = 0;
};

}  // namespace nvshare::scheduler
