// The host side of swapping: page-locked host memory in segments, so that copies run at the link's speed, kept and reused.
//
// The node's host memory has one budget, which the scheduler keeps: every segment is lent by it. A segment is either this process's own
// anonymous memory (the fastest to make; charged to the program's cgroup) or memory that the scheduler made and passed on (a memfd,
// charged to the scheduler's cgroup): the latter where the program's cgroup leaves too little (docs/adr/0005-host-memory-is-lent.md).
//
// Segments are made, pinned and given back by background threads (pinning 8 GiB takes seconds on one thread): grow_to() asks for loans,
// allocate() hands out what is ready and waits for what is coming. Never inherited by fork (a fork with gigabytes of pinned memory takes
// seconds). Thread-safe; its mutex is near the end of the lock order (interposer/README.md), and it calls nothing of ours that takes
// another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "cuda/driver_api.h"
#include "interposer/host_arena/host_slot.h"
#include "interposer/host_arena/own_memory.h"
#include "interposer/host_arena/segment.h"
#include "interposer/sync.h"
#include "protocol/messages.h"

namespace nvshare::interposer {

class Device;

class HostArena {
 public:
  static constexpr size_t kSegmentBytesMax = protocol::kArenaSegmentBytesMax;

  explicit HostArena(Device& device) : device_(device) {}

  void configure() { own_.configure(); }  // before the link starts

  // ---- for the swap engine ----
  // Wants room for `bytes` in all. Returns at once; work goes on in background threads that use `context`. `urgent`: somebody waits for it.
  void grow_to(size_t bytes, cuda::CUcontext context, bool urgent);
  // A slot of `bytes` (at most kSegmentBytesMax) of what is ready. data == nullptr: nothing is.
  HostSlot allocate_ready(size_t bytes);
  // The same, but waits while something is coming that may satisfy it. data == nullptr: host memory is short.
  HostSlot allocate(size_t bytes);
  void give_back(const HostSlot& slot);

  // Bytes made (and pinned, where the driver would), and of them in use.
  size_t ready_bytes();
  size_t used_bytes();
  // Of each segment, as HostSlot::segment numbers them; bytes 0: it is not there, or not to be given back now.
  struct SegmentUse {
    size_t bytes;
    size_t used;
  };
  std::vector<SegmentUse> segment_uses();

  // The context dies and takes its registrations with it. Slots keep their data; copies are slower until the next grow_to.
  void context_gone(cuda::CUcontext context);
  // The process exits: nobody waits any more, nothing new is made. Waits at most `patience_ns` for what is under way in the driver.
  void give_up(int64_t patience_ns);

  // ---- for the link's thread ----
  // What the scheduler is to be told, in this order.
  struct Outbox {
    std::vector<uint64_t> returned;  // segments
    std::vector<protocol::ArenaShrunk> shrunk;
    bool asks = false;
    protocol::ArenaRequest request{};
  };
  bool take_outbox(Outbox* outbox);  // false: nothing
  void lent(const protocol::ArenaSegment& segment, FileDescriptor memory);
  void refused(const protocol::ArenaRefused& message);
  void shrink(const protocol::ArenaShrink& message);
  // Nobody answers requests now. What was lent stays.
  void lender_gone();
  // Everything that was lent, for the next scheduler.
  std::vector<protocol::ArenaHeld> held();
  // Memory of this process's own in a cgroup with a limit: to be looked at now and then, because the program may come to need the room.
  bool wants_cgroup_watched() const { return own_.wants_watching(); }
  static bool cgroup_is_full() { return OwnMemory::too_little().has_value(); }
  void look_at_cgroup();

  void reset_after_fork() NO_THREAD_SAFETY_ANALYSIS;  // the child has one thread

 private:
  // Lent, and not made yet.
  struct Loan {
    uint64_t id = 0;
    size_t bytes = 0;
    protocol::ArenaOwner owner = protocol::ArenaOwner::kProcess;
    FileDescriptor memory;
  };

  bool take_any(size_t bytes, HostSlot* slot) REQUIRES(mutex_);
  void ask(size_t total, bool urgent) REQUIRES(mutex_);
  bool coming() const REQUIRES(mutex_);
  void start_workers(bool urgent) REQUIRES(mutex_);
  size_t mark_leaving(size_t bytes, bool only_own) REQUIRES(mutex_);
  void settle_shrink() REQUIRES(mutex_);
  void notify() REQUIRES(mutex_);  // whoever waits here, and the link

  static void* worker_body(void* self);
  void work();
  bool unmap_one() REQUIRES(mutex_);  // given up meanwhile
  bool build_one() REQUIRES(mutex_);  // given up meanwhile
  bool pin_one() REQUIRES(mutex_);    // given up meanwhile
  void add(const HostSegment& segment) REQUIRES(mutex_);
  void return_unmade(const Loan& loan) REQUIRES(mutex_);  // no memory was to be had for it

  Device& device_;
  OwnMemory own_;
  Mutex mutex_;
  Condition changed_;
  std::vector<HostSegment> segments_ GUARDED_BY(mutex_);
  std::vector<Loan> loans_ GUARDED_BY(mutex_);
  size_t ready_ GUARDED_BY(mutex_) = 0;           // sum of bytes of segments_
  size_t lent_ GUARDED_BY(mutex_) = 0;            // what the scheduler takes us to have, less what is on its way back
  size_t building_ GUARDED_BY(mutex_) = 0;        // of what this scheduler lent
  uint64_t lenders_gone_ GUARDED_BY(mutex_) = 0;  // schedulers before this one
  uint32_t workers_ GUARDED_BY(mutex_) = 0;       // threads
  uint32_t in_driver_ GUARDED_BY(mutex_) = 0;     // of them, in a driver call with a context
  uint32_t waiters_ GUARDED_BY(mutex_) = 0;       // in allocate()
  cuda::CUcontext context_ GUARDED_BY(mutex_) = nullptr;
  bool ending_ GUARDED_BY(mutex_) = false;

  // What we asked for last, and whether it was answered.
  size_t asked_ GUARDED_BY(mutex_) = 0;
  uint64_t request_ GUARDED_BY(mutex_) = 0;
  bool urgent_ GUARDED_BY(mutex_) = false;
  bool request_due_ GUARDED_BY(mutex_) = false;  // not sent yet
  bool refused_ GUARDED_BY(mutex_) = false;
  int64_t short_told_ns_ GUARDED_BY(mutex_) = 0;

  std::vector<uint64_t> returned_ GUARDED_BY(mutex_);
  std::vector<protocol::ArenaShrunk> shrunk_ GUARDED_BY(mutex_);
  uint64_t shrink_ GUARDED_BY(mutex_) = 0;  // under way; 0: none
  size_t shrink_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace nvshare::interposer
