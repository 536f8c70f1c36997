// Memory that the driver allocates for the program and that cannot leave the GPU: arrays, memory of graphs, of pools that may be shared,
// imports. It is counted like any other, but it needs the lock and room in the budget before the driver allocates it, because there is no
// turn to put it off to. hooks/unswappable.h puts that together.
//
// Thread-safe. Its mutex comes before Turns'.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/limits/memory_use.h"
#include "interposer/memory/residency/residency.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

class Device;

class DriverMemory {
 public:
  DriverMemory(Device& device, MemoryUse& use, Residency& residency) : device_(device), use_(use), residency_(residency) {}

  struct Holding {
    uint64_t key;  // a handle or an address, unique among those that live
    size_t bytes;
    cuda::CUcontext context;  // with which it ends; null: with none
    bool is_store = false;    // the driver keeps it for the program's next use, and gives back what is unused when it is told to
  };
  // Waits for the lock and for room, outside the gate. Success: `bytes` are counted, and the caller is inside the gate until it has called
  // settle or settle_store. `what` is for the log.
  cuda::CUresult claim(size_t bytes, const char* what);
  // What came of a claim: holding.bytes of it are held (0: the driver refused). Leaves the gate.
  void settle(size_t claimed, const Holding& holding);
  // Takes a holding off the books and returns it; of 0 bytes: none. Before the driver frees it, because the key may come again at once.
  Holding release(uint64_t key);
  void hold_again(const Holding& holding);  // it was not freed after all

  // Memory that the driver keeps in a store of its own, from which it serves the program, and whose size it tells: of graphs, and of the
  // pools that it serves (key: the pool's handle).
  static constexpr uint64_t kGraphs = 1;
  // After an allocation for which so much was claimed: counts what the store has now. Leaves the gate.
  void settle_store(size_t claimed, uint64_t store);
  // After the store may have shrunk.
  void measure(uint64_t store);
  // Gives back what no store needs at present. How often that was done, the program's own calls for it among them.
  void trim();
  void trimmed(uint64_t store);
  uint64_t trims() const { return trims_.load(std::memory_order_acquire); }

  // Imported memory whose exporter has let go is counted here, and no more.
  void inherit(size_t bytes);
  void disinherit(size_t bytes);

  void context_gone(cuda::CUcontext context);
  void reset_after_fork() { mutex_.reset_after_fork(); }

 private:
  void set(size_t claimed, const Holding& holding) REQUIRES(mutex_);
  void change(size_t from, size_t to);  // all figures of a holding that changes its size
  size_t store_bytes(uint64_t store) const;
  void changed();

  Device& device_;
  MemoryUse& use_;
  Residency& residency_;
  Mutex mutex_;
  std::vector<Holding> holdings_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> trims_{0};
};

}  // namespace nvshare::interposer
