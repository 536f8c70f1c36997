// Compute limits: what accounts earn while time passes, and may save up. Private to quota.cc, quota_left.cc and
// quota_ranking.cc.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "policy/limits/limits.h"

namespace nvshare::policy {

inline void use_recently(Account& account, Instant now, Duration used) {
  const int64_t index = now / kRecentWindow;
  if (index != account.consumed.recent.index) {
    account.consumed.recent.before = index == account.consumed.recent.index + 1 ? account.consumed.recent.newer : 0;
    account.consumed.recent.newer = 0;
    account.consumed.recent.index = index;
  }
  account.consumed.recent.newer += used;
}

// Its use over about the last kRecentWindow.
inline Duration recent_use(const Account& account, Instant now) {
  const int64_t index = now / kRecentWindow;
  if (index > account.consumed.recent.index + 1) return 0;
  const Duration newer = index == account.consumed.recent.index ? account.consumed.recent.newer : 0;
  const Duration older = index == account.consumed.recent.index ? account.consumed.recent.before : account.consumed.recent.newer;
  return newer + portion(older, (kRecentWindow - now % kRecentWindow) / (kRecentWindow / kWholeGpu));
}

// What a ceiling's balance becomes in a time. Beyond its ceiling a tenant may catch up with what others owe it (`balance`, at the end of
// the time), and no more than one period of its own; but it has to come to where it runs again.
[[gnu::always_inline]] inline Duration grown_ceiling_balance(Duration had, Duration balance, int ceiling, Duration time, Duration period,
                                                             Duration slice) {
  const Duration owed = std::max(balance, percent_of(period, ceiling));
  if (had >= owed && had >= slice / 2) return had;  // which is more than half a band
  const Duration less_owed = had + percent_of(time, ceiling);
  if (less_owed <= owed) return less_owed;
  const Duration half_band = portion(slice, kWholeGpu - ceiling * (kWholeGpu / 100)) / 2;  // as Slices has it
  return std::max(had, std::min(less_owed, std::max(owed, half_band)));
}

// What tenants of a GPU earn in a time in which they want the GPU, or may save up. All of them in one go, so that what is the same for
// all is worked out once.
class Earnings {
 public:
  Earnings(const Earnings&) = delete;
  Earnings& operator=(const Earnings&) = delete;
  Earnings(const Config& config, const Gpu& gpu, Duration time, Instant now) : Earnings(config, pace_of(gpu), time, now) {}
  Earnings(const Config& config, const Pace& pace, Duration time, Instant now)
      : time_(time),
        now_(now),
        window_(window_of(config, pace)),
        period_(pace.period),
        period_beside_(pace.rotates ? period_ : std::min(period_, kPeriodMax)),
        windowed_(is_windowed(config, pace)),
        slices_(config, pace) {}

  bool any() const { return time_ != 0; }

  // As often as there are accounts in most steps: what nearly all of them need is asked first.
  [[gnu::always_inline]] void add_to(Account& account, bool wants) {
    const Share& share = share_of(account.quota);
    const Duration had = account.balance, grown = had + share.earned;
    if (wants) {  // waiting for others it loses nothing that they owe it
      account.balance = std::min(grown, std::max(had, 2 * share.of_window));
    } else if (grown <= 0) {  // what bounds savings is above 0
      account.balance = grown;
    } else if (had < share.saved_up) {
      account.balance = std::min(grown, std::max(had, saved_most(account, share)));
    }
    if (account.limit.has_ceiling()) {
      const Duration period = account.slice.gappy ? period_beside_ : period_;
      const Duration most = wants || account.slice.saves ? kNoBound : std::max<Duration>(account.ceiling_balance, 0);
      account.ceiling_balance = std::min(
          most, grown_ceiling_balance(account.ceiling_balance, account.balance, account.limit.ceiling, time_, period, share.slice));
    }
  }

  // All that are ranked. Who would have more than waiting lets anybody save up leaves.
  void add_to_ranked(Quota& quota) {
    Ranking& ranking = quota.changes.ranking;
    if (ranking.places.empty()) return;
    const Share& share = share_of(ranking.quota);
    while (!ranking.places.empty() && ranking.balance(*ranking.places.begin()) + share.earned > 2 * share.of_window)
      unrank(quota, *ranking.places.begin()->account);
    ranking.earned += share.earned;
    note_ranked_time(quota, {time_, ranking.earned, period_, share.slice});
  }

 private:
  static constexpr Duration kNoBound = std::numeric_limits<Duration>::max();

  // What follows from a tenant's quota.
  struct Share {
    int64_t quota = -1;
    Duration earned = 0, of_window = 0, of_period = 0, of_period_beside = 0;
    Duration saved_up = 0;  // who has that much saves no more by itself
    Duration slice = 0;
  };

  // Nearly all have one of a few: those that have no ceiling below it, the same one. So the last are kept.
  const Share& share_of(int64_t quota) {
    if (last_->quota == quota) return *last_;
    last_ = &shares_[static_cast<uint64_t>(quota) * 0x9e3779b97f4a7c15U >> 61];
    if (last_->quota != quota) work_out(*last_, quota);
    return *last_;
  }

  [[gnu::noinline]] void work_out(Share& share, int64_t quota) const {
    share = {quota, portion(time_, quota), portion(window_, quota), portion(period_, quota), portion(period_beside_, quota),
             0,     slices_.of(quota)};
    share.saved_up = windowed_ ? 2 * share.of_window : std::max(share.of_window, share.of_period);
  }

  // The most that a tenant can have saved up by itself, for bursts no longer than those that it has had: a program that starts, or has only
  // just begun, gets no advance.
  Duration saved_most(const Account& account, const Share& share) const {
    if (windowed_) return 2 * share.of_window;
    if (!account.slice.saves) return 0;
    const Duration burst = portion(window_, std::min(recent_use(account, now_), kRecentWindow) / (kRecentWindow / kWholeGpu));
    return std::max(std::min(share.of_window, burst), account.slice.gappy ? share.of_period_beside : share.of_period);
  }

  const Duration time_;
  const Instant now_;
  const Duration window_, period_;
  const Duration period_beside_;  // of those that leave gaps: nearly all run beside others, whose turns are no measure for them
  const bool windowed_;
  const Slices slices_;
  std::array<Share, 8> shares_;  // by a hash of the quota
  Share* last_ = &shares_[0];
};

// Adds times to accounts that rest, as set_left_apart() does to those that are looked at.
class LeftTimes {
 public:
  LeftTimes(const Config& config, const std::vector<LeftTime>& times) : config_(config), times_(times) {
    for (size_t i = 0; i < times.size(); ++i) {
      const LeftTime& time = times[i];
      period_most_ = std::max(period_most_, time.pace.period);
      quota_most_ = std::max(quota_most_, time.most);
      rotates_ |= time.pace.rotates;
      if (time.most >= 0) sets_last_ = i;
    }
  }

  void add_to(Account& account) {
    const size_t since = account.seen.rests_since;
    if (since == times_.size()) return;
    const bool adds = account.used && !has_all(account);
    for (size_t i = since; i < times_.size() && adds; ++i) {
      if (times_[i].time != 0) earnings_of(i).add_to(account, false);
      set_quota(account, times_[i].most);
    }
    if (!adds && sets_last_ >= since) set_quota(account, times_[sets_last_].most);
  }

 private:
  static void set_quota(Account& account, int64_t most) {
    if (most >= 0) account.quota = std::min(account.limit.ceiling_rate(), most);
  }

  // No time adds anything to its balances (Earnings::add_to): it has the most that it can save up, by any of the times. What it used
  // lately becomes less.
  bool has_all(const Account& account) const {
    if (rotates_) return false;
    const int64_t quota = std::max(account.quota, std::min(account.limit.ceiling_rate(), quota_most_));
    if (account.balance < (account.slice.saves ? saved_most(account, quota) : 0)) return false;
    if (!account.slice.saves) return account.ceiling_balance >= 0;
    const Duration slice = Slices(config_, Pace{period_most_}).of(quota);
    return account.ceiling_balance >= std::max({account.balance, percent_of(period_most_, account.limit.ceiling), slice / 2 + 1});
  }

  Duration saved_most(const Account& account, int64_t quota) const {
    const Duration used = std::min(recent_use(account, times_[account.seen.rests_since].until), kRecentWindow);
    const Duration window = window_of(config_, Pace{period_most_});
    const Duration burst = portion(window, used / (kRecentWindow / kWholeGpu));
    return std::max(std::min(portion(window, quota), burst), portion(period_most_, quota));
  }

  Earnings& earnings_of(size_t i) {
    if (earnings_.empty()) earnings_ = std::vector<std::optional<Earnings>>(times_.size());
    if (!earnings_[i]) earnings_[i].emplace(config_, times_[i].pace, times_[i].time, times_[i].until);
    return *earnings_[i];
  }

  const Config& config_;
  const std::vector<LeftTime>& times_;
  Duration period_most_ = 0;
  int64_t quota_most_ = 0;
  bool rotates_ = false;
  size_t sets_last_ = 0;  // of the times that set quotas
  std::vector<std::optional<Earnings>> earnings_;
};

}  // namespace nvshare::policy
