// The mover's way in without the lock (docs/adr/0023): swapped chunks of a client whose turn comes next, within the budget that the
// scheduler gave for that. Their host copies stay, so that a chunk leaves again without a copy if the turn is another's after all. Whatever
// goes wrong leaves the chunk where it was: the turn's own load finds it.
#include "interposer/log.h"
#include "interposer/memory/swap.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUresult;

std::vector<Memory::Piece> Memory::pin_swapped(size_t bytes) {
  std::vector<Piece> pieces;
  size_t sum = 0;
  Lock lock(mutex_);
  for (Block* block : blocks_) {
    if (block->kind != BlockKind::kVmm) continue;
    for (uint32_t i = 0; i < block->chunk_count; ++i) {
      const Chunk& chunk = block->chunks[i];
      if (chunk.state != ChunkState::kSwapped || sum + chunk.bytes > bytes) continue;
      pieces.push_back({block, i, chunk.bytes});
      ++block->pins;
      sum += chunk.bytes;
    }
    if (sum >= bytes) break;
  }
  return pieces;
}

// One chunk's memory and the start of its copy.
bool Mover::fetch(const Memory::Piece& piece) {
  Memory& memory = device_.memory();
  const HostSlot& host = Memory::chunk(piece).host;
  if (host.data == nullptr || memory.map_chunk(*piece.block, piece.index) != cuda::CUDA_SUCCESS) return false;
  const CUresult result = real_driver().cuMemcpyHtoDAsync_v2(memory.address_of(piece), host.data, piece.bytes, in_stream_);
  if (result == cuda::CUDA_SUCCESS) return true;
  memory.unmap_chunk(*piece.block, piece.index);
  return false;
}

void Mover::run_prefetch(const Job& job) {
  Memory& memory = device_.memory();
  Client& client = device_.client();
  protocol::SwapProgress progress{};
  progress.direction = static_cast<uint8_t>(protocol::SwapDirection::kAhead);
  progress.id = job.id;
  const int64_t started = now_ns();
  bool failed = false;
  CUresult no_entry = cuda::CUDA_SUCCESS;
  if (client.prefetch_wanted(job.id) && !stopping() && enter_context(&no_entry)) {
    const size_t budget = client.budget(), resident = memory.resident();
    std::vector<Memory::Piece> pieces = memory.pin_swapped(budget - std::min(budget, resident));
    std::vector<Memory::Piece> under_way;
    for (const Memory::Piece& piece : pieces) {
      const bool wanted = !failed && client.prefetch_wanted(job.id) && !stopping();
      const bool fits = memory.resident() + piece.bytes <= budget;
      const bool moves = wanted && fits && memory.begin_move(piece, ChunkState::kSwapped);
      if (moves && fetch(piece)) {
        memory.arrived(piece);
        under_way.push_back(piece);
        continue;
      }
      failed |= moves || !wanted;
      if (moves) memory.end_move(piece, ChunkState::kSwapped, 0, 0);
      memory.unpin(piece);
    }
    const CUresult copied = real_driver().cuStreamSynchronize(in_stream_);
    for (const Memory::Piece& piece : under_way) {
      if (copied == cuda::CUDA_SUCCESS) {
        progress.moved += piece.bytes;
        memory.end_move(piece, ChunkState::kResident, 0, 0);
      } else {
        memory.unmap_chunk(*piece.block, piece.index);
        memory.end_move(piece, ChunkState::kSwapped, piece.bytes, 0);
      }
      memory.unpin(piece);
    }
    failed |= copied != cuda::CUDA_SUCCESS;
    leave_context();
  } else {
    failed = true;
  }
  client.prefetched(job.id);
  progress.finished = 1;
  progress.failed = failed ? 1 : 0;
  progress.copied = progress.moved;
  progress.elapsed_ns = static_cast<uint64_t>(now_ns() - started);
  progress.memory = memory.report();
  client.progress(progress);
  log(LogLevel::kDebug, "moved in %llu MiB ahead of the turn in %lld ms%s", static_cast<unsigned long long>(progress.moved >> 20),
      static_cast<long long>(progress.elapsed_ns / 1'000'000), failed ? " (stopped early)" : "");
}

}  // namespace nvshare::interposer
