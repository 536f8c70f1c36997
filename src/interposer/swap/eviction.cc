#include "interposer/swap/eviction.h"

#include <algorithm>

#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUresult;

namespace {

static_assert(HostArena::kSegmentBytesMax >= kChunkBytesMax);
constexpr uint64_t kOutReportBytes = uint64_t{32} << 20;  // between two reports
constexpr int64_t kReportEvery_ns = 500'000;

}  // namespace

Eviction::Eviction(Device& device, SwapContext& context, uint64_t id, uint64_t bytes)
    : device_(device), memory_(device.memory()), context_(context), bytes_(bytes), started_(now_ns()) {
  progress_.direction = static_cast<uint8_t>(protocol::SwapDirection::kOut);
  progress_.id = id;
}

bool Eviction::stopping() { return device_.swap_engine().stopping(); }

void Eviction::finish_all() {
  while (count_ > 0) finish_oldest();
}

void Eviction::report(bool finished) {
  progress_.finished = finished ? 1 : 0;
  progress_.elapsed_ns = static_cast<uint64_t>(now_ns() - started_ - stalled_ns_);
  progress_.memory = memory_.report();
  progress_.mistaken = context_.unchanged.take_mistake() ? 1 : 0;
  reported_ = progress_.moved;
  reported_at_ = now_ns();
  device_.turns().take(progress_);
}

// Pins what is to leave, and finds out what of it did not change; that comes first.
void Eviction::choose() {
  const std::vector<Piece> pieces = memory_.pieces.pin_resident(bytes_ - std::min<uint64_t>(bytes_, progress_.moved));
  prepare_arena(pieces);
  const int64_t looks = now_ns();
  const std::vector<Unchanged::Finding> findings = context_.unchanged.look(pieces, context_.out());
  stalled_ns_ += now_ns() - looks;
  for (size_t i = 0; i < pieces.size(); ++i) leaving_.push_back({pieces[i], findings.empty() ? Unchanged::Finding{} : findings[i]});
  std::stable_partition(leaving_.begin(), leaving_.end(), [](const Leaving& one) { return one.finding.same; });
}

// A chunk, or a program's handle, leaves as a whole: often more than was asked for. What is kept of others is nobody's need.
void Eviction::prepare_arena(const std::vector<Piece>& pieces) {
  if (device_.backend() != protocol::Backend::kVmm) return;
  uint64_t wanted = 0;
  uint64_t kept = memory_.copies.kept_bytes();
  for (const Piece& piece : pieces) {
    if (memory_.copies.has_kept(piece)) {
      kept -= std::min<uint64_t>(kept, piece.bytes);
    } else if (needs_slot(piece)) {
      wanted += piece.bytes;
    }
  }
  const uint64_t used = memory_.arena.used_bytes();
  memory_.arena.grow_to(used - std::min(used, kept) + wanted, context_.context(), true);
}

// Whether it has to be copied to host memory that it does not have yet.
bool Eviction::needs_slot(const Piece& piece) { return is_copied(piece.block->kind) && piece.chunk().host.data == nullptr; }

HostSlot Eviction::find_slot(const Piece& piece) {
  HostSlot slot = memory_.copies.take_kept(piece);
  HostArena& arena = memory_.arena;
  if (slot.data == nullptr) slot = arena.allocate_ready(piece.bytes);
  while (slot.data == nullptr && memory_.copies.drop_one_kept()) slot = arena.allocate_ready(piece.bytes);
  if (slot.data != nullptr) return slot;
  // Making host memory takes ten times as long as copying. What has been copied is somebody's room meanwhile.
  finish_all();
  report(false);
  const int64_t stalls = now_ns();
  slot = arena.allocate(piece.bytes);
  stalled_ns_ += now_ns() - stalls;
  return slot;
}

void Eviction::drop_host_copy(const Piece& piece) {
  Chunk& chunk = piece.chunk();
  memory_.arena.give_back(chunk.host);
  chunk.host = HostSlot{};
  memory_.copies.left(piece, true, nullptr);
}

// Starts one chunk on its way out, to `slot` if it needs one.
bool Eviction::copy_out(const Piece& piece, const HostSlot& slot, cuda::CUevent event, bool* copying) {
  const RealDriver& driver = real_driver();
  cuda::CUstream stream = context_.out();
  Chunk& chunk = piece.chunk();
  *copying = chunk.host.data == nullptr;
  if (!*copying) return true;
  if (needs_slot(piece)) {
    if (slot.data == nullptr) return false;
    chunk.host = slot;
  }
  CUresult result = memory_.backing.start_out(piece, stream);
  if (result == cuda::CUDA_SUCCESS) result = driver.cuEventRecord(event, stream);
  if (result == cuda::CUDA_SUCCESS) return true;
  log(LogLevel::kWarning, "copying out failed (CUDA error %d): the memory stays on the GPU", static_cast<int>(result));
  driver.cuStreamSynchronize(stream);  // what was submitted may still write to the slot
  drop_host_copy(piece);
  return false;
}

bool Eviction::finish_out(const InFlight& moved, size_t* freed) {
  const Piece& piece = moved.leaving.piece;
  const Unchanged::Finding& finding = moved.leaving.finding;
  CUresult result = moved.copying ? real_driver().cuEventSynchronize(moved.event) : cuda::CUDA_SUCCESS;
  if (result != cuda::CUDA_SUCCESS) {
    log(LogLevel::kWarning, "copying out failed (CUDA error %d): the memory stays on the GPU", static_cast<int>(result));
    drop_host_copy(piece);
    memory_.pieces.end(piece, ChunkState::kResident, 0);
    return false;
  }
  memory_.copies.left(piece, moved.copying, finding.hashed ? &finding.hash : nullptr);
  *freed = memory_.pieces.leave(piece);
  return true;
}

void Eviction::finish_oldest() {
  const InFlight& oldest = flight_[first_];
  const Piece& piece = oldest.leaving.piece;
  const bool same = oldest.leaving.finding.same;
  const int64_t begins = now_ns();
  size_t freed = 0;
  if (finish_out(oldest, &freed)) {
    progress_.moved += freed;
    if (oldest.copying) copied_ += piece.bytes;
    if (same) progress_.unchanged += piece.bytes;
    // Parts of what has not left as a whole do not count yet.
    progress_.copied = std::min(copied_, progress_.moved);
  } else {
    progress_.failed = 1;
  }
  if (same) stalled_ns_ += now_ns() - begins;
  memory_.pieces.unpin(piece);
  first_ = (first_ + 1) % SwapContext::kDepth;
  --count_;
  if (progress_.moved - reported_ >= kOutReportBytes && now_ns() - reported_at_ >= kReportEvery_ns) report(false);
}

void Eviction::send(const Leaving& leaving) {
  const Piece& piece = leaving.piece;
  if (!memory_.pieces.begin(piece, ChunkState::kResident)) {
    // Freed; or gone with another part of its block.
    if (leaving.finding.same && memory_.pieces.state_of(piece) == ChunkState::kSwapped) {
      memory_.copies.left(piece, false, &leaving.finding.hash);
      progress_.unchanged += piece.bytes;
    }
    memory_.pieces.unpin(piece);
    return;
  }
  if (count_ == SwapContext::kDepth) finish_oldest();
  const HostSlot host = needs_slot(piece) ? find_slot(piece) : HostSlot{};
  InFlight& next = flight_[(first_ + count_) % SwapContext::kDepth];
  next = {leaving, context_.event((first_ + count_) % SwapContext::kDepth), false};
  if (!copy_out(piece, host, next.event, &next.copying)) {
    progress_.failed = 1;
    memory_.pieces.end(piece, ChunkState::kResident, 0);
    memory_.pieces.unpin(piece);
    return;
  }
  ++count_;
}

void Eviction::run() {
  Turns& turns = device_.turns();
  CUresult ignored = cuda::CUDA_SUCCESS;
  if (turns.ask(turn::holds_lock) || stopping() || !context_.enter(&ignored)) {
    progress_.failed = 1;
    report(true);
    return;
  }
  memory_.copies.set_evicting(true);
  memory_.backing.managed.push_demand_out(context_.out());
  const size_t before = memory_.use.resident();
  memory_.freed.trim();  // what the last turn left for the next one
  progress_.moved = before - std::min(before, memory_.use.resident());
  choose();
  size_t next = 0;
  for (; next < leaving_.size() && progress_.failed == 0 && !stopping(); ++next) send(leaving_[next]);
  finish_all();
  for (; next < leaving_.size(); ++next) memory_.pieces.unpin(leaving_[next].piece);
  memory_.copies.set_evicting(false);
  context_.leave();
  report(true);
  log(LogLevel::kDebug, "moved out %llu MiB (%llu unchanged) in %lld ms%s", static_cast<unsigned long long>(progress_.moved >> 20),
      static_cast<unsigned long long>(progress_.unchanged >> 20), static_cast<long long>((now_ns() - started_) / 1'000'000),
      progress_.failed != 0 ? " (stopped early)" : "");
}

}  // namespace nvshare::interposer
