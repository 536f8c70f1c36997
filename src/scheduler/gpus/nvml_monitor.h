// Looks at the GPUs' memory, and at who uses their time, through NVML on a thread of its own, because a driver call may take long and the
// loop must not. The thread touches nothing but NVML; what it saw comes back on the loop's thread. Everything else is called on the loop's
// thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cuda/nvml.h"
#include "loop/event_loop.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/gpus/memory_watch.h"

namespace nvshare::scheduler {

class NvmlMonitor {
 public:
  using Callback = std::function<void(const std::vector<GpuSample>&)>;
  using ListCallback = std::function<void(const std::vector<GpuUuid>& mig_devices)>;

  NvmlMonitor(cuda::Nvml nvml, EventLoop& loop, Callback on_samples, ListCallback on_listed = {});
  ~NvmlMonitor();  // waits for a look in progress
  NvmlMonitor(const NvmlMonitor&) = delete;
  NvmlMonitor& operator=(const NvmlMonitor&) = delete;

  // The machine's GPUs, as they were at start.
  const std::vector<FoundGpu>& gpus() const { return gpus_; }

  // Asks which MIG devices there are now; the answer comes by on_listed, one for all that asked before NVML was.
  void list_mig_devices();

  // Looks at these GPUs every so often, from now on; never when there are none. At who uses the time of those of them that are also in
  // `shared`, every UtilizationMonitor::kInterval at most.
  void watch(std::vector<GpuUuid> gpus, std::vector<GpuUuid> shared, int64_t interval_ns);

 private:
  struct Device {
    FoundGpu gpu;
    cuda::NvmlDevice handle = nullptr;
    // Of the monitor's thread: up to when (CLOCK_REALTIME us) it is known who used the GPU's time, and when that was last asked
    // (monotonic).
    uint64_t use_known_us = 0;
    int64_t use_asked_at = 0;
  };

  void find_gpus();
  void run();
  void list() const;
  bool look_at(const Device& device, GpuSample* sample) const;
  std::optional<UseSample> look_at_use(Device& device) const;

  cuda::Nvml nvml_;
  EventLoop& loop_;
  std::shared_ptr<Callback> on_samples_;     // emptied when the monitor ends, so that a late post finds nothing to call
  std::shared_ptr<ListCallback> on_listed_;  // the same
  std::vector<Device> devices_;
  std::vector<FoundGpu> gpus_;

  Mutex mutex_;
  Condition changed_;
  std::vector<GpuUuid> watched_ GUARDED_BY(mutex_);
  std::vector<GpuUuid> shared_ GUARDED_BY(mutex_);
  int64_t interval_ns_ GUARDED_BY(mutex_) = 0;
  bool stop_ GUARDED_BY(mutex_) = false;
  bool look_now_ GUARDED_BY(mutex_) = false;
  bool list_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace nvshare::scheduler
