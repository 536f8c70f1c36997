// The process that we are a guest in: which GPUs and contexts it uses, whether a stream captures, how it is to be governed.
//
// Nothing happens before the program's first cuInit. After a fork the child is left alone: every call goes straight to the driver.
// Thread-safe. Its mutex is the first in the lock order (interposer/README.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/gate/gate.h"
#include "interposer/hooks/graph_copies.h"
#include "interposer/link/scheduler_need.h"
#include "interposer/memory/driver_memory/graph_memory.h"
#include "interposer/memory/handles/program_vmm.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/captures.h"
#include "interposer/process/contexts.h"
#include "interposer/process/device.h"
#include "interposer/process/devices_max.h"
#include "interposer/process/green_contexts.h"
#include "interposer/process/ipc.h"
#include "interposer/process/peers.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Process {
 public:
  // After the driver's cuInit succeeded; once. Without a scheduler where one is required, contexts are refused later, not cuInit: only then
  // is it known which GPU is meant.
  void start();
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
  bool overlaps(cuda::CUdeviceptr address, size_t bytes);
  // The same for the program's own managed memory.
  Device* managed_owner(cuda::CUdeviceptr address);

  // Makes that GPU known, and us to its scheduler, if it was not; null: it is not to be governed. No context is needed.
  Device* attach(int ordinal);

  // False: the program may not use that GPU.
  bool context_made(cuda::CUcontext context, int ordinal);
  // Around the driver's destroying it: before, and after (or contexts.stays). Between them nobody of ours is in that context.
  void context_leaves(cuda::CUcontext context);
  void context_left(cuda::CUcontext context);
  // The driver has destroyed a green context (green_contexts.h), and captures on its streams with it.
  void green_context_left(cuda::CUcontext context);
  // The calling thread's current context was destroyed, reset or released. Driver 580 then answers most calls with
  // CUDA_ERROR_CONTEXT_IS_DESTROYED whatever they name, but cuCtxGetDevice with success (measured).
  bool current_is_gone();

  // Blocks until the gate is open for all GPUs, asking for the locks that are missing, or until the program ends; where `joins` says so, no
  // longer than others of that tenant run without it.
  void wait_for_gate(const TurnSigns* joins = nullptr);
  // The submission of a thread that had waited for the gate has returned; its work goes on.
  void first_submitted();
  bool ending() const { return (gate.flags() & Gate::kEnding) != 0; }

  // None of the program's memory leaves a GPU from now on, whoever asks: something may use it that no hook sees. Waits for the lock, so
  // that all of it is there. `why` is a sentence's end that is told to people. False: it could not be done yet.
  bool hold_resident(const char* why);

  // Its parts, each with data and a mutex of its own.
  Gate& gate = program_gate;     // which hooks pass (hooks/entry.h)
  Captures captures{gate};       // streams that capture
  Contexts contexts;             // which there are, and who of ours is in one
  GreenContexts green_contexts;  // parts of primary contexts
  PeerAccess peers{*this};       // which GPU may use whose memory
  Ipc ipc{*this};                // memory of other processes
  Pools pools;                   // the program's memory pools
  GraphMemory graph_memory;      // what graphs make the driver take
  GraphCopies graph_copies;      // of executable graphs
  ProgramVmm vmm{*this};         // the program's own virtual memory management

 private:
  static void in_forked_child();
  static void at_program_exit();
  // No movement of memory may be under way when the driver's own exit handler runs.
  void program_ends();
  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread
  bool is_gone(cuda::CUcontext current);
  void wait_gate_change(uint32_t flags);
  void tell_end_of_work(Device& device, uint32_t flags);

  std::atomic<bool> active_{false};
  std::atomic<Device*> devices_[kDevicesMax] = {};
  Mutex attach_mutex_;             // before all others
  std::atomic<bool> held_{false};  // hold_resident() was called; changes with attach_mutex_ held
  char held_why_[protocol::kKeepsWhyBytes] GUARDED_BY(attach_mutex_) = {};
  protocol::Backend backend_ = protocol::Backend::kVmm;
  SchedulerNeeded needed_;
};

// For who is given no process: hooks (hooks/entry.h), and what the C library calls (process.cc).
Process& this_process();

}  // namespace nvshare::interposer
