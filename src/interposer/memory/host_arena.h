// The host side of swapping: anonymous memory in segments, page-locked so that copies run at the link's speed, kept and reused.
//
// Segments are made and pinned by background threads (pinning 8 GiB takes seconds on one thread): grow_to() starts that, allocate() hands
// out what is ready and waits for what is being made. Never inherited by fork (a fork with gigabytes of pinned memory takes seconds).
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/block.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class HostArena {
 public:
  static constexpr size_t kSegmentBytes = size_t{256} << 20;
  static constexpr size_t kUnitBytes = size_t{2} << 20;

  // Wants room for `bytes` in all. Returns at once; work goes on in background threads that use `context`.
  void grow_to(size_t bytes, cuda::CUcontext context);

  // A slot of `bytes` (at most kChunkBytesMax). Waits while growth is under way that may satisfy it. data == nullptr: host memory is short.
  HostSlot allocate(size_t bytes);
  void free(const HostSlot& slot);

  // Bytes made and pinned.
  size_t ready_bytes();
  size_t used_bytes();

  // The context dies and takes its registrations with it: waits for growth under way, then unpins. Slots keep their data; copies are
  // slower until the next grow_to.
  void context_gone(cuda::CUcontext context);

  // Unmaps every segment without a slot in use.
  void shrink();

  void reset_after_fork();

 private:
  struct Segment {
    char* data = nullptr;
    size_t bytes = 0;
    cuda::CUcontext pinned_in = nullptr;
    uint64_t used[2] = {0, 0};  // one bit per unit
    uint32_t used_units = 0;
  };

  bool take(Segment& segment, uint32_t index, size_t units, HostSlot* slot);
  bool make_segment(cuda::CUcontext context);
  static void* grower_body(void* self);
  void grower();

  Mutex mutex_;
  Condition changed_;
  std::vector<Segment> segments_;
  size_t ready_ = 0;  // sum of bytes of segments_
  size_t target_ = 0;
  size_t under_way_ = 0;  // bytes that growers are making now
  uint32_t growers_ = 0;  // threads
  uint32_t waiters_ = 0;  // in allocate()
  bool short_ = false;    // the last attempt to grow found host memory short
  cuda::CUcontext context_ = nullptr;
};

// Room for more pinned memory in this process: the lesser of what the machine and the process's cgroup have left, minus a reserve. Bytes.
size_t host_memory_available();

}  // namespace nvshare::interposer
