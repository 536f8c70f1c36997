// Which client holds which segment of the host's memory for swapping, and the sums over that, which are kept as it changes: a question
// about all clients costs as much with ten thousand of them as with one. What is to be done with it is host_budget.h's.
//
// Pure bookkeeping: no I/O, no clock. Not thread-safe. Amounts are bytes, and none is negative.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "policy/policy.h"
#include "scheduler/hashed_map.h"
#include "scheduler/host/host_sums.h"
#include "scheduler/host/unowned_segments.h"

namespace nvshare::scheduler {

class HostLedger {
 public:
  using Owner = SegmentOwner;
  // What keeps a client from getting more.
  enum class Bound : uint8_t { kNone, kBudget, kAvailable, kOwnCgroup, kCannotMake, kShare };

  struct Segment {
    int64_t bytes = 0;
    Owner owner = Owner::kProcess;
    bool there = true;     // false: being made
    bool adopted = false;  // of an earlier scheduler: we have no descriptor of it
  };
  struct Shrinking {
    uint64_t id = 0;
    int64_t bytes = 0;
    policy::Instant until = 0;
    bool asked_since = false;  // the client has asked for more: beside what it keeps, which nobody knows until it has answered
    int64_t lent_then = 0;     // to the client, when it was asked
    bool overdue = false;      // nobody waits for the answer any more; the client may give memory back for it yet
  };
  struct Account {
    policy::TenantId tenant = 0;
    uint64_t arrival = 0;  // of its request
    uint64_t request = 0;
    int64_t wanted = 0;  // in all
    int64_t beyond = 0;  // asked for beyond what it can need
    int64_t most = 0;
    int64_t held_process = 0;  // that may still be said to be from an earlier scheduler
    int64_t held_scheduler = 0;
    Owner owner = Owner::kProcess;  // of what it asks for
    bool urgent = false;
    bool answered = true;
    int64_t missing = 0;
    policy::Instant waits_since = 0;  // for what others give back; 0: it does not
    Bound bound = Bound::kNone;
    int64_t said_ready = 0, said_used = 0;  // as it reported last
    int64_t ready = 0;                      // of that, as far as it was lent
    int64_t used = 0;
    std::optional<Shrinking> shrinking;  // not answered yet
    policy::Instant shrink_not_before = 0;
    int64_t slack_then = 0;  // the least since it answered that it had nothing to give back

    // The ledger's own: put(), take().
    std::map<SegmentId, Segment> segments;
    int64_t lent = 0;             // by all segments
    int64_t lent_scheduler = 0;   // by those that are the scheduler's
    int64_t there_scheduler = 0;  // by those of them that are there
    int64_t adopted = 0;          // by all that are of an earlier scheduler

    // It has some, may have some of before, or waits for some.
    bool has_or_wants() const { return !segments.empty() || held_process > 0 || held_scheduler > 0 || missing > 0 || !answered; }
    int64_t empty() const { return ready > used ? ready - used : 0; }
    int64_t slack() const { return ready - said_used; }  // negative: more is swapped than it has places for
    // More of its memory is swapped than it has places for, so that some was never written: how much of the places is unused it alone
    // knows.
    bool may_have_empty() const { return ready > 0 && said_used > said_ready; }
    bool is_awaited() const { return shrinking && !shrinking->overdue; }  // its answer to a Shrink
  };

  // ---- clients ----
  // What it was before, if it is here already, stays but for what `change` says.
  template <typename Change>
  void open(policy::ClientId client, Change change) {
    const auto [account, is_new] = accounts_.try_emplace(client);
    if (!is_new) count(client, *account, -1);
    change(*account);
    count(client, *account, +1);
  }
  const Account* find(policy::ClientId client) const { return accounts_.find(client); }
  // `change` may change all but the segments and their sums. Nothing happens if there is no such client.
  template <typename Change>
  void change(policy::ClientId client, Change change) {
    if (find(client) != nullptr) open(client, std::move(change));
  }
  // Its segments are gone from the books with it.
  std::optional<Account> close(policy::ClientId client);
  const std::map<policy::ClientId, Account>& accounts() const { return accounts_.in_order(); }
  const std::set<policy::ClientId>& unanswered() const { return unanswered_; }
  const std::set<policy::ClientId>& missing() const { return missing_; }  // answered, and could not have all
  const std::set<policy::ClientId>& may_have_empty() const { return may_have_empty_; }
  const std::set<policy::ClientId>& shrinking() const { return shrinking_; }  // asked to give something back, and its answer is awaited

  // ---- segments of clients ----
  void put(policy::ClientId client, SegmentId id, const Segment& segment);
  void take(SegmentId id);  // from whatever client has it
  void set_there(policy::ClientId client, SegmentId id);

  // ---- segments of no client ----
  UnownedSegments& unowned() { return unowned_; }  // one in the making for a client is here, too
  const UnownedSegments& unowned() const { return unowned_; }
  bool knows(SegmentId id) const { return client_of_.contains(id) || unowned_.knows(id); }

  const HostSums& sums() const { return sums_; }  // over both
  std::set<policy::TenantId> take_changed() { return sums_.take_changed(); }

  // What is wrong in the sums, by counting everything anew; for tests. Empty: nothing.
  std::string wrong_in_sums() const;

 private:
  void count(policy::ClientId client, const Account& account, int sign);
  void count_segment(Account* account, const Segment& segment, int sign);

  HostSums sums_;
  UnownedSegments unowned_{sums_};
  HashedMap<policy::ClientId, Account> accounts_;
  std::map<SegmentId, policy::ClientId> client_of_;
  // Indexes of the above.
  std::set<policy::ClientId> unanswered_, missing_, may_have_empty_, shrinking_;
};

}  // namespace nvshare::scheduler
