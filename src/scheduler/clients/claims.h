// How much of what a client says of its memory is believed: what NVML shows of its process, or what it was granted, but never more than
// the GPU has; where there is no NVML, what it was granted. Whatever it says beyond that changes nothing for others. Pure; one ClaimBound
// per client, not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "policy/policy.h"
#include "protocol/codec.h"

namespace nvshare::scheduler {

// An amount that a client says, as the policy counts.
inline int64_t bounded(uint64_t bytes) { return static_cast<int64_t>(std::min<uint64_t>(bytes, protocol::kMemoryBytesMax)); }

class ClaimBound {
 public:
  static constexpr int64_t kSlack = int64_t{256} << 20;  // what may have come between two looks without a grant
  static constexpr int64_t kAllocatedMost = 64;          // times the GPU: swapped memory included

  // It may have so much resident, with the lock.
  void granted(int64_t budget) {
    budget_ = budget;
    most_ = std::max(most_, budget);
  }
  void released() { budget_ = 0; }
  int64_t budget() const { return budget_; }
  // NVML shows that its process uses so much at most. What was granted before the last look but one is over by now.
  void seen(int64_t used) {
    used_ = used;
    is_listed_ = true;
    most_before_ = most_;
    most_ = budget_;
  }
  // NVML lists the process no more, as one whose contexts are gone. It may still have what it had, of the `unexplained` memory that no
  // process is listed with; says how much of that.
  int64_t not_listed(int64_t resident, int64_t unexplained) {
    seen(std::max<int64_t>(std::min({used_.value_or(0), resident, unexplained}), 0));
    is_listed_ = false;
    return *used_;
  }

  // Nothing but grants says what it may have: there is no NVML.
  void go_by_grants() { by_grants_ = true; }

  // `allocated_most`: of its tenant's limit; nullopt: it has none.
  policy::Memory believe(const protocol::MemoryReport& said, int64_t gpu_total, std::optional<int64_t> allocated_most = {}) const {
    const auto at_most = [](uint64_t bytes, int64_t most) { return static_cast<int64_t>(std::min(bytes, static_cast<uint64_t>(most))); };
    const int64_t most = std::max<int64_t>(gpu_total, 0);
    int64_t resident = at_most(said.resident, most);
    if (used_ || by_grants_) {
      const int64_t known = std::max({used_.value_or(0), most_, most_before_});
      const bool has_some = known > 0 && (is_listed_ || known > used_.value_or(0));
      resident = std::min(resident, known + (has_some ? kSlack : 0));
    }
    int64_t allocated = at_most(said.allocated, std::min(most, (int64_t{1} << 50) / kAllocatedMost) * kAllocatedMost);
    if (allocated_most) allocated = std::min(allocated, *allocated_most);
    return {std::max(allocated, resident), resident, std::min(at_most(said.unswappable, most), resident)};
  }

 private:
  int64_t budget_ = 0;
  int64_t most_ = 0, most_before_ = 0;  // granted since the last look, and since the one before
  std::optional<int64_t> used_;
  bool is_listed_ = true;
  bool by_grants_ = false;
};

}  // namespace nvshare::scheduler
