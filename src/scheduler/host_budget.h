// The node's host memory for swapping: who holds how much of it, who gets more, who gives back. It is lent in *segments*, which are either
// the client's own memory (the lease is only leave to make it) or memory that the scheduler makes and passes on (a memfd, charged to the
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
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "policy/policy.h"

namespace nvshare::scheduler {

using SegmentId = uint64_t;

class HostBudget {
 public:
  static constexpr int64_t kUnit = 2LL << 20;          // segments are multiples of it
  static constexpr int64_t kSegmentMax = 256LL << 20;  // the largest
  static constexpr int64_t kPieceMax = 64LL << 20;     // what swapping needs in one piece
  // A tenant that has so many gets none below kPieceMax: each of the scheduler's takes a descriptor.
  static constexpr int64_t kSegmentsSmall = 256;
  static constexpr policy::Duration kShrinkPatience = 2'000'000'000;
  static constexpr policy::Duration kShrinkAgain = 10'000'000'000;  // after an answer that gave nothing
  static constexpr policy::Duration kPoolKept = 60'000'000'000;
  static constexpr policy::Duration kLookAgain = 50'000'000;  // whether somebody still has a segment; then twice that, and so on, up to
  static constexpr policy::Duration kLookAgainMost = 1'000'000'000;

  enum class Owner : uint8_t { kProcess, kScheduler };
  // What keeps somebody from getting more.
  enum class Bound : uint8_t { kNone, kBudget, kAvailable, kOwnCgroup, kCannotMake, kShare };

  // `make_id`: ids of segments. Random ones, so that nobody guesses another's, and none of an earlier scheduler's comes again.
  // `kept_part`: one part of so many is kept for tenants that hold little, where that is at least kPieceMax; 0: none.
  explicit HostBudget(std::function<SegmentId()> make_id, int64_t kept_part = 8) : make_id_(std::move(make_id)), kept_part_(kept_part) {}

  // ---- what happened ----
  struct Machine {
    int64_t available = 0;            // the kernel's MemAvailable
    std::optional<int64_t> own_room;  // what the scheduler's own cgroup leaves it; nullopt: no limit
  };
  // The first look says what is kept free: a fifth of what was available then.
  void observe(const Machine& machine);
  void set_budget(std::optional<int64_t> bytes) { budget_ = bytes; }
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
  // What it reports: bytes of its segments that are ready, and of them in use.
  void report(policy::ClientId client, int64_t ready, int64_t used);
  // A segment asked for by Make is there, or could not be made.
  void made(SegmentId segment, bool there);
  // A segment that was to be lent cannot be passed on.
  void cannot_hand_over(policy::ClientId client, SegmentId segment);
  // What Discard asked for has been done: nobody has it, and the machine has the memory back.
  void discarded(SegmentId segment);
  // Somebody still has it: Discard again, later.
  void still_held(SegmentId segment, policy::Instant now);
  // Whether something of this client's, which has left, is not gone yet.
  bool awaits(policy::ClientId client) const;

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
  // For the policy: more that could be swapped out. What is lent and unused counts, as it can be had back.
  int64_t room() const;

  struct View {
    int64_t budget = 0;    // that can be lent in all, as things stand
    int64_t reserved = 0;  // lent, in the making, or kept for a tenant's next use
    int64_t used = 0;      // by swapped memory
    int64_t pooled = 0;    // of the reserved, kept for a tenant's next use
    Bound bound = Bound::kNone;
  };
  View view() const;
  int64_t used() const { return elsewhere_ + used_; }  // View::used
  struct ClientView {
    int64_t lent_process = 0;
    int64_t lent_scheduler = 0;
    int64_t missing = 0;  // that it asked for and could not have
    bool urgent = false;  // it asked for that to swap out
    Bound bound = Bound::kNone;
  };
  ClientView view(policy::ClientId client) const;
  int64_t kept_free() const { return kept_free_.value_or(0); }

 private:
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
    Owner owner = Owner::kProcess;
    bool urgent = false;
    bool answered = true;
    int64_t missing = 0;
    Bound bound = Bound::kNone;
    std::map<SegmentId, Segment> segments;
    int64_t said_ready = 0, said_used = 0;  // as it reported last
    int64_t ready = 0;                      // of that, as far as it was lent
    int64_t used = 0;
    std::optional<Shrinking> shrinking;
    policy::Instant shrink_not_before = 0;

    int64_t lent() const;
    int64_t empty() const { return ready > used ? ready - used : 0; }
  };
  struct Pooled {
    policy::TenantId tenant = 0;
    int64_t bytes = 0;
    policy::Instant until = 0;
  };

  // Memory that is not to be used any more, or whose client has left.
  struct Leaving {
    policy::TenantId tenant = 0;
    policy::ClientId holder = 0;  // as in Discard
    int64_t bytes = 0;
    Owner owner = Owner::kScheduler;
    bool adopted = false;
    bool looking = true;  // Discard is out
    bool held = false;    // somebody had it when it was last looked
    policy::Duration pause = kLookAgain;
    policy::Instant look_at = 0;
  };

  void apply_report(Account& account);
  int64_t reserved() const;
  int64_t leaving() const;
  int64_t held_by(policy::TenantId tenant, bool of_scheduler_only) const;
  // Of `raw` free bytes of `total`, what a tenant that holds so much may have.
  int64_t left_for(int64_t held, int64_t raw, int64_t total, int64_t share) const;
  int64_t share(int64_t total) const;  // of each tenant
  int64_t segments_of(policy::TenantId tenant) const;
  int64_t unbuilt() const;  // lent and not ready yet: it will come out of MemAvailable
  int64_t pooled() const;
  // What may be lent at once, and what bounds it.
  int64_t free_for(Owner owner, std::optional<policy::TenantId> tenant, Bound* bound) const;
  int64_t own_cgroup_free() const;
  void serve(policy::ClientId client, Account& account, policy::Instant now);
  void fail(policy::ClientId client, Account& account, SegmentId segment);
  bool lend_pooled(policy::ClientId client, Account& account);
  int64_t discard_pooled(int64_t bytes);
  void discard(SegmentId segment, policy::TenantId tenant, int64_t bytes);
  void look_again(policy::Instant now);
  bool knows(SegmentId segment) const;
  SegmentId fresh_id() const;
  // Asks who has unused segments for `bytes`, less what is asked for already.
  void reclaim(int64_t bytes, const Account* beneficiary, policy::Instant now);
  int64_t on_its_way_back() const;
  bool memory_comes_back() const;  // within moments

  std::optional<int64_t> budget_;
  std::optional<int64_t> kept_free_;
  Machine machine_;
  int64_t elsewhere_ = 0;
  std::map<policy::ClientId, Account> accounts_;
  int64_t used_ = 0;      // by all accounts
  size_t shrinking_ = 0;  // of the accounts: how many have been asked to give something back
  struct Making {
    policy::ClientId client = 0;  // 0: it has left
    policy::TenantId tenant = 0;
    int64_t bytes = 0;
  };
  std::map<SegmentId, Making> making_;
  std::map<SegmentId, Leaving> leaving_;
  std::map<SegmentId, Pooled> pool_;
  std::vector<Decision> decisions_;  // of the next settle()
  std::function<SegmentId()> make_id_;
  int64_t kept_part_;
  uint64_t next_arrival_ = 1;
  uint64_t next_shrink_ = 1;
};

// "the budget (host_memory_budget)", ... for people.
const char* describe(HostBudget::Bound bound);

}  // namespace nvshare::scheduler
