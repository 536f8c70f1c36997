#include "interposer/turn/idle_watch.h"

#include <algorithm>

namespace nvshare::interposer {

namespace {
constexpr int64_t kLookFirst_ns = 100'000;
constexpr int64_t kLookMax_ns = 500'000;
constexpr int64_t kThresholdMax_ns = 5'000'000;
constexpr int64_t kCostMin_ns = 20'000;
constexpr int64_t kCostMax_ns = 500'000;
}  // namespace

void IdleWatch::configure(int64_t least_ns) {
  const int64_t least = least_ns > 0 ? least_ns : kLeast_ns;
  if (least == least_ns_) return;
  least_ns_ = least;
  threshold_ns_ = least;
  cost_ns_ = kCostFirst_ns;  // another way to give it up and get it back
}

void IdleWatch::begin(uint64_t submissions) {
  seen_ = submissions;
  look_ns_ = kLookFirst_ns;
  ended_at_ns_ = 0;
}

IdleWatch::Next IdleWatch::look(uint64_t submissions, bool busy, int64_t now_ns) {
  if (busy || submissions != seen_) {
    seen_ = submissions;
    ended_at_ns_ = 0;
    const int64_t wait = look_ns_;
    look_ns_ = std::min(2 * look_ns_, kLookMax_ns);
    return {Step::kWait, wait};
  }
  look_ns_ = kLookFirst_ns;
  if (ended_at_ns_ == 0) return {Step::kSynchronize, 0};
  const int64_t idle = now_ns - ended_at_ns_;
  if (idle < threshold_ns_) return {Step::kWait, threshold_ns_ - idle};
  return {Step::kRelease, 0};
}

void IdleWatch::came_back(int64_t pause_ns, int64_t back_ns) {
  cost_ns_ = std::clamp(std::min(back_ns, cost_ns_ + cost_ns_ / 16), kCostMin_ns, kCostMax_ns);
  const int64_t saved = pause_ns - threshold_ns_;
  const int64_t most = std::max(16 * least_ns_, kThresholdMax_ns);
  if (saved < cost_ns_) {
    threshold_ns_ = std::min(2 * threshold_ns_, most);
  } else if (saved > 4 * cost_ns_) {
    threshold_ns_ = std::max(threshold_ns_ * 3 / 4, least_ns_);
  }
}

}  // namespace nvshare::interposer
