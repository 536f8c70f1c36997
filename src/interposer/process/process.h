// The process that we are a guest in: which GPUs and contexts it uses, whether a stream captures, how it is to be governed.
//
// Nothing happens before the program's first cuInit. After a fork the child is left alone: every call goes straight to the driver.
// Thread-safe. Its mutex is the first in the lock order (sync.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/gate/gate.h"
#include "interposer/link/scheduler_need.h"
#include "interposer/memory/program_vmm.h"
#include "interposer/process/device.h"
#include "interposer/process/ipc.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Process {
 public:
  static constexpr int kDevicesMax = 16;

  // After the driver's cuInit succeeded. Without a scheduler where one is required, contexts are refused later, not cuInit: only then is
  // it known which GPU is meant.
  cuda::CUresult start();
  bool active() const { return active_.load(std::memory_order_acquire); }

  // The GPU of the calling thread's current context, made known if it was not. Null when the driver is to answer: without a current
  // context, with one that was destroyed, reset or released while it was current, or when we are inactive.
  Device* current_device(cuda::CUcontext* context);
  Device* device(int ordinal) {
    return ordinal >= 0 && ordinal < kDevicesMax ? devices_[ordinal].load(std::memory_order_acquire) : nullptr;
  }
  template <typename Action>
  void for_each_device(Action action) {
    for (auto& slot : devices_) {
      if (Device* device = slot.load(std::memory_order_acquire)) action(*device);
    }
  }
  // The GPU, made known if it was not; null when it cannot be shared. No context is needed.
  Device* attached(int ordinal) { return attach(ordinal); }
  // What the program on that GPU is to see as its size, of a GPU that the driver says has `real_total` bytes. Asks the scheduler if the
  // program has no context there yet, so that it sees the same before and after.
  size_t visible_total(int ordinal, size_t real_total);
  // The device that owns `address`, or null.
  // *within (may be null): the address is ours without being any allocation's (Blocks::find).
  Device* owner(cuda::CUdeviceptr address, AllocationRange* range, bool* within = nullptr);
  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of the allocation of ours that the address lies in: from the first time on, every synchronous copy and
  // fill of the program ends before it returns.
  void set_sync_memops(cuda::CUdeviceptr address, bool wanted);
  // Some of the range is memory that we made for the program, on any GPU, or imported: no virtual memory to the program.
  bool holds(cuda::CUdeviceptr address, size_t bytes);
  // The same for the program's own managed memory.
  Device* managed_owner(cuda::CUdeviceptr address);

  // Makes that GPU known, and us to its scheduler, if it was not; null: it is not to be governed.
  Device* attach(int ordinal);

  // False: the program may not use that GPU.
  bool context_made(cuda::CUcontext context, int ordinal);
  // Around the driver's destroying it: before, and after. Between them nobody of ours is in that context.
  void context_leaves(cuda::CUcontext context);
  void context_left(cuda::CUcontext context);
  void context_stays(cuda::CUcontext context);
  // The driver has destroyed a green context (green_contexts.h), and captures on its streams with it.
  void green_context_left(cuda::CUcontext context);
  // The primary context of that GPU as far as the program has it; null: it has none.
  cuda::CUcontext primary(int ordinal);
  void primary_made(cuda::CUcontext context, int ordinal);
  // Counts one release of the primary context; true when it cannot be the last.
  bool release_keeps_primary(int ordinal);

  // cuCtxAttach counted one use of the context more.
  void context_attached(cuda::CUcontext context);
  // Takes one use back; true when it cannot be the last.
  bool detach_keeps(cuda::CUcontext context);
  // The calling thread's current context was destroyed, reset or released. Driver 580 then answers most calls with
  // CUDA_ERROR_CONTEXT_IS_DESTROYED whatever they name, but cuCtxGetDevice with success (measured).
  bool current_is_gone();
  // The GPU whose primary context it is, or -1.
  int primary_of(cuda::CUcontext context);

  // A context on that GPU that stays alive until unpinned; null: none.
  cuda::CUcontext pin_context(int ordinal);
  void unpin_context(cuda::CUcontext context);
  // Waits for all work of all contexts on that GPU, or of the process: any GPU may use any other's memory (mover thread; contexts pinned
  // meanwhile). False: a stream captures, or a context is on its way out; not all was waited for.
  static constexpr int kAllGpus = -1;
  bool synchronize(int ordinal);

  // The current context may use memory of the peer's GPU from now on, or no more. The driver has agreed.
  void peer_enabled(cuda::CUcontext peer);
  void peer_disabled(cuda::CUcontext peer);
  // GPUs (bits) that may use that GPU's memory, itself always.
  uint32_t accessors(int ordinal) const { return accessors_[ordinal].load(std::memory_order_acquire) | 1u << ordinal; }

  // GPUs (bits) on which the program has a context.
  uint32_t gpus_with_contexts();

  Ipc& ipc() { return ipc_; }

  // Streams that capture now.
  bool capturing() const { return captures_.load(std::memory_order_acquire) > 0; }
  // Around the driver's cuStreamBeginCapture: counts before it, so that no synchronisation of ours meets a capture (it would break it).
  void capture_begins(cuda::CUstream stream);
  void capture_ended(cuda::CUstream stream);  // also when it did not begin after all
  // Around the driver's destroying a stream: the capture that began on it (0: none) ends with it. Another stream may have the same handle
  // as soon as the driver has returned.
  uint64_t capture_leaves(cuda::CUstream stream);
  void capture_left(uint64_t number);
  void capture_stays(uint64_t number, cuda::CUstream stream);
  // True: nothing captures, and nothing will until end_synchronize(). False: something captures.
  bool begin_synchronize();
  void end_synchronize();
  // False at the deadline.
  bool wait_no_capture(int64_t deadline_ns);

  // Earlier GPU work of that context is done on return. False: a stream captures, so nothing may be waited for.
  bool synchronize_before_free(cuda::CUcontext context, cuda::CUresult* result);

  // Blocks until the gate is open for all GPUs, asking for the locks that are missing, or until the program ends.
  void wait_for_gate() { wait_for_gate(nullptr); }
  // The same, but no longer than others of that client's tenant run without it.
  void wait_to_join(const Client& client) { wait_for_gate(&client); }
  static bool ending() { return (gate.flags() & Gate::kEnding) != 0; }

  // None of the program's memory leaves a GPU from now on, whoever asks: something may use it that no hook sees. Waits for the lock, so
  // that all of it is there. `why` is a sentence's end that is told to people. False: it could not be done yet.
  bool hold_resident(const char* why);

  // The program's own virtual memory management.
  ProgramVmm& vmm() { return vmm_; }

  // Counts contexts that were destroyed: handles made before may be of a dead context even if its address is in use again.
  uint32_t contexts_destroyed() const { return contexts_destroyed_.load(std::memory_order_relaxed); }

  // The program's exit handler of ours: no movement of memory may be under way when the driver's own runs.
  void program_ends();

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  bool is_gone(cuda::CUcontext current);
  struct Context {
    cuda::CUcontext handle;
    int ordinal;
    uint32_t primary_references;  // 0: made by cuCtxCreate
    uint32_t pins;
    uint32_t going;            // threads that are about to destroy it, or to find that it stays
    uint32_t attachments = 0;  // of one made by cuCtxCreate; the primary one counts them among its references
  };
  void wait_gate_change(uint32_t flags);
  void wait_for_gate(const Client* joins);
  Context* find_context(cuda::CUcontext context) REQUIRES(mutex_);
  struct Capture {
    uint64_t number;
    cuda::CUstream stream;  // that it began on; null: being destroyed
    uint64_t thread;        // of a per-thread default stream, else 0
    cuda::CUcontext context;
  };
  template <typename Which>
  void forget_captures(size_t most, Which which);
  void captures_left_with(cuda::CUcontext context);
  void captures_left_with_thread(uint64_t thread);
  struct PeerAccess {
    cuda::CUcontext from;  // may use memory of
    cuda::CUcontext to;
    int from_ordinal;
    int to_ordinal;
  };
  void tell_accessors(uint32_t ordinals);
  void forget_peers(cuda::CUcontext context);

  std::atomic<bool> active_{false};
  std::atomic<uint32_t> contexts_destroyed_{0};
  std::atomic<Device*> devices_[kDevicesMax] = {};
  std::atomic<int> captures_{0};
  int synchronizing_ GUARDED_BY(capture_mutex_) = 0;
  uint64_t last_capture_ GUARDED_BY(capture_mutex_) = 0;
  std::vector<Capture> captures_known_ GUARDED_BY(capture_mutex_);
  Mutex mutex_;
  Mutex attach_mutex_;  // before mutex_
  Condition contexts_changed_;
  Mutex capture_mutex_;
  Condition capture_changed_;
  std::vector<Context> contexts_ GUARDED_BY(mutex_);
  ProgramVmm vmm_;
  std::vector<PeerAccess> peers_ GUARDED_BY(mutex_);
  Mutex peers_mutex_;  // before mutex_: one change of access after the other
  std::atomic<uint32_t> accessors_[kDevicesMax] = {};
  Ipc ipc_;
  std::atomic<bool> held_{false};  // hold_resident() was called; changes with attach_mutex_ held
  char held_why_[protocol::kKeepsWhyBytes] GUARDED_BY(attach_mutex_) = {};
  protocol::Backend backend_ = protocol::Backend::kVmm;
  SchedulerNeeded needed_;
};

Process& process();

// While it lives, what the calling thread asks the driver for disturbs no capture.
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode();
  ~RelaxedCaptureMode();
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  bool changed_ = false;
  cuda::CUstreamCaptureMode mode_ = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
};

// While it lives no capture begins; false: something captures, so that no event may be recorded, queried or waited for.
class CapturesHeldOff {
 public:
  CapturesHeldOff() : held_(process().begin_synchronize()) {}
  ~CapturesHeldOff() {
    if (held_) process().end_synchronize();
  }
  CapturesHeldOff(const CapturesHeldOff&) = delete;
  CapturesHeldOff& operator=(const CapturesHeldOff&) = delete;
  explicit operator bool() const { return held_; }

 private:
  const bool held_;
};

}  // namespace nvshare::interposer
