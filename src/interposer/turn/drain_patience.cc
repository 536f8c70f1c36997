#include "interposer/turn/drain_patience.h"

#include <algorithm>

namespace nvshare::interposer {

void DrainPatience::drained(int64_t took_ns) {
  given_up_ = 0;
  value_ns_ = std::clamp(2 * took_ns, kLeast_ns, kMost_ns);
}

void DrainPatience::gave_up(int64_t longest_seen_ns) {
  const int64_t most = std::clamp(2 * longest_seen_ns, kMost_ns, kMostSeen_ns);
  if (++given_up_ % 2 == 0) value_ns_ *= 2;
  value_ns_ = std::min(value_ns_, most);
}

}  // namespace nvshare::interposer
