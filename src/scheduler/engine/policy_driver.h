// Tells the policy what happens and carries out what it decides: its actions become messages, its notes lines of the log. One thread, the
// engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "scheduler/clients/client_messenger.h"
#include "scheduler/clients/clients.h"
#include "scheduler/engine/believed_memory.h"
#include "scheduler/engine/policy_steps.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/memory/memory_limits.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class PolicyDriver {
 public:
  // All of it outlives this.
  struct Neighbours {
    Clients& clients;
    const Gpus& gpus;
    const Tenants& tenants;
    const ClientMessenger& messenger;
    BelievedMemory& believed;
    const MemoryLimits& limits;
  };
  // Grants are of this epoch.
  PolicyDriver(const Neighbours& neighbours, uint64_t epoch, const policy::Config& config, std::unique_ptr<TraceWriter> trace)
      : at_(neighbours), epoch_(epoch), steps_(config, std::move(trace)) {}

  uint64_t epoch() const { return epoch_; }
  PolicySteps& steps() { return steps_; }
  const PolicySteps& steps() const { return steps_; }
  const policy::State& state() const { return steps_.state(); }
  void apply(const policy::Event& event, policy::Instant now);
  void apply(const std::vector<policy::Event>& events, policy::Instant now);  // one after the other
  // Of a step that was made by itself, where something is to be sent before what the policy decided.
  void perform(const policy::Actions& actions);

 private:
  void say(const policy::Note& note) const;

  const Neighbours at_;
  const uint64_t epoch_;
  PolicySteps steps_;
};

}  // namespace nvshare::scheduler
