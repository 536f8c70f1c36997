#include "interposer/turn/idle_patience.h"

#include <algorithm>

namespace nvshare::interposer::turn {

namespace {
constexpr int64_t kUnusedLeast_ns = 5 * SwapPatience::kLeast_ns;  // the thread that asked may not have got the processor yet
constexpr int64_t kHalfLife_ns = 10'000'000'000;
constexpr uint32_t kPausesToTrust = 2;
constexpr int64_t kBilledMost_ns = 5'000'000;
constexpr int64_t kCostMin_ns = 20'000;
constexpr int64_t kCostMax_ns = 500'000;
}  // namespace

bool SwapPatience::worth_it(int64_t pause_ns, int64_t cost_ns) { return pause_ns > 2 * std::max(cost_ns, 2 * kLeast_ns); }

void SwapPatience::forget_slowly(int64_t now_ns) {
  if (now_ns - halved_at_ns_ >= 32 * kHalfLife_ns) {
    longest_ns_ = 0;
    halved_at_ns_ = now_ns;
  }
  for (; now_ns - halved_at_ns_ >= kHalfLife_ns; halved_at_ns_ += kHalfLife_ns) longest_ns_ /= 2;
}

void SwapPatience::was_worth_it() {
  ++worth_it_;
  longest_ns_ /= 4;  // waiting for the end of a short pause was in vain
}

void SwapPatience::remember(int64_t pause_ns, int64_t now_ns) {
  forget_slowly(now_ns);
  if (pause_ns < longest_ns_) return;
  longest_ns_ = pause_ns;
  halved_at_ns_ = now_ns;
}

void SwapPatience::went_on(int64_t idle_ns, int64_t cost_ns, int64_t now_ns) {
  if (worth_it(idle_ns, cost_ns)) {
    was_worth_it();
  } else {
    remember(idle_ns, now_ns);
  }
}

void SwapPatience::came_back(int64_t pause_ns, int64_t cost_ns, int64_t now_ns) {
  if (worth_it(pause_ns, cost_ns)) {
    was_worth_it();
  } else {
    worth_it_ = 0;
    remember(pause_ns, now_ns);
  }
}

int64_t SwapPatience::threshold_ns(int64_t cost_ns, bool unused, int64_t now_ns) {
  forget_slowly(now_ns);
  const int64_t least = worth_it_ >= kPausesToTrust ? kLeast_ns : std::max(kLeast_ns, cost_ns);
  const int64_t most = std::max(kUnusedLeast_ns, 5 * cost_ns / 2);
  const int64_t threshold = std::clamp(2 * longest_ns_, least, most);
  return unused ? std::max(threshold, kUnusedLeast_ns) : threshold;
}

void BilledPatience::configure(int64_t least_ns) {
  const int64_t least = least_ns > 0 ? least_ns : kLeast_ns;
  if (least == least_ns_) return;
  least_ns_ = least;
  value_ns_ = least;
  cost_ns_ = kCostFirst_ns;  // another way to give it up and get it back
}

void BilledPatience::came_back(int64_t pause_ns, int64_t back_ns) {
  cost_ns_ = std::clamp(std::min(back_ns, cost_ns_ + cost_ns_ / 16), kCostMin_ns, kCostMax_ns);
  const int64_t saved = pause_ns - value_ns_;
  const int64_t most = std::max(16 * least_ns_, kBilledMost_ns);
  if (saved < cost_ns_) {
    value_ns_ = std::min(2 * value_ns_, most);
  } else if (saved > 4 * cost_ns_) {
    value_ns_ = std::max(value_ns_ * 3 / 4, least_ns_);
  }
}

}  // namespace nvshare::interposer::turn
