// How many connections and messages each process, tenant and user may have: pure bookkeeping, time is an argument. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "policy/policy.h"
#include "scheduler/bounds.h"
#include "scheduler/tenants/cgroup_identity.h"

namespace nvshare::scheduler {

// Fills at a steady rate up to its depth. What a message costs is known once it was handled, so the level may fall below 0 by that.
class TokenBucket {
 public:
  TokenBucket(int64_t per_second, int64_t depth, policy::Instant now) : per_second_(per_second), depth_(depth), level_(depth), at_(now) {}

  // 0: there is something to take. Else for so many nanoseconds there is not.
  policy::Duration wait(policy::Instant now);
  void take(int64_t tokens) { level_ -= tokens; }
  bool is_full(policy::Instant now) const {
    TokenBucket then = *this;
    then.fill(now);
    return then.level_ == depth_;
  }

 private:
  void fill(policy::Instant now);

  int64_t per_second_;
  int64_t depth_;
  int64_t level_;
  policy::Instant at_;
};

// Whose bounds a connection counts against. Empty: no bound of that kind.
struct Accountable {
  std::string tenant;   // the container, pod or unit
  std::string user;     // who can make units and processes at will
  std::string process;  // pid and start time; empty: one that nobody knows, so of no other connection
};

// A process in a container or pod counts for that; below a user's own slice for that user, whatever units and containers it made there;
// in a unit of the system for the unit, and for its user unless that is root. Pure.
Accountable accountable_for(const CgroupReader& reader, std::string_view cgroups, uid_t uid, pid_t pid, uint64_t start_time);

// What a message costs, in messages, that took the scheduler so long.
int64_t cost_of(policy::Duration handled);

class ConnectionBounds {
 public:
  struct Limits {
    int64_t per_tenant = bounds::kConnectionsPerTenant;
    int64_t per_user = bounds::kConnectionsPerUser;
    int64_t descriptors = 0;  // of the scheduler's, that connections may take; 0: any number
    int64_t connects_per_second = bounds::kConnectsPerSecond;
    int64_t connect_burst = bounds::kConnectBurst;
  };
  explicit ConnectionBounds(const Limits& limits) : limits_(limits) {}

  // Before anything is looked up about the process that connects (0: this PID namespace does not show it): whether it may now.
  bool may_connect(pid_t process, policy::Instant now);
  // Counts one more connection, or says why not.
  Result<void> admit(uint64_t connection, const Accountable& whose, policy::Instant now);
  void left(uint64_t connection);
  // Before an admitted one's message is read. 0: now; else so many nanoseconds later.
  policy::Duration wait(uint64_t connection, policy::Instant now);
  void charge(uint64_t connection, int64_t cost);

  int64_t count() const { return static_cast<int64_t>(connections_.size()); }
  // Of the scheduler's: a socket for each connection, and a pidfd for each process (PeerProcesses).
  int64_t descriptors() const { return count() + processes_; }
  uint64_t refused() const { return refused_; }
  uint64_t reads_paused() const { return reads_paused_; }

 private:
  struct Group {
    int64_t connections = 0;
    TokenBucket messages;
  };
  struct Connection {
    Accountable whose;
    TokenBucket messages;
  };
  Group& group(const std::string& key, policy::Instant now);
  Result<void> check(const Accountable& whose) const;
  Result<void> check_group(const std::string& key, int64_t limit, const std::string& setting) const;
  Result<void> check_descriptors(const Accountable& whose) const;
  void forget_idle(policy::Instant now);
  int64_t count_of(const std::string& key) const;
  bool is_new(const Accountable& whose) const;

  Limits limits_;
  std::map<std::string, Group> groups_;
  std::map<pid_t, TokenBucket> connects_;  // of processes
  std::map<uint64_t, Connection> connections_;
  int64_t processes_ = 0;  // that have connections
  policy::Instant forgot_at_ = 0;
  uint64_t refused_ = 0;
  uint64_t reads_paused_ = 0;
};

}  // namespace nvshare::scheduler
