#include "scheduler/viewers/change_watch.h"

#include <algorithm>
#include <optional>
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
  if (waiters_.size() + leavers_.size() >= kWaitersMax) return then(0);
  waiters_.push_back({known, until, early_ns, std::move(then)});
  look();
}

int64_t ChangeWatch::between_ns() const {
  return std::min(kBetweenNs, kApartNs / 2 / static_cast<int64_t>(std::max<size_t>(leavers_.size(), 1)));
}

void ChangeWatch::choose(int64_t now) {
  const bool is_over = std::any_of(waiters_.begin(), waiters_.end(), [&](const Waiter& waiter) { return waiter.until <= now; });
  const auto goes = std::stable_partition(waiters_.begin(), waiters_.end(), [&](const Waiter& waiter) {
    return waiter.until - (is_over ? waiter.early_ns : 0) > now && (waiter.known == announced_ || announced_ != number_);
  });
  for (auto waiter = goes; waiter != waiters_.end(); ++waiter) leavers_.push_back({waiter->known, std::move(waiter->then)});
  waiters_.erase(goes, waiters_.end());
}

void ChangeWatch::look() {
  const int64_t now = monotonic_ns();
  if (announced_ != number_ && now - announced_at_ >= kApartNs) {
    announced_ = number_;
    announced_at_ = now;
    if (announce_) announce_(announced_);
  }
  choose(now);
  std::optional<Leaver> leaver;
  if (!leavers_.empty() && now - left_at_ >= between_ns()) {
    leaver = std::move(leavers_.front());
    leavers_.pop_front();
    left_at_ = now;
  }
  int64_t next = announced_ != number_ ? announced_at_ + kApartNs : 0;
  const auto also_at = [&next](int64_t at) { next = next == 0 ? at : std::min(next, at); };
  for (const Waiter& waiter : waiters_) also_at(waiter.until);
  if (!leavers_.empty()) also_at(left_at_ + between_ns());
  if (std::exchange(armed_, next) != next) next == 0 ? timer_.cancel() : timer_.arm(next);  // seldom another one, however many changes
  if (leaver) leaver->then(leaver->known < announced_ ? announced_ : 0);                    // may wait again
}

}  // namespace nvshare::scheduler
