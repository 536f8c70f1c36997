#include "scheduler/viewers/change_watch.h"

#include <algorithm>
#include <utility>

namespace nvshare::scheduler {

ChangeWatch::ChangeWatch(EventLoop& loop, std::function<void(uint64_t)> announce)
    : announce_(std::move(announce)), timer_(loop, [this] {
        armed_ = 0;
        look();
      }) {}

void ChangeWatch::changed(uint64_t number) {
  if (std::exchange(number_, number) != number) look();
}

void ChangeWatch::wait(uint64_t known, int64_t until, int64_t early_ns, Then then) {
  if (waiters_.size() >= kWaitersMax) return then(false);
  waiters_.push_back({known, until, early_ns, std::move(then)});
  look();
}

void ChangeWatch::look() {
  const int64_t now = monotonic_ns();
  if (announced_ != number_ && now - announced_at_ >= kApartNs) {
    announced_ = number_;
    announced_at_ = now;
    if (announce_) announce_(announced_);
  }
  const bool is_over = std::any_of(waiters_.begin(), waiters_.end(), [&](const Waiter& waiter) { return waiter.until <= now; });
  const auto goes = std::partition(waiters_.begin(), waiters_.end(), [&](const Waiter& waiter) {
    return waiter.until - (is_over ? waiter.early_ns : 0) > now && (waiter.known == announced_ || announced_ != number_);
  });
  std::vector<Waiter> gone(std::make_move_iterator(goes), std::make_move_iterator(waiters_.end()));
  waiters_.erase(goes, waiters_.end());
  int64_t next = announced_ != number_ ? announced_at_ + kApartNs : 0;
  for (const Waiter& waiter : waiters_) next = next == 0 ? waiter.until : std::min(next, waiter.until);
  if (std::exchange(armed_, next) != next) next == 0 ? timer_.cancel() : timer_.arm(next);  // seldom another one, however many changes
  for (const Waiter& waiter : gone) waiter.then(waiter.known < announced_);                 // may wait again
}

}  // namespace nvshare::scheduler
