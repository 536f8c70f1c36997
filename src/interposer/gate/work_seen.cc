#include "interposer/gate/work_seen.h"

namespace nvshare::interposer {

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
