#include "scheduler/gpus/mps_groups.h"

#include <algorithm>
#include <limits>
#include <utility>

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
// At one user's daemons together: programs may come as fast as their user likes, and each look starts two processes.
constexpr int64_t kLooksApart = 100 * kOneMillisecond;

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

std::string whose(const TrustGroup& group) { return "MPS of " + group.text(); }

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

void MpsGroups::answer(const TrustGroup& key, Group& group, const std::string& refusal, Actions& actions) {
  for (const Asker asker : group.askers) actions.emplace_back(Answer{asker, key, refusal});
  group.askers.clear();
}

void MpsGroups::start(const TrustGroup& key, Group& group, Instant now, Actions& actions) {
  set_state(group, State::kStarting, now);
  group.unanswered = 0;
  group.looking = false;
  group.look_at = now + kBetweenLooksAtStart;
  actions.emplace_back(Start{key});
}

MpsGroups::Group& MpsGroups::of(const TrustGroup& group) {
  Group& found = groups_[group];
  if (found.number == 0) found.number = ++numbered_;
  return found;
}

bool MpsGroups::is_retried(const Group& group) { return group.failures > 0 && group.wanted && group.retry_at - group.wanted_at < kIdle; }

// Its daemon has ended, and is not started again unless somebody asks.
bool MpsGroups::is_over(const Group& group, Instant now) {
  return group.state == State::kDown && group.askers.empty() && !is_retried(group) && now >= group.retry_at;
}

// Of users all of whose groups are over, the one who asked longest ago is forgotten.
bool MpsGroups::makes_room(Instant now, Actions& actions) {
  std::optional<uid_t> oldest;
  Instant oldest_at = kNever;
  for (auto at = groups_.begin(); at != groups_.end();) {
    const uid_t user = at->first.user;
    Instant asked_at = 0;
    bool over = true;
    for (; at != groups_.end() && at->first.user == user; ++at) {
      asked_at = std::max(asked_at, at->second.wanted_at);
      over = over && is_over(at->second, now);
    }
    if (!over || asked_at >= oldest_at) continue;
    oldest = user;
    oldest_at = asked_at;
  }
  if (!oldest) return false;
  std::erase_if(groups_, [&](const auto& entry) {
    if (entry.first.user != *oldest) return false;
    actions.emplace_back(Forget{entry.first});
    return true;
  });
  return true;
}

size_t MpsGroups::named_of(uid_t user) const {
  return static_cast<size_t>(std::count_if(groups_.begin(), groups_.end(),
                                           [&](const auto& entry) { return entry.first.user == user && !entry.first.name.empty(); }));
}

bool MpsGroups::has_place(uid_t user) const {
  std::set<uid_t> users;
  for (const auto& [key, group] : groups_) users.insert(key.user);
  return users.contains(user) || users.size() < kUsersMost;
}

bool MpsGroups::has_room_for(const TrustGroup& group) const {
  return groups_.contains(group) || (has_place(group.user) && (group.name.empty() || named_of(group.user) < kNamedMost));
}

MpsGroups::Actions MpsGroups::asked(const TrustGroup& key, Asker asker, Instant now) {
  Actions actions;
  std::string no_room;
  if (!groups_.contains(key)) {
    if (!key.name.empty() && named_of(key.user) >= kNamedMost) {
      no_room = std::to_string(kNamedMost) + " trust groups of user " + std::to_string(key.user) +
                " have an MPS daemon, the most of one user; each has it until " + std::to_string(kIdle / kOneSecond / 60) +
                " minutes after its last program";
    } else if (!has_place(key.user) && !makes_room(now, actions)) {
      no_room = "programs of " + std::to_string(kUsersMost) + " users have an MPS daemon already";
    }
  }
  if (!no_room.empty()) {
    actions.emplace_back(Answer{asker, key, no_room});
    return actions;
  }
  Group& group = of(key);
  group.wanted_at = now;
  group.wanted = true;
  group.askers.push_back(asker);
  switch (group.state) {
    case State::kDown:
      if (now < group.retry_at) {
        answer(key, group, group.trouble + "; it is started again in " + std::to_string((group.retry_at - now) / kOneSecond + 1) + " s",
               actions);
      } else {
        start(key, group, now, actions);
      }
      break;
    case State::kServing:
      answer(key, group,
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

MpsGroups::Actions MpsGroups::started(const TrustGroup& key, pid_t daemon, Instant now) {
  Group& group = of(key);
  group.daemon = daemon;
  set_state(group, State::kStarting, now);
  group.look_at = now + kBetweenLooksAtStart;
  return {};
}

MpsGroups::Actions MpsGroups::not_started(const TrustGroup& key, const std::string& why, Instant now) {
  Actions actions;
  fail(key, of(key), why, now, actions);
  return actions;
}

void MpsGroups::adopted(const TrustGroup& key, pid_t daemon, bool wanted, Instant now) {
  Group& group = of(key);
  group.daemon = daemon;
  group.wanted = wanted;
  group.wanted_at = now;
  set_state(group, State::kStarting, now);
  group.look_at = now;
}

void MpsGroups::fail(const TrustGroup& key, Group& group, const std::string& why, Instant now, Actions& actions) {
  ++group.failures;
  group.daemon = 0;
  group.looking = false;
  group.servers.clear();
  group.trouble = why;
  group.retry_at = now + backoff_after(group.failures);
  set_state(group, State::kDown, now);
  actions.emplace_back(Note{true, whose(key) + ": " + why});
  answer(key, group, why, actions);
}

MpsGroups::Actions MpsGroups::ended(const TrustGroup& key, const std::string& how, Instant now) {
  Actions actions;
  Group& group = of(key);
  const State former = group.state;
  const std::set<pid_t> lost = std::exchange(group.programs, {});
  if (former == State::kEnding) {
    group.daemon = 0;
    group.looking = false;
    group.servers.clear();
    group.trouble.clear();
    set_state(group, State::kDown, now);
    actions.emplace_back(Note{false, whose(key) + ": its daemon has ended"});
    if (!group.askers.empty()) start(key, group, now, actions);
  } else {
    if (former == State::kServing && now - group.since >= kLooksWell) group.failures = 0;
    fail(key, group, "the daemon (pid " + std::to_string(group.daemon) + ") " + how, now, actions);
    if (former == State::kServing) ++group.restarts;
    if (!lost.empty())
      actions.emplace_back(Note{true, whose(key) + ": processes " + list_of(lost) +
                                          " were attached to it: their CUDA calls fail from now on, and they have to be started again"});
  }
  actions.emplace_back(Attached{key, group.number, {}});
  return actions;
}

// Between two looks at one of that user's daemons.
int64_t MpsGroups::looks_apart(uid_t user) const {
  return kLooksApart * std::count_if(groups_.begin(), groups_.end(),
                                     [&](const auto& entry) { return entry.first.user == user && entry.second.daemon != 0; });
}

MpsGroups::Actions MpsGroups::looked(const TrustGroup& key, const Looked& seen, Instant now) {
  Actions actions;
  Group& group = of(key);
  group.looking = false;
  group.looked_at = now;
  if (group.state == State::kDown || group.state == State::kEnding) return actions;
  if (!seen.answered) {
    group.look_at = now + (group.state == State::kStarting ? kBetweenLooksAtStart : kOneSecond);
    if (group.state == State::kServing && ++group.unanswered >= kUnansweredMost) {
      actions.emplace_back(Note{true, whose(key) + ": its daemon (pid " + std::to_string(group.daemon) + ") does not answer: it is ended"});
      group.look_at = now + kEndPatience;
      group.unanswered = 0;
      actions.emplace_back(Kill{key});
    }
    return actions;
  }
  group.unanswered = 0;
  if (group.state == State::kStarting) {
    set_state(group, State::kServing, now);
    group.trouble.clear();
    actions.emplace_back(Note{false, whose(key) + ": its daemon (pid " + std::to_string(group.daemon) + ") serves"});
    answer(key, group, "", actions);
  }
  const int64_t wait = group.looks_soon > 0 ? std::max(kSoon[kSoonLooks - group.looks_soon], looks_apart(key.user)) : kBetweenLooks;
  if (group.looks_soon > 0) --group.looks_soon;
  group.look_at = now + wait;
  group.servers = seen.servers;
  if (!seen.programs.empty()) group.wanted_at = std::max(group.wanted_at, now);
  const bool has_any = !group.programs.empty() || !seen.programs.empty();
  group.programs = seen.programs;
  if (has_any) actions.emplace_back(Attached{key, group.number, seen.programs});
  // Only now: what was seen earlier may have changed.
  if (group.programs.empty() && (!group.wanted || now - group.wanted_at >= kIdle)) {
    set_state(group, State::kEnding, now);
    actions.emplace_back(Quit{key});
  }
  return actions;
}

MpsGroups::Actions MpsGroups::joined(uid_t user, Instant now) {
  const int64_t apart = looks_apart(user);
  for (auto at = groups_.lower_bound(TrustGroup{user, ""}); at != groups_.end() && at->first.user == user; ++at) {
    Group& group = at->second;
    if (group.state != State::kServing) continue;
    group.looks_soon = kSoonLooks - 1;
    group.look_at = std::min(group.look_at, std::max(now + kSoon[0], group.looked_at + apart));
  }
  return {};
}

// One whose time for something has come.
void MpsGroups::look_after(const TrustGroup& key, Group& group, Instant now, Actions& actions) {
  switch (group.state) {
    case State::kDown:
      // Programs of a user who wants it may start at any time, without asking again.
      start(key, group, now, actions);
      break;
    case State::kStarting:
      if (now - group.since >= kStartPatience) {
        group.since = now;  // once
        actions.emplace_back(Note{true, whose(key) + ": its daemon has not answered " + std::to_string(kStartPatience / kOneSecond) +
                                            " s after its start: it is ended"});
        actions.emplace_back(Kill{key});
        break;
      }
      [[fallthrough]];
    case State::kServing:
      if (!group.looking && now >= group.look_at && group.daemon != 0) {
        group.looking = true;
        actions.emplace_back(Look{key});
      }
      break;
    case State::kEnding:
      if (now - group.since >= kEndPatience) {
        group.since = now;
        actions.emplace_back(Kill{key});
      }
      break;
  }
}

MpsGroups::Actions MpsGroups::deadline_reached(Instant now) {
  Actions actions;
  for (auto at = groups_.begin(); at != groups_.end();) {
    auto& [key, group] = *at;
    if (now >= deadline_of(key, group)) {
      if (group.state == State::kDown && !is_retried(group)) {
        actions.emplace_back(Forget{key});
        at = groups_.erase(at);
        continue;
      }
      look_after(key, group, now, actions);
    }
    ++at;
  }
  return actions;
}

MpsGroups::Instant MpsGroups::deadline_of(const TrustGroup& key, const Group& group) {
  switch (group.state) {
    case State::kDown:
      return is_retried(group) || !key.name.empty() ? group.retry_at : kNever;
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
  for (const auto& [key, group] : groups_) next = std::min(next, deadline_of(key, group));
  return next == kNever ? std::nullopt : std::optional(next);
}

std::vector<protocol::admin::MpsReport> MpsGroups::report() const {
  std::vector<protocol::admin::MpsReport> reports;
  for (const auto& [key, group] : groups_) {
    reports.push_back({key.user, key.name, name_of(group.state), group.daemon, group.programs.size(), group.restarts, group.trouble});
  }
  return reports;
}

}  // namespace nvshare::scheduler
