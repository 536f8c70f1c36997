// The tenant's memory limit on one GPU, as far as this process knows it: what holds and who set it, what this process may charge without
// asking (lease.h), what programs are to see of the GPU. Told by the scheduler; alone, by the program's environment (own_limit.h).
//
// Thread-safe. Its mutex is a leaf. What changes the lease is told to the scheduler in the same order: under Turns' mutex.
#pragma once

#include <atomic>
#include <cstdint>

#include "interposer/gpu_name.h"
#include "interposer/memory/limits/lease.h"
#include "interposer/memory/limits/recent_ceilings.h"
#include "interposer/sync.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class MemoryLimit {
 public:
  explicit MemoryLimit(const GpuName& gpu) : gpu_(gpu) {}

  // The tenant's; 0 = none.
  uint64_t bytes() const { return bytes_.load(std::memory_order_acquire); }
  // What the tenant's processes have charged against it, this one included; of the others as of some 50 ms ago.
  uint64_t tenant_charged() const { return lease_.charged() + others_charged_.load(std::memory_order_acquire); }
  uint64_t charged() const { return lease_.charged(); }
  // What an allocation can never pass.
  size_t ceiling() const { return ceiling_.load(std::memory_order_acquire); }
  // For an allocation that is above the ceiling with so much in all: it was below until a moment ago, and has not waited for long.
  bool may_rise_to(size_t bytes, CeilingWait* wait);
  // The GPU's size as programs are to see it; 0: as the driver says.
  uint64_t gpu_total() const { return gpu_total_.load(std::memory_order_acquire); }
  Lease& lease() { return lease_; }
  uint64_t leased() const;  // as the scheduler is told

  // From the program's environment. False: a variable's value is wrong, and the log says which.
  bool read_own();
  uint64_t own() const { return own_; }
  uint64_t by_node();  // of the limit what the node says; 0 = none

  // No scheduler: the program's own limit is all there is.
  void alone();
  // What the scheduler that was just registered with says.
  void set(const protocol::Registered& terms);
  void update(const protocol::UpdateLimit& message);  // and says so in the log
  void update(const protocol::Headroom& message);

  void log_limit();
  // An allocation past the limit: a warning, at once the first time, then one line per ten seconds that counts the others.
  void log_refusal(const char* what, size_t bytes, size_t unit, size_t small_unit);

  void reset_after_fork() { mutex_.reset_after_fork(); }

 private:
  const char* set_by(uint64_t limit) const REQUIRES(mutex_);
  void set_ceiling(size_t ceiling) REQUIRES(mutex_);

  const GpuName& gpu_;
  Lease lease_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> others_charged_{0};
  std::atomic<size_t> ceiling_{SIZE_MAX};
  std::atomic<uint64_t> gpu_total_{0};
  std::atomic<uint64_t> refusals_unlogged_{0};  // allocations past the limit since the last line about one
  std::atomic<int64_t> refusal_due_ns_{0};      // when the next such line may come
  uint64_t own_ = 0;                            // from the program's environment
  const char* own_variable_ = "";               // of the environment, that says it

  Mutex mutex_;
  RecentCeilings ceilings_ GUARDED_BY(mutex_);
  uint64_t node_ GUARDED_BY(mutex_) = 0;
  uint64_t tenant_ GUARDED_BY(mutex_) = 0;  // as the scheduler numbers it; 0: none yet
  char tenant_name_[sizeof protocol::Registered::tenant_name] GUARDED_BY(mutex_) = {};
};

}  // namespace nvshare::interposer
