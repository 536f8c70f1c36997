#include "interposer/swap/engine.h"

#include <sys/prctl.h>

#include "interposer/gate/gate.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/process/synchronize.h"
#include "interposer/swap/eviction.h"
#include "interposer/swap/load.h"
#include "interposer/swap/prefetch.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;

namespace {

constexpr int64_t kSlice_ns = 50'000'000;  // between looks whether a drain is still wanted
constexpr int64_t kSwapPause_ns = 1'000'000;
constexpr unsigned long kTimerSlack_ns = 5'000;  // 50'000 unless set: so much later each pause would begin, and would be billed

}  // namespace

// ---- jobs ----

bool SwapEngine::start() { return start_thread(&thread_, thread_body, this, "nvshare-swap"); }

void SwapEngine::push(Job job) {
  Lock lock(mutex_);
  jobs_.push_back(job);
  changed_.notify_all();
}

void SwapEngine::drain(uint64_t drain) { push({JobKind::kDrain, drain, 0}); }
void SwapEngine::evict(uint64_t id, uint64_t bytes) { push({JobKind::kEvict, id, bytes}); }
void SwapEngine::load(uint64_t grant) { push({JobKind::kLoad, grant, 0}); }
void SwapEngine::prefetch(uint64_t prefetch) { push({JobKind::kPrefetch, prefetch, 0}); }

void SwapEngine::watch_idle() {
  Lock lock(mutex_);
  ++watch_;
  watching_ = true;
  look_at_ns_ = 0;
  changed_.notify_all();
}

void SwapEngine::trim_cache_in(int64_t delay_ns) {
  Lock lock(mutex_);
  const bool sleeps = trim_at_ns_ == 0;
  trim_at_ns_ = now_ns() + delay_ns;
  if (sleeps) changed_.notify_all();  // else it looks again when the time that it knows has come
}

bool SwapEngine::at_rest() {
  Lock lock(mutex_);
  return jobs_.empty() && !busy_;
}

void* SwapEngine::thread_body(void* self) {
  static_cast<SwapEngine*>(self)->run();
  return nullptr;
}

void SwapEngine::run() {
  prctl(PR_SET_TIMERSLACK, kTimerSlack_ns, 0, 0, 0);
  Lock lock(mutex_);
  while (!stopping_) {
    if (jobs_.empty()) {
      wait_or_look();
      continue;
    }
    const Job job = jobs_.front();
    jobs_.erase(jobs_.begin());
    work_unlocked([&] { run_job(job); });
  }
}

template <typename Work>
void SwapEngine::work_unlocked(Work work) {
  busy_ = true;
  mutex_.unlock();
  work();
  mutex_.lock();
  busy_ = false;
  changed_.notify_all();
}

void SwapEngine::run_job(const Job& job) {
  switch (job.kind) {
    case JobKind::kDrain:
      return run_drain(job);
    case JobKind::kEvict:
      return Eviction(device_, context_, job.id, job.bytes).run();
    case JobKind::kLoad:
      return Load(device_, context_, job.id).run();
    case JobKind::kPrefetch:
      return Prefetch(device_, context_, job.id).run();
  }
}

void SwapEngine::wait_or_look() {
  if (!watching_ && trim_at_ns_ == 0) return changed_.wait(mutex_);
  const bool trim_is_next = trim_at_ns_ != 0 && (!watching_ || trim_at_ns_ < look_at_ns_);
  if (changed_.wait_until(mutex_, trim_is_next ? trim_at_ns_ : look_at_ns_)) return;
  if (trim_is_next) {
    if (now_ns() < trim_at_ns_) return;  // put off meanwhile
    trim_at_ns_ = 0;
    return work_unlocked([&] { device_.memory().freed.trim_brief(); });
  }
  const uint64_t watch = watch_;
  int64_t again = 0;
  work_unlocked([&] { again = look_for_idleness(); });
  if (watch != watch_) return;  // watch_idle() meanwhile: at once
  watching_ = again >= 0;
  look_at_ns_ = again;
}

void SwapEngine::stop(int64_t patience_ns) {
  Lock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  int64_t deadline = now_ns() + patience_ns;
  while (busy_ && changed_.wait_until(mutex_, deadline)) {
  }
}

bool SwapEngine::keeps_host_copies() const { return context_.unchanged.on() && !device_.memory().residency.all_stays(); }

bool SwapEngine::stopping() {
  Lock lock(mutex_);
  return stopping_;
}

void SwapEngine::context_gone(CUcontext context) { context_.gone(context); }

// ---- drain and idleness ----

void SwapEngine::run_drain(const Job& job) {
  Turns& turns = device_.turns();
  for (;;) {
    if (!turns.ask([&](const turn::Turn& turn) { return turn::drain_wanted(turn, job.id); }) || stopping()) return;
    if (!device_.process().gate.quiesce(now_ns() + kSlice_ns)) continue;
    if (!device_.process().captures.wait_for_none(now_ns() + kSlice_ns)) continue;
    const bool together = turns.ask([&](const turn::Turn& turn) { return turn::drains_together(turn, job.id); });
    // What runs on other GPUs may use this one's memory. Where all of them are left together that is waited for when each has drained.
    if (synchronize(device_.process().contexts, device_.process().captures, together ? device_.ordinal() : Contexts::kAllGpus)) break;
    sleep_ns(kSwapPause_ns);  // a context is on its way out, or a capture came between
  }
  if (!turns.take(turn::WorkDrained{job.id}).agreed) {
    if (turns.ask([](const turn::Turn& turn) { return turn.phase == turn::Phase::kPaused; })) measure_launch();
    return;
  }
  device_.memory().residency.set_running(false);
  device_.memory().stream_frees.collect_done();  // garbage is neither kept nor copied
  // Under a compute limit the lock comes and goes often, and as long as nobody needs the memory all of it stays.
  if (!turns.ask([&](const turn::Turn& turn) { return turn.idle.terms().limited && turn.idle.terms().memory_waiters == 0; })) {
    device_.memory().freed.trim();  // not worth a copy
    device_.memory().driver.trim();
  }
  turns.take(turn::MemoryLeft{});
}

// In a pause, when nothing of the program runs, and this thread has just woken as the program's will have. An event is as good as a kernel:
// it comes to the GPU in the same way, and its end back. Not where something captures.
void SwapEngine::measure_launch() {
  if (!launch_seen_.is_wanted(now_ns())) return;
  const CapturesHeldOff held_off(device_.process().captures);
  cuda::CUresult why = cuda::CUDA_SUCCESS;
  if (!held_off || !context_.enter(&why)) return;
  const RealDriver& driver = real_driver();
  const int64_t before = launch_seen_.least_ns(), began = now_ns();
  const bool done = driver.cuEventRecord(context_.event(0), context_.out()) == cuda::CUDA_SUCCESS &&
                    driver.cuStreamSynchronize(context_.out()) == cuda::CUDA_SUCCESS;
  const int64_t now = now_ns();
  context_.leave();
  if (!done) return;
  launch_seen_.took(now - began, now);
  if (launch_seen_.least_ns() == before) return;
  log(LogLevel::kDebug, "a submission of nothing takes %lld ns (%lld before)", static_cast<long long>(launch_seen_.least_ns()),
      static_cast<long long>(before));
}

int64_t SwapEngine::look_for_idleness() {
  Turns& turns = device_.turns();
  for (;;) {
    const turn::Effects::Look next = turns.take(turn::IdleLook{}).look;
    if (!next.wanted) return -1;
    if (next.wait_ns > 0) return now_ns() + next.wait_ns;
    if (stopping()) return -1;
    const int64_t waits_from = now_ns();
    if (device_.process().captures.capturing() || !synchronize(device_.process().contexts, device_.process().captures, device_.ordinal())) {
      return now_ns() + kSwapPause_ns;
    }
    turns.take(turn::WorkEnded{waits_from});
  }
}

// ---- host memory ----

void SwapEngine::prepare_arena(uint64_t bytes) {
  if (device_.backend() != protocol::Backend::kVmm) return;
  CUcontext context = device_.process().contexts.pin(device_.ordinal());
  if (context == nullptr) return;
  device_.memory().arena.grow_to(bytes, context, false);
  device_.process().contexts.unpin(context);
}

void SwapEngine::reset_after_fork() {
  mutex_.reset_after_fork();
  context_.reset_after_fork();
}

}  // namespace nvshare::interposer
