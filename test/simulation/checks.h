// What every run is held to, after each step (README.md). The first that does not hold ends the run.
#pragma once

#include <map>
#include <string>

#include "policy/policy.h"
#include "protocol/admin.h"
#include "world.h"

namespace nvshare::simulation {

class Run;
class Process;
class Client;

class Checks {
 public:
  explicit Checks(Run& run) : run_(run) {}

  void submits(const Process& process, const Client& client);   // GPU work, now
  void gives_up(const Process& process, const Client& client);  // its turn, as its GPU is idle
  void drains(const Process& process);                          // its GPU work has ended, as its swap engine says
  void host_is_short(const Process& process);                   // for memory of it that was to move out
  void after_step();
  void each_second();

 private:
  void check_client(const Process& process, const Client& client);
  void check_memory();
  void note_unknown();
  void check_waits();
  void check_dead();
  void check_drops();
  void check_leases();
  void check_seen();
  void check_overhead(const policy::ClientView& known);
  void check_books(const Process& process, const Client& client, const protocol::admin::ClientReport& known);

  Run& run_;
  struct Wait {
    Instant since = 0;
    Duration bound = 0;
  };
  std::map<uint64_t, Wait> waits_;  // by client
  std::map<int, Bytes> unknown_;    // by GPU, at most: see note_unknown
  std::map<pid_t, Instant> dead_;   // since when the scheduler has had clients of processes that have ended
  struct Sight {
    Bytes of = 0;       // what is compared is not of others meanwhile
    uint64_t life = 0;  // of the scheduler
    Instant since = 0;  // what is seen and what there is are apart
  };
  bool stays_off(Sight& sight, Bytes of, bool is_off);
  std::map<int, Sight> foreign_;        // by GPU
  std::map<uint64_t, Sight> contexts_;  // by client
};

}  // namespace nvshare::simulation
