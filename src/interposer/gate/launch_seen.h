// What a submission that gives the GPU nothing to do was seen to take, from its call until its end is known: lately, at least. In that time
// of each burst the GPU does not run it yet, or no longer. Added by one thread, read by any.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace nvshare::interposer {

class LaunchSeen {
 public:
  static constexpr size_t kKept = 16;
  static constexpr int64_t kPause_ns = 100'000'000;  // between two measurements, once there are so many

  bool is_wanted(int64_t now_ns) const { return added_ < kKept || now_ns - added_at_ns_ >= kPause_ns; }

  void took(int64_t took_ns, int64_t now_ns) {
    latest_[added_++ % kKept] = std::max<int64_t>(took_ns, 0);
    added_at_ns_ = now_ns;
    least_ns_.store(*std::min_element(latest_.begin(), latest_.begin() + static_cast<std::ptrdiff_t>(std::min(added_, kKept))),
                    std::memory_order_relaxed);
  }

  // Of the latest; 0: none was measured. Beside others a submission waits for the GPU, too: the least says what is its own.
  int64_t least_ns() const { return least_ns_.load(std::memory_order_relaxed); }

 private:
  std::array<int64_t, kKept> latest_{};
  size_t added_ = 0;
  int64_t added_at_ns_ = 0;
  std::atomic<int64_t> least_ns_{0};
};

}  // namespace nvshare::interposer
