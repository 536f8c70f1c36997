// Compute limits: what a tenant may use of a GPU's time, what it has used, and who may therefore run. One account per tenant and GPU,
// shared by all of its clients there. Private to policy/ and its tests; README.md and docs/adr/0007, 0008 say why it is as it is.
//
// Amounts are nanoseconds of GPU time. A quota is in millionths of the GPU (kWholeGpu).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "policy/flat.h"
#include "policy/policy.h"

namespace nvshare::policy {

inline constexpr int64_t kWholeGpu = 1'000'000;
inline constexpr int64_t kRestLeast = 50'000;           // of the GPU, for tenants without a reservation beside reservations of all of it
inline constexpr Duration kWindowAuto = 2'000'000'000;  // over which shares are shown, and saved-up time is bounded, when no window is set
inline constexpr Duration kPeriodMin = 60'000'000;      // in which each tenant has its share once, when nothing is swapped for it
inline constexpr Duration kPeriodMax = 100'000'000;     // keeps any window of 2 s within 25 ms (1.25 points) of its share
// The most where several tenants run one after the other. Each hand-over costs the GPU 0.3 ms that are seen here and up to 0.5 ms in which
// it changes programs: with four tenants that was 1.7 % of 200 ms on an H200.
inline constexpr Duration kPeriodOfTurns = 250'000'000;
inline constexpr int64_t kPeriodPerHandOver = 375;           // a period is so many times what its hand-overs cost
inline constexpr int64_t kPeriodOfTurnsPerHandOver = 500;    // the same where several tenants run one after the other
inline constexpr Duration kRotationMax = 3'600'000'000'000;  // the same where memory forces turns
inline constexpr Duration kSliceMin = 5'000'000;
inline constexpr Duration kHandOverAssumed = 150'000;  // from one program's last work to the next one's first, until drops were measured
inline constexpr Duration kHandOverMax = 200'000;      // never counted as more: what is longer is work that drains
// What a client says of a turn, that it did not use so much of it, is believed up to this, and as much again with every shortest period:
// whoever lies has no more of the GPU for it than kUnusedMost / kPeriodMin, however it cuts its turns.
inline constexpr Duration kUnusedMost = 1'000'000;
inline constexpr Duration kIdleRelease = 1'000'000;  // a client beside limits gives the lock up once idle for so long
// The same for a client that pauses and keeps the lock, which costs it some 20 us, and not the scheduler's answer.
inline constexpr Duration kPauseAfter = 200'000;
// For so long, and no larger a part of its time, the GPU did not run a burst yet, or no longer: so much of what a client says is believed
// before each pause besides, but no more than kUnusedMost / kPeriodMin.
inline constexpr Duration kStartMost = 100'000;
inline constexpr int64_t kStartPart = 16;
inline constexpr Duration kPauseMost = 100'000'000;        // then it gives the lock up after all
inline constexpr Duration kAloneFor = 1'000'000'000;       // it has the GPU to itself once no other used it for so long
inline constexpr Duration kActiveGrace = 100'000'000;      // who neither held nor wanted the lock for so long no longer counts in the sum
inline constexpr Duration kPresentGrace = 10'000'000'000;  // the same for the choice between turns and running together
inline constexpr Duration kDebtMax = 60'000'000'000;       // the longest that a debt can make a tenant wait
inline constexpr Duration kRecentWindow = 4'000'000'000;   // use over which saving up is judged
inline constexpr Duration kLeftPause = 100'000'000;        // between two looks at the accounts of tenants that left a debt
inline constexpr Duration kRestMost = 50'000'000;          // so long events that change nothing for limits do not look at them
inline constexpr Duration kTurnWorth = 1'000'000;          // a turn that would end sooner for another's burst does not begin
inline constexpr int kAskedToMakeWay = 8;                  // of those that wait for a turn
inline constexpr Duration kStepMin = 20'000;               // no two looks at a limit within less
inline constexpr int kGapsToJoin = 60;                     // percent of turns that a tenant ends by itself before it runs beside others
inline constexpr int kGapsToLeave = 30;                    // and below which it takes turns again
inline constexpr int kProbedFirst = 8;                     // turns in which pauses are looked for that are shorter than kIdleRelease
inline constexpr int kProbedAgain = 6;                     // the same each kProbePause
inline constexpr Duration kProbePause = 10'000'000'000;
inline constexpr Duration kProbedBurstMost = 4 * kIdleRelease;  // after a longer one such a pause is none that others could use
inline constexpr size_t kTailsKept = 16;
inline constexpr Duration kNotePause = 10'000'000'000;  // between two lines of the log on what happens many times a second

struct Context;
struct Tenancy;
enum class WaitReason;

// How much of its speed alone a tenant keeps in its part (1/n) of the time in which n tenants run: the driver loses some of it by
// switching between them. Learnt from its turns (quota_overlap.cc).
struct Overlap {
  // Of the turn under way.
  Duration alone = 0;   // that it ran with nobody else
  Duration shared = 0;  // its part of the time that it ran with others
  bool mixed = false;   // several of its clients had the lock: what one says that it did is not all
  // Of its latest turns, the older the less: a turn's work = speed * alone + speed together * shared, by least squares. Microseconds of
  // turns, and work in kWorkUnit.
  int64_t alone_alone = 0, alone_shared = 0, shared_shared = 0, alone_work = 0, shared_work = 0;
  int64_t kept = kWholeGpu;  // what came of it, in millionths
};

// How many of a tenant's clients on a GPU do what.
struct Doing {
  int32_t waits = 0, stays = 0, holds = 0;
  int32_t works = 0;     // hold the lock, have loaded, and do not pause: they are billed
  int32_t works_on = 0;  // the same that were not asked to drop
  int32_t busy = 0;      // wait, or hold the lock and do not pause

  bool operator==(const Doing&) const = default;
};

// What a tenant's share of a GPU was worked out from.
struct ShareTerms {
  bool active = false;
  int ceiling = 0, reserved = 0;  // percent; a ceiling of 0: it was not

  bool operator==(const ShareTerms&) const = default;
};

// What the log has of a tenant's ceiling.
struct ThrottleNotes {
  bool noted = false;    // this time that it is throttled
  Instant at = 0;        // the last that it has
  uint64_t unnoted = 0;  // since then
};

// What the last look at an account found (quota_changes.cc).
struct Seen {
  bool busy = false;
  bool limited = false;  // counts in Changes::limited
  // Stands in the list of that name.
  bool to_look = false, to_judge = false, to_hold = false, to_rank = false, runs = false, held = false, gone = false;
  Instant active_until = 0, present_until = 0;  // as the indexes have it; 0: it is in none
  bool rests = false;                           // stands in Left::resting; its balances and quota are as of the times before:
  size_t rests_since = 0;                       // of Left::times

  bool operator==(const Seen&) const = default;
};

// Use over which saving up is judged.
struct RecentUse {
  int64_t index = 0;
  Duration newer = 0, before = 0;  // in the running and in the previous kRecentWindow
};

// What a tenant is allowed and granted of a GPU's time, in percent. Invariant: reserved <= ceiling.
struct CoreLimit {
  int ceiling = 100;  // the most that it may use; 100 = none
  int reserved = 0;   // of that, what is granted to it

  bool has_ceiling() const { return ceiling < 100; }
  bool is_limited() const { return ceiling < 100 || reserved > 0; }
  int64_t ceiling_rate() const { return ceiling * (kWholeGpu / 100); }
};

// Turns in which a tenant that takes turns is to give the lock up in shorter pauses than else, so that those show.
struct Probe {
  int turns = kProbedFirst;  // still to come
  Instant at = 0;            // the last one
};

// A tenant's slice of a GPU's time: the one under way, and how the latest ended.
struct Slice {
  Instant began = 0;
  int gaps = 0;              // percent of the latest that it ended by itself
  bool runs = false;         // it has since `began`
  bool interrupted = false;  // the last was ended by a drop: it will want another at once
  bool gappy = false;        // it leaves gaps that others can use: it runs beside them
  bool borrows = false;      // it has one before its balance allows it, because the GPU would stand still
  bool saves = false;        // one has begun since its ceiling did: the time before is no rest to save up in
  Probe probe;
};

// Bursts of a tenant that pauses between them, as far as they come at even times (foreseen.cc).
struct Rhythm {
  Instant ended = 0;      // its latest burst, by what it says; 0: one is under way, or it is not known
  Duration on = 0;        // of a burst that had the GPU to itself
  Duration off = 0;       // of a pause
  int even = 0;           // pauses that were as long as those before, about
  int shared = 0;         // bursts in a row that others worked beside, up to a few
  Instant begins = 0;     // the next burst, or the one under way that was foreseen; 0: none is
  Instant ends = 0;       // it; 0: it has yet to begin
  Instant began = 0;      // it; 0: it has yet to begin
  Duration waited = 0;    // of the next burst, or the one under way: billed, and the GPU did others' work or switched from it
  bool foreseen = false;  // stands in Changes::foreseen
};

// How it makes way for others' bursts that are foreseen.
struct MakingWay {
  Duration drains = 3'000'000;      // from a drop to the end of its work, about
  Duration differs = 0;             // from one drop to another, about
  std::optional<Instant> asked_at;  // limits asked it to drop, while nobody else worked
  bool behind = false;              // it needs the time itself to have its limit
};

// When a tenant was above its ceiling.
struct Throttling {
  Instant at = 0;        // the last time that it began
  Duration waiting = 0;  // in all, while it wanted to run
  ThrottleNotes notes;
};

// A ceiling that was taken away: it counts again if the tenant gets another one before that window's end.
struct LiftedCeiling {
  Duration owed = 0;
  Duration spent = 0;  // was gone of its window's time
  Instant spent_until = 0;
};

// What a tenant has used of a GPU's time, for people and to judge what it may save up. Balances are apart.
struct Consumption {
  Duration in_window = 0, last_window = 0;  // in the running and in the last window
  RecentUse recent;
  Duration billed = 0;      // in all
  Duration taken_back = 0;  // of what was billed, and not yet of `billed` and `in_window`, which never go down
};

// How much a tenant's clients may say that they did not use, and be believed: it is used up by what they say, and grows with time.
struct Trust {
  Duration left = kUnusedMost;  // as of `at`
  Instant at = 0;

  Duration believe(Duration unused, Instant now) {
    left = std::min(left + (now - at) / (kPeriodMin / kUnusedMost), kUnusedMost);
    at = now;
    unused = std::clamp<Duration>(unused, 0, left);
    left -= unused;
    return unused;
  }
};

// Of an account that is ranked (Ranking): its balance and that of its ceiling are as of the times before `since`.
struct Ranked {
  bool is = false;
  Duration start = 0;  // its balance now, less what is Ranking::earned
  size_t since = 0;    // of Ranking::times
};

// A tenant's account of a GPU's time.
struct Account {
  // What most steps look at stands first, in two lines of the processor's caches.
  alignas(64) TenantId tenant = 0;
  Tenancy* here = nullptr;  // its clients there; null: none
  Doing does;               // the same as in `here`
  int64_t quota = 0;        // of the GPU: what it is entitled to among those that are active (quota_shares.cc)
  Duration balance = 0;     // of its quota: what it may use before others come first; below 0: it is above its quota
  Duration ceiling_balance =
      0;                  // of its ceiling: what it may use before it is throttled; below 0: debt. Without a ceiling it means nothing
  Instant last_busy = 0;  // held or wanted the lock
  CoreLimit limit;
  ShareTerms shared;  // of the shares as they are
  TenantSharing sharing = TenantSharing::kNode;
  bool used = false;       // it has run once: from then on it earns
  bool throttled = false;  // above its ceiling
  bool yields = false;     // above its quota, while another that is below its own wants the GPU
  bool active = false;     // counts in the shares
  bool present = false;    // was busy lately
  bool gang = false;       // its turns are on several GPUs together
  bool held_in_rotation = false;
  WaitReason held_for{};  // limits keep all of its clients waiting that wait; kNone: they may have different reasons
  Slice slice;

  Instant joined_at = 0;
  Duration turn_most = 0;  // its turns are to be no longer, 0 = as they are
  Throttling throttling;
  LiftedCeiling lifted;
  Consumption consumed;
  Trust trust;
  Trust trust_of_bursts;  // what the GPU did not run of bursts that ended in a pause
  Overlap overlap;
  Rhythm rhythm;
  MakingWay way;
  Seen seen;
  Ranked ranked;

  bool shares_are_known() const { return shared == ShareTerms{active, limit.ceiling, limit.reserved}; }
};

// Whoever goes through accounts has some behind the one that it looks at on their way from memory: those of many GPUs do not fit the
// processor's caches.
inline void fetch_ahead(const std::vector<Account*>& accounts, size_t at) {
  constexpr size_t kAhead = 8;
  const Account* const next = accounts[std::min(at + kAhead, accounts.size() - 1)];
  __builtin_prefetch(next);
  __builtin_prefetch(reinterpret_cast<const char*>(next) + 64);
}

template <typename Look>
void each_of(const std::vector<Account*>& accounts, Look look) {
  for (size_t i = 0; i < accounts.size(); ++i) {
    fetch_ahead(accounts, i);
    look(*accounts[i]);
  }
}

// Accounts by tenant, in the order of tenants; an account stays where it is, from one table to another as well.
class Accounts {
 public:
  // Goes through accounts, which most steps do several times: so not from node to node.
  template <typename Of>
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Of;
    using difference_type = std::ptrdiff_t;
    using pointer = Of*;
    using reference = Of&;

    explicit Iterator(Account* const* at) : at_(at) {}
    Of& operator*() const { return **at_; }
    Of* operator->() const { return *at_; }
    Iterator& operator++() { return ++at_, *this; }
    Iterator operator++(int) { return Iterator(at_++); }
    bool operator==(const Iterator&) const = default;

   private:
    Account* const* at_;
  };
  Iterator<Account> begin() { return Iterator<Account>(order_.data()); }
  Iterator<Account> end() { return Iterator<Account>(order_.data() + order_.size()); }
  Iterator<const Account> begin() const { return Iterator<const Account>(order_.data()); }
  Iterator<const Account> end() const { return Iterator<const Account>(order_.data() + order_.size()); }
  size_t size() const { return order_.size(); }
  const std::vector<Account*>& all() const { return order_; }
  bool empty() const { return order_.empty(); }

  Account* find(TenantId tenant);  // null: there is none
  const Account* find(TenantId tenant) const;
  Account& insert(std::unique_ptr<Account> account);  // of a tenant that has none here
  std::unique_ptr<Account> extract(TenantId tenant);  // null: there is none
  void erase(std::vector<Account*>& gone);            // which there are; puts these in the order of tenants
  // Those of which `test` says so go to `taken`, or, where that is null, away.
  template <typename Test>
  void extract_if(Accounts* taken, Test test) {
    size_t kept = 0;
    for (size_t i = 0; i < order_.size(); ++i) {
      fetch_ahead(order_, i);
      if (!test(*order_[i])) {
        if (kept < i) {
          order_[kept] = order_[i];
          tenants_[kept] = tenants_[i];
          owned_[kept].swap(owned_[i]);
        }
        ++kept;
      } else if (taken != nullptr) {
        taken->insert(std::move(owned_[i]));
      }
    }
    order_.resize(kept);
    tenants_.resize(kept);
    owned_.resize(kept);
  }

 private:
  size_t place_of(TenantId tenant) const;

  std::vector<Account*> order_;
  std::vector<TenantId> tenants_;  // in the same order, as is
  std::vector<std::unique_ptr<Account>> owned_;
};

enum class GpuMode {
  kUnlimited,  // no tenant here has a limit: everything is as if there were none
  kTogether,
  kTurns,     // tenants that saturate the GPU run one after the other
  kRotation,  // so do all, because they do not fit together: the turns are as long as the swaps need
};

// The tenants that were here lately.
struct Present {
  int64_t tenants = 0;
  int64_t exclusive = 0;      // of them
  int64_t least = kWholeGpu;  // of their quotas
  bool rotates = false;       // whoever they are, because memory forces turns

  bool operator==(const Present&) const = default;
};

// A time in which those that are ranked were billed.
struct RankedTime {
  Duration time = 0;
  Duration earned = 0;  // Ranking::earned at its end
  Duration period = 0, slice = 0;
};

// Tenants that only wait for their turns, and are all entitled to the same: nearly all of many. Time changes their balances alike, so it is
// added up once for all of them, and their order stays: who is owed most comes first, of several the first one. What their ceilings allow
// grows by each one's own rate, but nobody asks for it while it waits: it is worked out when the tenant leaves (unrank), from the times
// that have passed. What anybody asks of such an account, or changes in it, comes after that; quota_ranking.cc has who may be ranked.
struct Ranking {
  struct Place {
    Duration start;
    TenantId tenant;
    Account* account;
    bool operator<(const Place& other) const { return start != other.start ? start > other.start : tenant < other.tenant; }
  };
  bool open = false;                    // tenants may come in: their shares are those that `quota` stands for
  FlatSet<Place> places;                // in the order of their turns
  std::array<int64_t, 101> ceilings{};  // how many of them have which, in percent
  int64_t quota = 0;                    // of each
  Duration earned = 0;                  // by each
  std::vector<RankedTime> times;
  Duration earned_most = 0, period_most = 0, slice_most = 0;  // of `times`

  Duration balance(const Place& place) const { return place.start + earned; }
};

// Which accounts of a GPU a step looks at (quota_changes.cc).
struct Changes {
  bool all = true;
  Instant looked_at = 0;                    // busy tenants were so then
  std::vector<Account*> to_look, to_judge;  // changed since they were looked at, or judged
  std::vector<Account*> to_hold;            // whose clients that wait may run, or have to hear why not
  bool hold_all = true;                     // all of them may
  Ranking ranking;
  std::vector<Account*> apart;                                      // that are not ranked, in the order of tenants
  std::vector<Account*> to_rank;                                    // of these all that wait for a turn, and maybe others
  std::vector<Account*> runs;                                       // Slice::runs
  std::vector<Account*> held;                                       // that may be throttled, yield, or owe (may_be_held())
  bool balances = true;                                             // or who is exclusive, may have changed since `held` was made
  std::vector<Account*> gone;                                       // without clients here
  std::vector<Account*> holding;                                    // for accounts_that_hold()
  std::vector<Account*> foreseen;                                   // of which a burst is foreseen
  Account* owner = nullptr;                                         // of Quota::owner; null: to be looked for
  FlatMap<std::pair<Instant, TenantId>, Account*> active, present;  // of those that are not busy: until when they count so
  int64_t limited = 0;                                              // how many with clients here have a limit

  std::optional<Present> counted;  // of all; none: something has changed since they were

  // Before those go of which `test` says so.
  template <typename Test>
  void forget(Test test) {
    for (auto* accounts : {&to_look, &to_judge, &to_hold, &to_rank, &apart, &runs, &held, &gone, &foreseen}) std::erase_if(*accounts, test);
    if (owner != nullptr && test(owner)) owner = nullptr;
  }
};

// From a drop to its answer.
struct HandOvers {
  std::array<Duration, kTailsKept> tails{};  // the latest
  size_t known = 0;                          // so many there were
  Duration cost = kHandOverAssumed;          // of one: the least of `tails`, or a bound

  void note(Duration tail) {
    tails[known++ % kTailsKept] = tail;
    const auto end = tails.begin() + static_cast<std::ptrdiff_t>(std::min(known, kTailsKept));
    cost = std::min(*std::min_element(tails.begin(), end), kHandOverMax);
  }
};

// What turns and savings on a GPU are measured by.
struct Pace {
  Duration period = kPeriodMax;
  bool rotates = false;  // GpuMode::kRotation
};

// A time in which tenants that left were owed something.
struct LeftTime {
  Duration time = 0;
  Instant until = 0;
  Pace pace;
  int64_t most = -1;  // after it: the quota of one without a ceiling below that; -1: as it was
};

// Accounts of tenants that left a debt: nothing but the time changes these, so that they cost nothing in most steps (quota_left.cc).
struct Left {
  Accounts accounts;                                        // all; their balances are as of `at`, but for those that rest
  std::vector<Account*> looked_at;                          // of these ten times a second, in the order of tenants
  FlatMap<std::pair<Instant, TenantId>, Account*> resting;  // the others, by when they were busy
  std::vector<LeftTime> times;                              // that are to be added to some that rest
  Instant at = 0;
  Duration earns = 0;    // since then: the time in which tenants were owed something
  bool settles = false;  // they are looked at in this step
};

struct Quota {
  Accounts accounts;  // of tenants with clients here, and of those that left in the last moment
  Left left;
  size_t accounts_here = 0;  // of those with clients
  Changes changes;
  Instant until = 0;            // the accounts are right as of this time
  Instant due = 0;              // until then news of memory is none for limits
  std::optional<Instant> wake;  // when they asked to be looked at
  Context* behind = nullptr;    // the step that has not brought the accounts up to date, because they may rest in it
  bool limited = false;
  bool over_asked = false;              // their ceilings add up to more than there is; none counts as all
  bool shares_known = false;            // they are those of the claims that there are
  std::optional<int64_t> most_of_idle;  // then: what one more would get without ceiling and reservation; none: it has to be worked out
  bool scaled_as_noted = false;         // the log has how reservations are scaled
  bool full_demand = false;             // the active tenants' quotas are all of the GPU
  GpuMode mode = GpuMode::kUnlimited;
  uint64_t mode_changes = 0;
  TenantId owner = 0;          // of the tenants that run one after the other: who may have the lock
  std::set<TenantId> skipped;  // could not get it when it was their turn
  Duration period = kPeriodMax;
  Instant window_start = 0;
  Duration last_window_length = 0;
  Instant next_sample = 0;
  Instant window_noted_at = 0;
  int64_t scale_noted = kWholeGpu;  // of the reservations, as the log has it last
  Instant scale_noted_at = 0;
  HandOvers hand_overs;
  Duration swap_time = 0;  // in which nobody ran because memory moved: nobody's

  Account* owners_account() { return changes.owner != nullptr ? changes.owner : accounts.find(owner); }  // null: it has none
};

void note_change(Quota& quota, Account& account);   // of what its clients do, its limits or its gaps
void note_verdict(Quota& quota, Account& account);  // may_run() may say something else of it
void set_owner(Quota& quota, Account* owner);       // null: it is nobody's turn
Account& add_account(Quota& quota, std::unique_ptr<Account> account);

// What a tenant asks of one GPU, and gets, in millionths of it.
struct Claim {
  int64_t reserved = 0;
  int64_t ceiling = kWholeGpu;  // at least reserved
  int64_t share = 0;
};
// Reservations may add up to all of the GPU, or leave kRestLeast while some claim has none: past that each is scaled by the same factor.
void scale_reservations(std::vector<Claim>& claims);
// Max-min fairness: max(reserved, min(ceiling, level)), with one level for all so that the shares add up to the whole GPU, or to all
// ceilings where these are less.
void share_out(std::vector<Claim>& claims);
// What one more would get, with reservations scaled for it.
int64_t share_beside(const std::vector<Claim>& claims, const Claim& more);

// Part of a duration; no overflow below a month.
Duration portion_of_long(Duration time, int64_t millionths);
inline Duration portion(Duration time, int64_t millionths) {
  constexpr Duration kProductFits = 9'000'000'000'000;  // times kWholeGpu; nearly all are, and cost one division
  if (time >= -kProductFits && time <= kProductFits && millionths <= kWholeGpu) [[likely]]
    return time * millionths / kWholeGpu;
  return portion_of_long(time, millionths);
}
// The same of whole per cents; no overflow below a year.
inline Duration percent_of(Duration time, int percent) { return time * percent / 100; }
// The time in which `rate` millionths add up to `amount`, rounded up.
Duration time_for(Duration amount, int64_t rate);

}  // namespace nvshare::policy
