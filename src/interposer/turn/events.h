// What may happen to a turn, and what is to be done about it (turn.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "protocol/messages.h"

namespace nvshare::interposer::turn {

// Nanoseconds of a clock that does not go back.
using Instant = int64_t;
inline constexpr Instant kNever = INT64_MAX;

// What the caller sees just before it takes an event in. None of it is sure to hold any more when the effects are carried out: what has to
// be is asked for (Effects: LookForWaiters).
struct Seen {
  uint64_t submissions = 0;     // of all threads so far, while somebody waits or a limit applies
  uint64_t entries = 0;         // how often a thread came to the gate so far
  bool submitting = false;      // a thread submits just now
  bool waiting = false;         // a thread waits at the gate
  bool capturing = false;       // a stream captures, so nothing may be waited for
  bool other_gpus = false;      // this process has the lock of other GPUs
  Instant waited_at = 0;        // when a wait of the program for the GPU returned last; 0: not known
  uint64_t waited_after = 0;    // entries by then
  Instant first_use = 0;        // when a thread that had waited for this turn got past the gate; 0: not yet
  Instant first_submitted = 0;  // and when its submission had returned; 0: not yet, or it was none that returns before its work has ended
  int64_t launch_ns = 0;        // from a submission of nothing until its end is known; 0: not known
  int64_t longest_work_ns = 0;  // of the program's submissions lately
};

// ---- events, besides messages ----
struct Wished {  // a thread found the gate closed
  Instant at;
  bool reports_first;  // the scheduler is to hear of the memory before the request
};
struct Registering {  // what this process has is about to be told to the next scheduler; or it was in vain
  bool begins;
  bool broke_off = false;       // in vain, though a scheduler listened: it ended the connection, or ended itself
  bool nobody_listens = false;  // in vain: there is no scheduler
  bool refused = false;         // in vain: there is one that does not take it. With none of these, one that does not answer
};
struct Connected {  // registered
  uint64_t epoch;
  bool wish_told;
  bool tells_if_held = false;  // this scheduler does (Contention::held)
};
struct Introduced {};  // what this process holds has been sent to the scheduler: its open questions may follow
struct Disconnected {};
struct ContextChanged {
  bool there;
};
struct GoesOnAlone {  // all that it has is on the GPU, and nothing moves. Effects::agreed: the gate is open
  uint64_t resident;
};
struct LoadEnded {};    // everything is resident. Effects::agreed: the gate is open; else the load was cancelled
struct LoadStopped {};  // after a cancelled load
struct WorkDrained {    // nobody is inside the gate, the GPU's work has ended. Effects::agreed: the lock goes, MemoryLeft is to follow
  uint64_t drain;
};
struct WorkEndsSoon {  // what the program has in flight is expected to end within kHandOver_ns
  Instant at;          // then
};
struct MemoryLeft {};  // what the turn held for itself is given back: the lock goes
struct WaitersSeen {   // the answer to LookForWaiters
  bool any;
};
struct IdleLook {};  // Effects::look says what comes next
struct WorkEnded {   // what was submitted before the IdleLook that asked to wait
  Instant waited_from = 0;
};
struct ReportsSent {};    // all that goes before a request
struct MemoryChanged {};  // besides, protocol::SwapProgress: memory moved
struct GrowthWanted {
  uint64_t bytes;
};
struct GrowthAlone {  // without a scheduler for long: so much is free
  uint64_t budget;
};
struct GrowthEnded {};   // the thread has seen the answer
struct HeadroomWanted {  // an allocation that the lease does not cover
  uint64_t bytes;
};
struct HeadroomEnded {};  // the thread has seen the answer
struct LeaseTried {       // the answer to TryLease
  bool charged;
};
struct PrefetchEnded {  // nothing more comes in for it
  uint64_t prefetch;
};
struct ProgramEnds {};
struct Tick {};

struct Event {
  Seen seen;
  std::variant<Tick, protocol::LockOk, protocol::DropLock, protocol::KeepLock, protocol::Contention, protocol::MemAvailable, Registering,
               Connected, Introduced, Disconnected, Wished, ContextChanged, GoesOnAlone, LoadEnded, LoadStopped, WorkDrained, WorkEndsSoon,
               MemoryLeft, WaitersSeen, IdleLook, WorkEnded, ReportsSent, MemoryChanged, GrowthWanted, GrowthAlone, GrowthEnded,
               HeadroomWanted, HeadroomEnded, LeaseTried, protocol::Headroom, protocol::SwapProgress, protocol::Prefetch, PrefetchEnded,
               ProgramEnds>
      what;
};

// ---- effects ----
struct OpenGate {};
struct CloseGate {};
struct WakeGate {};  // threads that wait at the gate look again
struct WatchGate {   // submissions are counted and bounded; closely: under a compute limit
  bool closely;
  bool wanted;
};
struct ForgetWish {};      // the next thread that finds the gate closed has to say so
struct KnowWish {};        // it has not
struct LookForWaiters {};  // ForgetWish, and then: does a thread wait? Answered with WaitersSeen in the same section
struct BeginUse {};        // Seen::first_use and first_submitted are not known from now on
struct SetBudget {
  uint64_t bytes;
};
struct StartDrain {  // to end with WorkDrained
  uint64_t drain;
};
struct StartLoad {  // to end with LoadEnded or LoadStopped. After the section: memory's lock comes before the caller's
  uint64_t grant;
};
struct StartPrefetch {  // to end with PrefetchEnded, then a finished SwapProgress
  uint64_t prefetch;
};
struct MakeRoom {};         // others wait for memory: caches go, then MemoryChanged. After the section
struct WatchIdle {};        // IdleLooks from now on
struct MemoryReportDue {};  // MemoryChanged, soon
struct WakeLink {};         // a Tick, and ReportsSent
struct SendMemory {         // MemUpdate, as things stand
  uint64_t wanted;
};
struct AskHeadroom {  // with what the lease has left given back
  uint64_t request;
  uint64_t bytes;
};
struct GrowLease {
  uint64_t bytes;
  uint64_t charged;  // of them at once, for the allocation that waits
};
struct TryLease {  // the lease may cover the allocation by now. Answered with LeaseTried in the same section
  uint64_t bytes;
};
struct Log {
  enum class What : uint8_t { kDrainGivenUp, kIdle } what;
  int64_t after_ns;
};
using Effect = std::variant<OpenGate, CloseGate, WakeGate, WatchGate, ForgetWish, KnowWish, LookForWaiters, BeginUse, SetBudget, StartDrain,
                            StartLoad, StartPrefetch, MakeRoom, WatchIdle, MemoryReportDue, WakeLink, SendMemory, AskHeadroom, GrowLease,
                            TryLease, Log, protocol::ReqLock, protocol::LockReleased, protocol::LockPaused, protocol::LockResumed,
                            protocol::Drained, protocol::EndsSoon, protocol::SwapProgress>;

// In the order in which they are to be carried out. LockReleased::memory is for the caller to fill in.
class Effects {
 public:
  static constexpr size_t kMost = 16;  // more than any step has; the tests watch that
  template <typename Kind>
  void add(const Kind& effect) {
    if (count_ < kMost) items_[count_] = effect;
    ++count_;
  }
  const Effect* begin() const { return items_.data(); }
  const Effect* end() const { return items_.data() + (count_ < kMost ? count_ : kMost); }
  size_t count() const { return count_; }

  bool agreed = false;  // GoesOnAlone, LoadEnded, WorkDrained
  struct Look {
    bool wanted;      // false: no more looks until WatchIdle
    int64_t wait_ns;  // until the next; 0: the GPU's work is to be waited for, then WorkEnded, then the next
  } look{false, 0};

 private:
  std::array<Effect, kMost> items_{};
  size_t count_ = 0;
};

}  // namespace nvshare::interposer::turn
