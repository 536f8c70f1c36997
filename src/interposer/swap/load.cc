#include "interposer/swap/load.h"

#include <utility>

#include "base/amount.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUresult;

namespace {

constexpr uint64_t kInReportBytes = uint64_t{128} << 20;  // between two reports
constexpr int64_t kRetry_ns = 1'000'000;
// Room on the GPU that does not come within this time is waited for without copies under way, so that the wait is not taken for copying.
constexpr int64_t kStall_ns = 2'000'000;
constexpr int64_t kRoomSlice_ns = 50'000'000;  // between looks whether it is still wanted
constexpr int64_t kComplaint_ns = 5'000'000'000;

}  // namespace

Load::Load(Device& device, SwapContext& context, uint64_t grant)
    : device_(device), memory_(device.memory()), context_(context), started_(now_ns()) {
  progress_.direction = static_cast<uint8_t>(protocol::SwapDirection::kIn);
  progress_.id = grant;
}

bool Load::cancelled() {
  return device_.turns().ask([](const turn::Turn& turn) { return turn.cancel_load; });
}

bool Load::stopping() { return device_.swap_engine().stopping(); }

// Gives one chunk its GPU memory and starts its copy. The driver may be out of memory for a moment after others have released theirs, or
// for longer when a program that is no client took it; a copy may fail for a reason that passes. Keep trying: nothing is lost by waiting.
// Only a context that has failed for good is the program's to see.
Load::Arrival Load::bring_in(const Piece& piece, bool* copied) {
  const int64_t started = now_ns();
  int64_t complained = started;
  for (;;) {
    CUresult result = memory_.backing.map(*piece.block, piece.index);
    if (result == cuda::CUDA_SUCCESS) {
      result = memory_.backing.start_in(piece, context_.in(), copied);
      if (result == cuda::CUDA_SUCCESS) return Arrival::kIn;
      // Unless other parts of it are here already.
      if (memory_.pieces.arriving_bytes(piece) > 0) memory_.backing.unmap(*piece.block, piece.index);
    }
    if (is_lost(result)) {
      log(LogLevel::kError, "bringing memory in failed (CUDA error %d): the program's context is lost", static_cast<int>(result));
      return Arrival::kLost;
    }
    if (cancelled() || stopping()) return Arrival::kCancelled;
    if (now_ns() - complained > kComplaint_ns) {
      complained = now_ns();
      log(LogLevel::kWarning, "for %lld s the GPU has not taken this program's memory in (CUDA error %d); trying on",
          static_cast<long long>((now_ns() - started) / 1'000'000'000), static_cast<int>(result));
    }
    sleep_ns(kRetry_ns);
  }
}

// False: the load is cancelled, or the program has freed the piece, the first of `rest`.
bool Load::wait_for_room(std::span<Piece> rest) {
  const Piece& piece = rest.front();
  Turns& turns = device_.turns();
  auto needed = [&] { return memory_.use.resident() + memory_.pieces.arriving_bytes(piece); };
  // A program that was stopped (SIGSTOP) goes on by the word of a scheduler that may be gone, and others have helped themselves since.
  if (device_.link().hung_up()) return false;
  if (turns.wait_for_budget(needed(), now_ns() + kStall_ns)) return true;
  if (cancelled()) return false;
  const int64_t stalls = now_ns();
  // What the program frees keeps its room as long as it is pinned, and the scheduler, which hears of the free, makes no room for that.
  // Parts of what is still to come in may never have left.
  finish();  // an error is the next call's to find
  // The neighbours that are to make room may need the host memory that what came in has left.
  if (progress_.moved > reported_) report();
  bool room = false;
  int64_t complained = stalls;
  while (!room && !cancelled() && !memory_.pieces.freed(piece)) {
    for (Piece& later : rest.subspan(1)) {
      if (later.block == nullptr || !memory_.pieces.freed(later)) continue;
      memory_.pieces.unpin(later);
      later.block = nullptr;
    }
    room = turns.wait_for_budget(needed(), now_ns() + kRoomSlice_ns);
    if (room || now_ns() - complained < kComplaint_ns) continue;
    complained = now_ns();
    log(LogLevel::kInfo, "for %lld s this program's memory has waited for room on GPU %s: %s are there, %s may be, the next piece needs %s",
        static_cast<long long>((complained - stalls) / 1'000'000'000), device_.gpu(), amount(memory_.use.resident()).text,
        amount(turns.signs.budget()).text, amount(needed()).text);
  }
  stalled_ns_ += now_ns() - stalls;
  return room;
}

CUresult Load::finish() {
  const CUresult result = real_driver().cuStreamSynchronize(context_.in());
  const bool again = is_lost(result) && context_.has_another();
  for (const Piece& piece : under_way_) {
    if (again && piece.chunk().host.data != nullptr) {
      doubtful_.push_back(piece);
      continue;
    }
    memory_.pieces.end(piece, ChunkState::kResident, 0);
    memory_.pieces.unpin(piece);
  }
  under_way_.clear();
  return result;
}

void Load::put_back_doubtful() {
  for (const Piece& piece : doubtful_) {
    const bool whole = piece.block->kind == BlockKind::kHandle;  // its other parts may be there
    if (!whole) memory_.backing.unmap(*piece.block, piece.index);
    memory_.pieces.end(piece, ChunkState::kSwapped, whole ? 0 : piece.bytes);
    memory_.pieces.unpin(piece);
  }
  doubtful_.clear();
}

void Load::report() {
  progress_.elapsed_ns = static_cast<uint64_t>(now_ns() - started_ - stalled_ns_);
  progress_.memory = memory_.report();
  device_.turns().take(progress_);
  reported_ = progress_.moved;
}

Load::Arrival Load::move(std::vector<Piece> pieces) {
  size_t next = 0;
  Arrival arrival = Arrival::kIn;
  for (; next < pieces.size() && arrival == Arrival::kIn; ++next) {
    const Piece& piece = pieces[next];
    if (piece.block == nullptr) continue;  // freed while an earlier one waited
    ChunkState before = memory_.pieces.state_of(piece);
    if ((before != ChunkState::kFresh && before != ChunkState::kSwapped) || !memory_.pieces.begin(piece, before)) {
      memory_.pieces.unpin(piece);
      continue;
    }
    bool copied = false;
    const bool room = wait_for_room(std::span(pieces).subspan(next)) && !stopping();
    const bool freed = memory_.pieces.freed(piece);
    if (!freed) arrival = room ? bring_in(piece, &copied) : Arrival::kCancelled;
    if (freed || arrival != Arrival::kIn) {
      memory_.pieces.end(piece, before, 0);
      memory_.pieces.unpin(piece);
      continue;
    }
    memory_.pieces.arrived(piece);
    under_way_.push_back(piece);
    progress_.moved += piece.bytes;
    if (copied) progress_.copied += piece.bytes;
    if (progress_.moved - reported_ >= kInReportBytes) report();
  }
  for (; next < pieces.size(); ++next) {
    if (pieces[next].block != nullptr) memory_.pieces.unpin(pieces[next]);
  }
  const CUresult result = finish();
  if (result != cuda::CUDA_SUCCESS && !stopping()) {
    log(LogLevel::kError, "copying in failed (CUDA error %d): the program's context is lost", static_cast<int>(result));
    arrival = Arrival::kLost;
  }
  return arrival;
}

Load::Arrival Load::bring_all_in() {
  CUresult no_entry = cuda::CUDA_SUCCESS;
  bool entered = context_.enter(&no_entry);
  Arrival arrival = Arrival::kCancelled;
  while (!cancelled() && !stopping()) {
    std::vector<Piece> pieces = memory_.pieces.pin_absent(true);
    if (pieces.empty()) {  // which a program that is done with this GPU can be without a context
      arrival = Arrival::kIn;
      break;
    }
    if (!entered) {
      // The context is on its way out, or the driver has no room for our streams: the program asks again when it next needs the GPU.
      for (const Piece& piece : pieces) memory_.pieces.unpin(piece);
      log(LogLevel::kDebug, "no context to bring memory into (CUDA error %d)", static_cast<int>(no_entry));
      if (is_lost(no_entry) && no_entry != cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED && no_entry != cuda::CUDA_ERROR_DEINITIALIZED) {
        arrival = Arrival::kLost;
      } else {
        sleep_ns(kRoomSlice_ns);
      }
      break;
    }
    const Arrival moved = move(std::move(pieces));
    if (moved == Arrival::kIn) continue;
    if (moved == Arrival::kLost && context_.has_another()) {  // of whose program nothing is lost
      context_.leave();
      entered = context_.enter(&no_entry);
      put_back_doubtful();
      continue;
    }
    arrival = moved;
    break;
  }
  put_back_doubtful();
  if (entered) context_.leave();
  return arrival;
}

void Load::end(Arrival arrival) {
  Turns& turns = device_.turns();
  // A program whose context has failed is let through, to see the driver's own error.
  if (arrival == Arrival::kLost) memory_.residency.set_running(true);
  const bool open = arrival != Arrival::kCancelled && turns.take(turn::LoadEnded{}).agreed;
  if (!open) memory_.residency.set_running(false);
  progress_.finished = 1;
  progress_.failed = open ? 0 : 1;
  report();
  if (open) {
    memory_.copies.forget(device_.swap_engine().keeps_host_copies());
    log(LogLevel::kDebug, "moved in %llu MiB (%llu copied) in %lld ms", static_cast<unsigned long long>(progress_.moved >> 20),
        static_cast<unsigned long long>(progress_.copied >> 20), static_cast<long long>(progress_.elapsed_ns / 1'000'000));
  } else if (!stopping()) {
    turns.take(turn::LoadStopped{});
  }
}

void Load::run() { end(bring_all_in()); }

}  // namespace nvshare::interposer
