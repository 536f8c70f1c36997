// What of the program's memory is on the GPU, and may be: the turn's side. While the program runs every block has its memory, and what is
// resident never passes the client's budget: it is raised before memory is mapped and lowered after it was released.
//
// Thread-safe. Locks the mutex of Blocks. Nothing here waits.
#pragma once

#include <atomic>
#include <cstddef>

#include "interposer/memory/blocks/block.h"
#include "interposer/memory/blocks/blocks.h"
#include "interposer/memory/limits/memory_use.h"
#include "interposer/swap/copies/host_copies.h"

namespace nvshare::interposer {

class Device;

class Residency {
 public:
  Residency(Device& device, Blocks& blocks, MemoryUse& use, HostCopies& copies)
      : device_(device), blocks_(blocks), use_(use), copies_(copies) {}

  // From the link: with `running`, allocations are mapped at once.
  void set_running(bool running);
  // The turn begins at once if everything is on the GPU; false: it is not, or is on its way. Only while the swap engine has nothing to do.
  bool run_if_complete();
  // Managed memory comes and goes by itself as the GPU uses it, and pushes what other programs have off the GPU.
  bool pages_on_demand();
  // Holds this process to what it has: lowers the budget to what is resident and `kept` bytes more, atomically with allocations that are
  // under way.
  void lower_budget(std::atomic<size_t>& budget, size_t kept);
  // Counts so many bytes that will not move, if the program runs and they fit into the budget. Inside the gate. *running: the first of
  // these.
  bool claim(size_t bytes, bool* running);

  // Nothing leaves the GPU any more, and what is allocated from now on waits for the lock. Inside the gate. False: not all of it is there
  // yet, and nothing has changed.
  bool keep_all();
  bool all_kept() const { return keeps_.load(std::memory_order_acquire); }  // that was called
  bool all_stays() const;                                                   // or nothing ever leaves
  // The block stays on the GPU from now on. Inside the gate, with the lock.
  void make_unswappable(Block& block);

  static size_t resident_bytes(const Block& block);  // with the mutex

 private:
  void changed();

  Device& device_;
  Blocks& blocks_;
  MemoryUse& use_;
  HostCopies& copies_;
  std::atomic<bool> keeps_{false};  // keep_all() was called
};

}  // namespace nvshare::interposer
