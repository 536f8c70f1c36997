// How long a program must have been idle before it gives the GPU up (idleness.h). Both learn from what came of it. Pure; not thread-safe.
#pragma once

#include <cstdint>

namespace nvshare::interposer::turn {

// Where giving up moves memory: longer than the program usually pauses.
//
// What counts is how long the GPU had nothing to do, not how far apart the submissions were: a program that waits for a long kernel does
// not pause. A pause of more than twice the switch's cost is worth giving the GPU up for, so it is never a reason to hold the GPU through
// the next one; shorter ones are to be sat out. Until a program has shown twice that its pauses are worth it, the cost of a switch is the
// right time to wait: whatever it does next, no more than as much again is lost.
class SwapPatience {
 public:
  static constexpr int64_t kLeast_ns = 20'000'000;

  // It submitted again, with the GPU still its own, after so long with an idle GPU. `cost`: of the switch that giving up would have caused.
  void went_on(int64_t idle_ns, int64_t cost_ns, int64_t now_ns);
  // It wanted the GPU back so long after its last work, having given it up.
  void came_back(int64_t pause_ns, int64_t cost_ns, int64_t now_ns);
  // How long the GPU must have been idle. unused: nothing was submitted in this turn yet.
  int64_t threshold_ns(int64_t cost_ns, bool unused, int64_t now_ns);

 private:
  static bool worth_it(int64_t pause_ns, int64_t cost_ns);
  void was_worth_it();
  void remember(int64_t pause_ns, int64_t now_ns);
  void forget_slowly(int64_t now_ns);

  int64_t longest_ns_ = 0;  // of the pauses that were not worth it; fades with time, and with each longer pause
  int64_t halved_at_ns_ = 0;
  uint32_t worth_it_ = 0;  // pauses in a row
};

// Where time with the GPU is billed and no memory moves: for longer than giving up costs.
//
// A release that saved less idle time than getting the lock back took doubles the value, one that was clearly worth it lowers it again. So
// a program whose gaps are short and frequent keeps the lock through them, and is billed for them.
class BilledPatience {
 public:
  // The least value; 0: the default.
  void configure(int64_t least_ns);
  // The program was idle for pause_ns until it wanted the GPU again, and had it back_ns later.
  void came_back(int64_t pause_ns, int64_t back_ns);
  int64_t value_ns() const { return value_ns_; }

 private:
  static constexpr int64_t kLeast_ns = 200'000;
  static constexpr int64_t kCostFirst_ns = 150'000;
  int64_t least_ns_ = kLeast_ns;
  int64_t value_ns_ = kLeast_ns;
  int64_t cost_ns_ =
      kCostFirst_ns;  // of giving up and getting back; what the quickest took lately, because others' waits are in the figures
};

}  // namespace nvshare::interposer::turn
