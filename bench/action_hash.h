// A hash of what the policy answers, but for notes, so that two builds of it can be compared: the same events have to give the same
// actions.
#pragma once

#include <cstdint>
#include <variant>

#include "policy/overloaded.h"
#include "policy/policy.h"

namespace nvshare::policy {

class ActionHash {
 public:
  void add(Instant now, const Actions& actions) {
    for (const Action& action : actions) {
      if (!std::holds_alternative<Note>(action)) mix(now, action.index());
      std::visit(
          Overloaded{[&](const SendLock& a) { mix(a.client, a.grant, a.budget, a.budget_sequence); },
                     [&](const SendDrop& a) { mix(a.client, a.grant, a.together, a.attempt); },
                     [&](const SendKeep& a) { mix(a.client, a.grant); }, [&](const SendEvict& a) { mix(a.client, a.eviction, a.bytes); },
                     [&](const SendWait& a) { mix(a.client, a.request); },
                     [&](const SendMemory& a) { mix(a.client, a.request, a.granted, a.budget, a.budget_sequence); },
                     [&](const SendContention& a) {
                       mix(a.client, a.waiters, a.memory_waiters, a.swap_cost, a.limited, a.idle_release, a.gang_runs, a.pause);
                     },
                     [&](const SendAskProgress& a) { mix(a.client, a.question, a.counts); },
                     [&](const SendCeiling& a) { mix(a.client, a.ceiling); },
                     [&](const SendPrefetch& a) { mix(a.client, a.prefetch, a.budget); }, [](const Note&) {}},
          action);
    }
  }
  uint64_t value() const { return value_; }

 private:
  template <typename... Values>
  void mix(Values... values) {  // FNV-1a, a word at a time
    ((value_ = (value_ ^ static_cast<uint64_t>(values)) * 1099511628211U), ...);
  }
  uint64_t value_ = 14695981039346656037U;
};

}  // namespace nvshare::policy
