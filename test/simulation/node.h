// The node: the real scheduler::Engine on virtual time, with connections that delay and break, and a scheduler that is killed and comes
// back with what its files say. Not thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "canaries.h"
#include "plan.h"
#include "scheduler/engine/engine.h"
#include "scheduler/engine/reports.h"

namespace nvshare::simulation {

// What the release before speaks.
inline constexpr uint16_t kFormerVersion = protocol::kVersionMax - 1;

using Packet = protocol::Packet;
using ConnectionId = scheduler::ConnectionId;

// The client's end of a connection.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual void arrived(ConnectionId connection, const Packet& packet) = 0;
  virtual void ended(ConnectionId connection) = 0;
};

class Node : public scheduler::Transport {
 public:
  // `folder`: for the files that a scheduler leaves its successor; emptied. `recording`: a file to which each of them adds its recording.
  Node(World& world, const Plan& plan, Canary canary, std::string folder, std::string recording);

  // ---- for processes ----
  pid_t start_process(int tenant);
  void process_ended(pid_t pid);
  // What is in use of that GPU's memory, and by whom, as NVML tells; before the first process starts. Plans without NVML never ask.
  void set_nvml(std::function<scheduler::GpuSample(int gpu)> nvml) { nvml_ = std::move(nvml); }
  // Bytes of host memory that processes have for swapping: one process's, or with pid 0 all of them together, and what others have.
  void set_host_use(std::function<Bytes(pid_t pid)> use) { host_use_ = std::move(use); }
  // 0: there is no scheduler.
  ConnectionId connect(pid_t pid, Endpoint& endpoint);
  void send_packet(ConnectionId connection, const Packet& packet);
  // By the client's end, or its process's: what was sent arrives first.
  void hang_up(ConnectionId connection);
  // The scheduler sees it by a pidfd as well, where a child keeps connections open; what was sent may not have been read then.
  void process_dies(pid_t pid);
  // A child of the process keeps it open for so long.
  void hold(ConnectionId connection, Duration lasts);
  // The network's fault: both ends see it.
  void cut(ConnectionId connection);

  // ---- faults, and people's requests ----
  void restart(Duration away, bool former);
  void set_compute_limit(int tenant, int percent);
  void set_memory_limit(int tenant, Bytes bytes);
  void set_priority(int tenant, int priority);

  // ---- what it knows ----
  bool is_up() const { return engine_.has_value(); }
  uint64_t lives() const { return lives_; }  // how many schedulers there were
  bool serves(ConnectionId connection) const { return links_.contains(connection) && links_.at(connection).served; }
  bool quiet(ConnectionId connection) const;  // nothing is under way either way
  const std::vector<policy::ClientGlimpse>& glimpse();
  const policy::State& policy_state() const { return engine_->parts().steps.state(); }
  size_t client_count() const { return engine_ ? engine_->parts().clients.all().size() : 0; }
  bool has_client_of(pid_t pid) const;
  policy::ClientState state_of(uint64_t client);
  protocol::admin::StatusReport status() const { return status_of(engine_->parts(), world_.now()); }

 private:
  struct Link {
    Endpoint* client = nullptr;
    pid_t pid = 0;
    uint64_t id = 0;       // of the client, once the scheduler has given one
    bool served = true;    // the scheduler's end is open
    bool listened = true;  // the client's end is
    int holders = 0;       // children of the client's process that keep it open
    Instant up_last = 0, down_last = 0;
    int up = 0, down = 0;  // packets under way
  };

  // Whatever is asked of the scheduler: it speaks its own protocol version meanwhile.
  template <typename Act>
  auto call(Act act);

  void send(ConnectionId connection, const Packet& packet, Descriptors descriptors) override;
  void close(ConnectionId connection) override;
  void start_engine();
  void take(ConnectionId connection, const Packet& packet);
  void check_message(const Link& link, const Packet& packet);
  void engine_lost(ConnectionId connection);
  void end_down(ConnectionId connection);
  void engine_called();
  void housekeep(uint64_t life);
  void look_with_nvml(uint64_t life);
  Instant arrival(Instant& last);
  std::string tenant_name(int tenant) const;
  void set(int tenant, const std::function<void(protocol::admin::SetRequest&)>& change);

  World& world_;
  const Plan& plan_;
  const Canary canary_;
  const std::string folder_, recording_;
  Random random_;
  std::function<scheduler::GpuSample(int)> nvml_;
  std::function<Bytes(pid_t)> host_use_ = [](pid_t) { return Bytes{0}; };
  std::map<ConnectionId, Link> links_;
  std::map<pid_t, int> tenants_;  // of the processes that live
  ConnectionId next_connection_ = 1;
  pid_t next_pid_ = 100'000'000;  // beyond what a kernel gives
  uint64_t lives_ = 0;
  uint16_t version_;         // that the scheduler speaks
  Instant due_ = INT64_MAX;  // when the engine wants to be called
  bool glimpse_stale_ = true;
  std::vector<policy::ClientGlimpse> glimpse_;
  std::optional<scheduler::Engine> engine_;
};

}  // namespace nvshare::simulation
