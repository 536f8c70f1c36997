// Copies of chunks in host memory while the chunks are on the GPU. One that is known to be true (`Chunk::host`) lets a turn that has not
// begun be given back without a copy. Once the program runs it may not be true any more: then it goes, or becomes a kept one
// (`Chunk::kept`), which is true again if the chunk's hash says so when it is to leave (unchanged.h). Kept copies are a cache: given back
// before anybody waits for host memory.
//
// Thread-safe. Locks the mutex of Blocks, and under it the arena's.
#pragma once

#include <cstddef>

#include "interposer/host_arena/host_arena.h"
#include "interposer/memory/blocks/block.h"
#include "interposer/memory/blocks/blocks.h"
#include "interposer/swap/copies/chunk_hash.h"

namespace nvshare::interposer {

class HostCopies {
 public:
  HostCopies(Blocks& blocks, HostArena& arena) : blocks_(blocks), arena_(arena) {}

  // The program runs again: the host copies of resident chunks are no longer known to be true. `keeps`: they are kept where it may be found
  // out whether they are; else they are given back.
  void forget(bool keeps);
  // What is kept of a block that is no more, or never leaves. `blocks` are those that the block is one of.
  void drop(const Blocks& blocks, Block& block) REQUIRES(blocks.mutex);

  bool hash_wanted(const Piece& piece);  // it has no true copy, and it is worth finding out whether the kept one is
  // Its bytes have this hash. True: the kept copy has the same, and is the chunk's host copy from now on.
  bool adopt_kept(const Piece& piece, const ChunkHash& now);
  void disown(const Piece& piece);         // its host copy was not the same after all
  HostSlot take_kept(const Piece& piece);  // the place of a copy that is no longer true, for the copy that is to be made; or none
  bool has_kept(const Piece& piece);
  void left(const Piece& piece, bool copied, const ChunkHash* hash);  // hash may be null

  size_t kept_bytes();
  bool drop_one_kept();  // false: there is none
  // So that segments of so many bytes in sum hold nothing, as far as that is possible: kept copies go, and those of what has come in for a
  // turn that has not begun. A neighbour that moves out to make room for that very turn may need them.
  void give_back_spare(size_t bytes);
  // The swap engine moves memory out: it alone disposes of true host copies meanwhile.
  void set_evicting(bool evicting);

 private:
  template <typename Visit>
  void each_kept(Visit visit) REQUIRES(blocks_.mutex);
  template <typename Visit>
  void each_arrived(Visit visit) REQUIRES(blocks_.mutex);

  Blocks& blocks_;
  HostArena& arena_;
  bool evicting_ GUARDED_BY(blocks_.mutex) = false;
};

}  // namespace nvshare::interposer
