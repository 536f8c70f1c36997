// Whether a line of a trace says what a scheduler can have written. Whoever reads one may have got it from somebody else, and the policy
// takes its events' figures as they are: sums of them would overflow, loops over time would not end. Pure.
#pragma once

#include "base/result.h"
#include "scheduler/trace.h"

namespace nvshare::scheduler {

// Of a length of time, and of a scheduler's life: two years, of which a hundred times is no overflow.
inline constexpr policy::Duration kTraceDurationMax = policy::Duration{1} << 56;

Result<void> check_possible(const TraceLine& line);

}  // namespace nvshare::scheduler
