// The swap engine: drains, copies out, copies in, looks for idleness. One job at a time.
#include <algorithm>
#include <utility>

#include "client.h"
#include "process.h"
#include "run.h"

namespace nvshare::simulation {

namespace {
constexpr Bytes kPiece = 256 * kMiB;
constexpr Bytes kChunk = 64 * kMiB;  // what needs host memory in one piece
constexpr Bytes kReport = 512 * kMiB;
constexpr Duration kPause = kMs;
constexpr Duration kShort = 5 * kMs;     // until the driver is asked once more for memory that it does not have
constexpr Duration kNoEntry = 50 * kMs;  // a load in a context that cannot be entered
}  // namespace

Duration Client::copy_time(Bytes bytes) const {
  return static_cast<Duration>(static_cast<double>(bytes) * 1e9 / static_cast<double>(process_.run().plan().bandwidth));
}

void Client::push(Job job) {
  jobs_.push_back(job);
  mover_looks();
}

void Client::mover_looks() {
  if (std::exchange(mover_wakes_, true)) return;
  process_.later(process_.wake_time(), [this] {
    mover_wakes_ = false;
    if (!swap_engine_busy_) next_job();
  });
}

void Client::next_job() {
  if (jobs_.empty()) {
    if (!watching_) return;
    if (now() >= look_at_) return look_for_idleness();
    process_.later(look_at_ - now(), [this, at = look_at_] {
      if (!swap_engine_busy_ && watching_ && at == look_at_) next_job();
    });
    return;
  }
  const Job job = jobs_.front();
  jobs_.pop_front();
  swap_engine_busy_ = true;
  switch (job.kind) {
    case Job::Kind::kDrain:
      run().moment(process_, Moment::kDrains);
      return drain(job.id);
    case Job::Kind::kEvict: {
      Progress begun;
      begun.started = now();
      begun.direction = protocol::SwapDirection::kOut;
      begun.id = job.id;
      if (turn::holds_lock(turn_)) {
        progress(begun, true, true);
        return job_done();
      }
      run().moment(process_, Moment::kEvicts);
      const Bytes bytes = std::min(job.bytes, resident_);
      if (run().plan().host_lent) host_.grow_to(host_.used() + std::max<Bytes>(bytes - copied_, 0), true);
      evicting_ = true;
      return evict(begun, bytes);
    }
    case Job::Kind::kLoad: {
      Progress begun;
      begun.started = now();
      begun.id = job.id;
      run().moment(process_, Moment::kLoads);
      return load(begun);
    }
    case Job::Kind::kPrefetch: {
      Progress begun;
      begun.started = now();
      begun.direction = protocol::SwapDirection::kAhead;
      begun.id = job.id;
      if (!turn::prefetch_wanted(turn_, job.id)) return prefetched(begun, true);
      run().moment(process_, Moment::kPrefetches);
      return prefetch(begun, budget_);
    }
  }
}

void Client::job_done() {
  swap_engine_busy_ = evicting_ = false;
  if (!jobs_.empty() || watching_) mover_looks();
}

// ---- drain ----

void Client::drain(uint64_t id) {
  if (!turn::drain_wanted(turn_, id)) return job_done();
  if (process_.capturing() && run().canary() != Canary::kDrainIgnoresCaptures) return process_.later(kPause, [this, id] { drain(id); });
  const Instant ends = process_.work_ends(turn::drains_together(turn_, id) ? this : nullptr);
  if (ends <= now()) return drained(id);
  wait_in_drain(id, ends == turn::kNever ? kPause : ends - now(), ends == turn::kNever);
}

// No capture begins meanwhile.
void Client::wait_in_drain(uint64_t id, Duration lasts, bool stuck) {
  process_.hold_captures(true);
  process_.later(lasts, [this, id, stuck] {
    process_.hold_captures(false);
    // The wait for the GPU is not broken off, only looked at again.
    if (stuck && process_.work_ends(nullptr) == turn::kNever && !turn::drain_wanted(turn_, id)) return wait_in_drain(id, kPause, false);
    drain(id);
  });
}

void Client::drained(uint64_t id) {
  run().checks().drains(process_);
  if (!step(turn::WorkDrained{id}).agreed) return job_done();
  process_.later(process_.wake_time(), [this] {
    running_ = false;
    step(turn::MemoryLeft{});
    job_done();
  });
}

// ---- copies ----

void Client::progress(Progress& made, bool finished, bool failed) {
  protocol::SwapProgress message{};
  message.direction = static_cast<uint8_t>(made.direction);
  message.finished = finished ? 1 : 0;
  message.failed = failed ? 1 : 0;
  message.id = made.id;
  message.moved = made.moved;
  message.copied = made.copied;
  message.elapsed_ns = static_cast<uint64_t>(now() - made.started);
  message.memory = report();
  made.reported = made.moved;
  step(message);
}

void Client::evict(Progress made, Bytes bytes) {
  const Bytes left = std::min(bytes - static_cast<Bytes>(made.moved), resident_);
  if (left <= 0) {
    progress(made, true, false);
    return job_done();
  }
  if (made.moved > 0 && evictions_to_fail_ > 0) {
    --evictions_to_fail_;
    progress(made, true, true);
    return job_done();
  }
  const Bytes piece = std::min(left, run().plan().host_lent ? kChunk : kPiece);
  const Bytes copied = std::min(copied_, piece);  // what came in for nothing leaves without a copy
  switch (run().plan().host_lent && piece > copied ? host_.take(piece - copied) : HostMemory::Taken::kYes) {
    case HostMemory::Taken::kYes:
      break;
    case HostMemory::Taken::kWait:
      if (made.moved > made.reported) progress(made, false, false);
      on_change_ = [this, made, bytes] { evict(made, bytes); };
      return;
    case HostMemory::Taken::kShort:
      if (registered()) run().checks().host_is_short(process_);
      progress(made, true, true);
      return job_done();
  }
  copied_ -= copied;
  process_.later(copied == piece ? 0 : copy_time(piece), [this, made, bytes, piece]() mutable {
    const Bytes moved = std::min(piece, resident_);
    resident_ -= moved;
    if (run().plan().host_lent && host_.used() - copied_ > allocated_ - resident_) {  // freed meanwhile
      host_.give_back(host_.used() - copied_ - (allocated_ - resident_));
    }
    made.moved += static_cast<uint64_t>(moved);
    made.copied += static_cast<uint64_t>(moved);
    if (made.moved - made.reported >= static_cast<uint64_t>(kReport)) progress(made, false, false);
    evict(made, bytes);
  });
}

void Client::load(Progress made) {
  if (turn_.cancel_load || hung_up_) return loaded(made, false);
  const Bytes absent = allocated_ - (resident_ - freed_);
  if (absent == 0) {
    unpin();
    runs();
    return loaded(made, true);
  }
  if (made.moved == 0 && loads_to_fail_ > 0) {
    --loads_to_fail_;
    return process_.later(kNoEntry, [this, made] { loaded(made, run().canary() == Canary::kFailedLoadOpens); });
  }
  if (now() < driver_short_until_) return process_.later(kPause, [this, made] { load(made); });
  const Bytes piece = std::min(absent, kPiece);
  if (budget_ < resident_ + piece && run().canary() != Canary::kFreedStaysInLoad) unpin();
  if (budget_ < resident_ + piece) {  // until it has grown, something was freed, or the load is cancelled
    if (made.moved > made.reported) progress(made, false, false);
    if (waits_for_room_since_ == 0) waits_for_room_since_ = now();
    on_change_ = [this, made] { load(made); };
    return;
  }
  waits_for_room_since_ = 0;
  if (run().driver_has_on(gpu_) < piece) return process_.later(kShort, [this, made] { load(made); });
  const Bytes absent_copies = host_.used() - copied_;
  resident_ += piece;
  came_in_ += piece;
  copied_ += std::min(piece, absent_copies);
  made.moved += static_cast<uint64_t>(piece);
  made.copied += static_cast<uint64_t>(piece);
  process_.later(copy_time(piece), [this, made]() mutable {
    if (made.moved - made.reported >= static_cast<uint64_t>(kReport)) progress(made, false, false);
    load(made);
  });
}

// A chunk at a time, of what has a copy on the host; that stays.
void Client::prefetch(Progress made, Bytes budget) {
  if (!turn::prefetch_wanted(turn_, made.id) || hung_up_) return prefetched(made, true);
  if (now() < driver_short_until_) return prefetched(made, true);
  const Bytes absent = allocated_ - (resident_ - freed_);
  const Bytes with_copies = run().plan().host_lent ? host_.used() - copied_ : absent;
  const Bytes piece = std::min({kChunk, absent, with_copies, budget - resident_});
  if (piece <= 0) return prefetched(made, false);
  if (run().driver_has_on(gpu_) < piece) return prefetched(made, true);
  resident_ += piece;
  came_in_ += piece;
  copied_ += piece;
  made.moved += static_cast<uint64_t>(piece);
  made.copied += static_cast<uint64_t>(piece);
  process_.later(copy_time(piece), [this, made, budget] { prefetch(made, budget); });
}

void Client::prefetched(Progress made, bool failed) {
  unpin();
  step(turn::PrefetchEnded{made.id});
  if (run().canary() != Canary::kPrefetchUnanswered) progress(made, true, failed);
  job_done();
}

// What has come in so far is the program's to free.
void Client::unpin() {
  if (freed_ > 0) memory_changed();
  resident_ -= std::exchange(freed_, 0);
  copied_ = std::min(copied_, resident_);
  came_in_ = 0;
}

// The program runs: the host's copies are true no more.
void Client::runs() {
  running_ = true;
  host_.give_back(host_.used());
  copied_ = 0;
}

void Client::loaded(Progress made, bool complete) {
  waits_for_room_since_ = 0;
  unpin();
  const bool open = complete && step(turn::LoadEnded{}).agreed;
  if (!open) running_ = false;
  progress(made, true, !open);
  if (!open) step(turn::LoadStopped{});
  job_done();
}

// Without the swap engine, if there is nothing to bring in.
bool Client::load_at_once(uint64_t grant) {
  if (swap_engine_busy_ || !jobs_.empty() || resident_ != allocated_) return false;
  runs();
  const bool open = step(turn::LoadEnded{}).agreed;
  if (!open) running_ = false;
  Progress made;
  made.started = now();
  made.id = grant;
  progress(made, true, !open);
  if (!open) step(turn::LoadStopped{});
  return true;
}

// ---- idleness ----

void Client::look_for_idleness() {
  const uint64_t watch = watch_;
  swap_engine_busy_ = true;
  const bool ran = turn::may_run(turn_);
  const turn::Effects::Look next = step(turn::IdleLook{}).look;
  if (ran && turn_.phase == turn::Phase::kDraining) run().checks().gives_up(process_, *this);
  if (next.wanted && next.wait_ns == 0) return synchronize_idle();
  if (watch == watch_) {
    watching_ = next.wanted;
    look_at_ = now() + next.wait_ns;
  }
  job_done();
}

// The swap engine waits for the GPU's work, however long that takes; where something captures it looks again later.
void Client::synchronize_idle() {
  if (process_.capturing()) {
    look_at_ = now() + kPause;
    return job_done();
  }
  wait_for_idle(now());
}

void Client::wait_for_idle(Instant from) {
  const Instant ends = process_.work_ends(this);
  if (ends <= now()) {
    step(turn::WorkEnded{from});
    return look_for_idleness();
  }
  process_.hold_captures(true);
  process_.later(ends == turn::kNever ? kPause : ends - now(), [this, from] {
    process_.hold_captures(false);
    wait_for_idle(from);
  });
}

}  // namespace nvshare::simulation
