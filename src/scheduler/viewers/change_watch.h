// Viewers that wait until something changes (nvsharectl top, the page), so that they see it at once and need not ask all the time. However
// fast changes follow each other, waiters are let go together and at most every kApartNs. Where one's patience is over, those go with it
// whose is soon, so that one report serves them all. The loop's thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "loop/event_loop.h"

namespace nvshare::scheduler {

class ChangeWatch {
 public:
  static constexpr int64_t kApartNs = 50'000'000;
  static constexpr size_t kWaitersMax = 32;     // one more does not wait: half of the admin connections are left to others
  using Then = std::function<void(bool news)>;  // false: its patience is over

  // `announce` is called with each number that waiters are let go for; may be none.
  explicit ChangeWatch(EventLoop& loop, std::function<void(uint64_t number)> announce = {});

  // There is another number than before (admin::StatusReport::changes); the same one again is no news.
  void changed(uint64_t number);

  // Calls back once, also from within: when the number is another than `known`, or at `until` of CLOCK_MONOTONIC, or up to `early_ns`
  // before that where another waiter's patience is over.
  void wait(uint64_t known, int64_t until, int64_t early_ns, Then then);

 private:
  struct Waiter {
    uint64_t known;
    int64_t until;
    int64_t early_ns;
    Then then;
  };

  void look();  // who is let go now, and when to look again

  std::function<void(uint64_t)> announce_;
  uint64_t number_ = 0;
  uint64_t announced_ = 0;
  int64_t announced_at_ = 0;
  std::vector<Waiter> waiters_;
  int64_t armed_ = 0;  // when to look again; 0: not until something happens
  Timer timer_;
};

}  // namespace nvshare::scheduler
