// How long a thread is held before its hold is in vain (pacer.h). Pure; of one thread.
#pragma once

#include <cstdint>

namespace nvshare::interposer {

// Work that is not done in time either takes long or needs what the held thread does next. What ends in a hold tells them apart, as the
// thread does nothing then: the time between two ends in one hold is the GPU's, and with as much for each submission in flight a hold is
// long enough. After the first end that was seen the second one is waited for once in a while, to learn that time. Until the first, once a
// minute, holds get longer and longer, so that little is in flight by then. Ends on several streams come in groups: between two of a group
// there is little time, and the longest counts, of late.
class HoldPatience {
 public:
  static constexpr int64_t kHold_ns = 20'000'000;
  static constexpr int64_t kHoldLeast_ns = 5'000'000;
  static constexpr int64_t kHoldMost_ns = 2'000'000'000;   // of one whose work's time is not known
  static constexpr int64_t kFirstMost_ns = 5'000'000'000;  // for the first end
  static constexpr int64_t kFirstEvery_ns = 60'000'000'000;
  static constexpr int64_t kLookMost_ns = 5'000'000'000;       // for the second end
  static constexpr int64_t kLongHoldMost_ns = 10'000'000'000;  // of one whose work's time is known
  static constexpr uint32_t kLooksMissedMost = 63;             // first ends in a row after which the second is not waited for

  struct Ended {
    int64_t seen_ns;
    int64_t recorded_ns;
    uint32_t submissions;  // since the event before it
    uint32_t in_flight;    // submissions when it was recorded, its own among them
    uint32_t closures;     // Gate::closures() now: while the gate is closed the GPU may be somebody else's
    bool with_former;      // the same look found that one's end
  };

  struct Rest {
    uint32_t submissions;  // up to the end of what is waited for
    uint32_t next;         // of them, those up to the next event
    int64_t since_ns;      // when the GPU may have begun with these at the earliest
  };

  void begins(int64_t now_ns, bool limited);
  // Of an event that had not ended when this hold began.
  void ended(const Ended& event);
  // With so many threads held.
  int64_t until_ns(int64_t threads, const Rest& rest) const;
  void was_enough();
  void was_in_vain(int64_t now_ns, const Rest& rest);
  // From event to event, both done, the GPU took so long.
  void spaced(int64_t spacing_ns);

 private:
  int64_t hold_ns_ = kHold_ns;  // without a limit, were no other thread held
  bool last_in_vain_ = false;   // with a limit, the last one
  bool awaits_first_ = false;   // end, in holds that get longer, since first_from_ns_
  int64_t first_from_ns_ = 0;   // 0: never so far
  double submission_ns_ = 0;    // the GPU's time for one; 0: not known
  uint32_t looks_to_miss_ = 0;
  uint32_t looks_missed_ = 0;  // after the last look that saw no second end

  // This hold.
  bool limited_ = false;
  int64_t began_ns_ = 0;
  uint32_t ends_ = 0;
  int64_t last_end_ns_ = 0;
  uint32_t last_closures_ = 0;
  int64_t looks_until_ns_ = 0;  // for the second end; 0: it does not
};

}  // namespace nvshare::interposer
