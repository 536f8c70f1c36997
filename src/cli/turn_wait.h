// What `nvsharectl run` tells on standard error while its program waits for a turn. `turn_wait_of`, `own_wait_of` and `TurnWaitLine` are
// pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/admin_connection.h"

namespace nvshare::cli {

struct TurnWait {
  int64_t waited_ns = 0;
  std::string text;  // what for: who has the GPU, where it is known for how long yet, since when
};

// As it is `since_ns` after the report, if nothing else has happened. Nothing: nobody waits.
std::optional<TurnWait> turn_wait_of(const protocol::admin::TurnReport& report, int64_t since_ns);

// Of what a scheduler tells a user of that user's own alone, in whose words nobody else has a name: what the program waits for whose
// processes `is_ours` knows. Nothing: none of them waits, or one has a turn.
std::optional<TurnWait> own_wait_of(const protocol::admin::StatusReport& own, const std::function<bool(int32_t pid)>& is_ours);

// What to write next.
class TurnWaitLine {
 public:
  explicit TurnWaitLine(bool terminal) : terminal_(terminal) {}

  // In a terminal: below the line that the program writes, whose place stays the cursor's; what is wider than `columns` is cut. Else a
  // line for each long wait.
  std::string next(const std::optional<TurnWait>& wait, int columns);
  bool shown() const { return shown_; }
  // In how long the scheduler should be asked again.
  int64_t ask_again_ms(const std::optional<TurnWait>& wait) const;

 private:
  bool terminal_;
  bool shown_ = false;      // is on the terminal
  bool told_ = false;       // of this wait, where there is no terminal
  int64_t waited_ns_ = -1;  // at the last look
};

// Asks the scheduler, and writes. It holds no connection in between: hundreds may wait. Not thread-safe.
class TurnWaitWatch {
 public:
  static constexpr int64_t kFirstMs = 1000;  // until the first look

  // tenant: nothing, where the scheduler takes no admin requests from us; then it is asked what it tells us of our own.
  TurnWaitWatch(std::string runtime_directory, std::optional<uint64_t> tenant);
  TurnWaitWatch(const TurnWaitWatch&) = delete;
  TurnWaitWatch& operator=(const TurnWaitWatch&) = delete;
  ~TurnWaitWatch() { write({}); }

  // In how many milliseconds to look again.
  int64_t look();

 private:
  void ask(int64_t now);
  void ask_admin(int64_t now, uint64_t tenant);
  void ask_own(int64_t now);
  std::optional<TurnWait> wait_at(int64_t now) const;
  void write(const std::optional<TurnWait>& wait);

  std::string runtime_directory_;
  std::optional<uint64_t> tenant_;
  bool terminal_;
  TurnWaitLine line_;
  protocol::admin::TurnReport report_;  // the last
  std::optional<TurnWait> own_;         // as it was then, without a tenant
  int64_t asked_at_ = 0, ask_at_ = 0;
};

}  // namespace nvshare::cli
