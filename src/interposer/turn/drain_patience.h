// How long a drain may last before the gate opens again. Attempts that were given up make the next ones longer, every other time: what
// needs time gets it, what needs luck (a lock that is not held just then) is not held up for long. Bounded by what was seen: where work
// took as long as that to end with the gate open all the while, that much is not a sign that it cannot end. Pure; not thread-safe.
#pragma once

#include <cstdint>

namespace nvshare::interposer {

class DrainPatience {
 public:
  static constexpr int64_t kLeast_ns = 200'000'000;
  static constexpr int64_t kMost_ns = 5'000'000'000;
  // The scheduler takes a client that has not answered for 30 s (unanswered_grace) for one that does not answer at all.
  static constexpr int64_t kMostSeen_ns = 25'000'000'000;

  int64_t value_ns() const { return value_ns_; }
  void drained(int64_t took_ns);
  // longest_seen_ns: WorkSeen::longest_ns() (gate/work_seen.h).
  void gave_up(int64_t longest_seen_ns);

 private:
  int64_t value_ns_ = kLeast_ns;
  uint32_t given_up_ = 0;  // in a row
};

}  // namespace nvshare::interposer
