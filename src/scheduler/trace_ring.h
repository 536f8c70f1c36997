// What happened in the last minute, always: each change of a client that the policy's state showed, for `nvsharectl trace` of a scheduler
// that runs. Unlike the events of --trace it needs no state to begin with, so that old entries can go. Bounded in time and bytes. One
// thread, the engine's.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "policy/policy.h"
#include "scheduler/trace.h"

namespace nvshare::scheduler {

class TraceRing {
 public:
  static constexpr policy::Duration kLength = 60'000'000'000;
  static constexpr size_t kBytesMost = 4 << 20;
  static constexpr size_t kLinesMost = 500;              // of one Part
  static constexpr policy::Bytes kMemoryStep = 1 << 20;  // smaller changes of memory wait for the next entry

  // Before the client's first event.
  void name(TraceNames names, policy::Instant now);
  // After the policy has taken the event in.
  void happened(const policy::State& state, const policy::Event& event, policy::Instant now);

  struct Part {
    std::vector<std::string> lines;  // of a trace (trace.h)
    uint64_t next = 0;               // where the next part begins
    bool more = false;               // it has lines already
  };
  // after: Part::next of the part before; 0, or entries that are gone meanwhile: from the beginning, which the first line shows.
  // last: of a beginning, only what happened in that time; 0: all.
  Part read(uint64_t after, policy::Duration last, policy::Instant now) const { return written(copy(after, last, now)); }

  struct Entry {
    policy::Instant now;
    std::variant<TraceNames, TraceSighting, policy::ClientLeft, policy::SwapProgressed> what;
  };
  struct Known {
    TraceNames names;
    TraceSighting sighting;  // client 0: not seen yet
  };
  using Clients = std::map<policy::ClientId, Known>;

  // The same before it is text, which takes many times as long: another thread may write it.
  struct Copied {
    bool begins = false;
    Clients clients;            // of a beginning: what was known
    policy::Instant begin = 0;  // when
    std::vector<Entry> entries;
    uint64_t next = 0;
    bool more = false;
    policy::Instant now = 0;
  };
  Copied copy(uint64_t after, policy::Duration last, policy::Instant now) const;
  static Part written(const Copied& copied);

  size_t bytes() const { return bytes_; }

 private:
  static size_t bytes_of(const Entry& entry);
  static std::string line_of(const Entry& entry);
  static void fold(const Entry& entry, Clients& clients);
  void push(Entry entry);
  void see(const policy::State& state, policy::Instant now);

  std::deque<Entry> entries_;
  uint64_t first_ = 1;  // number of the oldest entry
  size_t bytes_ = 0;
  Clients before_;                                           // what was known when the oldest entry was made
  policy::Instant begin_ = 0;                                // when that was; 0: nothing was ever forgotten
  std::map<policy::ClientId, policy::ClientGlimpse> known_;  // as last entered
  std::vector<policy::ClientGlimpse> now_;                   // kept for its memory
};

}  // namespace nvshare::scheduler
