// How high the ceiling of a program's memory was lately: a short-lived process beside it lowers it by its context, and memory of a process
// that ended is known to be free only seconds later, so that it may rise again. Not thread-safe; knows no clock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace nvshare::interposer {

class RecentCeilings {
 public:
  static constexpr int64_t kPatience_ns = 5'000'000'000;  // for which an allocation waits for a ceiling that fell to rise again

  // It is lower from now on than `before`.
  void fell_from(size_t before, int64_t now) {
    const auto free = std::find_if(falls_.begin(), falls_.end(), [&](const Fall& fall) { return !is_recent(fall, now); });
    if (free != falls_.end()) {
      *free = {before, now};
      return;
    }
    // Of more falls than there are places for, the last ones count as one.
    Fall& last = *std::max_element(falls_.begin(), falls_.end(), [](const Fall& a, const Fall& b) { return a.at < b.at; });
    last = {std::max(last.before, before), now};
  }

  // So much was below the ceiling until a moment ago.
  bool had_room_for(size_t bytes, int64_t now) const {
    return std::any_of(falls_.begin(), falls_.end(), [&](const Fall& fall) { return is_recent(fall, now) && bytes <= fall.before; });
  }

 private:
  struct Fall {
    size_t before = 0;  // 0: there was none
    int64_t at = 0;
  };
  static bool is_recent(const Fall& fall, int64_t now) { return fall.before != 0 && now - fall.at < kPatience_ns; }

  std::array<Fall, 8> falls_{};
};

// One allocation's wait for a ceiling that fell. However often it falls meanwhile, that has an end: five seconds after the first refusal.
class CeilingWait {
 public:
  // It has been refused `bytes` in all, once more.
  bool goes_on(const RecentCeilings& ceilings, size_t bytes, int64_t now) {
    if (began_ == 0) began_ = now;
    return now - began_ < RecentCeilings::kPatience_ns && ceilings.had_room_for(bytes, now);
  }

 private:
  int64_t began_ = 0;  // 0: not yet
};

}  // namespace nvshare::interposer
