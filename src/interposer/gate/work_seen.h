// How long a submission's work was seen to take at most, lately. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace nvshare::interposer {

// From a submission's return to the end of its work, as the pacers of all threads saw it with the gate open all the while. Any thread.
class WorkSeen {
 public:
  static constexpr int64_t kKept_ns = 60'000'000'000;

  void ended_after(int64_t took_ns, int64_t now_ns);
  int64_t longest_ns(int64_t now_ns) const;  // of the last minute or so; 0: none was seen

 private:
  std::atomic<int64_t> longest_ns_{0};
  std::atomic<int64_t> seen_at_ns_{0};
};

}  // namespace nvshare::interposer
