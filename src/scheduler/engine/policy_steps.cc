#include "scheduler/engine/policy_steps.h"

#include <spdlog/spdlog.h>

#include "scheduler/engine/visible_changes.h"

namespace nvshare::scheduler {

const policy::Actions& PolicySteps::step(const policy::Event& event, policy::Instant now) {
  answers_ = policy::step(*state_, event, now);
  if (is_visible(event, answers_)) on_gpus_.note(event, answers_, ++changes_);
#ifndef NDEBUG
  if (auto broken = violated_invariant()) spdlog::error("the policy violates an invariant: {}", *broken);
#endif
  return answers_;
}

void PolicySteps::record(const policy::Event& event, policy::Instant now) {
  ring_.happened(*state_, event, now);
  if (file_) file_->write(event, answers_, policy::next_deadline(*state_), now);
}

void PolicySteps::record(const TraceNames& names, policy::Instant now) {
  ring_.name(names, now);
  if (file_) file_->write(names);
}

void PolicySteps::flush() {
  if (file_) file_->flush();
}

}  // namespace nvshare::scheduler
