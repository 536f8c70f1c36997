// Whether a program that has the GPU still uses it, and when it should give it up. One controller for both reasons to ask:
//
//   others wait for its memory   giving up moves memory, so the program must have been idle for longer than it usually pauses
//   (SwapPatience) a compute limit applies,     its time with the GPU is billed, so it gives up, or pauses with the lock (docs/adr/0012),
//   as soon as that and no memory moves          costs less than the idle time (BilledPatience)
//
// The end of the work is known, not sampled (docs/adr/0014): once nothing has been submitted from one look to the next, step kSynchronize
// has the caller wait for the GPU, however long that takes, and idle time counts from then on. Pure; not thread-safe.
#pragma once

#include <cstdint>

#include "interposer/turn/idle_patience.h"

namespace nvshare::interposer::turn {

class Idleness {
 public:
  enum class Reason : uint8_t { kNone, kMemory, kBill };
  // As the scheduler said last.
  struct Terms {
    uint32_t waiters = 0;
    uint32_t memory_waiters = 0;
    bool limited = false;
    bool may_pause = false;    // idleness under a limit ends in a pause, not in giving the lock up
    int64_t least_ns = 0;      // BilledPatience::configure
    int64_t swap_cost_ns = 0;  // of giving the GPU up
  };
  enum class Step : uint8_t { kNothing, kWait, kSynchronize, kGiveUp };
  struct Next {
    Step step;
    int64_t wait_ns;  // of kWait: until the next look
  };

  const Terms& terms() const { return terms_; }
  void set_terms(const Terms& terms);
  Reason reason() const;

  // A turn or a part of it begins: the program gets the GPU now. wished_at: when it wanted it.
  void use_begins(uint64_t submissions, int64_t wished_at, int64_t now_ns);
  // Looks begin, or begin anew.
  void watch_begins(uint64_t submissions);
  // may_wait: the GPU's work may be waited for. unsettled: something is about to be submitted.
  Next look(uint64_t submissions, bool may_wait, bool unsettled, int64_t now_ns);
  // What was submitted before the look that said kSynchronize has ended.
  void work_ended(int64_t now_ns) { ended_at_ns_ = now_ns; }

  // After kGiveUp: for which reason, and since when nothing ran.
  Reason gave_up() const { return gave_up_; }
  int64_t idle_since_ns() const { return idle_since_ns_; }
  // It keeps the GPU after all, or loses it for another reason: the pause teaches nothing.
  void forget() { gave_up_ = Reason::kNone; }

 private:
  Next give_up(Reason reason);

  Terms terms_;
  BilledPatience billed_;
  SwapPatience swap_;
  uint64_t seen_ = 0;        // submissions at the last look
  int64_t look_ns_ = 0;      // between two looks under a limit: longer while the program goes on submitting
  int64_t ended_at_ns_ = 0;  // 0: not known
  bool unused_ = false;      // nothing was submitted in this turn yet
  Reason gave_up_ = Reason::kNone;
  int64_t idle_since_ns_ = 0;
  int64_t swap_cost_ns_ = 0;  // then
};

}  // namespace nvshare::interposer::turn
