#include "cli/top/pace.h"

#include <algorithm>

namespace nvshare::cli::top {

void Pace::looked(double processor_s, double now_s) {
  saved_s_ = std::min(kSavedS, saved_s_ + kShare * std::max(now_s - at_s_, 0.0)) - processor_s;
  at_s_ = now_s;
}

double Pace::whole_every_s(double interval_s) const { return std::max(interval_s, std::min(whole_s_ / kWholeShare, kWholeEveryMaxS)); }

double Pace::wait_s() const { return std::max(kApartMinS, -saved_s_ / kShare); }

}  // namespace nvshare::cli::top
