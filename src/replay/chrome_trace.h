// A scheduler's recording (scheduler/trace.h) in Chrome's trace format: JSON that ui.perfetto.dev and chrome://tracing open.
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU has the format.
//
// Each GPU is a process. Its tracks: who has it; each tenant (runs, waits); each client's states (a wait has its reason, a turn its
// number), turns, copies out and copies in; counters of resident and swapped bytes. Slices of one track never overlap, and their sums are
// the scheduler's own figures: those called running, dropping or unresponsive add up to running_ns of `status --json`, those called waiting
// to waiting_ns, loading to swapping_ns; `bytes` of copies to swapped_out and swapped_in; turns to grants. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "policy/policy.h"
#include "scheduler/trace.h"

namespace nvshare::replay {

class ChromeTrace {
 public:
  // The next line of the recording, or of what a running scheduler remembers. Lines must come in their order.
  Result<void> add(std::string_view line);
  Result<void> add(const scheduler::TraceLine& line);

  struct Summary {
    size_t gpus = 0;
    size_t clients = 0;
    uint64_t turns = 0;
    policy::Duration length = 0;
  };
  Summary summary() const;
  const std::string& release() const { return release_; }  // that recorded; empty: it was too old to say
  bool is_replayed() const { return state_ != nullptr; }   // by the policy of this release

  // The whole file; what is still going on ends with the recording.
  std::string finish();

 private:
  // What is going on in a track.
  struct Track {
    uint32_t id = 0;
    std::string slice;  // its name; empty: nothing
    std::string arguments;
    policy::Instant since = 0;
  };
  struct Copy {
    uint64_t movement = 0;
    policy::Instant begin = 0;
    policy::Instant end = 0;
    policy::Bytes bytes = 0;
  };
  struct ClientPast {
    bool counted = false;
    uint64_t turns = 0;
    policy::Bytes out = 0;
    policy::Bytes in = 0;
    Copy copy_out, copy_in;
    policy::Instant copies_end_out = 0, copies_end_in = 0;
    policy::GpuId gpu = 0;
    policy::TenantId tenant = 0;
  };
  enum class Kind : uint32_t { kGpu, kTenant, kState, kTurns, kOut, kIn };

  void begin_again(const scheduler::TraceStart& start);
  std::vector<policy::GpuView> views(policy::Instant now) const;
  void add_sighting(const scheduler::TraceSighting& sighting);
  void take_leave(policy::ClientId client, policy::Instant now);
  void add_event(const scheduler::TraceEvent& traced);
  void note_copies(const policy::SwapProgressed& event, policy::Instant now);
  void close_copy(policy::ClientId client, bool out);
  void look(policy::Instant now);
  void look_at(const policy::GpuView& gpu, policy::Instant now);
  void look_at(const policy::ClientView& client, policy::Instant now);
  void close_all();

  Track& track(policy::GpuId gpu, Kind kind, uint64_t who, const std::string& name, uint64_t order);
  void set(policy::GpuId gpu, Track& track, const std::string& slice, const std::string& arguments, policy::Instant now);
  void slice(policy::GpuId gpu, uint32_t track, const std::string& name, const std::string& arguments, policy::Instant begin,
             policy::Instant end);
  std::string name_of(policy::ClientId client) const;
  std::string tenant_name(policy::TenantId tenant) const;

  struct Counters {
    policy::Bytes resident = -1;
    policy::Bytes swapped = -1;
  };

  std::string release_;
  policy::StatePointer state_;  // stepped through the events; null: sightings tell what there was
  bool watched_ = false;
  std::map<policy::ClientId, policy::ClientView> seen_;
  std::map<policy::ClientId, scheduler::TraceNames> names_;
  std::map<policy::TenantId, std::string> tenant_names_;
  policy::Instant first_ = -1;
  policy::Instant last_ = 0;
  std::map<policy::ClientId, ClientPast> clients_;
  std::map<policy::GpuId, Counters> counters_;
  std::map<policy::GpuId, std::string> gpus_;  // by what they are called
  std::map<std::string, Track> tracks_;
  uint32_t next_track_ = 1;
  size_t clients_seen_ = 0;
  uint64_t turns_seen_ = 0;
  std::string events_;
};

}  // namespace nvshare::replay
