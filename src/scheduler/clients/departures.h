// Memory of clients that have left, or that a restarted scheduler misses: whose process may still have it on the GPU. It counts until NVML
// shows it free, or, where NVML does not see the process, until the process has ended and the driver has had a moment. What the policy is
// to hear of it is returned. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "policy/policy.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/known_clients.h"
#include "scheduler/clients/left_clients.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/gpus/memory_watch.h"
#include "scheduler/tenants/identity.h"

namespace nvshare::scheduler {

// NVML shows when its memory is free.
struct DepartedClient {
  pid_t pid = 0;
  policy::GpuId gpu = 0;
  policy::Instant since = 0;
  int64_t resident = 0;
  int64_t held = 0;               // bytes that the policy counts for it, without its context
  policy::Instant listed_at = 0;  // by NVML, last
  policy::Instant held_at = 0;    // the policy was told last
};

class Departures {
 public:
  using IsAlive = std::function<bool(pid_t pid, uint64_t start_time)>;
  // What has gone is forgotten in `known` as well.
  Departures(KnownClients& known, IsAlive is_alive) : known_(known), is_alive_(std::move(is_alive)) {}

  // A client left, and its memory may not be free.
  void add(policy::ClientId id, const LeftClient& left) { left_.put(id, left); }
  void watch(policy::ClientId id, const DepartedClient& departed) { watched_[id] = departed; }

  // A process comes back whose connection ended: what it left behind is its own, and counts once. That has to change in one step of the
  // policy, which would give it to others in between: `replaced` is for that. The client that it was last, if that is known.
  std::optional<LeftClient> take(const Peer& peer, policy::GpuId gpu, const std::string& uuid, std::vector<policy::ClientId>* replaced);

  // Of processes that have ended, what NVML does not watch. Of many, some each time.
  std::vector<policy::Event> look_up(const policy::Config& config, policy::Instant now);
  // When look_up looks first; then housekeeping does it.
  std::optional<policy::Instant> next_deadline(const policy::Config& config) const;
  std::vector<policy::Event> deadline_reached(const policy::Config& config, policy::Instant now);
  void forget_old(const policy::Config& config, policy::Instant now);
  // The driver takes a dead process off its list before all of its memory is free again, so both are looked at. `ours`: what the living
  // clients use. `sees_pids`: NVML lists processes by the numbers that we know.
  std::vector<policy::Event> sampled(policy::GpuId gpu, const GpuSample& sample, int64_t ours, bool sees_pids, const Clients& clients,
                                     const policy::Config& config, policy::Instant now);

  // Clients of an earlier scheduler that are not back, known_.missing(): they may have been granted what nobody has been since. One may be
  // stopped, in the middle of its load, or have grown while no scheduler was there, as the last look says.
  std::vector<policy::Event> hold_absent(const Gpus& gpus, const policy::Config& config, policy::Instant now);
  // One of them is another client by now. True: the policy is to hear that its memory is free.
  bool forget_absent(policy::ClientId id);
  // The process of one of them has ended, in known_.ended(): where no NVML shows it, its memory counts for a moment yet.
  void absent_ended(policy::ClientId id, const Gpus& gpus, policy::Instant now);

  bool is_empty() const { return watched_.empty() && left_.waiting().empty(); }  // nobody's end is awaited
  bool watches(policy::GpuId gpu) const;
  bool watches(pid_t pid, policy::GpuId gpu) const;
  int64_t used_by_watched(policy::GpuId gpu, const GpuSample& sample) const;
  std::set<policy::GpuId> gpus() const;

 private:
  KnownClients& known_;
  const IsAlive is_alive_;
  std::map<policy::ClientId, DepartedClient> watched_;
  LeftClients left_;
  std::pair<policy::Instant, policy::ClientId> looked_up_to_ = {0, 0};  // of left_.waiting(), by look_up
  policy::Instant looked_at_left_ = 0;
  std::set<policy::ClientId> held_absent_;                    // whose memory the policy was told of by hold_absent
  std::map<policy::ClientId, policy::Instant> absent_ended_;  // of known_.ended(), of which it is to be told; when that was seen
};

}  // namespace nvshare::scheduler
