// The swap engine: one thread per GPU that does what takes time and may not be done by the program's threads or the socket's: waits for the
// GPU's work to end (drain), copies memory out and gives it back (Eviction), gets memory and copies in (Load, Prefetch). One job at a
// time, in the order they came.
//
// Thread-safe. Its mutex is a leaf: nothing else is locked while it is held.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/gate/launch_seen.h"
#include "interposer/swap/context.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Device;

class SwapEngine {
 public:
  explicit SwapEngine(Device& device) : device_(device), context_(device) {}
  bool start();

  void drain(uint64_t drain);               // ends with WorkDrained
  void evict(uint64_t id, uint64_t bytes);  // ends with a finished SwapProgress
  void load(uint64_t grant);                // ends with LoadEnded or LoadStopped
  void prefetch(uint64_t prefetch);         // memory in without the lock; ends with PrefetchEnded and a finished SwapProgress
  void watch_idle();                        // looks for idleness (turn::IdleLook) between jobs, until told that there is no need
  void trim_cache_in(int64_t delay_ns);     // of freed memory: what is kept for a moment only
  void prepare_arena(uint64_t bytes);       // host memory for what may have to move, in the background
  bool at_rest();                           // no job is under way or waits
  bool stopping();                          // the process exits: no new movement begins
  Unchanged& unchanged() { return context_.unchanged; }
  int64_t launch_ns() const { return launch_seen_.least_ns(); }  // what a submission of nothing takes; 0: not known
  // What was copied out may leave again without a copy, if the copy in host memory is still true then.
  bool keeps_host_copies() const;

  // The context is about to be destroyed and nobody has it pinned any more: gives up streams and events in it.
  void context_gone(cuda::CUcontext context);
  // The process exits: no new movement begins. Waits at most `patience_ns` for the one under way.
  void stop(int64_t patience_ns);

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  enum class JobKind : uint8_t { kDrain, kEvict, kLoad, kPrefetch };
  struct Job {
    JobKind kind;
    uint64_t id;
    uint64_t bytes;
  };

  static void* thread_body(void* self);
  void run();
  void run_job(const Job& job);
  // Without a job: waits for one, or for the time to look for idleness or to give back freed memory that was kept for a moment; does that.
  void wait_or_look() REQUIRES(mutex_);
  template <typename Work>
  void work_unlocked(Work work) REQUIRES(mutex_);  // busy meanwhile
  void push(Job job);
  void run_drain(const Job& job);
  int64_t look_for_idleness();  // when to look again; negative: never
  void measure_launch();

  Device& device_;
  SwapContext context_;
  LaunchSeen launch_seen_;
  Mutex mutex_;
  Condition changed_;
  std::vector<Job> jobs_ GUARDED_BY(mutex_);
  pthread_t thread_ GUARDED_BY(mutex_){};
  bool busy_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t watch_ GUARDED_BY(mutex_) = 0;  // counts up with each watch_idle()
  bool watching_ GUARDED_BY(mutex_) = false;
  int64_t look_at_ns_ GUARDED_BY(mutex_) = 0;
  int64_t trim_at_ns_ GUARDED_BY(mutex_) = 0;  // 0: not
};

}  // namespace nvshare::interposer
