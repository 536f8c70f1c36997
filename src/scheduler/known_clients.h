// The clients that a scheduler served, kept in a small file so that its successor knows whom to wait for, and so that no client id is
// ever given twice. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "policy/policy.h"

namespace nvshare::scheduler {

struct KnownClient {
  pid_t pid = 0;
  uint64_t start_time = 0;  // see Peer
};

class KnownClients {
 public:
  // Reads what a predecessor wrote; a missing or damaged file is an empty one.
  explicit KnownClients(std::string file);

  // Predecessor's clients whose processes live and that have not come back.
  const std::map<policy::ClientId, KnownClient>& missing() const { return missing_; }

  // The id of a client that joins: the one that it had, if that was its own, else a new one. Writes the file.
  policy::ClientId join(policy::ClientId claimed, KnownClient client);
  void leave(policy::ClientId id);

  // The last problem in writing the file, empty if none.
  const std::string& problem() const { return problem_; }

 private:
  void read();
  void write();

  std::string file_;
  std::map<policy::ClientId, KnownClient> present_;
  std::map<policy::ClientId, KnownClient> missing_;
  policy::ClientId next_ = 1;
  std::string problem_;
};

}  // namespace nvshare::scheduler
