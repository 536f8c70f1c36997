#include "scheduler/gpus/mps_groups.h"

#include <algorithm>
#include <limits>

namespace nvshare::scheduler {
namespace {

constexpr int64_t kOneMillisecond = 1'000'000;
constexpr int64_t kOneSecond = 1'000'000'000;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

constexpr int64_t kBetweenLooksAtStart = 50 * kOneMillisecond;
constexpr int64_t kBetweenLooks = 10 * kOneSecond;
// After a program has come: soon at first, as it may become a client before the server lists it.
constexpr int64_t kSoon[] = {20 * kOneMillisecond, 100 * kOneMillisecond, 400 * kOneMillisecond, kOneSecond, 3 * kOneSecond};
constexpr int kSoonLooks = std::size(kSoon);
constexpr int64_t kLooksApart = 100 * kOneMillisecond;  // programs may come as fast as their user likes, and each look starts two processes

int64_t backoff_after(int failures) {
  int64_t delay = MpsGroups::kBackoffMin;
  for (int i = 1; i < failures && delay < MpsGroups::kBackoffMax; ++i) delay *= 2;
  return std::min(delay, MpsGroups::kBackoffMax);
}

std::string list_of(const std::set<pid_t>& programs) {
  constexpr size_t kListed = 8;
  std::string list;
  size_t count = 0;
  for (const pid_t pid : programs) {
    if (++count > kListed) return list + " and " + std::to_string(programs.size() - kListed) + " more";
    list += (list.empty() ? "" : ", ") + std::to_string(pid);
  }
  return list;
}

std::string whose(uid_t user) { return "MPS of user " + std::to_string(user); }

}  // namespace

const char* MpsGroups::name_of(State state) {
  switch (state) {
    case State::kDown:
      return "down";
    case State::kStarting:
      return "starting";
    case State::kServing:
      return "serving";
    case State::kEnding:
      return "ending";
  }
  return "?";
}

void MpsGroups::set_state(Group& group, State state, Instant now) {
  group.state = state;
  group.since = now;
}

void MpsGroups::answer(uid_t user, Group& group, const std::string& refusal, Actions& actions) {
  for (const Asker asker : group.askers) actions.emplace_back(Answer{asker, user, refusal});
  group.askers.clear();
}

void MpsGroups::start(uid_t user, Group& group, Instant now, Actions& actions) {
  set_state(group, State::kStarting, now);
  group.unanswered = 0;
  group.looking = false;
  group.look_at = now + kBetweenLooksAtStart;
  actions.emplace_back(Start{user});
}

// Of users whose daemon has ended, and is not to be started again unless somebody asks, who asked longest ago.
bool MpsGroups::makes_room(Instant now) {
  auto oldest = groups_.end();
  for (auto at = groups_.begin(); at != groups_.end(); ++at) {
    const Group& group = at->second;
    const bool is_over = group.state == State::kDown && group.askers.empty() && deadline_of(group) == kNever && now >= group.retry_at;
    if (is_over && (oldest == groups_.end() || group.wanted_at < oldest->second.wanted_at)) oldest = at;
  }
  if (oldest == groups_.end()) return false;
  groups_.erase(oldest);
  return true;
}

MpsGroups::Actions MpsGroups::asked(uid_t user, Asker asker, Instant now) {
  Actions actions;
  if (!groups_.contains(user) && groups_.size() >= kGroupsMost && !makes_room(now)) {
    actions.emplace_back(Answer{asker, user, "programs of " + std::to_string(kGroupsMost) + " users have an MPS daemon already"});
    return actions;
  }
  Group& group = groups_[user];
  group.wanted_at = now;
  group.wanted = true;
  group.askers.push_back(asker);
  switch (group.state) {
    case State::kDown:
      if (now < group.retry_at) {
        answer(user, group, group.trouble + "; it is started again in " + std::to_string((group.retry_at - now) / kOneSecond + 1) + " s",
               actions);
      } else {
        start(user, group, now, actions);
      }
      break;
    case State::kServing:
      answer(user, group,
             group.programs.size() < kProgramsMost
                 ? ""
                 : std::to_string(group.programs.size()) + " programs use the server, which has room for " + std::to_string(kProgramsMost),
             actions);
      break;
    case State::kStarting:
    case State::kEnding:
      break;  // when it serves, or is gone
  }
  return actions;
}

MpsGroups::Actions MpsGroups::started(uid_t user, pid_t daemon, Instant now) {
  Group& group = groups_[user];
  group.daemon = daemon;
  set_state(group, State::kStarting, now);
  group.look_at = now + kBetweenLooksAtStart;
  return {};
}

MpsGroups::Actions MpsGroups::not_started(uid_t user, const std::string& why, Instant now) {
  Actions actions;
  fail(user, groups_[user], why, now, actions);
  return actions;
}

void MpsGroups::adopted(uid_t user, pid_t daemon, bool wanted, Instant now) {
  Group& group = groups_[user];
  group.daemon = daemon;
  group.wanted = wanted;
  group.wanted_at = now;
  set_state(group, State::kStarting, now);
  group.look_at = now;
}

void MpsGroups::fail(uid_t user, Group& group, const std::string& why, Instant now, Actions& actions) {
  ++group.failures;
  group.daemon = 0;
  group.looking = false;
  group.servers.clear();
  group.trouble = why;
  group.retry_at = now + backoff_after(group.failures);
  set_state(group, State::kDown, now);
  actions.emplace_back(Note{true, whose(user) + ": " + why});
  answer(user, group, why, actions);
}

MpsGroups::Actions MpsGroups::ended(uid_t user, const std::string& how, Instant now) {
  Actions actions;
  Group& group = groups_[user];
  const State former = group.state;
  const std::set<pid_t> lost = std::exchange(group.programs, {});
  if (former == State::kEnding) {
    group.daemon = 0;
    group.looking = false;
    group.servers.clear();
    group.trouble.clear();
    set_state(group, State::kDown, now);
    actions.emplace_back(Note{false, whose(user) + ": its daemon has ended"});
    if (!group.askers.empty()) start(user, group, now, actions);
  } else {
    if (former == State::kServing && now - group.since >= kLooksWell) group.failures = 0;
    fail(user, group, "the daemon (pid " + std::to_string(group.daemon) + ") " + how, now, actions);
    if (former == State::kServing) ++group.restarts;
    if (!lost.empty())
      actions.emplace_back(Note{true, whose(user) + ": processes " + list_of(lost) +
                                          " were attached to it: their CUDA calls fail from now on, and they have to be started again"});
  }
  actions.emplace_back(Attached{user, {}});
  return actions;
}

MpsGroups::Actions MpsGroups::looked(uid_t user, const Looked& seen, Instant now) {
  Actions actions;
  Group& group = groups_[user];
  group.looking = false;
  group.looked_at = now;
  if (group.state == State::kDown || group.state == State::kEnding) return actions;
  if (!seen.answered) {
    group.look_at = now + (group.state == State::kStarting ? kBetweenLooksAtStart : kOneSecond);
    if (group.state == State::kServing && ++group.unanswered >= kUnansweredMost) {
      actions.emplace_back(
          Note{true, whose(user) + ": its daemon (pid " + std::to_string(group.daemon) + ") does not answer: it is ended"});
      group.look_at = now + kEndPatience;
      group.unanswered = 0;
      actions.emplace_back(Kill{user});
    }
    return actions;
  }
  group.unanswered = 0;
  if (group.state == State::kStarting) {
    set_state(group, State::kServing, now);
    group.trouble.clear();
    actions.emplace_back(Note{false, whose(user) + ": its daemon (pid " + std::to_string(group.daemon) + ") serves"});
    answer(user, group, "", actions);
  }
  const int64_t wait = group.looks_soon > 0 ? kSoon[kSoonLooks - group.looks_soon] : kBetweenLooks;
  if (group.looks_soon > 0) --group.looks_soon;
  group.look_at = now + wait;
  group.servers = seen.servers;
  if (!seen.programs.empty()) group.wanted_at = std::max(group.wanted_at, now);
  group.programs = seen.programs;
  actions.emplace_back(Attached{user, seen.programs});
  // Only now: what was seen earlier may have changed.
  if (group.programs.empty() && (!group.wanted || now - group.wanted_at >= kIdle)) {
    set_state(group, State::kEnding, now);
    actions.emplace_back(Quit{user});
  }
  return actions;
}

MpsGroups::Actions MpsGroups::joined(uid_t user, Instant now) {
  const auto at = groups_.find(user);
  if (at == groups_.end() || at->second.state != State::kServing) return {};
  at->second.looks_soon = kSoonLooks - 1;
  at->second.look_at = std::min(at->second.look_at, std::max(now + kSoon[0], at->second.looked_at + kLooksApart));
  return {};
}

// One whose time for something has come.
void MpsGroups::look_after(uid_t user, Group& group, Instant now, Actions& actions) {
  switch (group.state) {
    case State::kDown:
      // Programs of a user who wants it may start at any time, without asking again.
      if (group.failures > 0 && group.wanted && now >= group.retry_at && now - group.wanted_at < kIdle) start(user, group, now, actions);
      break;
    case State::kStarting:
      if (now - group.since >= kStartPatience) {
        group.since = now;  // once
        actions.emplace_back(Note{true, whose(user) + ": its daemon has not answered " + std::to_string(kStartPatience / kOneSecond) +
                                            " s after its start: it is ended"});
        actions.emplace_back(Kill{user});
        break;
      }
      [[fallthrough]];
    case State::kServing:
      if (!group.looking && now >= group.look_at && group.daemon != 0) {
        group.looking = true;
        actions.emplace_back(Look{user});
      }
      break;
    case State::kEnding:
      if (now - group.since >= kEndPatience) {
        group.since = now;
        actions.emplace_back(Kill{user});
      }
      break;
  }
}

MpsGroups::Actions MpsGroups::deadline_reached(Instant now) {
  Actions actions;
  for (auto& [user, group] : groups_) {
    if (now >= deadline_of(group)) look_after(user, group, now, actions);
  }
  return actions;
}

MpsGroups::Instant MpsGroups::deadline_of(const Group& group) {
  switch (group.state) {
    case State::kDown:
      return group.failures > 0 && group.wanted && group.retry_at - group.wanted_at < kIdle ? group.retry_at : kNever;
    case State::kStarting:
      return std::min(group.since + kStartPatience, group.looking ? kNever : group.look_at);
    case State::kServing:
      return group.looking ? kNever : group.look_at;
    case State::kEnding:
      return group.since + kEndPatience;
  }
  return kNever;
}

std::optional<MpsGroups::Instant> MpsGroups::next_deadline() const {
  Instant next = kNever;
  for (const auto& [user, group] : groups_) next = std::min(next, deadline_of(group));
  return next == kNever ? std::nullopt : std::optional(next);
}

std::vector<protocol::admin::MpsReport> MpsGroups::report() const {
  std::vector<protocol::admin::MpsReport> reports;
  for (const auto& [user, group] : groups_) {
    reports.push_back({user, name_of(group.state), group.daemon, group.programs.size(), group.restarts, group.trouble});
  }
  return reports;
}

bool MpsGroups::uses(uid_t user) const {
  const auto at = groups_.find(user);
  return at != groups_.end() && !at->second.programs.empty();
}

std::vector<uid_t> MpsGroups::with_daemon() const {
  std::vector<uid_t> users;
  for (const auto& [user, group] : groups_) {
    if (group.daemon != 0) users.push_back(user);
  }
  return users;
}

}  // namespace nvshare::scheduler
