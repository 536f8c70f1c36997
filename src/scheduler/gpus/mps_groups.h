// MPS daemons, one for each trust group: when one is started, looked at, restarted and ended, and what those are told that ask for
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
#include "scheduler/gpus/trust_group.h"

namespace nvshare::scheduler {

class MpsGroups {
 public:
  using Instant = int64_t;
  using Asker = uint64_t;  // whoever is to get the answer

  static constexpr size_t kUsersMost = 64;
  static constexpr size_t kNamedMost = 8;  // groups with a name of a user, beside the one without
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
    TrustGroup group;
  };
  struct Look {
    TrustGroup group;
  };
  struct Quit {
    TrustGroup group;
  };
  struct Kill {
    TrustGroup group;
  };
  struct Answer {
    Asker asker = 0;
    TrustGroup group;
    std::string refusal;  // empty: it serves
  };
  // Whose programs are attached now.
  struct Attached {
    TrustGroup group;
    uint64_t number = 0;  // of that group and no other, 1 or more
    std::set<pid_t> programs;
  };
  // Its daemon has ended and nobody wants it: nothing is known of it any more.
  struct Forget {
    TrustGroup group;
  };
  struct Note {
    bool warning = false;
    std::string text;
  };
  using Action = std::variant<Start, Look, Quit, Kill, Answer, Attached, Forget, Note>;
  using Actions = std::vector<Action>;

  struct Looked {
    bool answered = false;
    std::vector<pid_t> servers;
    std::set<pid_t> programs;
  };

  // Somebody is about to start a program of that group. The answer is among these actions or later ones.
  Actions asked(const TrustGroup& group, Asker asker, Instant now);
  // What Start led to.
  Actions started(const TrustGroup& group, pid_t daemon, Instant now);
  Actions not_started(const TrustGroup& group, const std::string& why, Instant now);
  // A daemon of an earlier scheduler, which lives. `wanted` false: it is ended once nobody uses it.
  void adopted(const TrustGroup& group, pid_t daemon, bool wanted, Instant now);
  Actions ended(const TrustGroup& group, const std::string& how, Instant now);
  // What Look led to.
  Actions looked(const TrustGroup& group, const Looked& seen, Instant now);
  // A program of that user became a client: is it attached, and to which of its daemons?
  Actions joined(uid_t user, Instant now);
  Actions deadline_reached(Instant now);
  std::optional<Instant> next_deadline() const;

  std::vector<protocol::admin::MpsReport> report() const;
  bool knows(const TrustGroup& group) const { return groups_.contains(group); }
  bool has_room_for(const TrustGroup& group) const;

 private:
  enum class State { kDown, kStarting, kServing, kEnding };
  struct Group {
    uint64_t number = 0;
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
  void start(const TrustGroup& key, Group& group, Instant now, Actions& actions);
  void set_state(Group& group, State state, Instant now);
  Group& of(const TrustGroup& group);
  bool makes_room(Instant now, Actions& actions);
  bool has_place(uid_t user) const;
  size_t named_of(uid_t user) const;
  void fail(const TrustGroup& key, Group& group, const std::string& why, Instant now, Actions& actions);
  void answer(const TrustGroup& key, Group& group, const std::string& refusal, Actions& actions);
  void look_after(const TrustGroup& key, Group& group, Instant now, Actions& actions);
  int64_t looks_apart(uid_t user) const;
  static bool is_retried(const Group& group);
  static bool is_over(const Group& group, Instant now);
  static Instant deadline_of(const TrustGroup& key, const Group& group);

  std::map<TrustGroup, Group> groups_;  // those of one user beside each other
  uint64_t numbered_ = 0;
};

}  // namespace nvshare::scheduler
