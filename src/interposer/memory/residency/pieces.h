// What the swap engine moves: it pins blocks, takes their chunks one by one out or in, and lets go of them. A block that the program frees
// meanwhile ends with its last pin.
//
// Thread-safe. Locks the mutex of Blocks. What waits for the GPU says so.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/driver_api.h"
#include "interposer/memory/backends/backing.h"
#include "interposer/memory/backends/block_access.h"
#include "interposer/memory/blocks/block.h"
#include "interposer/memory/blocks/blocks.h"
#include "interposer/memory/limits/memory_use.h"
#include "interposer/memory/residency/residency.h"

namespace nvshare::interposer {

class Device;

class Pieces {
 public:
  Pieces(Device& device, Blocks& blocks, MemoryUse& use, BlockAccess& access, Backing& backing, Residency& residency)
      : device_(device), blocks_(blocks), use_(use), access_(access), backing_(backing), residency_(residency) {}

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

  // Gives a kHandle block GPU memory, for good, where the program has no context and so no turns. Waits for the GPU's memory.
  // INVALID_VALUE: its bytes are on the host.
  cuda::CUresult place_without_context(Block& block);

 private:
  Device& device_;
  Blocks& blocks_;
  MemoryUse& use_;
  BlockAccess& access_;
  Backing& backing_;
  Residency& residency_;
};

}  // namespace nvshare::interposer
