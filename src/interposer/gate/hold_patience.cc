#include "interposer/gate/hold_patience.h"

#include <algorithm>

namespace nvshare::interposer {

void HoldPatience::begins(int64_t now_ns, bool limited) {
  limited_ = limited;
  began_ns_ = now_ns;
  ends_ = 0;
  looks_until_ns_ = 0;
}

void HoldPatience::ended(const Ended& event) {
  awaits_first_ = false;
  if (event.with_former && ends_ > 0) return;  // which of them was first, and when, nobody saw
  if (ends_++ > 0 && event.closures == last_closures_ && event.submissions > 0) {
    // A program that was stopped meanwhile says nothing of the GPU.
    const int64_t took_ns = std::min(event.seen_ns - last_end_ns_, kLookMost_ns);
    submission_ns_ = std::max(static_cast<double>(took_ns) / event.submissions, submission_ns_ * 7 / 8);
    looks_until_ns_ = 0;
    looks_missed_ = looks_to_miss_ = 0;
  } else if (ends_ == 1 && submission_ns_ <= 0) {
    if (looks_to_miss_ > 0) {
      --looks_to_miss_;
    } else {
      // At least as long as the GPU took for one, were it busy with what was in flight then and nothing else.
      const double share = static_cast<double>(event.submissions) / std::max(event.in_flight, 1U);
      const double wait_ns = 2 * share * static_cast<double>(event.seen_ns - event.recorded_ns);
      looks_until_ns_ = event.seen_ns + static_cast<int64_t>(std::clamp(wait_ns, double{kHold_ns}, double{kLookMost_ns}));
    }
  }
  last_end_ns_ = event.seen_ns;
  last_closures_ = event.closures;
}

int64_t HoldPatience::until_ns(int64_t threads, const Rest& rest) const {
  int64_t alone = !limited_ ? hold_ns_ : last_in_vain_ ? kHold_ns : kHoldMost_ns;
  if (const int64_t so_far = began_ns_ - first_from_ns_; awaits_first_ && so_far < kFirstMost_ns) {
    alone = std::max({alone, kHold_ns, so_far / 2});
  }
  int64_t until = std::max(began_ns_ + std::min(alone * threads, kHoldMost_ns), looks_until_ns_);
  if (submission_ns_ > 0) {
    const double rest_ns = std::min(2 * submission_ns_ * rest.submissions, double{kLongHoldMost_ns});
    const int64_t from = ends_ > 0 ? last_end_ns_ : began_ns_;
    until = std::max(until, std::min(from + static_cast<int64_t>(rest_ns), began_ns_ + kLongHoldMost_ns));
  }
  return until;
}

void HoldPatience::was_enough() {
  last_in_vain_ = false;
  hold_ns_ = std::max(hold_ns_, kHold_ns);
}

void HoldPatience::was_in_vain(int64_t now_ns, const Rest& rest) {
  last_in_vain_ = last_in_vain_ || limited_;
  hold_ns_ = std::max(std::min(hold_ns_, 2 * kHold_ns) / 2, kHoldLeast_ns);
  // What should have ended long ago takes otherwise long than what came before.
  if (static_cast<double>(now_ns - rest.since_ns) > 2 * submission_ns_ * rest.next) submission_ns_ = 0;
  if (!awaits_first_ && ends_ == 0 && (first_from_ns_ == 0 || began_ns_ - first_from_ns_ >= kFirstEvery_ns)) {
    awaits_first_ = true;
    first_from_ns_ = began_ns_;
  }
  if (looks_until_ns_ != 0) looks_to_miss_ = looks_missed_ = std::min(2 * looks_missed_ + 1, kLooksMissedMost);
}

void HoldPatience::spaced(int64_t spacing_ns) { hold_ns_ = std::min(std::max(2 * spacing_ns, kHold_ns), 2 * hold_ns_); }

}  // namespace nvshare::interposer
