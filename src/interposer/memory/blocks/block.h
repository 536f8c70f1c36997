// A block: one contiguous range of device addresses that lives as long as the program's allocation (or slab), and the chunks of GPU memory
// behind it, which come and go. Every field is guarded by the mutex of the Blocks that have the block, except that the swap engine reads
// and writes a chunk's handle and host copy on its own while the block is pinned and the chunk is moving.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/driver_api.h"
#include "interposer/host_arena/host_slot.h"
#include "interposer/memory/blocks/slab.h"
#include "interposer/swap/copies/retained_copy.h"

namespace nvshare::interposer {

enum class ChunkState : uint8_t {
  kFresh,     // no GPU memory, never written: nothing to copy in
  kResident,  // mapped
  kSwapped,   // no GPU memory, the bytes are in `host`
  kMoving,    // the swap engine is at work on it
};

struct Chunk {
  cuda::CUmemGenericAllocationHandle handle = 0;
  HostSlot host;  // kSwapped: the bytes. kResident: a copy that is known to be true, as the program has not run since (else none)
  // kResident, while there is no `host`: a copy that was true when the program began to run. Guarded by the mutex always.
  RetainedCopy kept;
  uint32_t bytes = 0;
  uint32_t accessors = 0;  // GPUs (bits) that may use the mapping
  ChunkState state = ChunkState::kFresh;
  bool left_mapped = false;     // the driver failed to unmap it (of a handle: chunk 0, for all of it): its GPU memory has not come free
  bool host_preferred = false;  // kManaged: the program advised that it is to stay on the host
};

struct ProgramHandle;

// How the block has its memory.
enum class BlockKind : uint8_t {
  kVmm,      // reserved addresses, physical handles that come and go
  kManaged,  // cuMemAllocManaged, prefetched out and in
  kPlain,    // the driver's own allocation: counted, never moved
  kHandle,   // one physical handle that the program made by cuMemCreate, mapped where the program mapped it (program_vmm.h)
};

// Its bytes are copied to host memory of ours when it leaves the GPU.
inline bool is_copied(BlockKind kind) { return kind == BlockKind::kVmm || kind == BlockKind::kHandle; }

// A kHandle block has one driver handle of its full size, in its first chunk: it may be exported. Its chunks are parts that are copied one
// by one; the GPU memory comes with the first of them and goes when the last has been copied out. `base` is a window of ours, 0 until a
// copy first needed it: the program maps and unmaps as it likes while the swap engine copies.
struct Block {
  BlockKind kind = BlockKind::kVmm;
  cuda::CUdeviceptr base = 0;
  size_t bytes = 0;                   // of the range: a multiple of the granularity
  size_t requested = 0;               // what the program asked for (dedicated blocks)
  size_t address_bytes = 0;           // reserved, >= bytes; of kPlain: what the driver was asked for
  AllocationNotes notes;              // of a dedicated block's allocation
  cuda::CUcontext context = nullptr;  // whose allocation it is; null once that context is gone: memory of pools outlives it
  Chunk* chunks = nullptr;
  uint32_t chunk_count = 0;
  uint32_t pins = 0;         // swap engine snapshots that hold it
  bool doomed = false;       // freed by the program while pinned: the last pin's holder disposes of it
  bool cached = false;       // freed, kept mapped for reuse
  bool for_pool = false;     // memory of pools: the program's peer access does not reach it
  bool unswappable = false;  // stays on the GPU: somebody else may use it too
  // GPUs (bits) that copies of the program needed to reach it (hooks/reach.h), or that its pool is open to.
  std::atomic<uint32_t> open_to{0};
  // Not 0: handed to other processes by legacy IPC. Only who was given a handle knows the nonce.
  uint64_t export_id = 0;
  uint8_t export_nonce[16] = {};
  Slab* slab = nullptr;  // the slab that lives in it, if any
  // kHandle:
  ProgramHandle* handle = nullptr;  // lives at least as long as the block
  bool handle_ends = false;         // with the block
  bool in_resident = false;         // counted as resident
  bool window_mapped = false;       // guarded by ProgramVmm's mutex, as the first chunk's handle is
  // kManaged:
  bool of_program = false;  // the program's own managed memory: it may also touch it from the host, at any time
  bool demand = false;      // more than fits: its pages come and go as the driver likes, and count only as what neighbours cannot see
};

// Its memory comes and goes with turns.
inline bool takes_turns(const Block& block) { return block.kind != BlockKind::kPlain && !block.demand; }

inline constexpr size_t kChunkBytesMax = size_t{64} << 20;

inline size_t chunk_offset(uint32_t index) { return size_t{index} * kChunkBytesMax; }

// A chunk of a block that is pinned: for the swap engine.
struct Piece {
  Block* block;
  uint32_t index;
  size_t bytes;

  Chunk& chunk() const { return block->chunks[index]; }
  cuda::CUdeviceptr address() const { return block->base + chunk_offset(index); }
};

}  // namespace nvshare::interposer
