// Viewers that wait until something changes (nvsharectl top, the page), so that they see it at once and need not ask all the time. However
// fast changes follow each other, waiters are let go at most every kApartNs, for one report that serves them all; where one's patience is
// over, those go with it whose is soon. They go one after the other, kBetweenNs apart: viewers that all woke at once would have every
// processor for as long as they take to draw, and the scheduler and its clients would wait for it. The loop's thread alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "loop/event_loop.h"

namespace nvshare::scheduler {

class ChangeWatch {
 public:
  static constexpr int64_t kApartNs = 50'000'000;
  static constexpr int64_t kBetweenNs = 2'000'000;  // less where there are more than fit into kApartNs / 2
  static constexpr size_t kWaitersMax = 32;         // one more does not wait: half of the admin connections are left to others
  // The number that it is told of, which a report must have to be new to it; 0: its patience is over.
  using Then = std::function<void(uint64_t news)>;

  // `announce` is called with each number that waiters are let go for; may be none.
  explicit ChangeWatch(EventLoop& loop, std::function<void(uint64_t number)> announce = {});

  // There is another number than before (admin::StatusReport::changes); the same one again is no news.
  void changed(uint64_t number);

  // Calls back once, also from within: when the number is another than `known`, or at `until` of CLOCK_MONOTONIC, or up to `early_ns`
  // before that where another waiter's patience is over; later by those that go before it.
  void wait(uint64_t known, int64_t until, int64_t early_ns, Then then);

 private:
  struct Waiter {
    uint64_t known;
    int64_t until;
    int64_t early_ns;
    Then then;
  };

  struct Leaver {
    uint64_t known;
    Then then;
  };

  void look();               // who is let go now, and when to look again
  void choose(int64_t now);  // who goes, of those that wait
  // The time between two that go.
  int64_t between_ns() const;

  std::function<void(uint64_t)> announce_;
  uint64_t number_ = 0;
  uint64_t announced_ = 0;
  int64_t announced_at_ = 0;
  std::vector<Waiter> waiters_;
  std::deque<Leaver> leavers_;
  int64_t left_at_ = 0;
  int64_t armed_ = 0;  // when to look again; 0: not until something happens
  Timer timer_;
};

}  // namespace nvshare::scheduler
