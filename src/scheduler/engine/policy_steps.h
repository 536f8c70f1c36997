// The policy's state, and what its steps leave beside their actions: a recording, for `nvsharectl trace` and a file, and a count of the
// changes that a viewer should see. One thread, the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "policy/policy.h"
#include "protocol/admin.h"
#include "scheduler/engine/visible_changes.h"
#include "scheduler/trace.h"
#include "scheduler/trace_ring.h"

namespace nvshare::scheduler {

class PolicySteps {
 public:
  PolicySteps(const policy::Config& config, std::unique_ptr<TraceWriter> file)  // null: into none
      : state_(policy::make_state(config)), file_(std::move(file)) {}

  const policy::State& state() const { return *state_; }
  // record() is to follow, once what follows from it was sent: somebody may be waiting for that with the GPU idle. What it returns stays
  // until the next step.
  const policy::Actions& step(const policy::Event& event, policy::Instant now);
  void record(const policy::Event& event, policy::Instant now);
  void record(const TraceNames& names, policy::Instant now);  // before the client's first event
  void flush();
  TraceRing::Part recorded(const protocol::admin::TraceRequest& request, policy::Instant now) const {
    return ring_.read(request.after, request.last_ns, now);
  }
  TraceRing::Copied remembered(uint64_t after, policy::Instant now) const { return ring_.copy(after, 0, now); }

  uint64_t changes() const { return changes_; }                              // StatusReport::changes
  uint64_t changes_on(policy::GpuId gpu) const { return on_gpus_.on(gpu); }  // the last of them that was there
  void note_change() { on_gpus_.note_on_all(++changes_); }                   // of something that the policy does not know
  // For tests: what is wrong in the policy's state; nothing: nothing.
  std::optional<std::string> violated_invariant() const { return policy::check_invariants(*state_); }

 private:
  policy::StatePointer state_;
  std::unique_ptr<TraceWriter> file_;
  policy::Actions answers_;  // to the last event
  TraceRing ring_;
  uint64_t changes_ = 1;
  ChangesOfGpus on_gpus_;
};

}  // namespace nvshare::scheduler
