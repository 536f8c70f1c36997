#include "interposer/gate/pacer.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "interposer/gate/gate.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

namespace {

constexpr uint32_t kIntervalMax = 1024;
struct Spacing {
  int64_t low_ns, high_ns;
};
constexpr Spacing kSpacing{5'000'000, 15'000'000};
// Half as much cost PyTorch models under limits of 25 % each 7 % of their work on an H200: the host was not far enough ahead of the GPU to
// have the next kernels there in time where they are short. Twice as much gave nothing more.
constexpr Spacing kSpacingLimited{2'000'000, 6'000'000};
constexpr int64_t kPause_ns = 50'000;
constexpr int64_t kPausesMost = 20;  // with many threads held each looks less often

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

void Pacer::submitted(cuda::CUstream stream) {
  submitted_to_ = of_current_context();
  if (submitted_to_ != nullptr) submitted_to_->submitted(stream);
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
    : process_(process), context_(context), id_(id), contexts_destroyed_(contexts_destroyed) {}

// Events go with their context. Where one was destroyed since, it may have been this one, and the few events stay.
Ring::~Ring() {
  if (contexts_destroyed_ != process_.contexts.destroyed()) return;
  for (cuda::CUevent event : events_) {
    if (event != nullptr) real_driver().cuEventDestroy_v2(event);
  }
}

bool Ring::record(uint64_t number, cuda::CUstream stream) {
  CapturesHeldOff held_off(process_.captures);
  if (!held_off) return false;
  const RealDriver& driver = real_driver();
  cuda::CUevent& event = events_[number % kEvents];
  if (event == nullptr && driver.cuEventCreate(&event, cuda::CU_EVENT_DEFAULT) != cuda::CUDA_SUCCESS) return false;
  return driver.cuEventRecord(event, stream) == cuda::CUDA_SUCCESS;
}

void Ring::submitted(cuda::CUstream stream) {
  if (++count_ < interval_) return;
  const uint32_t submissions = std::exchange(count_, 0);
  // Where all events are under way the last one moves to the end: what the others tell is needed. (The one that ended last is, too.)
  const bool all_under_way = recorded_ - ended_ == kEvents - 1;
  const uint64_t number = all_under_way ? recorded_ - 1 : recorded_;
  if (!record(number, stream)) return;
  recorded_ = number + 1;
  hold_wanted_ = recorded_ >= 2;
  Stretch& stretch = stretches_[number % kEvents];
  stretch.submissions = submissions + (all_under_way ? stretch.submissions : 0);
  stretch.in_flight = rest_until(number).submissions;
  stretch.closures = process_.gate.closures();
  stretch.recorded_ns = now_ns();
}

HoldPatience::Rest Ring::rest_until(uint64_t number) const {
  uint32_t sum = 0;
  for (uint64_t i = ended_; i <= number; ++i) sum += stretches_[i % kEvents].submissions;
  const Stretch& next = stretches_[ended_ % kEvents];
  return {sum, next.submissions, std::max(next.recorded_ns, end_seen_ns_)};
}

// Any thread's capture in global mode is ruined by a query.
cuda::CUresult Ring::query(cuda::CUevent event) {
  CapturesHeldOff held_off(process_.captures);
  return held_off ? real_driver().cuEventQuery(event) : cuda::CUDA_ERROR_NOT_READY;
}

// Whether event `number` is done, and those before it.
bool Ring::see_done(uint64_t number, bool in_hold) {
  for (bool with_former = false; ended_ <= number; with_former = true) {
    const int64_t looked = now_ns();
    if (query(events_[ended_ % kEvents]) == cuda::CUDA_ERROR_NOT_READY) {
      not_yet_ns_ = looked;
      return false;
    }
    note_end(now_ns(), in_hold, with_former);
  }
  return true;
}

// False: not within the time.
bool Ring::wait_for(uint64_t number, bool limited) {
  if (see_done(number, false)) return true;
  const Held counted;
  patience_.begins(now_ns(), limited);
  for (;;) {
    const int64_t threads = Held::count();
    if (now_ns() >= patience_.until_ns(threads, rest_until(number)) || process_.captures.capturing() || process_.ending()) return false;
    sleep_ns(kPause_ns * std::min(threads, kPausesMost));
    if (see_done(number, true)) return true;
  }
}

void Ring::hold(bool limited) {
  if (!hold_wanted_) return;
  hold_wanted_ = false;
  if (!wait_for(recorded_ - 2, limited)) {
    if (process_.captures.capturing()) return;
    patience_.was_in_vain(now_ns(), rest_until(recorded_ - 2));
    interval_ = std::max(1u, interval_ / 2);
    return work_end_.lost();
  }
  patience_.was_enough();
  if (spacing_ns_ < 0) return;
  const Spacing wanted = limited ? kSpacingLimited : kSpacing;
  if (spacing_ns_ > wanted.high_ns) interval_ = std::max(1u, interval_ / 2);
  if (spacing_ns_ < wanted.low_ns) interval_ = std::min(kIntervalMax, interval_ * 2);
  patience_.spaced(spacing_ns_);
}

// ---- when its work ends ----

// What the GPU took to an event from the one before it, both of which are done; negative: that is not known.
int64_t Ring::spacing_before(uint64_t number) {
  constexpr float kMost_ms = 1e6F;
  float spacing_ms = 0;
  if (number == 0) return -1;
  const cuda::CUevent former = events_[(number - 1) % kEvents], event = events_[number % kEvents];
  if (real_driver().cuEventElapsedTime(&spacing_ms, former, event) != cuda::CUDA_SUCCESS) return -1;
  return static_cast<int64_t>(std::min(spacing_ms, kMost_ms) * 1e6F);
}

// Of the first event whose end was not seen yet.
void Ring::note_end(int64_t seen_ns, bool in_hold, bool with_former) {
  const uint64_t number = ended_++;
  const Stretch& stretch = stretches_[number % kEvents];
  spacing_ns_ = spacing_before(number);
  // While the gate was closed the GPU did nothing for it, and what a closed gate holds back may be what the work waited for.
  const uint32_t closures = process_.gate.closures();
  const bool at_once = number > 0 && stretches_[(number - 1) % kEvents].closures == stretch.closures;
  work_end_.done({not_yet_ns_, seen_ns, at_once ? std::max<int64_t>(spacing_ns_, 0) : 0, stretch.submissions});
  not_yet_ns_ = 0;
  end_seen_ns_ = seen_ns;
  if (in_hold) patience_.ended({seen_ns, stretch.recorded_ns, stretch.submissions, stretch.in_flight, closures, with_former});
  if (closures == stretch.closures) work_seen_by_all.ended_after(seen_ns - stretch.recorded_ns, seen_ns);
}

int64_t Ring::work_ends_at() {
  if (recorded_ < 3 || ended_ + 1 < recorded_) return 0;
  const uint64_t last = recorded_ - 1;
  if (ended_ == last && count_ > 0) see_done(last, false);  // else the last event is what the work ends with
  return work_end_.at_ns(count_ + (ended_ == recorded_ ? 0 : stretches_[last % kEvents].submissions));
}

}  // namespace nvshare::interposer
