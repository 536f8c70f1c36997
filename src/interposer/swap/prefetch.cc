// The swap engine's way in without the lock (docs/adr/0023): swapped chunks of a client whose turn comes next, within the budget that the
// scheduler gave for that. Their host copies stay, so that a chunk leaves again without a copy if the turn is another's after all. Whatever
// goes wrong leaves the chunk where it was: the turn's own load finds it.
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/swap/engine.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUresult;

// One chunk's memory and the start of its copy.
bool SwapEngine::fetch(const Piece& piece) {
  DeviceMemory& memory = device_.memory();
  const HostSlot& host = piece.chunk().host;
  if (host.data == nullptr || memory.backing.map(*piece.block, piece.index) != cuda::CUDA_SUCCESS) return false;
  const CUresult result = real_driver().cuMemcpyHtoDAsync_v2(piece.address(), host.data, piece.bytes, in_stream_);
  if (result == cuda::CUDA_SUCCESS) return true;
  memory.backing.unmap(*piece.block, piece.index);
  return false;
}

void SwapEngine::run_prefetch(const Job& job) {
  DeviceMemory& memory = device_.memory();
  Turns& turns = device_.turns();
  protocol::SwapProgress progress{};
  progress.direction = static_cast<uint8_t>(protocol::SwapDirection::kAhead);
  progress.id = job.id;
  const int64_t started = now_ns();
  bool failed = false;
  CUresult no_entry = cuda::CUDA_SUCCESS;
  auto wanted_still = [&] {
    return turns.ask([&](const turn::Turn& turn) { return turn::prefetch_wanted(turn, job.id); }) && !device_.link().hung_up();
  };
  if (wanted_still() && !stopping() && enter_context(&no_entry)) {
    const size_t budget = turns.signs.budget(), resident = memory.use.resident();
    std::vector<Piece> pieces = memory.residency.pin_swapped(budget - std::min(budget, resident));
    std::vector<Piece> under_way;
    for (const Piece& piece : pieces) {
      const bool wanted = !failed && wanted_still() && !stopping();
      const bool fits = memory.use.resident() + piece.bytes <= budget;
      const bool moves = wanted && fits && memory.residency.begin(piece, ChunkState::kSwapped);
      if (moves && fetch(piece)) {
        memory.residency.arrived(piece);
        under_way.push_back(piece);
        continue;
      }
      failed |= moves || !wanted;
      if (moves) memory.residency.end(piece, ChunkState::kSwapped, 0);
      memory.residency.unpin(piece);
    }
    const CUresult copied = real_driver().cuStreamSynchronize(in_stream_);
    for (const Piece& piece : under_way) {
      if (copied == cuda::CUDA_SUCCESS) {
        progress.moved += piece.bytes;
        memory.residency.end(piece, ChunkState::kResident, 0);
      } else {
        memory.backing.unmap(*piece.block, piece.index);
        memory.residency.end(piece, ChunkState::kSwapped, piece.bytes);
      }
      memory.residency.unpin(piece);
    }
    failed |= copied != cuda::CUDA_SUCCESS;
    leave_context();
  } else {
    failed = true;
  }
  turns.take(turn::PrefetchEnded{job.id});
  progress.finished = 1;
  progress.failed = failed ? 1 : 0;
  progress.copied = progress.moved;
  progress.elapsed_ns = static_cast<uint64_t>(now_ns() - started);
  progress.memory = memory.report();
  turns.take(progress);
  log(LogLevel::kDebug, "moved in %llu MiB ahead of the turn in %lld ms%s", static_cast<unsigned long long>(progress.moved >> 20),
      static_cast<long long>(progress.elapsed_ns / 1'000'000), failed ? " (stopped early)" : "");
}

}  // namespace nvshare::interposer
