#include "interposer/pacer.h"

#include <algorithm>

#include "interposer/process.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

namespace {
constexpr uint32_t kIntervalMax = 1024;
struct Spacing {
  float low_ms, high_ms;
};
constexpr Spacing kSpacing{5, 15};
constexpr Spacing kSpacingLimited{1, 3};
constexpr int64_t kHoldMax_ns = 20'000'000;
constexpr int64_t kHoldMaxLimited_ns = 2'000'000'000;
constexpr int64_t kPause_ns = 50'000;
}  // namespace

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
  for (cuda::CUevent& event : events_) {
    if (driver.cuEventCreate(&event, cuda::CU_EVENT_DEFAULT) != cuda::CUDA_SUCCESS) return false;
  }
  context_ = current;
  return true;
}

void Pacer::submitted(cuda::CUstream stream, bool limited) {
  if (limited && recorded_ == 0) interval_ = 1;  // until it is known how long they take
  if (++count_ < interval_) return;
  count_ = 0;
  CapturesHeldOff held_off;
  if (!held_off || !prepare()) return;
  if (real_driver().cuEventRecord(events_[recorded_ % kEvents], stream) != cuda::CUDA_SUCCESS) return;
  ++recorded_;
  hold_wanted_ = recorded_ >= 2;
}

void Pacer::hold(bool limited) {
  if (!hold_wanted_) return;
  hold_wanted_ = false;
  const RealDriver& driver = real_driver();
  cuda::CUevent before_last = events_[(recorded_ - 2) % kEvents];
  const int64_t hold_max = limited && !held_in_vain_ ? kHoldMaxLimited_ns : kHoldMax_ns;
  int64_t deadline = now_ns() + hold_max;
  // Any thread's capture in global mode is ruined by a query.
  auto query = [&] {
    CapturesHeldOff held_off;
    return held_off ? driver.cuEventQuery(before_last) : cuda::CUDA_ERROR_NOT_READY;
  };
  cuda::CUresult done = query();
  while (done == cuda::CUDA_ERROR_NOT_READY && now_ns() < deadline && !process().capturing()) {
    sleep_ns(kPause_ns);
    done = query();
  }
  if (done == cuda::CUDA_ERROR_NOT_READY) {
    if (process().capturing()) return;
    held_in_vain_ = hold_max > kHoldMax_ns || held_in_vain_;
    interval_ = std::max(1u, interval_ / 2);
    return;
  }
  held_in_vain_ = false;
  if (recorded_ < 3) return;
  float spacing_ms = 0;
  if (driver.cuEventElapsedTime(&spacing_ms, events_[recorded_ % kEvents], before_last) != cuda::CUDA_SUCCESS) return;
  const Spacing wanted = limited ? kSpacingLimited : kSpacing;
  if (spacing_ms > wanted.high_ms) interval_ = std::max(1u, interval_ / 2);
  if (spacing_ms < wanted.low_ms) interval_ = std::min(kIntervalMax, interval_ * 2);
}

}  // namespace nvshare::interposer
