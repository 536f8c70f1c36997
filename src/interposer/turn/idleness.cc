#include "interposer/turn/idleness.h"

#include <algorithm>

namespace nvshare::interposer::turn {

namespace {
constexpr int64_t kLook_ns = 10'000'000;  // between two, where giving up moves memory
constexpr int64_t kBilledLookFirst_ns = 100'000;
constexpr int64_t kBilledLookMax_ns = 500'000;
}  // namespace

void Idleness::set_terms(const Terms& terms) {
  terms_ = terms;
  billed_.configure(terms.least_ns);
}

Idleness::Reason Idleness::reason() const {
  if (terms_.memory_waiters > 0) return terms_.waiters > 0 ? Reason::kMemory : Reason::kNone;
  return terms_.limited ? Reason::kBill : Reason::kNone;
}

void Idleness::use_begins(uint64_t submissions, int64_t wished_at, int64_t now_ns) {
  const int64_t pause = wished_at - idle_since_ns_;
  switch (gave_up_) {
    case Reason::kNone:
      break;
    case Reason::kMemory:
      swap_.came_back(pause, swap_cost_ns_, now_ns);
      break;
    case Reason::kBill:
      billed_.came_back(pause, now_ns - wished_at);
      break;
  }
  gave_up_ = Reason::kNone;
  unused_ = true;
  watch_begins(submissions);  // the wait for the turn was no pause of the program
}

void Idleness::watch_begins(uint64_t submissions) {
  seen_ = submissions;
  look_ns_ = kBilledLookFirst_ns;
  ended_at_ns_ = 0;
}

Idleness::Next Idleness::give_up(Reason reason) {
  gave_up_ = reason;
  idle_since_ns_ = ended_at_ns_;
  swap_cost_ns_ = terms_.swap_cost_ns;
  return {Step::kGiveUp, 0};
}

Idleness::Next Idleness::look(uint64_t submissions, bool may_wait, bool unsettled, int64_t now_ns) {
  const Reason reason = this->reason();
  const bool submitted = submissions != seen_;
  seen_ = submissions;
  int64_t threshold = 0;
  switch (reason) {
    case Reason::kNone:
      return {Step::kNothing, 0};
    case Reason::kMemory:
      if (submitted) {
        // With the GPU still at work, or with no time to ask, it was no pause.
        if (ended_at_ns_ != 0 && !unused_) swap_.went_on(now_ns - ended_at_ns_, terms_.swap_cost_ns, now_ns);
        unused_ = false;
        ended_at_ns_ = 0;
        return {Step::kWait, kLook_ns};
      }
      if (!may_wait) return {Step::kWait, kLook_ns};
      threshold = swap_.threshold_ns(terms_.swap_cost_ns, unused_, now_ns);
      break;
    case Reason::kBill:
      if (submitted || unsettled || !may_wait) {
        ended_at_ns_ = 0;
        const int64_t wait = look_ns_;
        look_ns_ = std::min(2 * look_ns_, kBilledLookMax_ns);
        return {Step::kWait, wait};
      }
      look_ns_ = kBilledLookFirst_ns;
      threshold = billed_.value_ns();
      break;
  }
  if (ended_at_ns_ == 0) return {Step::kSynchronize, 0};
  const int64_t rest = threshold - (now_ns - ended_at_ns_);
  if (rest <= 0) return give_up(reason);
  return {Step::kWait, reason == Reason::kMemory ? std::min(rest, kLook_ns) : rest};
}

}  // namespace nvshare::interposer::turn
