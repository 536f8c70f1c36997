// What of the program's memory is on the GPU, and may be: the turn's side, and the swap engine's.
//
// While the program runs every block has its memory, and what is resident never passes the client's budget: it is raised before memory is
// mapped and lowered after it was released. The swap engine takes a pin on a block and moves its chunks one by one (swap/ has the
// sequence); a block that the program frees meanwhile ends with its last pin.
//
// Thread-safe. Locks the mutex of Blocks. Nothing here waits for the scheduler; what waits for the GPU says so.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/backends/backing.h"
#include "interposer/memory/backends/block_access.h"
#include "interposer/memory/block.h"
#include "interposer/memory/blocks.h"
#include "interposer/memory/memory_use.h"
#include "interposer/swap/copies/host_copies.h"

namespace nvshare::interposer {

class Device;

class Residency {
 public:
  Residency(Device& device, Blocks& blocks, MemoryUse& use, BlockAccess& access, Backing& backing, HostCopies& copies)
      : device_(device), blocks_(blocks), use_(use), access_(access), backing_(backing), copies_(copies) {}

  // From the link: with `running`, allocations are mapped at once.
  void set_running(bool running);
  // The turn begins at once if everything is on the GPU; false: it is not, or is on its way. Only while the swap engine has nothing to do.
  bool run_if_complete();
  // Holds this process to what it has: lowers the budget to what is resident and `kept` bytes more, atomically with allocations that are
  // under way.
  void lower_budget(std::atomic<size_t>& budget, size_t kept);
  // Counts so many bytes that will not move, if the program runs and they fit into the budget. Inside the gate. *running: the first of
  // these.
  bool claim(size_t bytes, bool* running);

  // Nothing leaves the GPU any more, and what is allocated from now on waits for the lock. Inside the gate. False: not all of it is there
  // yet, and nothing has changed.
  bool keep_all();
  bool all_stays() const;
  // The block stays on the GPU from now on. Inside the gate, with the lock.
  void make_unswappable(Block& block);
  // Gives a kHandle block GPU memory, for good, where the program has no context and so no turns. Waits for the GPU's memory.
  // INVALID_VALUE: its bytes are on the host.
  cuda::CUresult place_without_context(Block& block);

  // Pins what is to be moved: resident swappable chunks of at least `bytes` in sum (less if there is less).
  std::vector<Piece> pin_resident(size_t bytes);
  // Pins every chunk without GPU memory. Empty with `start_running`: memory now counts as running, atomically with that finding.
  std::vector<Piece> pin_absent(bool start_running);
  // The same of swapped chunks, up to so many bytes in sum, that need only their copy to be there (prefetch.cc).
  std::vector<Piece> pin_swapped(size_t bytes);
  void unpin(const Piece& piece);

  // One chunk's way.
  bool begin(const Piece& piece, ChunkState expected);  // false: freed meanwhile, or no longer in that state
  void end(const Piece& piece, ChunkState now, size_t resident_less);
  ChunkState state_of(const Piece& piece);
  bool freed(const Piece& piece);             // by the program, while pinned
  size_t arriving_bytes(const Piece& piece);  // what bringing it in adds to what is resident
  void arrived(const Piece& piece);           // adds it
  // A chunk that was copied out gives its GPU memory back, at once or with the last part of its block. Returns how much that was.
  size_t leave(const Piece& piece);

  static size_t resident_bytes(const Block& block);  // with the mutex

 private:
  void changed();

  Device& device_;
  Blocks& blocks_;
  MemoryUse& use_;
  BlockAccess& access_;
  Backing& backing_;
  HostCopies& copies_;
  std::atomic<bool> keeps_{false};  // keep_all() was called
};

}  // namespace nvshare::interposer
