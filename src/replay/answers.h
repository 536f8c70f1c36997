// Whether this build's policy answers a recording's events as the recording says. The policy is a pure function, so that a build of the
// same code gives the same answers, and the first that differs shows what another code decides otherwise. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "policy/policy.h"
#include "replay/recording.h"
#include "scheduler/trace.h"

namespace nvshare::replay {

struct Difference {
  size_t line = 0;
  policy::Instant now = 0;
  policy::Duration into = 0;  // how long after the scheduler's first event
  policy::Event event;
  policy::Actions recorded, answered;  // without notes
  // When the policy asked to be woken. Where the recording does not say, both are none.
  scheduler::Wake wake_recorded = {}, wake_answered = {};
  std::set<policy::ClientId> clients;  // that the event and the actions that differ are about
};

// A recording is stepped through line by line, until it ends or an answer differs.
class Answers {
 public:
  // False: the answers differ, and no more lines may be added. An error does not name the line.
  Result<bool> add(const Recording::Line& line);

  uint64_t events() const { return events_; }
  uint64_t compared() const { return compared_; }  // events whose answers are recorded
  uint64_t actions() const { return actions_; }    // of those, that are the same
  uint64_t schedulers() const { return schedulers_; }
  policy::Duration length() const { return length_ + now_ - first_; }  // of each scheduler from its first event on, together
  const std::set<std::string>& releases() const { return releases_; }  // of the schedulers that recorded; empty: too old to say
  const std::map<policy::ClientId, scheduler::TraceNames>& names() const { return names_; }
  const std::optional<Difference>& difference() const { return difference_; }

  // As they stand now; those that are not there are left out.
  std::vector<policy::ClientView> views(const std::set<policy::ClientId>& clients, policy::Instant now) const;

 private:
  void begin(const scheduler::TraceStart& start);
  bool take(size_t line, const scheduler::TraceEvent& traced);

  policy::StatePointer state_;  // null: no scheduler has begun
  bool has_answers_ = false, has_wakes_ = false;
  scheduler::Wake wake_;    // as recorded
  bool any_event_ = false;  // of the scheduler that is read
  policy::Instant first_ = 0, now_ = 0;
  policy::Duration length_ = 0;
  uint64_t events_ = 0, compared_ = 0, actions_ = 0, schedulers_ = 0;
  std::set<std::string> releases_;
  std::map<policy::ClientId, scheduler::TraceNames> names_;
  std::optional<Difference> difference_;
};

struct Replayed {
  Answers answers;
  size_t incomplete = 0;  // lines that schedulers left incomplete
  // Difference::clients, as they stood before the event; those that join with it are not there.
  std::vector<policy::ClientView> before;
};
// All of the file, or up to the first answer that differs: then it is read again, for `before`, which of a pipe stays empty. An error names
// the line, not the file.
Result<Replayed> replay(const std::string& file);

}  // namespace nvshare::replay
