// What the figures of NVML and of the machine mean for the policy. Pure; one ForeignMemoryWatch per GPU, not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "policy/policy.h"
#include "scheduler/gpus/utilization_monitor.h"
#include "scheduler/host/host_sums.h"

namespace nvshare::scheduler {

using GpuUuid = std::array<uint8_t, 16>;

struct ProcessMemory {
  int32_t pid = 0;
  int64_t used = 0;  // bytes
};

// One look at one GPU's memory. The kernel does not hold still meanwhile: `used` is read before and after the list of processes.
struct GpuSample {
  GpuUuid uuid{};
  int64_t taken_at = 0;  // CLOCK_MONOTONIC ns, before anything was read
  int64_t used_before = 0;
  int64_t used_after = 0;
  std::vector<ProcessMemory> processes;
  std::optional<UseSample> use;  // where that was asked for, about once a second
};

// Null: it is not listed.
const ProcessMemory* find_process(const GpuSample& sample, int32_t pid);
// Memory in use that no process is listed with.
int64_t unexplained_memory(const GpuSample& sample);

// Memory on one GPU that belongs to nobody we know. Jumpy figures become steady ones: what memory moved while it was looked at does not
// count, more foreign memory counts when seen twice in a row, and changes under 16 MiB are none. Where it is taken from what clients tell
// instead of what NVML lists them with, less may mean that some of them moved memory out and have not told it yet: it counts when nothing
// moves. What a client has that NVML no longer lists may be gone as well: while that is not known, the figure stays as it is within what is
// possible.
class ForeignMemoryWatch {
 public:
  static constexpr int64_t kStep = 16LL << 20;
  static constexpr int kUnsteadyMax = 8;  // so many unsteady samples in a row, then their least is taken
  static constexpr int kMovingMax = 8;    // so many that show less while memory moves, then the largest of them is taken

  // `ours`: what the clients use, by the same sample. `untold`: memory that the GPU has beyond what we were told to use; foreign memory
  // lies there first. `told`: where `ours` comes from what clients tell. `unlisted`: of `ours`, what may be free by now, as its process is
  // listed no more. The new figure when it changed.
  struct Told {
    uint64_t moves = 0;    // changes with what they tell
    int64_t leaving = 0;   // what they were asked to move out and have not told: it may be gone already
    int64_t contexts = 0;  // what their contexts are reckoned to take, in `ours`
  };
  std::optional<int64_t> update(const GpuSample& sample, int64_t ours, int64_t untold, std::optional<Told> told = {}, int64_t unlisted = 0);
  int64_t bytes() const { return reported_; }

 private:
  bool is_moving(int64_t used, std::optional<Told> told);
  int64_t while_leaving(int64_t believed, const Told& told);

  std::optional<int64_t> previous_;
  int64_t reported_ = 0;
  int unsteady_ = 0;
  int64_t previous_used_ = -1;
  std::optional<uint64_t> previous_moves_;
  int moving_ = 0;
  int64_t largest_ = 0;   // of those that showed less while memory moved
  int64_t contexts_ = 0;  // reckoned when nothing was leaving, or for the figure reported since
};

// The memory that a client's process uses besides what it reported as resident: its context and modules. Known only when neither figure
// moved between two samples.
class OverheadWatch {
 public:
  static constexpr int64_t kStep = 8LL << 20;

  // `moves`: counts the client's reports that had another figure. The new figure when it changed.
  std::optional<int64_t> update(int64_t used, int64_t resident, uint64_t moves);

 private:
  int64_t previous_used_ = -1;
  uint64_t previous_moves_ = 0;
  std::optional<int64_t> reported_;
};

// The host's room for more swapped memory, as the policy is told it: again only when that matters, by more than a 64th or 64 MiB. Less is
// told at once, more at most every kMoreAfter: the policy looks at all that waits for it. What each call costs follows from how many
// tenants changed since, not from how many there are.
class HostRoomWatch {
 public:
  static constexpr policy::Duration kMoreAfter = 10'000'000;

  // The tenant uses so much more, as the policy knows already (SwapProgressed::host_more).
  void reckoned(policy::TenantId tenant, int64_t more);
  // The policy reckons with what moved, and it is not known how much of that was host memory: told again with the next update.
  void unsure_of(policy::TenantId tenant) { unsure_.insert(tenant); }
  // `room` without what tenants use, which is `sums`'; `changed`: those of which that changed since.
  std::optional<policy::HostMemory> update(const policy::HostMemory& room, const HostSums& sums, const std::set<policy::TenantId>& changed,
                                           policy::Instant now);
  // When update() is to be called again, as it has more to tell; none: when something changes.
  std::optional<policy::Instant> due() const { return due_; }

 private:
  enum class Differs { kNot, kMore, kLess };
  Differs compare(const policy::HostMemory& room, const HostSums& sums);
  policy::HostMemory tell(policy::HostMemory room, const HostSums& sums, policy::Instant now);

  std::optional<policy::HostMemory> told_;    // without what tenants use; less what the policy has reckoned with since
  std::map<policy::TenantId, int64_t> uses_;  // as the policy has them
  std::set<policy::TenantId> changed_;        // to be compared
  std::set<policy::TenantId> off_;            // that differ, if by little: to be told with the next
  std::set<policy::TenantId> unsure_;
  policy::Instant told_at_ = 0;
  std::optional<policy::Instant> due_;
};

// MemAvailable in bytes out of /proc/meminfo's text; 0 if it is not there.
int64_t available_memory(std::string_view meminfo);

}  // namespace nvshare::scheduler
