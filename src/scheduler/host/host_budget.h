// The node's host memory for swapping: who holds how much of it, who gets more, who gives back. It is lent in *segments*, which are either
// the client's own memory (lending it is only leave to make it) or memory that the scheduler makes and passes on (a memfd, charged to the
// scheduler's cgroup instead of the client's).
//
// Two rules keep it from liars (docs/adr/0015). What is lent counts until it is known to be gone: a segment that was given back, or whose
// holder has left, is Discarded and counts until nobody has it any more. And an eighth is kept for tenants that hold little.
//
// Pure bookkeeping: no I/O, no clock. Each call takes in what happened; settle() then says what is to be done. Decisions follow from how
// things stand, so whatever changes (memory given back, a death, a timer) takes the same path. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "policy/policy.h"
#include "scheduler/host/host_ledger.h"

namespace nvshare::scheduler {

class HostBudget {
 public:
  static constexpr int64_t kUnit = 2LL << 20;          // segments are multiples of it
  static constexpr int64_t kSegmentMax = 256LL << 20;  // the largest
  static constexpr int64_t kPieceMax = 64LL << 20;     // what swapping needs in one piece
  // A tenant that has so many gets none below kPieceMax: each of the scheduler's takes a descriptor.
  static constexpr int64_t kSegmentsSmall = 256;
  static constexpr policy::Duration kShrinkPatience = 2'000'000'000;
  static constexpr policy::Duration kShrinkPatienceInAll = 2 * kShrinkPatience;  // of who asked, however many give little by little
  static constexpr policy::Duration kShrinkAgain = 10'000'000'000;               // after an answer that gave nothing
  static constexpr policy::Duration kPoolKept = 60'000'000'000;
  static constexpr policy::Duration kLookAgain = 50'000'000;  // whether somebody still has a segment; then twice that, and so on, up to
  static constexpr policy::Duration kLookAgainMost = 1'000'000'000;

  using Owner = HostLedger::Owner;
  using Bound = HostLedger::Bound;

  // `make_id`: ids of segments. Random ones, so that nobody guesses another's, and none of an earlier scheduler's comes again.
  // `kept_part`: one part of so many is kept for tenants that hold little, where that is at least kPieceMax; 0: none.
  explicit HostBudget(std::function<SegmentId()> make_id, int64_t kept_part = 8) : make_id_(std::move(make_id)), kept_part_(kept_part) {}

  // ---- what happened ----
  struct Machine {
    int64_t available = 0;            // the kernel's MemAvailable
    std::optional<int64_t> own_room;  // what the scheduler's own cgroup leaves it; nullopt: no limit
  };
  // Unless it is set, the first look says what is kept free: a fifth of what was available then.
  void observe(const Machine& machine);
  struct Bounds {
    std::optional<int64_t> budget;     // nullopt: none
    std::optional<int64_t> kept_free;  // nullopt: as it is
  };
  void set_bounds(const Bounds& bounds) {
    budget_ = bounds.budget;
    if (bounds.kept_free) kept_free_ = bounds.kept_free;
  }
  // Swapped bytes that lie in host memory outside of any segment (managed memory).
  void set_elsewhere(int64_t bytes) { elsewhere_ = bytes; }

  struct Member {
    policy::TenantId tenant = 0;
    int64_t most = 0;  // that it can ever need: a bound by its GPU's size. 0: none
    // What of its memory may be from an earlier scheduler, as far as can be known without it.
    int64_t held_process = 0;
    int64_t held_scheduler = 0;
    policy::ClientId former = 0;  // the same process on the same GPU, whose connection broke; 0: none
  };
  void join(policy::ClientId client, const Member& member);
  // Its memory may be gone, or its connection only: Discard finds out.
  void leave(policy::ClientId client);
  // Wants segments of `total` bytes in sum. `urgent`: it has to swap out now; else it only prepares for that, and takes what is free.
  void request(policy::ClientId client, uint64_t request, int64_t total, Owner owner, bool urgent);
  void returned(policy::ClientId client, SegmentId segment, policy::Instant now);
  void shrunk(policy::ClientId client, uint64_t shrink, int64_t bytes, policy::Instant now);
  // It says that it has the segment from an earlier connection: of this scheduler, where that is so, or of an earlier one, as far as
  // `Member` allows it.
  void held(policy::ClientId client, SegmentId segment, int64_t bytes, Owner owner);
  // What it reports: bytes of its segments that are ready, and of its memory that may lie there. The latter may be more: not all of that
  // was ever written.
  void report(policy::ClientId client, int64_t ready, int64_t used);
  // A segment asked for by Make is there, or could not be made.
  void made(SegmentId segment, bool there);
  // A segment that was to be lent cannot be passed on.
  void cannot_hand_over(policy::ClientId client, SegmentId segment);
  // What Discard asked for has been done: nobody has it, and the machine has the memory back.
  void discarded(SegmentId segment);
  // Somebody still has it: Discard again, later.
  void still_held(SegmentId segment, policy::Instant now);

  // ---- what is to be done ----
  struct Make {
    SegmentId segment;
    int64_t bytes;
  };
  struct Lend {  // an Owner::kScheduler segment is in the caller's hands
    policy::ClientId client;
    SegmentId segment;
    int64_t bytes;
    Owner owner;
  };
  struct Refuse {  // what it asked for, as far as it has not been lent
    policy::ClientId client;
    uint64_t request;
    int64_t missing;
  };
  struct Shrink {  // ask it to give back unused segments
    policy::ClientId client;
    uint64_t shrink;
    int64_t bytes;
  };
  struct Discard {  // find out whether it is gone
    SegmentId segment;
    policy::ClientId holder;  // which has left without giving it back, and is to keep it while its process lives; 0: nobody is to have it
  };
  using Decision = std::variant<Make, Lend, Refuse, Shrink, Discard>;
  std::vector<Decision> settle(policy::Instant now);
  // When to call settle() next if nothing happens before.
  std::optional<policy::Instant> next_deadline() const;

  // ---- how things stand ----
  struct View {
    policy::HostMemory for_policy;  // without what tenants use: ledger().sums()
    int64_t room = 0;               // more that could be swapped out, for people: by the tenant within its share that uses most
    int64_t budget = 0;             // that can be lent in all, as things stand
    int64_t reserved = 0;           // lent, in the making, or kept for a tenant's next use
    int64_t used = 0;               // by swapped memory
    int64_t pooled = 0;             // of the reserved, kept for a tenant's next use
    Bound bound = Bound::kNone;
  };
  View view() const;
  std::set<policy::TenantId> take_changed() { return ledger_.take_changed(); }  // tenants whose use has changed since
  struct ClientView {
    int64_t lent_process = 0;
    int64_t lent_scheduler = 0;
    int64_t missing = 0;  // that it asked for and could not have
    bool urgent = false;  // it asked for that to swap out
    Bound bound = Bound::kNone;
  };
  ClientView view(policy::ClientId client) const;
  const HostLedger& ledger() const { return ledger_; }

 private:
  using Account = HostLedger::Account;

  int64_t kept_free() const { return kept_free_.value_or(0); }
  // More that could be swapped out if no tenant's were kept for others. What is lent and unused counts, as it can be had back.
  int64_t room() const;
  int64_t used() const { return elsewhere_ + ledger_.sums().all.used; }
  std::optional<int64_t> room_of_own() const;  // of that, where somebody can have no other memory than the scheduler's
  policy::HostMemory room_for_policy() const;
  int64_t kept(int64_t total) const;
  void apply_report(policy::ClientId client);
  int64_t reserved() const;
  // Of `raw` free bytes of `total`, what a tenant that holds so much may have.
  int64_t left_for(int64_t held, int64_t raw, int64_t total, int64_t share) const;
  int64_t share(int64_t total) const { return total / (ledger_.sums().all.tenants + 1); }  // of each tenant, and as much for one that comes
  // What may be lent at once, and what bounds it.
  int64_t free_for(Owner owner, std::optional<policy::TenantId> tenant, Bound* bound) const;
  int64_t own_cgroup_free() const { return *machine_.own_room - ledger_.sums().all.making; }  // what is in the making will take its part
  void serve(policy::ClientId client, policy::Instant now);
  void fail(policy::ClientId client, SegmentId segment);
  // What it asked for: `missing` for `bound`, and `beyond` what it can need.
  void refuse(policy::ClientId client, int64_t missing, int64_t beyond, Bound bound);
  bool lend_pooled(policy::ClientId client, policy::TenantId tenant);
  int64_t discard_pooled(int64_t bytes);
  void discard(SegmentId segment, policy::TenantId tenant, int64_t bytes);
  void look_again(policy::Instant now);
  SegmentId fresh_id() const;
  // Asks who has unused segments for `bytes`, less what is asked for already.
  void reclaim(int64_t bytes, std::optional<policy::ClientId> beneficiary, policy::Instant now);
  void give_up_shrinking(policy::Instant now);
  // Asks for what it lacks. True: it is answered once that has come.
  bool waits_for_others(policy::ClientId client, int64_t missing, policy::Instant now);
  int64_t claimable(policy::TenantId tenant) const;

  std::optional<int64_t> budget_;
  std::optional<int64_t> kept_free_;
  Machine machine_;
  int64_t elsewhere_ = 0;
  HostLedger ledger_;
  std::vector<Decision> decisions_;  // of the next settle()
  std::function<SegmentId()> make_id_;
  int64_t kept_part_;
  uint64_t next_arrival_ = 1;
  uint64_t next_shrink_ = 1;
};

// "the budget (host_memory_budget)", ... for people.
const char* describe(HostBudget::Bound bound);

}  // namespace nvshare::scheduler
