// Who holds which segment of the host's memory for swapping, and the sums over that, which are kept as it changes: a question about all
// clients costs as much with ten thousand of them as with one. What is to be done with it is host_budget.h's.
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

namespace nvshare::scheduler {

using SegmentId = uint64_t;

class HostLedger {
 public:
  enum class Owner : uint8_t { kProcess, kScheduler };
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
    Bound bound = Bound::kNone;
    int64_t said_ready = 0, said_used = 0;  // as it reported last
    int64_t ready = 0;                      // of that, as far as it was lent
    int64_t used = 0;
    std::optional<Shrinking> shrinking;
    policy::Instant shrink_not_before = 0;
    int64_t empty_then = 0;  // when it answered that it had nothing to give back

    // The ledger's own: put(), take().
    std::map<SegmentId, Segment> segments;
    int64_t lent = 0;             // by all segments
    int64_t lent_scheduler = 0;   // by those that are the scheduler's
    int64_t there_scheduler = 0;  // by those of them that are there

    int64_t empty() const { return ready > used ? ready - used : 0; }
  };

  // Memory that is not to be used any more, or whose client has left.
  struct Leaving {
    policy::TenantId tenant = 0;
    policy::ClientId holder = 0;  // which has left without giving it back; 0: nobody is to have it
    int64_t bytes = 0;
    Owner owner = Owner::kScheduler;
    bool adopted = false;
    bool looking = true;  // it is being found out whether it is gone
    bool held = false;    // somebody had it when it was last looked
    policy::Duration pause = 0;
    policy::Instant look_at = 0;
  };
  struct Pooled {
    policy::TenantId tenant = 0;
    int64_t bytes = 0;
    policy::Instant until = 0;
  };
  struct Making {
    policy::ClientId client = 0;  // 0: it has left
    policy::TenantId tenant = 0;
    int64_t bytes = 0;
  };

  // ---- clients ----
  // What it was before, if it is here already, stays but for what `change` says.
  template <typename Change>
  void open(policy::ClientId client, Change change) {
    const auto [at, is_new] = accounts_.try_emplace(client);
    if (!is_new) count(client, at->second, -1);
    change(at->second);
    count(client, at->second, +1);
  }
  const Account* find(policy::ClientId client) const;
  // `change` may change all but the segments and their sums. Nothing happens if there is no such client.
  template <typename Change>
  void change(policy::ClientId client, Change change) {
    if (accounts_.contains(client)) open(client, std::move(change));
  }
  // Its segments are gone from the books with it.
  std::optional<Account> close(policy::ClientId client);
  const std::map<policy::ClientId, Account>& accounts() const { return accounts_; }
  const std::set<policy::ClientId>& unanswered() const { return unanswered_; }
  const std::set<policy::ClientId>& missing() const { return missing_; }      // answered, and could not have all
  const std::set<policy::ClientId>& shrinking() const { return shrinking_; }  // asked to give something back

  // ---- segments of clients ----
  void put(policy::ClientId client, SegmentId id, const Segment& segment);
  void take(SegmentId id);  // from whatever client has it
  void set_there(policy::ClientId client, SegmentId id);

  // ---- segments of nobody ----
  void put_making(SegmentId id, const Making& making);
  std::optional<Making> take_making(SegmentId id);
  void put_pooled(SegmentId id, const Pooled& pooled);
  std::optional<std::pair<SegmentId, Pooled>> take_pooled_of(policy::TenantId tenant);
  std::optional<std::pair<SegmentId, Pooled>> take_oldest_pooled(policy::Instant until);  // if it is kept until then at most
  void put_leaving(SegmentId id, const Leaving& leaving);
  std::optional<Leaving> take_leaving(SegmentId id);
  const Leaving* leaving(SegmentId id) const;
  // `change` may change all but the tenant and the bytes.
  template <typename Change>
  void change_leaving(SegmentId id, Change change) {
    std::optional<Leaving> leaving = take_leaving(id);
    if (!leaving) return;
    change(*leaving);
    put_leaving(id, *leaving);
  }
  std::set<SegmentId> left_by(policy::ClientId holder) const;
  bool has_left_some(policy::ClientId holder) const { return left_by_.contains(holder); }
  std::optional<SegmentId> to_look_at(policy::Instant now) const;  // of those that leave, one whose time has come
  std::optional<policy::Instant> next_time() const;                // when a pooled one is over, or one that leaves is to be looked at

  bool knows(SegmentId id) const;

  // ---- sums ----
  struct Sums {
    int64_t lent = 0;             // to clients
    int64_t lent_scheduler = 0;   // of that, the scheduler's own memory
    int64_t unbuilt = 0;          // of lent, not ready yet: it will come out of what the machine has
    int64_t used = 0;             // of lent, by swapped memory
    int64_t empty = 0;            // ready and unused
    int64_t empty_scheduler = 0;  // of that, in the scheduler's own memory
    int64_t pooled = 0;
    int64_t leaving = 0;
    int64_t coming_back = 0;       // of leaving, what nobody is known to keep
    int64_t making = 0;            // for clients or nobody
    int64_t making_nobodys = 0;    // of that, for clients that have left
    int64_t scheduler_owners = 0;  // clients that ask for the scheduler's memory
    int64_t tenants = 0;           // of clients

    bool operator==(const Sums&) const = default;
  };
  const Sums& sums() const { return sums_; }
  int64_t held_by(policy::TenantId tenant, bool of_scheduler_only) const;  // lent, pooled, leaving, or in the making for nobody
  int64_t segments_of(policy::TenantId tenant) const;                      // lent, pooled or leaving
  // What tenants use, leaving memory included: the most that one does, of those below `bound`.
  std::optional<int64_t> most_used_below(int64_t bound) const;

  // What is wrong in the sums, by counting everything anew; for tests. Empty: nothing.
  std::string wrong_in_sums() const;

 private:
  struct OfTenant {
    int64_t clients = 0;
    int64_t held = 0;
    int64_t held_scheduler = 0;
    int64_t segments = 0;
    int64_t leaving = 0;  // how many segments
    int64_t used = 0;     // by clients, and what leaves

    bool uses() const { return clients > 0 || leaving > 0; }
    bool operator==(const OfTenant&) const = default;
  };
  void count(policy::ClientId client, const Account& account, int sign);
  void count_segment(Account* account, const Segment& segment, int sign);
  std::pair<SegmentId, Pooled> take_pooled(SegmentId id);
  void count_leaving(SegmentId id, const Leaving& leaving, int sign);
  template <typename Change>
  void change_tenant(policy::TenantId tenant, Change change);

  std::map<policy::ClientId, Account> accounts_;
  std::map<SegmentId, policy::ClientId> client_of_;
  std::map<SegmentId, Making> making_;
  std::map<SegmentId, Leaving> leaving_;
  std::map<SegmentId, Pooled> pool_;
  // Indexes and sums of the above.
  std::set<policy::ClientId> unanswered_, missing_, shrinking_;
  std::set<std::pair<policy::TenantId, SegmentId>> pool_of_;
  std::set<std::pair<policy::Instant, SegmentId>> pool_until_;
  std::map<policy::ClientId, std::set<SegmentId>> left_by_;
  std::set<std::pair<policy::Instant, SegmentId>> look_at_;
  std::map<policy::TenantId, OfTenant> tenants_;
  std::multiset<int64_t> used_by_tenant_;
  Sums sums_;
};

}  // namespace nvshare::scheduler
