// MPS daemons, one for each trust group (a user): when one is started, looked at, restarted and ended, and what those are told that ask for
// it. Pure bookkeeping: no processes, no clock; time is an argument (CLOCK_MONOTONIC ns). One thread. docs/adr/0021 says why it is so.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "protocol/admin.h"

namespace nvshare::scheduler {

class MpsGroups {
 public:
  using Instant = int64_t;
  using Asker = uint64_t;  // whoever is to get the answer

  static constexpr size_t kGroupsMost = 64;
  // A server has room for 48 programs on each GPU since Volta; newer drivers say more.
  static constexpr size_t kProgramsMost = 48;
  static constexpr int64_t kStartPatience = 10'000'000'000;  // a daemon that does not answer so long after its start is ended
  static constexpr int64_t kEndPatience = 5'000'000'000;     // one that was asked to quit is killed then
  static constexpr int64_t kIdle = 600'000'000'000;          // without programs and without anybody who asked, it is ended
  static constexpr int64_t kBackoffMin = 200'000'000;        // before a daemon that ended is started again
  static constexpr int64_t kBackoffMax = 60'000'000'000;
  static constexpr int64_t kLooksWell = 60'000'000'000;  // one that served so long has no failures behind it
  static constexpr int kUnansweredMost = 3;              // looks in a row without an answer: it is ended

  struct Start {
    uid_t user = 0;
  };
  struct Look {
    uid_t user = 0;
  };
  struct Quit {
    uid_t user = 0;
  };
  struct Kill {
    uid_t user = 0;
  };
  struct Answer {
    Asker asker = 0;
    uid_t user = 0;
    std::string refusal;  // empty: it serves
  };
  // Whose programs are attached now.
  struct Attached {
    uid_t user = 0;
    std::set<pid_t> programs;
  };
  struct Note {
    bool warning = false;
    std::string text;
  };
  using Action = std::variant<Start, Look, Quit, Kill, Answer, Attached, Note>;
  using Actions = std::vector<Action>;

  struct Looked {
    bool answered = false;
    std::vector<pid_t> servers;
    std::set<pid_t> programs;
  };

  // Somebody of that user is about to start a program. The answer is among these actions or later ones.
  Actions asked(uid_t user, Asker asker, Instant now);
  // What Start led to.
  Actions started(uid_t user, pid_t daemon, Instant now);
  Actions not_started(uid_t user, const std::string& why, Instant now);
  // A daemon of an earlier scheduler, which lives. `wanted` false: it is ended once nobody uses it.
  void adopted(uid_t user, pid_t daemon, bool wanted, Instant now);
  Actions ended(uid_t user, const std::string& how, Instant now);
  // What Look led to.
  Actions looked(uid_t user, const Looked& seen, Instant now);
  // A program of that user became a client: is it attached?
  Actions joined(uid_t user, Instant now);
  Actions deadline_reached(Instant now);
  std::optional<Instant> next_deadline() const;

  std::vector<protocol::admin::MpsReport> report() const;
  bool uses(uid_t user) const;             // its daemon serves programs, as far as is known
  std::vector<uid_t> with_daemon() const;  // users whose daemon runs

 private:
  enum class State { kDown, kStarting, kServing, kEnding };
  struct Group {
    State state = State::kDown;
    pid_t daemon = 0;
    Instant since = 0;      // of the state
    Instant wanted_at = 0;  // when somebody asked last
    bool wanted = true;
    Instant retry_at = 0;
    int failures = 0;
    int unanswered = 0;
    bool looking = false;
    Instant look_at = 0;
    Instant looked_at = 0;
    int looks_soon = 0;  // how many of the next looks come soon, because a program has just come
    uint64_t restarts = 0;
    std::vector<Asker> askers;
    std::vector<pid_t> servers;
    std::set<pid_t> programs;
    std::string trouble;  // the last, empty: none
  };

  static const char* name_of(State state);
  void start(uid_t user, Group& group, Instant now, Actions& actions);
  void set_state(Group& group, State state, Instant now);
  bool makes_room(Instant now);
  void fail(uid_t user, Group& group, const std::string& why, Instant now, Actions& actions);
  void answer(uid_t user, Group& group, const std::string& refusal, Actions& actions);
  void look_after(uid_t user, Group& group, Instant now, Actions& actions);
  static Instant deadline_of(const Group& group);

  std::map<uid_t, Group> groups_;
};

}  // namespace nvshare::scheduler
