#include "scheduler/policy_steps.h"

#include <spdlog/spdlog.h>

#include "scheduler/visible_changes.h"

namespace nvshare::scheduler {

policy::Actions PolicySteps::step(const policy::Event& event, policy::Instant now) {
  policy::Actions actions = policy::step(*state_, event, now);
  if (is_visible(event, actions)) ++changes_;
#ifndef NDEBUG
  if (auto broken = violated_invariant()) spdlog::error("the policy violates an invariant: {}", *broken);
#endif
  return actions;
}

void PolicySteps::record(const policy::Event& event, policy::Instant now) {
  ring_.happened(*state_, event, now);
  if (file_) file_->write(TraceEvent{now, event});
}

void PolicySteps::record(const TraceNames& names, policy::Instant now) {
  ring_.name(names, now);
  if (file_) file_->write(names);
}

void PolicySteps::flush() {
  if (file_) file_->flush();
}

}  // namespace nvshare::scheduler
