// When a program that is billed for the time that it holds the GPU should give it up: once its work has ended and it stays idle for longer
// than giving up costs. Pure: the caller knows the time and the submissions, and waits for the GPU when told to. Not thread-safe.
//
// The end of the work is known, not polled for: once nothing has been submitted for a moment, step kSynchronize has the caller wait for the
// GPU, however long that takes, and the idle time counts from then on.
//
// The threshold adapts: a release that saved less idle time than getting the lock back took doubles it, one that was clearly worth it
// lowers it again. So a program whose gaps are short and frequent keeps the lock through them, and is billed for them.
#pragma once

#include <cstdint>

namespace nvshare::interposer {

class IdleWatch {
 public:
  enum class Step : uint8_t { kWait, kSynchronize, kRelease };
  struct Next {
    Step step;
    int64_t wait_ns;  // of kWait: until the next look
  };

  // The least threshold; 0: the default.
  void configure(int64_t least_ns);
  // A turn begins, or the watch in one.
  void begin(uint64_t submissions);
  // busy: something is about to be submitted, or may not be waited for.
  Next look(uint64_t submissions, bool busy, int64_t now_ns);
  // What was submitted before the look that said kSynchronize has ended.
  void work_ended(int64_t now_ns) { ended_at_ns_ = now_ns; }
  int64_t idle_since_ns() const { return ended_at_ns_; }

  // After kRelease: the program was idle for pause_ns until it wanted the GPU again, and had it back_ns later.
  void came_back(int64_t pause_ns, int64_t back_ns);
  int64_t threshold_ns() const { return threshold_ns_; }

 private:
  static constexpr int64_t kLeast_ns = 200'000;
  static constexpr int64_t kCostFirst_ns = 150'000;
  int64_t least_ns_ = kLeast_ns;
  int64_t threshold_ns_ = kLeast_ns;
  int64_t cost_ns_ =
      kCostFirst_ns;  // of giving up and getting back; what the quickest took lately, because others' waits are in the figures
  uint64_t seen_ = 0;
  int64_t look_ns_ = 0;      // between two looks: longer while the program goes on submitting
  int64_t ended_at_ns_ = 0;  // 0: not known
};

}  // namespace nvshare::interposer
