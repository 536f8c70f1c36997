// The clients that a scheduler served, kept in a small file so that its successor knows whom to wait for, and so that no client id is
// ever given twice. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/fd.h"
#include "policy/policy.h"
#include "scheduler/tenants/identity.h"

namespace nvshare::scheduler {

struct KnownClient {
  pid_t pid = 0;
  uint64_t start_time = 0;  // see Peer
  policy::TenantId tenant = 0;
  std::string gpu;        // UUID as text
  int64_t lease = 0;      // bytes that it may charge against its tenant's memory limit, at most
  int64_t own_limit = 0;  // bytes, from its environment; 0 = none
  int64_t charged = 0;    // bytes, lately
  int64_t on_gpu = 0;     // bytes that it may have there, at most
};

class KnownClients {
 public:
  static constexpr int64_t kLeaseStep = int64_t{16} << 20;  // leases are kept rounded up to it, so that few of their changes are written

  // Reads what a predecessor wrote. A missing file is an empty one; so is one that is not ours, and what is damaged is left out: problem().
  // Without a name nothing is kept.
  explicit KnownClients(std::string file, StartTimeOf start_time = start_time_of);

  // Predecessor's clients whose processes live and that have not come back.
  const std::map<policy::ClientId, KnownClient>& missing() const { return missing_; }
  // Those whose processes have ended: their memory on the GPU may not be free yet. forget() follows once it is.
  const std::map<policy::ClientId, KnownClient>& ended() const { return ended_; }
  // Of missing(): its process has ended.
  void end(policy::ClientId id);

  // Which of missing() a process was on that GPU; 0: none. The id that it says may be another's, which it guessed, or one of before: its
  // connection broke, and then the predecessor ended before it could hear the id that it was given anew.
  policy::ClientId find_missing(policy::ClientId claimed, pid_t pid, uint64_t start_time, const std::string& gpu) const;

  // The id of a client that joins: the one that it had, if that was its own (process and GPU), else a new one. Appends to the file, as
  // do leave(), forget(), keep_lease() and keep_up().
  policy::ClientId join(policy::ClientId claimed, const KnownClient& client);
  void leave(policy::ClientId id);
  // It has left, and its memory on the GPU may not be free yet: forget() follows once it is. A successor misses it like any other.
  void depart(policy::ClientId id);
  // Before it is told of a larger lease: written at once. What became less is written by keep_up().
  void keep_lease(policy::ClientId id, int64_t lease, int64_t charged);
  void keep_up();
  // The same of what it may have on its GPU; less is written by keep_up() only, and where it may be lowered.
  void keep_on_gpu(policy::ClientId id, int64_t on_gpu, bool may_lower);
  // Of missing() and ended(), or departed: its memory is free.
  void forget(policy::ClientId id);

  // The last problem with the file, empty if none.
  const std::string& problem() const { return problem_; }

 private:
  void put_missing(policy::ClientId id, const KnownClient& client);
  bool take_missing(policy::ClientId id);  // false: it was not

  void read();
  void write();  // all of it
  void append(const std::string& lines, size_t count);
  void append(policy::ClientId id, const KnownClient& client);

  std::string file_;
  StartTimeOf start_time_;
  std::map<policy::ClientId, KnownClient> present_;
  std::map<policy::ClientId, KnownClient> missing_;
  std::set<std::pair<pid_t, policy::ClientId>> missing_by_pid_;  // the same: thousands may come back whose ids are not theirs
  std::map<policy::ClientId, KnownClient> ended_;
  std::map<policy::ClientId, KnownClient> departed_;
  policy::ClientId next_ = 1;
  std::set<policy::ClientId> dirty_;
  FileDescriptor end_;   // of the file, to append to
  size_t appended_ = 0;  // lines since all of it was written
  std::string problem_;
};

}  // namespace nvshare::scheduler
