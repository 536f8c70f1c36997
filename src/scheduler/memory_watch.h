// What the figures of NVML and of the machine mean for the policy. Pure; one ForeignMemoryWatch per GPU, not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "policy/policy.h"
#include "scheduler/utilization_monitor.h"

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
// count, more foreign memory counts when seen twice in a row, and changes under 16 MiB are none.
class ForeignMemoryWatch {
 public:
  static constexpr int64_t kStep = 16LL << 20;
  static constexpr int kUnsteadyMax = 8;  // so many unsteady samples in a row, then their least is taken

  // `ours`: what the clients use, by the same sample. `untold`: memory that the GPU has beyond what we were told to use; foreign memory
  // lies there first. The new figure when it changed.
  std::optional<int64_t> update(const GpuSample& sample, int64_t ours, int64_t untold);
  int64_t bytes() const { return reported_; }

 private:
  std::optional<int64_t> previous_;
  int64_t reported_ = 0;
  int unsteady_ = 0;
};

// The memory that a client's process uses besides what it reported as resident: its context and modules. Known only when neither figure
// moved between two samples.
class OverheadWatch {
 public:
  static constexpr int64_t kStep = 8LL << 20;

  // `report`: counts the client's memory reports. The new figure when it changed.
  std::optional<int64_t> update(int64_t used, int64_t resident, uint64_t report);

 private:
  int64_t previous_used_ = -1;
  uint64_t previous_report_ = 0;
  std::optional<int64_t> reported_;
};

// The host's room for more swapped memory, as the policy is told it: again only when that matters.
class HostRoomWatch {
 public:
  // `moved`: memory was swapped since the last figure, so the policy's own reckoning differs from what it was told. The new figure when it
  // changed by more than a 64th or 64 MiB, or memory moved.
  std::optional<policy::HostMemory> update(policy::HostMemory room, bool moved);

 private:
  std::optional<policy::HostMemory> reported_;
};

// MemAvailable in bytes out of /proc/meminfo's text; 0 if it is not there.
int64_t available_memory(std::string_view meminfo);

}  // namespace nvshare::scheduler
