// What is behind blocks: makes and ends them, and knows the backend of each.
//
// Thread-safe. Driver calls are made without a lock.
#pragma once

#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/host_arena/host_arena.h"
#include "interposer/memory/backends/backend.h"
#include "interposer/memory/backends/block_access.h"
#include "interposer/memory/backends/handle.h"
#include "interposer/memory/backends/managed.h"
#include "interposer/memory/backends/plain.h"
#include "interposer/memory/backends/vmm.h"
#include "interposer/memory/blocks/block.h"
#include "interposer/memory/blocks/blocks.h"

namespace nvshare::interposer {

class Device;

class Backing {
 public:
  Backing(Device& device, Blocks& blocks, HostArena& arena, BlockAccess& access)
      : managed(device), device_(device), blocks_(blocks), arena_(arena), vmm_(device, access), handle_(device, blocks) {}

  // A block with addresses and no GPU memory, in no list; and its end: unmaps, returns addresses and host slots. No lock held.
  cuda::CUresult make(const BlockOrder& order, Block** out);
  void dispose(Block* block);

  Backend& of(const Block& block);
  cuda::CUresult map(Block& block, uint32_t index) { return of(block).map(block, index); }
  void unmap(Block& block, uint32_t index) { of(block).unmap(block, index); }
  cuda::CUresult start_in(const Piece& piece, cuda::CUstream stream, bool* copying) {
    return of(*piece.block).start_in(piece, stream, copying);
  }
  cuda::CUresult start_out(const Piece& piece, cuda::CUstream stream) { return of(*piece.block).start_out(piece, stream); }

  ManagedBackend managed;

 private:
  BlockKind kind_of(const BlockOrder& order) const;

  Device& device_;
  Blocks& blocks_;
  HostArena& arena_;
  VmmBackend vmm_;
  HandleBackend handle_;
  PlainBackend plain_;
};

}  // namespace nvshare::interposer
