#include "interposer/swap/prefetch.h"

#include <algorithm>

#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUresult;

Prefetch::Prefetch(Device& device, SwapContext& context, uint64_t id)
    : device_(device), memory_(device.memory()), context_(context), started_(now_ns()) {
  progress_.direction = static_cast<uint8_t>(protocol::SwapDirection::kAhead);
  progress_.id = id;
}

bool Prefetch::wanted() {
  return device_.turns().ask([&](const turn::Turn& turn) { return turn::prefetch_wanted(turn, progress_.id); }) &&
         !device_.link().hung_up() && !device_.swap_engine().stopping();
}

bool Prefetch::fetch(const Piece& piece) {
  bool copying = false;
  if (piece.chunk().host.data == nullptr || memory_.backing.map(*piece.block, piece.index) != cuda::CUDA_SUCCESS) return false;
  if (memory_.backing.start_in(piece, context_.in(), &copying) == cuda::CUDA_SUCCESS) return true;
  memory_.backing.unmap(*piece.block, piece.index);
  return false;
}

void Prefetch::move() {
  const size_t budget = device_.turns().signs.budget(), resident = memory_.use.resident();
  for (const Piece& piece : memory_.pieces.pin_swapped(budget - std::min(budget, resident))) {
    const bool wanted_still = !failed_ && wanted();
    const bool fits = memory_.use.resident() + piece.bytes <= budget;
    const bool moves = wanted_still && fits && memory_.pieces.begin(piece, ChunkState::kSwapped);
    if (moves && fetch(piece)) {
      memory_.pieces.arrived(piece);
      under_way_.push_back(piece);
      continue;
    }
    failed_ |= moves || !wanted_still;
    if (moves) memory_.pieces.end(piece, ChunkState::kSwapped, 0);
    memory_.pieces.unpin(piece);
  }
}

void Prefetch::finish() {
  const CUresult copied = real_driver().cuStreamSynchronize(context_.in());
  for (const Piece& piece : under_way_) {
    if (copied == cuda::CUDA_SUCCESS) {
      progress_.moved += piece.bytes;
      memory_.pieces.end(piece, ChunkState::kResident, 0);
    } else {
      memory_.backing.unmap(*piece.block, piece.index);
      memory_.pieces.end(piece, ChunkState::kSwapped, piece.bytes);
    }
    memory_.pieces.unpin(piece);
  }
  failed_ |= copied != cuda::CUDA_SUCCESS;
}

void Prefetch::report() {
  Turns& turns = device_.turns();
  turns.take(turn::PrefetchEnded{progress_.id});
  progress_.finished = 1;
  progress_.failed = failed_ ? 1 : 0;
  progress_.copied = progress_.moved;
  progress_.elapsed_ns = static_cast<uint64_t>(now_ns() - started_);
  progress_.memory = memory_.report();
  turns.take(progress_);
  log(LogLevel::kDebug, "moved in %llu MiB ahead of the turn in %lld ms%s", static_cast<unsigned long long>(progress_.moved >> 20),
      static_cast<long long>(progress_.elapsed_ns / 1'000'000), failed_ ? " (stopped early)" : "");
}

void Prefetch::run() {
  CUresult no_entry = cuda::CUDA_SUCCESS;
  if (wanted() && context_.enter(&no_entry)) {
    move();
    finish();
    context_.leave();
  } else {
    failed_ = true;
  }
  report();
}

}  // namespace nvshare::interposer
