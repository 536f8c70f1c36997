// A trace is a file of JSON lines: first {"config":{...},"release":"..."}, then one {"now":..,"event":"LockRequested",...} per policy
// event, so that any day replays, and one {"names":{...}} before each client's first event. With "answers":true in the beginning an event
// has what the policy answered, if that was anything: "answers":[{"action":"SendLock",...},...]. With "wakes":true one has when the policy
// asked to be woken then, if that is another time than after the event before it: "wake":.., null: not at all. A daemon that restarts
// appends a new beginning to the same file. What a running scheduler remembers (trace_ring.h) begins with {"release":"..."} alone, and has
// {"now":..,"seen":{...}} for each change of a client instead of the events. Not thread-safe.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "policy/policy.h"

namespace nvshare::scheduler {

using Wake = std::optional<policy::Instant>;  // when the policy is to be called again; none: when something happens
struct TraceEvent {
  policy::Instant now = 0;
  policy::Event event;
  policy::Actions answers = {};   // without notes, which decide nothing; where TraceStart says that answers are recorded
  std::optional<Wake> wake = {};  // none: as after the event before it
};
struct TraceStart {
  std::string release;                   // of the scheduler; empty: it was too old to say
  std::optional<policy::Config> config;  // none: sightings follow
  bool has_answers = false;
  bool has_wakes = false;
};
// Of a client, for people.
struct TraceNames {
  policy::ClientId client = 0;
  std::string program;
  int32_t pid = 0;
  policy::TenantId tenant = 0;
  std::string tenant_name;
  std::string gpu;  // its name and UUID
};
// What the policy's state showed of a client from then on.
struct TraceSighting {
  policy::Instant now = 0;
  policy::ClientGlimpse seen{};
  std::string waiting_for;
};
using TraceLine = std::variant<TraceStart, TraceEvent, TraceNames, TraceSighting>;

std::string encode_trace(const TraceLine& line);  // without newline
Result<TraceLine> decode_trace(std::string_view line);
// As a trace has each of them; notes are left out.
std::vector<std::string> encode_answers(const policy::Actions& actions);

class TraceWriter {
 public:
  static Result<TraceWriter> open(const std::string& file, const policy::Config& config);
  void write(const TraceLine& line);
  void write(const policy::Event& event, const policy::Actions& answers, const Wake& wake, policy::Instant now);
  void flush() { stream_.flush(); }

 private:
  explicit TraceWriter(std::ofstream stream) : stream_(std::move(stream)) {}
  std::ofstream stream_;
  Wake wake_;  // as written last; at first the policy has nothing to wake up for
};

}  // namespace nvshare::scheduler
