#include "interposer/turn/pause_watch.h"

#include <algorithm>

namespace nvshare::interposer {

namespace {
constexpr int64_t kUnusedLeast_ns = 5 * PauseWatch::kLeast_ns;  // the thread that asked may not have got the processor yet
constexpr int64_t kHalfLife_ns = 10'000'000'000;
constexpr uint32_t kPausesToTrust = 2;
}  // namespace

bool PauseWatch::worth_it(int64_t pause_ns, int64_t cost_ns) { return pause_ns > 2 * std::max(cost_ns, 2 * kLeast_ns); }

void PauseWatch::forget_slowly(int64_t now_ns) {
  if (now_ns - halved_at_ns_ >= 32 * kHalfLife_ns) {
    longest_ns_ = 0;
    halved_at_ns_ = now_ns;
  }
  for (; now_ns - halved_at_ns_ >= kHalfLife_ns; halved_at_ns_ += kHalfLife_ns) longest_ns_ /= 2;
}

void PauseWatch::was_worth_it() {
  ++worth_it_;
  longest_ns_ /= 4;  // waiting for the end of a short pause was in vain
}

void PauseWatch::remember(int64_t pause_ns, int64_t now_ns) {
  forget_slowly(now_ns);
  if (pause_ns < longest_ns_) return;
  longest_ns_ = pause_ns;
  halved_at_ns_ = now_ns;
}

void PauseWatch::went_on(int64_t idle_ns, int64_t cost_ns, int64_t now_ns) {
  if (worth_it(idle_ns, cost_ns)) {
    was_worth_it();
  } else {
    remember(idle_ns, now_ns);
  }
}

void PauseWatch::came_back(int64_t pause_ns, int64_t cost_ns, int64_t now_ns) {
  if (worth_it(pause_ns, cost_ns)) {
    was_worth_it();
  } else {
    worth_it_ = 0;
    remember(pause_ns, now_ns);
  }
}

int64_t PauseWatch::threshold_ns(int64_t cost_ns, bool unused, int64_t now_ns) {
  forget_slowly(now_ns);
  const int64_t least = worth_it_ >= kPausesToTrust ? kLeast_ns : std::max(kLeast_ns, cost_ns);
  const int64_t most = std::max(kUnusedLeast_ns, 5 * cost_ns / 2);
  const int64_t threshold = std::clamp(2 * longest_ns_, least, most);
  return unused ? std::max(threshold, kUnusedLeast_ns) : threshold;
}

}  // namespace nvshare::interposer
