// Segments of the host's memory for swapping that no client has: in the making, kept for a tenant's next use, or on their way out. They
// count in the HostSums that is given. Pure bookkeeping; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "policy/policy.h"
#include "scheduler/host/host_sums.h"

namespace nvshare::scheduler {

using SegmentId = uint64_t;
enum class SegmentOwner : uint8_t { kProcess, kScheduler };

class UnownedSegments {
 public:
  using Owner = SegmentOwner;
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

  explicit UnownedSegments(HostSums& sums) : sums_(sums) {}
  UnownedSegments(const UnownedSegments&) = delete;  // a copy would count in the sums of the original
  UnownedSegments& operator=(const UnownedSegments&) = delete;

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
  bool knows(SegmentId id) const { return making_.contains(id) || leaving_.contains(id) || pool_.contains(id); }

  // Puts all of it into another's books.
  void copy_to(UnownedSegments* other) const;
  // Null: the indexes are as those of `anew`; else which is not.
  const char* differs_from(const UnownedSegments& anew) const;

 private:
  std::pair<SegmentId, Pooled> take_pooled(SegmentId id);
  void count_leaving(SegmentId id, const Leaving& leaving, int sign);

  HostSums& sums_;
  std::map<SegmentId, Making> making_;
  std::map<SegmentId, Leaving> leaving_;
  std::map<SegmentId, Pooled> pool_;
  // Indexes of the above.
  std::set<std::pair<policy::TenantId, SegmentId>> pool_of_;
  std::set<std::pair<policy::Instant, SegmentId>> pool_until_;
  std::map<policy::ClientId, std::set<SegmentId>> left_by_;
  std::set<std::pair<policy::Instant, SegmentId>> look_at_;
};

}  // namespace nvshare::scheduler
