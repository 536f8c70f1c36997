#include "interposer/pacer.h"

#include <algorithm>
#include <atomic>

#include "interposer/gate.h"
#include "interposer/process.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

namespace {

constexpr uint32_t kIntervalMax = 1024;
constexpr uint32_t kIntervalFirst = 16;  // of all threads together
struct Spacing {
  float low_ms, high_ms;
};
constexpr Spacing kSpacing{5, 15};
constexpr Spacing kSpacingLimited{1, 3};
constexpr int64_t kHoldLeast_ns = 5'000'000;
constexpr int64_t kHoldMost_ns = 2'000'000'000;
constexpr int64_t kPause_ns = 50'000;
constexpr int64_t kPausesMost = 20;  // with many threads held each looks less often

constinit std::atomic<uint32_t> pacers{0};
constinit std::atomic<int32_t> threads_held{0};
constinit WorkSeen work_seen_by_all;

class Held {
 public:
  Held() { threads_held.fetch_add(1, std::memory_order_relaxed); }
  ~Held() { threads_held.fetch_sub(1, std::memory_order_relaxed); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  static int64_t count() { return std::max<int64_t>(threads_held.load(std::memory_order_relaxed), 1); }
};

// Any thread's capture in global mode is ruined by a query.
cuda::CUresult query(cuda::CUevent event) {
  CapturesHeldOff held_off;
  return held_off ? real_driver().cuEventQuery(event) : cuda::CUDA_ERROR_NOT_READY;
}

}  // namespace

Pacer::Pacer() : interval_(std::max(1u, kIntervalFirst / (pacers.fetch_add(1, std::memory_order_relaxed) + 1))) {}

WorkSeen& Pacer::work_seen() { return work_seen_by_all; }

void Pacer::reset_after_fork() { threads_held.store(0, std::memory_order_relaxed); }

bool Pacer::prepare() {
  const RealDriver& driver = real_driver();
  cuda::CUcontext current = nullptr;
  if (driver.cuCtxGetCurrent(&current) != cuda::CUDA_SUCCESS || current == nullptr) return false;
  uint32_t destroyed = process().contexts_destroyed();
  if (current == context_ && destroyed == contexts_destroyed_) return true;
  // Events of the former context went with it, or stay behind unused: a thread changes context rarely.
  contexts_destroyed_ = destroyed;
  context_ = nullptr;
  recorded_ = 0;
  probing_ = false;
  for (cuda::CUevent& event : events_) {
    if (driver.cuEventCreate(&event, cuda::CU_EVENT_DEFAULT) != cuda::CUDA_SUCCESS) return false;
  }
  if (driver.cuEventCreate(&probe_, cuda::CU_EVENT_DISABLE_TIMING) != cuda::CUDA_SUCCESS) return false;
  context_ = current;
  return true;
}

void Pacer::submitted(cuda::CUstream stream, bool limited) {
  if (limited && recorded_ == 0) interval_ = 1;  // until it is known how long they take
  if (++count_ < interval_) return;
  count_ = 0;
  CapturesHeldOff held_off;
  if (!held_off || !prepare()) return;
  const RealDriver& driver = real_driver();
  if (driver.cuEventRecord(events_[recorded_ % kEvents], stream) != cuda::CUDA_SUCCESS) return;
  ++recorded_;
  hold_wanted_ = recorded_ >= 2;
  if (!probing_ && driver.cuEventRecord(probe_, stream) == cuda::CUDA_SUCCESS) {
    probing_ = true;
    probe_recorded_ns_ = now_ns();
    probe_closures_ = gate.closures();
  }
}

// What a closed gate holds back may be what the work waited for: then it says nothing.
void Pacer::look_at_probe() {
  if (!probing_) return;
  const cuda::CUresult done = query(probe_);
  if (done == cuda::CUDA_ERROR_NOT_READY) return;
  probing_ = false;
  const int64_t now = now_ns();
  if (done == cuda::CUDA_SUCCESS && probe_closures_ == gate.closures()) work_seen().ended_after(now - probe_recorded_ns_, now);
}

// False: not within the time.
bool Pacer::wait_for(cuda::CUevent event, bool limited) {
  if (query(event) != cuda::CUDA_ERROR_NOT_READY) return true;
  const Held counted;
  const int64_t started = now_ns();
  const int64_t alone = limited ? (held_in_vain_ ? kHold_ns : kHoldMost_ns) : hold_ns_;
  for (;;) {
    const int64_t threads = Held::count();
    if (now_ns() - started >= std::min(alone * threads, kHoldMost_ns) || process().capturing()) return false;
    sleep_ns(kPause_ns * std::min(threads, kPausesMost));
    if (query(event) != cuda::CUDA_ERROR_NOT_READY) return true;
  }
}

void Pacer::held(bool limited, bool in_vain) {
  if (in_vain) {
    held_in_vain_ = held_in_vain_ || limited;
    hold_ns_ = std::max(std::min(hold_ns_, 2 * kHold_ns) / 2, kHoldLeast_ns);
    interval_ = std::max(1u, interval_ / 2);
    return;
  }
  held_in_vain_ = false;
  hold_ns_ = std::max(hold_ns_, kHold_ns);
}

void Pacer::hold(bool limited) {
  if (!hold_wanted_) return;
  hold_wanted_ = false;
  cuda::CUevent before_last = events_[(recorded_ - 2) % kEvents];
  const bool done = wait_for(before_last, limited);
  look_at_probe();
  if (!done && process().capturing()) return;
  held(limited, !done);
  if (!done || recorded_ < 3) return;
  float spacing_ms = 0;
  if (real_driver().cuEventElapsedTime(&spacing_ms, events_[recorded_ % kEvents], before_last) != cuda::CUDA_SUCCESS) return;
  const Spacing wanted = limited ? kSpacingLimited : kSpacing;
  if (spacing_ms > wanted.high_ms) interval_ = std::max(1u, interval_ / 2);
  if (spacing_ms < wanted.low_ms) interval_ = std::min(kIntervalMax, interval_ * 2);
  const auto two_stretches_ns = static_cast<int64_t>(2e6F * std::min(spacing_ms, 1e6F));
  hold_ns_ = std::min(std::max(two_stretches_ns, kHold_ns), 2 * hold_ns_);
}

}  // namespace nvshare::interposer
