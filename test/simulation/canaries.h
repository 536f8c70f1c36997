// Bugs that can be switched on, to prove that the simulation finds them: a check that cannot fail proves nothing. README.md has the table.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace nvshare::simulation {

enum class Canary : uint8_t {
  kNone,
  // In the client.
  kLoadIgnoresDrop,          // a drop while memory comes in does not cancel the load
  kWishLostAtRelease,        // nobody looks whether a thread came while the lock went
  kStaleGrantTaken,          // a grant of a turn that is over begins another
  kDropInPauseIgnored,       // a drop that meets a pause is not answered
  kGrowthNotAskedAnew,       // the next scheduler does not hear of an allocation that waits
  kHeadroomNotAskedAnew,     // the same, of the tenant's memory limit
  kBudgetNotRaised,          // a larger budget for a load under way is not taken
  kFreedStaysInLoad,         // what is freed of a load under way is no room for the rest of it
  kNotDrainedUnsaid,         // a drain is given up, and the scheduler not told
  kMovesUntold,              // what moves while a scheduler comes is not told to it
  kAloneWhileRegistering,    // an allocation helps itself while the next scheduler is being told what there is
  kSegmentNotReturned,       // host memory that was given back is not told to the scheduler
  kPrefetchUnanswered,       // what came in without the lock is not told to the scheduler
  kArrivedCopiesStay,        // copies of what came in for a turn that has not begun are not given back to others
  kWorkSinceWaitOverlooked,  // what was submitted since the program's own last wait does not count as work
  kDrainIgnoresCaptures,     // a drain waits for the GPU while a stream captures
  kContextEndUntold,         // what ended with a context is not told to the scheduler
  kFailedLoadOpens,          // a load that failed opens the gate
  // In the node.
  kDeathUnnoticed,        // a connection that ends goes unnoticed
  kDepartedIsFree,        // what a dead client held counts as free at once
  kClientsForgotten,      // a scheduler that comes back knows nothing of the former one's clients
  kKeepNeverSent,         // a gang whose drain fails is not told to go on
  kForeignUnseen,         // memory that NVML lists no process with is not seen
  kChildHidesDeath,       // the end of a process whose child keeps its connection open goes unnoticed
  kUnlistedContextsFree,  // contexts on a GPU of which NVML lists no processes count as none after a while
  kContextsFree,          // what contexts take counts as nothing where nobody has seen it
};

struct CanaryName {
  Canary canary;
  const char* name;
};
inline constexpr CanaryName kCanaries[] = {
    {Canary::kLoadIgnoresDrop, "load-ignores-drop"},
    {Canary::kWishLostAtRelease, "wish-lost-at-release"},
    {Canary::kStaleGrantTaken, "stale-grant-taken"},
    {Canary::kDropInPauseIgnored, "drop-in-pause-ignored"},
    {Canary::kGrowthNotAskedAnew, "growth-not-asked-anew"},
    {Canary::kHeadroomNotAskedAnew, "headroom-not-asked-anew"},
    {Canary::kBudgetNotRaised, "budget-not-raised"},
    {Canary::kFreedStaysInLoad, "freed-stays-in-load"},
    {Canary::kNotDrainedUnsaid, "not-drained-unsaid"},
    {Canary::kMovesUntold, "moves-untold"},
    {Canary::kAloneWhileRegistering, "alone-while-registering"},
    {Canary::kSegmentNotReturned, "segment-not-returned"},
    {Canary::kPrefetchUnanswered, "prefetch-unanswered"},
    {Canary::kArrivedCopiesStay, "arrived-copies-stay"},
    {Canary::kWorkSinceWaitOverlooked, "work-since-wait-overlooked"},
    {Canary::kDrainIgnoresCaptures, "drain-ignores-captures"},
    {Canary::kContextEndUntold, "context-end-untold"},
    {Canary::kFailedLoadOpens, "failed-load-opens"},
    {Canary::kDeathUnnoticed, "death-unnoticed"},
    {Canary::kDepartedIsFree, "departed-is-free"},
    {Canary::kClientsForgotten, "clients-forgotten"},
    {Canary::kKeepNeverSent, "keep-never-sent"},
    {Canary::kForeignUnseen, "foreign-unseen"},
    {Canary::kChildHidesDeath, "child-hides-death"},
    {Canary::kUnlistedContextsFree, "unlisted-contexts-free"},
    {Canary::kContextsFree, "contexts-free"},
};

inline std::optional<Canary> canary_of(std::string_view name) {
  for (const CanaryName& known : kCanaries) {
    if (name == known.name) return known.canary;
  }
  return std::nullopt;
}

}  // namespace nvshare::simulation
