// How soon those that ask again and again may do so, so that however many they are, their questions come at most every kApart.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nvshare::scheduler {

class AskPace {
 public:
  static constexpr int64_t kApartNs = 10'000'000;
  static constexpr int64_t kMostNs = 60'000'000'000;  // whatever is asked

  // Of one that has asked: in how long it may do so again, in turn with all that have asked and may again. 0: as it likes.
  int64_t next(int64_t now) {
    const bool all_had_theirs = taken_until_ <= now;
    taken_until_ = std::min(std::max(taken_until_, now) + kApartNs, now + kMostNs);
    return all_had_theirs ? 0 : taken_until_ - now;
  }

 private:
  int64_t taken_until_ = 0;
};

}  // namespace nvshare::scheduler
