#include "interposer/swap/engine.h"

#include <algorithm>
#include <utility>

#include "interposer/gate/gate.h"
#include "interposer/log.h"
#include "interposer/memory/backends/managed.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/process/synchronize.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUresult;
using protocol::SwapDirection;
using protocol::SwapProgress;

namespace {

constexpr int64_t kSlice_ns = 50'000'000;               // between looks whether a drain is still wanted
constexpr uint64_t kReportBytes = uint64_t{128} << 20;  // between two reports of one movement
constexpr int64_t kSwapPause_ns = 1'000'000;
// Room on the GPU that does not come within this time is waited for without copies under way, so that the wait is not taken for copying.
constexpr int64_t kStall_ns = 2'000'000;
constexpr int64_t kComplaint_ns = 5'000'000'000;

// Whether the context that gave this answer gives no other any more.
bool is_lost(CUresult result) {
  switch (static_cast<int>(result)) {
    case cuda::CUDA_ERROR_DEINITIALIZED:
    case cuda::CUDA_ERROR_DEVICE_UNAVAILABLE:
    case cuda::CUDA_ERROR_ECC_UNCORRECTABLE:
    case cuda::CUDA_ERROR_ILLEGAL_ADDRESS:
    case cuda::CUDA_ERROR_LAUNCH_TIMEOUT:
    case cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case 710:  // assert
    case 714:  // hardware stack error
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case cuda::CUDA_ERROR_LAUNCH_FAILED:
    case 805:  // no connection to the MPS server
    case 806:  // nothing comes back from it: it has ended
    case 810:  // it has ended this client
    case cuda::CUDA_ERROR_UNKNOWN:
      return true;
    default:  // an open set of the driver's
      return false;
  }
}

SwapProgress new_progress(SwapDirection direction, uint64_t id) {
  SwapProgress progress{};
  progress.direction = static_cast<uint8_t>(direction);
  progress.id = id;
  return progress;
}

}  // namespace

// ---- jobs ----

bool SwapEngine::start() { return start_thread(&thread_, thread_body, this, "nvshare-swap"); }

void SwapEngine::push(Job job) {
  Lock lock(mutex_);
  jobs_.push_back(job);
  changed_.notify_all();
}

void SwapEngine::drain(uint64_t drain) { push({JobKind::kDrain, drain, 0}); }
void SwapEngine::evict(uint64_t id, uint64_t bytes) { push({JobKind::kEvict, id, bytes}); }
void SwapEngine::load(uint64_t grant) { push({JobKind::kLoad, grant, 0}); }
void SwapEngine::prefetch(uint64_t prefetch) { push({JobKind::kPrefetch, prefetch, 0}); }

void SwapEngine::watch_idle() {
  Lock lock(mutex_);
  ++watch_;
  watching_ = true;
  look_at_ns_ = 0;
  changed_.notify_all();
}

void SwapEngine::trim_cache_in(int64_t delay_ns) {
  Lock lock(mutex_);
  const bool sleeps = trim_at_ns_ == 0;
  trim_at_ns_ = now_ns() + delay_ns;
  if (sleeps) changed_.notify_all();  // else it looks again when the time that it knows has come
}

bool SwapEngine::at_rest() {
  Lock lock(mutex_);
  return jobs_.empty() && !busy_;
}

void* SwapEngine::thread_body(void* self) {
  static_cast<SwapEngine*>(self)->run();
  return nullptr;
}

void SwapEngine::run() {
  Lock lock(mutex_);
  for (;;) {
    while (jobs_.empty() && !stopping_) {
      if (!watching_ && trim_at_ns_ == 0) {
        changed_.wait(mutex_);
        continue;
      }
      const bool trim_is_next = trim_at_ns_ != 0 && (!watching_ || trim_at_ns_ < look_at_ns_);
      if (changed_.wait_until(mutex_, trim_is_next ? trim_at_ns_ : look_at_ns_)) continue;
      if (trim_is_next) {
        if (now_ns() < trim_at_ns_) continue;  // put off meanwhile
        trim_at_ns_ = 0;
        busy_ = true;
        lock.unlock();
        device_.memory().allocations.trim_brief_cache();
        lock.lock();
        busy_ = false;
        changed_.notify_all();
        continue;
      }
      const uint64_t watch = watch_;
      busy_ = true;
      lock.unlock();
      const int64_t again = look_for_idleness();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
      if (watch == watch_) {
        watching_ = again >= 0;
        look_at_ns_ = again;
      }
    }
    if (stopping_) return;
    Job job = jobs_.front();
    jobs_.erase(jobs_.begin());
    busy_ = true;
    lock.unlock();
    switch (job.kind) {
      case JobKind::kDrain:
        run_drain(job);
        break;
      case JobKind::kEvict:
        run_evict(job);
        break;
      case JobKind::kLoad:
        run_load(job);
        break;
      case JobKind::kPrefetch:
        run_prefetch(job);
        break;
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void SwapEngine::stop(int64_t patience_ns) {
  Lock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  int64_t deadline = now_ns() + patience_ns;
  while (busy_ && changed_.wait_until(mutex_, deadline)) {
  }
}

bool SwapEngine::keeps_host_copies() const { return unchanged_.on() && !device_.memory().residency.all_stays(); }

bool SwapEngine::load_cancelled() {
  return device_.turns().ask([](const turn::Turn& turn) { return turn.cancel_load; });
}

bool SwapEngine::stopping() {
  Lock lock(mutex_);
  return stopping_;
}

// ---- contexts ----

bool SwapEngine::enter_context(CUresult* why) {
  const RealDriver& driver = real_driver();
  *why = cuda::CUDA_SUCCESS;
  CUcontext context = device_.process().contexts.pin(device_.ordinal());
  if (context == nullptr) return false;
  *why = driver.cuCtxPushCurrent_v2(context);
  if (*why != cuda::CUDA_SUCCESS) {
    device_.process().contexts.unpin(context);
    return false;
  }
  cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
  if (driver.cuThreadExchangeStreamCaptureMode != nullptr) driver.cuThreadExchangeStreamCaptureMode(&mode);
  pinned_ = context;
  Lock lock(mutex_);
  if (context_ == context) return true;
  context_ = context;
  CUresult result = driver.cuStreamCreate(&out_stream_, cuda::CU_STREAM_NON_BLOCKING);
  if (result == cuda::CUDA_SUCCESS) result = driver.cuStreamCreate(&in_stream_, cuda::CU_STREAM_NON_BLOCKING);
  for (cuda::CUevent& event : events_) {
    if (result != cuda::CUDA_SUCCESS) break;
    result = driver.cuEventCreate(&event, cuda::CU_EVENT_BLOCKING_SYNC | cuda::CU_EVENT_DISABLE_TIMING);
  }
  if (result == cuda::CUDA_SUCCESS) return true;
  log(LogLevel::kError, "no stream for swapping could be made (CUDA error %d)", static_cast<int>(result));
  *why = result;
  drop_streams();
  lock.unlock();
  leave_context();
  return false;
}

void SwapEngine::leave_context() {
  CUcontext popped = nullptr;
  real_driver().cuCtxPopCurrent_v2(&popped);
  device_.process().contexts.unpin(pinned_);
  pinned_ = nullptr;
}

void SwapEngine::drop_streams() {
  const RealDriver& driver = real_driver();
  for (cuda::CUevent& event : events_) {
    if (event != nullptr) driver.cuEventDestroy_v2(event);
    event = nullptr;
  }
  if (out_stream_ != nullptr) driver.cuStreamDestroy_v2(out_stream_);
  if (in_stream_ != nullptr) driver.cuStreamDestroy_v2(in_stream_);
  out_stream_ = in_stream_ = nullptr;
  context_ = nullptr;
}

void SwapEngine::context_gone(CUcontext context) {
  Lock lock(mutex_);
  if (context_ != context) return;
  const bool entered = real_driver().cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS;
  unchanged_.drop();
  drop_streams();
  CUcontext popped = nullptr;
  if (entered) real_driver().cuCtxPopCurrent_v2(&popped);
}

// ---- drain and idleness ----

void SwapEngine::run_drain(const Job& job) {
  Turns& turns = device_.turns();
  for (;;) {
    if (!turns.ask([&](const turn::Turn& turn) { return turn::drain_wanted(turn, job.id); }) || stopping()) return;
    if (!gate.quiesce(now_ns() + kSlice_ns)) continue;
    if (!device_.process().captures.wait_for_none(now_ns() + kSlice_ns)) continue;
    const bool together = turns.ask([&](const turn::Turn& turn) { return turn::drains_together(turn, job.id); });
    // What runs on other GPUs may use this one's memory. Where all of them are left together that is waited for when each has drained.
    if (synchronize(device_.process().contexts, device_.process().captures, together ? device_.ordinal() : Contexts::kAllGpus)) break;
    sleep_ns(kSwapPause_ns);  // a context is on its way out, or a capture came between
  }
  if (!turns.take(turn::WorkDrained{job.id}).agreed) return;
  device_.memory().residency.set_running(false);
  device_.memory().allocations.collect_done();  // garbage is neither kept nor copied
  // Under a compute limit the lock comes and goes often, and as long as nobody needs the memory all of it stays.
  if (!turns.ask([&](const turn::Turn& turn) { return turn.idle.terms().limited && turn.idle.terms().memory_waiters == 0; })) {
    device_.memory().allocations.trim_cache();  // not worth a copy
    device_.memory().driver.trim();
  }
  turns.take(turn::MemoryLeft{});
}

int64_t SwapEngine::look_for_idleness() {
  Turns& turns = device_.turns();
  for (;;) {
    const turn::Effects::Look next = turns.take(turn::IdleLook{}).look;
    if (!next.wanted) return -1;
    if (next.wait_ns > 0) return now_ns() + next.wait_ns;
    if (stopping()) return -1;
    const int64_t waits_from = now_ns();
    if (device_.process().captures.capturing() || !synchronize(device_.process().contexts, device_.process().captures, device_.ordinal())) {
      return now_ns() + kSwapPause_ns;
    }
    turns.take(turn::WorkEnded{waits_from});
  }
}

// ---- host memory ----

void SwapEngine::prepare_arena(uint64_t bytes) {
  if (device_.backend() != protocol::Backend::kVmm) return;
  CUcontext context = device_.process().contexts.pin(device_.ordinal());
  if (context == nullptr) return;
  device_.memory().arena.grow_to(bytes, context, false);
  device_.process().contexts.unpin(context);
}

// ---- in ----

// Gives one chunk its GPU memory and starts its copy. The driver may be out of memory for a moment after others have released theirs, or
// for longer when a program that is no client took it; a copy may fail for a reason that passes. Keep trying: nothing is lost by waiting.
// Only a context that has failed for good is the program's to see.
SwapEngine::Arrival SwapEngine::bring_in(const Piece& piece, bool* copied) {
  DeviceMemory& memory = device_.memory();
  Chunk& chunk = piece.chunk();
  const RealDriver& driver = real_driver();
  int64_t started = now_ns();
  int64_t complained = started;
  for (;;) {
    CUresult result = memory.backing.map(*piece.block, piece.index);
    if (result == cuda::CUDA_SUCCESS) {
      *copied = true;
      if (piece.block->kind == BlockKind::kManaged) {
        result = prefetch_in(device_, piece, in_stream_, copied);
      } else if (chunk.host.data != nullptr) {
        result = device_.process().vmm.open_window(memory.blocks, *piece.block);
        if (result == cuda::CUDA_SUCCESS) {
          result = driver.cuMemcpyHtoDAsync_v2(piece.address(), chunk.host.data, piece.bytes, in_stream_);
        }
      } else {
        *copied = false;
      }
      if (result == cuda::CUDA_SUCCESS) return Arrival::kIn;
      // Unless other parts of it are here already.
      if (memory.residency.arriving_bytes(piece) > 0) memory.backing.unmap(*piece.block, piece.index);
    }
    if (is_lost(result)) {
      log(LogLevel::kError, "bringing memory in failed (CUDA error %d): the program's context is lost", static_cast<int>(result));
      return Arrival::kLost;
    }
    if (load_cancelled() || stopping()) return Arrival::kCancelled;
    if (now_ns() - complained > kComplaint_ns) {
      complained = now_ns();
      log(LogLevel::kWarning, "for %lld s the GPU has not taken this program's memory in (CUDA error %d); trying on",
          static_cast<long long>((now_ns() - started) / 1'000'000'000), static_cast<int>(result));
    }
    sleep_ns(kSwapPause_ns);
  }
}

// False: the load is cancelled, or the program has freed the piece, the first of `rest`.
bool SwapEngine::wait_for_room(std::span<Piece> rest, std::vector<Piece>* under_way, Load* load) {
  const Piece& piece = rest.front();
  DeviceMemory& memory = device_.memory();
  Turns& turns = device_.turns();
  auto needed = [&] { return memory.use.resident() + memory.residency.arriving_bytes(piece); };
  // A program that was stopped (SIGSTOP) goes on by the word of a scheduler that may be gone, and others have helped themselves since.
  if (device_.link().hung_up()) return false;
  if (turns.wait_for_budget(needed(), now_ns() + kStall_ns)) return true;
  if (load_cancelled()) return false;
  const int64_t stalls = now_ns();
  // What the program frees keeps its room as long as it is pinned, and the scheduler, which hears of the free, makes no room for that.
  // Parts of what is still to come in may never have left.
  finish_in(under_way);  // an error is the next call's to find
  // The neighbours that are to make room may need the host memory that what came in has left.
  if (load->progress.moved > load->reported) report(load);
  bool room = false;
  int64_t complained = stalls;
  while (!room && !load_cancelled() && !memory.residency.freed(piece)) {
    for (Piece& later : rest.subspan(1)) {
      if (later.block == nullptr || !memory.residency.freed(later)) continue;
      memory.residency.unpin(later);
      later.block = nullptr;
    }
    room = turns.wait_for_budget(needed(), now_ns() + kSlice_ns);
    if (room || now_ns() - complained < kComplaint_ns) continue;
    complained = now_ns();
    log(LogLevel::kInfo,
        "for %lld s this program's memory has waited for room on GPU %d: %zu bytes are there, %zu may be, the next piece needs %zu",
        static_cast<long long>((complained - stalls) / 1'000'000'000), device_.ordinal(), memory.use.resident(), turns.signs.budget(),
        needed());
  }
  load->stalled_ns += now_ns() - stalls;
  return room;
}

CUresult SwapEngine::finish_in(std::vector<Piece>* under_way) {
  DeviceMemory& memory = device_.memory();
  const CUresult result = real_driver().cuStreamSynchronize(in_stream_);
  for (const Piece& piece : *under_way) {
    memory.residency.end(piece, ChunkState::kResident, 0);
    memory.residency.unpin(piece);
  }
  under_way->clear();
  return result;
}

void SwapEngine::report(Load* load) {
  load->progress.elapsed_ns = static_cast<uint64_t>(now_ns() - load->started - load->stalled_ns);
  load->progress.memory = device_.memory().report();
  device_.turns().take(load->progress);
  load->reported = load->progress.moved;
}

SwapEngine::Arrival SwapEngine::load_pieces(std::vector<Piece> pieces, Load* load) {
  DeviceMemory& memory = device_.memory();
  std::vector<Piece> under_way;
  size_t next = 0;
  Arrival arrival = Arrival::kIn;
  for (; next < pieces.size() && arrival == Arrival::kIn; ++next) {
    const Piece& piece = pieces[next];
    if (piece.block == nullptr) continue;  // freed while an earlier one waited
    ChunkState before = memory.residency.state_of(piece);
    if ((before != ChunkState::kFresh && before != ChunkState::kSwapped) || !memory.residency.begin(piece, before)) {
      memory.residency.unpin(piece);
      continue;
    }
    bool copied = false;
    const bool room = wait_for_room(std::span(pieces).subspan(next), &under_way, load) && !stopping();
    const bool freed = memory.residency.freed(piece);
    if (!freed) arrival = room ? bring_in(piece, &copied) : Arrival::kCancelled;
    if (freed || arrival != Arrival::kIn) {
      memory.residency.end(piece, before, 0);
      memory.residency.unpin(piece);
      continue;
    }
    memory.residency.arrived(piece);
    under_way.push_back(piece);
    load->progress.moved += piece.bytes;
    if (copied) load->progress.copied += piece.bytes;
    if (load->progress.moved - load->reported >= kReportBytes) report(load);
  }
  for (; next < pieces.size(); ++next) {
    if (pieces[next].block != nullptr) memory.residency.unpin(pieces[next]);
  }
  const CUresult result = finish_in(&under_way);
  if (result != cuda::CUDA_SUCCESS && !stopping()) {
    log(LogLevel::kError, "copying in failed (CUDA error %d): the program's context is lost", static_cast<int>(result));
    arrival = Arrival::kLost;
  }
  return arrival;
}

void SwapEngine::run_load(const Job& job) {
  DeviceMemory& memory = device_.memory();
  Turns& turns = device_.turns();
  Load load{.progress = new_progress(SwapDirection::kIn, job.id), .started = now_ns()};
  Arrival arrival = Arrival::kCancelled;
  CUresult no_entry = cuda::CUDA_SUCCESS;
  const bool entered = enter_context(&no_entry);
  for (;;) {
    if (load_cancelled() || stopping()) break;
    std::vector<Piece> pieces = memory.residency.pin_absent(true);
    if (pieces.empty()) {  // which a program that is done with this GPU can be without a context
      arrival = Arrival::kIn;
      break;
    }
    if (!entered) {
      // The context is on its way out, or the driver has no room for our streams: the program asks again when it next needs the GPU.
      for (const Piece& piece : pieces) memory.residency.unpin(piece);
      log(LogLevel::kDebug, "no context to bring memory into (CUDA error %d)", static_cast<int>(no_entry));
      if (is_lost(no_entry) && no_entry != cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED && no_entry != cuda::CUDA_ERROR_DEINITIALIZED) {
        arrival = Arrival::kLost;
      } else {
        sleep_ns(kSlice_ns);
      }
      break;
    }
    arrival = load_pieces(std::move(pieces), &load);
    if (arrival != Arrival::kIn) break;
    arrival = Arrival::kCancelled;
  }
  if (entered) leave_context();
  // A program whose context has failed is let through, to see the driver's own error.
  if (arrival == Arrival::kLost) memory.residency.set_running(true);
  const bool complete = arrival != Arrival::kCancelled;
  bool open = complete && turns.take(turn::LoadEnded{}).agreed;
  if (!open) memory.residency.set_running(false);
  const SwapProgress& progress = load.progress;
  load.progress.finished = 1;
  load.progress.failed = open ? 0 : 1;
  report(&load);
  if (open) {
    memory.copies.forget(keeps_host_copies());
    log(LogLevel::kDebug, "moved in %llu MiB (%llu copied) in %lld ms", static_cast<unsigned long long>(progress.moved >> 20),
        static_cast<unsigned long long>(progress.copied >> 20), static_cast<long long>(progress.elapsed_ns / 1'000'000));
  } else if (!stopping()) {
    turns.take(turn::LoadStopped{});
  }
}

void SwapEngine::reset_after_fork() { mutex_.reset_after_fork(); }

}  // namespace nvshare::interposer
