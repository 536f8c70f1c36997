#include "interposer/gate/pacer.h"

#include <algorithm>
#include <atomic>

#include "interposer/gate/gate.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

namespace {

constexpr uint32_t kIntervalMax = 1024;
constexpr uint32_t kIntervalFirst = 16;  // of all threads together
struct Spacing {
  int64_t low_ns, high_ns;
};
constexpr Spacing kSpacing{5'000'000, 15'000'000};
// Half as much cost PyTorch models under limits of 25 % each 7 % of their work on an H200: the host was not far enough ahead of the GPU to
// have the next kernels there in time where they are short. Twice as much gave nothing more.
constexpr Spacing kSpacingLimited{2'000'000, 6'000'000};
constexpr int64_t kHoldLeast_ns = 5'000'000;
constexpr int64_t kHoldMost_ns = 2'000'000'000;
constexpr int64_t kPause_ns = 50'000;
constexpr int64_t kPausesMost = 20;  // with many threads held each looks less often

constinit std::atomic<uint32_t> rings{0};  // of all threads
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

}  // namespace

WorkSeen& Pacer::work_seen() { return work_seen_by_all; }

void Pacer::reset_after_fork() { threads_held.store(0, std::memory_order_relaxed); }

// ---- a thread's rings ----

Ring* Pacer::of_current_context() {
  const RealDriver& driver = real_driver();
  cuda::CUcontext current = nullptr;
  if (driver.cuCtxGetCurrent(&current) != cuda::CUDA_SUCCESS || current == nullptr) return nullptr;
  const uint32_t destroyed = process_.contexts.destroyed();
  if (rings_[0] != nullptr && rings_[0]->context() == current && destroyed == contexts_destroyed_) [[likely]]
    return rings_[0];
  contexts_destroyed_ = destroyed;
  unsigned long long id = 0;
  driver.cuCtxGetId(current, &id);  // before CUDA 12 there is none: 0 for all
  int place = 0;
  while (place < kRings && rings_[place] != nullptr && rings_[place]->context() != current) ++place;
  Ring* found = place < kRings ? rings_[place] : nullptr;
  if (found == nullptr || !found->is_of(current, id)) {
    if (place == kRings) --place;
    delete rings_[place];
    found = new Ring(process_, current, id, destroyed);
  }
  for (; place > 0; --place) rings_[place] = rings_[place - 1];
  rings_[0] = found;
  return found;
}

void Pacer::submitted(cuda::CUstream stream, bool limited) {
  submitted_to_ = of_current_context();
  if (submitted_to_ != nullptr) submitted_to_->submitted(stream, limited);
}

void Pacer::hold(bool limited) {
  if (submitted_to_ != nullptr) submitted_to_->hold(limited);
  submitted_to_ = nullptr;
}

int64_t Pacer::work_ends_at() {
  const bool known = rings_[0] != nullptr && contexts_destroyed_ == process_.contexts.destroyed();  // else its events may be gone
  return known ? rings_[0]->work_ends_at() : 0;
}

// ---- one ring ----

Ring::Ring(Process& process, cuda::CUcontext context, unsigned long long id, uint32_t contexts_destroyed)
    : process_(process),
      context_(context),
      id_(id),
      contexts_destroyed_(contexts_destroyed),
      interval_(std::max(1u, kIntervalFirst / (rings.fetch_add(1, std::memory_order_relaxed) + 1))) {}

// Events go with their context. Where one was destroyed since, it may have been this one, and the few events stay.
Ring::~Ring() {
  rings.fetch_sub(1, std::memory_order_relaxed);
  if (contexts_destroyed_ != process_.contexts.destroyed()) return;
  const RealDriver& driver = real_driver();
  for (cuda::CUevent event : events_) {
    if (event != nullptr) driver.cuEventDestroy_v2(event);
  }
  if (probe_ != nullptr) driver.cuEventDestroy_v2(probe_);
}

bool Ring::prepare() {
  if (made_) return true;
  const RealDriver& driver = real_driver();
  for (cuda::CUevent& event : events_) {
    if (event == nullptr && driver.cuEventCreate(&event, cuda::CU_EVENT_DEFAULT) != cuda::CUDA_SUCCESS) return false;
  }
  if (probe_ == nullptr && driver.cuEventCreate(&probe_, cuda::CU_EVENT_DISABLE_TIMING) != cuda::CUDA_SUCCESS) return false;
  made_ = true;
  return true;
}

void Ring::submitted(cuda::CUstream stream, bool limited) {
  if (limited && recorded_ == 0) interval_ = 1;  // until it is known how long they take
  if (++count_ < interval_) return;
  stretches_[recorded_ % kEvents] = {count_, process_.gate.closures()};
  count_ = 0;
  CapturesHeldOff held_off(process_.captures);
  if (!held_off || !prepare()) return;
  const RealDriver& driver = real_driver();
  if (driver.cuEventRecord(events_[recorded_ % kEvents], stream) != cuda::CUDA_SUCCESS) return;
  ++recorded_;
  hold_wanted_ = recorded_ >= 2;
  if (!probing_ && driver.cuEventRecord(probe_, stream) == cuda::CUDA_SUCCESS) {
    probing_ = true;
    probe_recorded_ns_ = now_ns();
    probe_closures_ = process_.gate.closures();
  }
}

// What a closed gate holds back may be what the work waited for: then it says nothing.
void Ring::look_at_probe() {
  if (!probing_) return;
  const cuda::CUresult done = query(probe_);
  if (done == cuda::CUDA_ERROR_NOT_READY) return;
  probing_ = false;
  const int64_t now = now_ns();
  if (done == cuda::CUDA_SUCCESS && probe_closures_ == process_.gate.closures())
    work_seen_by_all.ended_after(now - probe_recorded_ns_, now);
}

// Any thread's capture in global mode is ruined by a query.
cuda::CUresult Ring::query(cuda::CUevent event) {
  CapturesHeldOff held_off(process_.captures);
  return held_off ? real_driver().cuEventQuery(event) : cuda::CUDA_ERROR_NOT_READY;
}

// False: not within the time.
bool Ring::wait_for(cuda::CUevent event, bool limited) {
  not_yet_ns_ = 0;
  if (query(event) != cuda::CUDA_ERROR_NOT_READY) return true;
  const Held counted;
  const int64_t started = now_ns();
  const int64_t alone = limited ? (held_in_vain_ ? kHold_ns : kHoldMost_ns) : hold_ns_;
  for (;;) {
    const int64_t threads = Held::count();
    if (now_ns() - started >= std::min(alone * threads, kHoldMost_ns) || process_.captures.capturing()) return false;
    not_yet_ns_ = now_ns();
    sleep_ns(kPause_ns * std::min(threads, kPausesMost));
    if (query(event) != cuda::CUDA_ERROR_NOT_READY) return true;
  }
}

void Ring::held(bool limited, bool in_vain) {
  if (in_vain) {
    held_in_vain_ = held_in_vain_ || limited;
    hold_ns_ = std::max(std::min(hold_ns_, 2 * kHold_ns) / 2, kHoldLeast_ns);
    interval_ = std::max(1u, interval_ / 2);
    return;
  }
  held_in_vain_ = false;
  hold_ns_ = std::max(hold_ns_, kHold_ns);
}

void Ring::hold(bool limited) {
  if (!hold_wanted_) return;
  hold_wanted_ = false;
  cuda::CUevent before_last = events_[(recorded_ - 2) % kEvents];
  const bool done = wait_for(before_last, limited);
  look_at_probe();
  if (!done && process_.captures.capturing()) return;
  held(limited, !done);
  if (!done) return work_end_.lost();
  const int64_t spacing_ns = spacing_before(recorded_ - 2);
  note_done(recorded_ - 2, spacing_ns);
  if (spacing_ns < 0) return;
  const Spacing wanted = limited ? kSpacingLimited : kSpacing;
  if (spacing_ns > wanted.high_ns) interval_ = std::max(1u, interval_ / 2);
  if (spacing_ns < wanted.low_ns) interval_ = std::min(kIntervalMax, interval_ * 2);
  hold_ns_ = std::min(std::max(2 * spacing_ns, kHold_ns), 2 * hold_ns_);
}

// ---- when its work ends ----

// What the GPU took to an event from the one before it, both of which are done; negative: that is not known.
int64_t Ring::spacing_before(uint32_t number) {
  constexpr float kMost_ms = 1e6F;
  float spacing_ms = 0;
  if (number == 0) return -1;
  const cuda::CUevent former = events_[(number - 1) % kEvents], event = events_[number % kEvents];
  if (real_driver().cuEventElapsedTime(&spacing_ms, former, event) != cuda::CUDA_SUCCESS) return -1;
  return static_cast<int64_t>(std::min(spacing_ms, kMost_ms) * 1e6F);
}

void Ring::note_done(uint32_t number, int64_t spacing_ns) {
  if (noted_ > number) return;
  if (noted_ < number) work_end_.lost();  // the end of the one before was not seen
  noted_ = number + 1;
  const Stretch& stretch = stretches_[number % kEvents];
  // While the gate was closed the GPU did nothing for it.
  const bool at_once = number > 0 && stretches_[(number - 1) % kEvents].closures == stretch.closures;
  work_end_.done({not_yet_ns_, now_ns(), at_once ? std::max<int64_t>(spacing_ns, 0) : 0, stretch.submissions});
}

int64_t Ring::work_ends_at() {
  if (recorded_ < 3 || noted_ + 1 < recorded_) return 0;
  const uint32_t last = recorded_ - 1;
  if (noted_ == last && count_ > 0) {  // else the last event is what the work ends with
    const int64_t looked = now_ns();
    if (query(events_[last % kEvents]) == cuda::CUDA_ERROR_NOT_READY) {
      not_yet_ns_ = looked;
    } else {
      note_done(last, spacing_before(last));
    }
  }
  return work_end_.at_ns(count_ + (noted_ == recorded_ ? 0 : stretches_[last % kEvents].submissions));
}

}  // namespace nvshare::interposer
