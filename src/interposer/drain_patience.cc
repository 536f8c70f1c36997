#include "interposer/drain_patience.h"

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

void WorkSeen::ended_after(int64_t took_ns, int64_t now_ns) {
  // Two threads at once: one of their two is kept, which is as good.
  if (took_ns < longest_ns(now_ns)) return;
  longest_ns_.store(took_ns, std::memory_order_relaxed);
  seen_at_ns_.store(now_ns, std::memory_order_relaxed);
}

int64_t WorkSeen::longest_ns(int64_t now_ns) const {
  return now_ns - seen_at_ns_.load(std::memory_order_relaxed) < kKept_ns ? longest_ns_.load(std::memory_order_relaxed) : 0;
}

}  // namespace nvshare::interposer
