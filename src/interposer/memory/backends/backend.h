// How the blocks of one kind (BlockKind) have their addresses and their GPU memory, and how their bytes move. One object for each kind and
// GPU; Backing has them.
//
// Thread-safe. No lock is held by who calls; nobody else is at that block, or at that chunk, meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/memory/blocks/block.h"

namespace nvshare::interposer {

// What a block is to be.
struct BlockOrder {
  size_t bytes;
  size_t requested;
  cuda::CUcontext context;
  ProgramHandle* handle = nullptr;  // set: memory for it
  unsigned managed = 0;             // the program's own managed memory: the flags of cuMemAllocManaged
  SlabUse use = SlabUse::kPlain;    // what is made for pools was never open to another GPU's copies
};

class Backend {
 public:
  // The block's addresses, for life: sets `base` and `address_bytes`. And their end, when none of its chunks has GPU memory.
  virtual cuda::CUresult reserve(Block& block, const BlockOrder& order) = 0;
  virtual cuda::CUresult give_back(Block& block) = 0;

  // A chunk's GPU memory. Kinds whose memory is there with the addresses do nothing.
  virtual cuda::CUresult map(Block&, uint32_t) { return cuda::CUDA_SUCCESS; }
  virtual void unmap(Block&, uint32_t) {}

  // The chunk has GPU memory: starts its bytes' way in. *copying: there are any.
  virtual cuda::CUresult start_in(const Piece&, cuda::CUstream, bool* copying) {
    *copying = false;
    return cuda::CUDA_SUCCESS;
  }
  // Starts their way out; where they are copied (is_copied), to `host` of the chunk.
  virtual cuda::CUresult start_out(const Piece&, cuda::CUstream) { return cuda::CUDA_SUCCESS; }

 protected:
  ~Backend() = default;
};

// The same for kinds whose bytes are copied to host memory of ours. The chunk's address is one to copy at.
cuda::CUresult copy_in(const Piece& piece, cuda::CUstream stream);
cuda::CUresult copy_out(const Piece& piece, cuda::CUstream stream);

}  // namespace nvshare::interposer
