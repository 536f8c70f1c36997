// The gate: every submission of GPU work passes it; whoever closes it knows when nobody is inside any more.
//
// A submitting thread sets its own *mark*, then loads the gate's flags once. All flags clear: it goes on. The closer sets a flag, makes
// every running thread's mark visible (membarrier; without it submitters pay a full fence), and waits until all marks are clear. So an
// open gate costs a store, a load and a store, and no submission starts after quiesce() has returned true.
//
// One gate per process. A flag bit per GPU closes it, because a process that uses several GPUs is switched on all of them together.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "interposer/gate/program_waits.h"
#include "interposer/own_socket.h"
#include "interposer/process/devices_max.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Pacer;

// What one thread of the program has under way. Entries are never freed, only handed on to later threads.
struct alignas(64) Mark {
  static constexpr uint64_t kEnters = (uint64_t{1} << 32) + 1;  // of `passes`: one more, one deeper

  // > 0: inside
  uint32_t depth(std::memory_order order = std::memory_order_relaxed) const { return static_cast<uint32_t>(passes.load(order)); }
  uint32_t entries() const { return static_cast<uint32_t>(passes.load(std::memory_order_relaxed) >> 32); }
  void leave_all() { passes.store(passes.load(std::memory_order_relaxed) & ~uint64_t{UINT32_MAX}, std::memory_order_release); }

  std::atomic<uint64_t> passes{0};       // how often the owner came in, and how deep inside it is now; written by the owner only
  std::atomic<uint32_t> taken{0};        // belongs to a living thread
  std::atomic<uint64_t> thread{0};       // its number: no two threads ever have the same
  std::atomic<uint64_t> submissions{0};  // watched ones; written by the owner only
  Pacer* pacer = nullptr;                // of the owner; made when first needed
  uint32_t waited_entry = 0;             // entries() of the last one that had waited for the gate; the owner's
  Mark* next = nullptr;
};

class Gate {
 public:
  static constexpr uint32_t kClosedMask = (1u << kDevicesMax) - 1;  // bit n: closed for GPU n of this process
  static_assert(kDevicesMax <= 16);                                 // the other flags stand above
  static constexpr uint32_t kWatched = 0x00010000;    // somebody waits for a GPU, or a limit applies: submissions are paced and counted
  static constexpr uint32_t kCapturing = 0x00020000;  // some stream captures: a submission must look at its own stream
  static constexpr uint32_t kEnding = 0x00040000;     // the program exits: nobody waits for the gate any more
  static constexpr uint32_t kLimited = 0x00080000;    // with kWatched: a compute limit applies, and they are paced more closely

  // The calling thread's mark; null only when memory for a new one is short or the thread is past its end.
  static Mark* mark() {
    Mark* found = thread_mark_;
    return found != nullptr ? found : attach_thread();
  }

  // Enters and returns the flags as seen. kClosedMask clear: the caller is inside and must leave(). Otherwise it is inside too, but may
  // only do what is allowed while the gate is closed, and must leave() soon.
  [[gnu::always_inline]] uint32_t enter(Mark* mark) {
    mark->passes.store(mark->passes.load(std::memory_order_relaxed) + Mark::kEnters, std::memory_order_relaxed);
    if (needs_fence_.load(std::memory_order_relaxed)) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    return flags_.load(std::memory_order_acquire);
  }
  [[gnu::always_inline]] void leave(Mark* mark) {
    mark->passes.store(mark->passes.load(std::memory_order_relaxed) - 1, std::memory_order_release);
  }

  uint32_t flags() const { return flags_.load(std::memory_order_acquire); }

  void set(uint32_t bits) {
    if ((bits & kClosedMask) != 0) closures_.fetch_add(1, std::memory_order_relaxed);
    flags_.fetch_or(bits, std::memory_order_seq_cst);
  }
  // How often it was closed, for any GPU.
  uint32_t closures() const { return closures_.load(std::memory_order_relaxed); }
  // Clears bits and wakes whoever waits for the gate.
  void clear(uint32_t bits);

  // After set(): waits until no thread is inside. False when the deadline passed first (somebody still is).
  bool quiesce(int64_t deadline_ns);

  // Threads that wait for the gate to open. A thread counts itself in before it asks for the lock, so that whoever looks at waiting()
  // after settling something about the lock misses none.
  void begin_waiting() { waiting_.fetch_add(1, std::memory_order_seq_cst); }
  void end_waiting() { waiting_.fetch_sub(1, std::memory_order_seq_cst); }
  uint32_t waiting() const { return waiting_.load(std::memory_order_seq_cst); }
  // Sleeps until the flags differ from `seen`, at most timeout_ns. May return without cause.
  void wait_change(uint32_t seen, int64_t timeout_ns) { futex_wait(&flags_, seen, timeout_ns); }
  // The same, for the thread that is to go on the moment the gate opens: it wakes as soon as there is something to read at `messages`,
  // which another thread takes and which will likely open the gate, so that both wake at the same time and not one after the other. One
  // thread at a time; the others only sleep. `wake`: one that nobody else waits for, and that lives on.
  void wait_change_or_message(uint32_t seen, int messages, const WakeSocket& wake, int64_t timeout_ns);

  // Watched submissions of all threads so far.
  uint64_t submissions() const;
  // How often a thread came in so far, watched or not. Equal twice: nothing was submitted between. Looks at each mark; unless `of_many`,
  // nullopt where more than kFewMarks threads have submitted at a time.
  std::optional<uint64_t> entries(bool of_many) const;
  // Some thread submits just now. A guess: only quiesce() is sure of it.
  bool busy() const;

  // kWatched and kLimited stand while at least one GPU's client wants them.
  void watch(uint32_t bit, bool wanted);

  ProgramWaits waits;

  // Called by each thread that ends, with its number. Before the first thread enters.
  void on_thread_end(void (*callback)(uint64_t thread)) { thread_ends_.store(callback, std::memory_order_release); }

  // Before the first thread enters.
  void initialise();
  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  static constexpr uint32_t kFewMarks = 32;

  static Mark* attach_thread();
  static void detach_thread(void* mark);
  static void make_key();

  // Initial-exec TLS: an access is one instruction, and never allocates.
  static constinit thread_local Mark* thread_mark_;

  Mutex watch_mutex_;
  uint32_t watchers_[2] GUARDED_BY(watch_mutex_) = {};  // of kWatched, kLimited
  std::atomic<uint32_t> flags_{0};
  std::atomic<uint32_t> waiting_{0};
  std::atomic<uint32_t> marks_{0};
  std::atomic<uint32_t> closures_{0};
  std::atomic<void (*)(uint64_t)> thread_ends_{nullptr};
  std::atomic<bool> needs_fence_{true};
  std::atomic<const WakeSocket*> wake_{nullptr};  // of the thread in wait_change_or_message
};

// For who is given no process, as this_process() (process/process.h); others ask the process for it.
extern Gate program_gate;

}  // namespace nvshare::interposer
