// The program's memory pools. What a pool of this GPU's memory hands out is served from our own blocks, so that it swaps; the driver's pool
// stays empty, and what the program asks about its use is answered from the counts here. A *foreign* pool is one whose memory leaves the
// process (made to be exported, or imported), or that other GPUs may use, or that is host memory or managed memory: the driver serves it.
// Allocations of managed memory are charged like those of cuMemAllocManaged; their pages come and go with demand, so no GPU counts them.
//
// Thread-safe; its own mutex is a leaf, and no call of the driver is made with it held.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/process/devices_max.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Pools {
 public:
  struct Pool {
    cuda::CUmemoryPool handle = nullptr;
    int ordinal = -1;      // of the GPU; -1: host memory
    bool foreign = false;  // the driver serves it
    bool managed = false;  // memory that it moves as it is used; foreign, too
    size_t bytes_max = 0;  // 0: no bound of its own
    size_t asked = 0;      // is being allocated, and may fail still: counts against the bound only
    size_t used = 0;
    size_t used_high = 0;
    size_t reserved_high = 0;
  };

  // Held from before the driver makes or ends a pool until that is known here, and while the driver is asked about the pools that it serves
  // on our own account: once a pool has ended, its handle is nobody's or another pool's. Comes before all other mutexes.
  Mutex lives;

  // What the program made or the driver has. A default pool is made known when it is first looked for.
  void made(const Pool& pool);
  void gone(cuda::CUmemoryPool pool);
  // False: not a pool that we know.
  bool find(cuda::CUmemoryPool pool, Pool* found);
  // From now on the driver serves it.
  void make_foreign(cuda::CUmemoryPool pool);

  // Other GPUs (bits) that may use what the pool has handed out, from now on, also once the pool is gone, and that may not.
  void set_access(cuda::CUmemoryPool pool, uint32_t opened, uint32_t closed);
  // The allocations that we serve, and who may use them.
  struct Reach {
    cuda::CUdeviceptr address;
    uint32_t open_to;
  };
  std::vector<Reach> reach();

  // The pool that cuMemAllocAsync uses on that GPU, and its handle; asks the driver the first time.
  Pool current(int ordinal);
  void set_current(int ordinal, cuda::CUmemoryPool pool);

  // Holds room for an allocation that we serve; false: the pool has a bound of its own that it would pass.
  bool charge(cuda::CUmemoryPool pool, size_t bytes);
  void refund(cuda::CUmemoryPool pool, size_t bytes);
  // It was charged, and lies there.
  void placed(cuda::CUdeviceptr address, cuda::CUmemoryPool pool, size_t bytes);
  struct Placed {
    cuda::CUdeviceptr address = 0;
    cuda::CUmemoryPool pool = nullptr;  // null: no allocation from a pool begins there
    size_t bytes = 0;
    int charged_to = -1;   // managed memory: the GPU against whose limit it counts
    uint32_t open_to = 0;  // other GPUs (bits) that may use it
  };
  // Managed memory that the driver placed there. Returns what was known there before, which the driver must have freed unseen.
  Placed placed_managed(cuda::CUdeviceptr address, cuda::CUmemoryPool pool, size_t bytes, int charged_to);
  bool placed_managed_any() const { return placed_managed_any_.load(std::memory_order_relaxed); }
  // What is charged to that GPU.
  std::vector<Placed> managed_of(int ordinal);
  // Forgets the allocation and refunds it. Before it is freed, because the address may be given out again at once.
  Placed take(cuda::CUdeviceptr address);
  void put_back(const Placed& placed);  // it was not freed after all
  Placed placed_at(cuda::CUdeviceptr address);
  // A pool has handed out memory of ours at some time.
  bool placed_any() const { return placed_any_.load(std::memory_order_relaxed); }

  // Attributes that are counts; false: the driver is to answer (another attribute, or it serves that pool).
  bool attribute(cuda::CUmemoryPool pool, cuda::CUmemPool_attribute attribute, uint64_t* value);
  // Sets a high-water mark back to what is in use now.
  void reset_high(cuda::CUmemoryPool pool, cuda::CUmemPool_attribute attribute);

 private:
  friend class Process;
  void reset_after_fork() {
    lives.reset_after_fork();
    mutex_.reset_after_fork();
  }

  static constexpr size_t kBuckets = 1024;
  Pool* lookup(cuda::CUmemoryPool pool) REQUIRES(mutex_);
  std::vector<Placed>& bucket(cuda::CUdeviceptr address) { return placed_[(address >> 9) * 0x9e3779b97f4a7c15ull >> 54]; }
  static size_t reserved(size_t used);

  Mutex mutex_;
  std::vector<Pool> pools_ GUARDED_BY(mutex_);
  cuda::CUmemoryPool current_[kDevicesMax] GUARDED_BY(mutex_) = {};
  std::vector<Placed> placed_[kBuckets] GUARDED_BY(mutex_);
  std::atomic<bool> placed_any_{false};
  std::atomic<bool> placed_managed_any_{false};
};

}  // namespace nvshare::interposer
