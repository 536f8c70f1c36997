// The node's host memory for swapping: who holds how much of it, who gets more, who gives back. It is lent in *segments*, which are either
// the client's own memory (the lease is only leave to make it) or memory that the scheduler makes and passes on (a memfd, charged to the
// scheduler's cgroup instead of the client's).
//
// Pure bookkeeping: no I/O, no clock. Each call takes in what happened; settle() then says what is to be done. Decisions follow from how
// things stand, so whatever changes (memory given back, a death, a timer) takes the same path. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
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
  static constexpr policy::Duration kShrinkPatience = 2'000'000'000;
  static constexpr policy::Duration kShrinkAgain = 10'000'000'000;  // after an answer that gave nothing
  static constexpr policy::Duration kPoolKept = 60'000'000'000;

  enum class Owner : uint8_t { kProcess, kScheduler };
  // What keeps somebody from getting more.
  enum class Bound : uint8_t { kNone, kBudget, kAvailable, kOwnCgroup, kCannotMake };

  // `make_id`: ids of segments. Random ones, so that nobody guesses another's, and none of an earlier scheduler's comes again.
  explicit HostBudget(std::function<SegmentId()> make_id) : make_id_(std::move(make_id)) {}

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

  void join(policy::ClientId client, policy::TenantId tenant);
  // Its memory is gone, or will be within moments.
  void leave(policy::ClientId client);
  // Wants segments of `total` bytes in sum. `urgent`: it has to swap out now; else it only prepares for that, and takes what is free.
  void request(policy::ClientId client, uint64_t request, int64_t total, Owner owner, bool urgent);
  void returned(policy::ClientId client, SegmentId segment, policy::Instant now);
  void shrunk(policy::ClientId client, uint64_t shrink, int64_t bytes, policy::Instant now);
  // It says that it has the segment from an earlier scheduler. Of an id that this one knows nothing is believed.
  void held(policy::ClientId client, SegmentId segment, int64_t bytes, Owner owner);
  // What it reports: bytes of its segments that are ready, and of them in use.
  void report(policy::ClientId client, int64_t ready, int64_t used);
  // A segment asked for by Make is there, or could not be made.
  void made(SegmentId segment, bool there);
  // A segment that was to be lent cannot be passed on.
  void cannot_hand_over(policy::ClientId client, SegmentId segment);
  // What Discard asked for has been done: the machine has the memory back.
  void discarded(SegmentId segment) { discarding_.erase(segment); }

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
  struct Discard {  // memory of the scheduler's that nobody is to have any more
    SegmentId segment;
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
    Owner owner = Owner::kProcess;
    bool urgent = false;
    bool answered = true;
    int64_t missing = 0;
    Bound bound = Bound::kNone;
    std::map<SegmentId, Segment> segments;
    int64_t ready = 0;
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

  int64_t reserved() const;
  int64_t unbuilt() const;  // lent and not ready yet: it will come out of MemAvailable
  int64_t pooled() const;
  // What may be lent at once, and what bounds it.
  int64_t free_for(Owner owner, Bound* bound) const;
  void serve(policy::ClientId client, Account& account, policy::Instant now);
  void fail(policy::ClientId client, Account& account, SegmentId segment);
  bool lend_pooled(policy::ClientId client, Account& account);
  int64_t discard_pooled(int64_t bytes);
  void discard(SegmentId segment);
  bool knows(SegmentId segment) const;
  SegmentId fresh_id() const;
  // Asks who has unused segments for `bytes`, less what is asked for already.
  void reclaim(int64_t bytes, const Account* beneficiary, policy::Instant now);
  bool memory_comes_back() const;  // within moments

  std::optional<int64_t> budget_;
  std::optional<int64_t> kept_free_;
  Machine machine_;
  int64_t elsewhere_ = 0;
  std::map<policy::ClientId, Account> accounts_;
  std::map<SegmentId, policy::ClientId> making_;  // for whom; 0: it has left
  std::set<SegmentId> discarding_;
  std::map<SegmentId, Pooled> pool_;
  std::vector<Decision> decisions_;  // of the next settle()
  std::function<SegmentId()> make_id_;
  uint64_t next_arrival_ = 1;
  uint64_t next_shrink_ = 1;
};

// "the budget (host_memory_budget)", ... for people.
const char* describe(HostBudget::Bound bound);

}  // namespace nvshare::scheduler
