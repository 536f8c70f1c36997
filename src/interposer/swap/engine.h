// The swap engine: one thread per GPU that does what takes time and may not be done by the program's threads or the socket's: waits for the
// GPU's work to end (drain), copies memory out and gives it back (evict), gets memory and copies in (load). One job at a time, in the
// order they came. Its own streams, non-blocking; its thread is in relaxed capture mode, and no event of ours lands on a program's stream.
//
// Thread-safe. Its mutex is a leaf: nothing else is locked while it is held.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/memory.h"
#include "interposer/swap/unchanged.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Device;

class SwapEngine {
 public:
  explicit SwapEngine(Device& device) : device_(device), unchanged_(device) {}
  bool start();

  void drain(uint64_t drain);               // ends with WorkDrained
  void evict(uint64_t id, uint64_t bytes);  // ends with a finished SwapProgress
  void load(uint64_t grant);                // ends with LoadEnded or LoadStopped
  void prefetch(uint64_t prefetch);         // memory in without the lock; ends with PrefetchEnded and a finished SwapProgress
  void watch_idle();                        // looks for idleness (turn::IdleLook) between jobs, until told that there is no need
  void trim_cache_in(int64_t delay_ns);     // of freed memory: what is kept for a moment only
  void prepare_arena(uint64_t bytes);       // host memory for what may have to move, in the background
  bool at_rest();                           // no job is under way or waits
  Unchanged& unchanged() { return unchanged_; }
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
  class Eviction;  // eviction.cc

  bool stopping();
  bool load_cancelled();  // the lock is to be given back before loading has ended
  static void* thread_body(void* self);
  void run();
  void push(Job job);
  // Makes a living context current for this thread and has streams and events in it. *why: what the driver said against it; success where
  // there is no context.
  bool enter_context(cuda::CUresult* why);
  void leave_context();
  void drop_streams();

  void run_drain(const Job& job);
  void run_evict(const Job& job);
  void run_load(const Job& job);
  void run_prefetch(const Job& job);
  bool fetch(const Piece& piece);  // starts one chunk on its way in; false: all is as it was
  int64_t look_for_idleness();     // when to look again; negative: never

  enum class Arrival : uint8_t { kIn, kCancelled, kLost };  // lost: the context has failed, the program is to see that
  Arrival bring_in(const Piece& piece, bool* copied);
  struct Load {
    protocol::SwapProgress progress;
    int64_t started = 0;
    int64_t stalled_ns = 0;  // since then, waiting for others to make room
    uint64_t reported = 0;   // of progress.moved
  };
  bool wait_for_room(std::span<Piece> rest, std::vector<Piece>* under_way, Load* load);
  cuda::CUresult finish_in(std::vector<Piece>* under_way);  // waits for their copies; they are in, and unpinned
  Arrival load_pieces(std::vector<Piece> pieces, Load* load);
  void report(Load* load);

  static constexpr uint32_t kDepth = 4;  // copies under way at once

  Device& device_;
  Unchanged unchanged_;  // used by the swap engine thread as the streams are
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

  // Used by the swap engine thread while it has the context pinned; made and dropped under the mutex.
  cuda::CUcontext context_ = nullptr;  // that the streams and events belong to
  std::atomic<cuda::CUcontext> pinned_{nullptr};
  cuda::CUstream out_stream_ = nullptr;
  cuda::CUstream in_stream_ = nullptr;
  cuda::CUevent events_[kDepth] = {};
};

}  // namespace nvshare::interposer
