// The daemon without its sockets: what comes in goes to the parts that it concerns, in the right order, and what the policy need not know
// of its clients (processes, tenants, GPUs by UUID) is kept here. One thread; every call names the time (CLOCK_MONOTONIC ns).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/descriptors.h"
#include "policy/policy.h"
#include "protocol/admin.h"
#include "protocol/directions.h"
#include "scheduler/clients/client_messenger.h"
#include "scheduler/clients/clients.h"
#include "scheduler/clients/departures.h"
#include "scheduler/clients/known_clients.h"
#include "scheduler/clients/usage_totals.h"
#include "scheduler/engine/absent_clients.h"
#include "scheduler/engine/believed_memory.h"
#include "scheduler/engine/bypass_guard.h"
#include "scheduler/engine/client_membership.h"
#include "scheduler/engine/client_sharing.h"
#include "scheduler/engine/engine_parts.h"
#include "scheduler/engine/gpu_admission.h"
#include "scheduler/engine/gpu_looks.h"
#include "scheduler/engine/host_desk.h"
#include "scheduler/engine/housekeeping.h"
#include "scheduler/engine/kept_accounts.h"
#include "scheduler/engine/memory_reports.h"
#include "scheduler/engine/own_questions.h"
#include "scheduler/engine/policy_driver.h"
#include "scheduler/engine/tenant_orders.h"
#include "scheduler/gpus/gpus.h"
#include "scheduler/gpus/memory_watch.h"
#include "scheduler/log.h"
#include "scheduler/memory/export_broker.h"
#include "scheduler/memory/memory_limits.h"
#include "scheduler/settings.h"
#include "scheduler/tenants/identity.h"
#include "scheduler/tenants/pod_notices.h"
#include "scheduler/tenants/tenants.h"

namespace nvshare::scheduler {

class Engine {
 public:
  using HostMemoryOf = HostLender::MemoryOf;
  // What the engine asks of its surroundings. Each may be none.
  struct Hooks {
    std::function<void()> list_gpus;  // asks NVML for gpus_listed()
    // Where programs find their MPS daemon: leads to answer_mps(), at once or later. None: it is off.
    std::function<void(ConnectionId connection, const Peer& peer, const std::string& group)> ask_mps;
    std::function<void(uid_t user)> client_joined;
  };
  struct Options {
    Settings settings;
    uint64_t epoch = 0;
    std::string known_clients_file;                     // or empty: nothing is kept of them
    std::string tenants_file;                           // or empty: nothing is kept of them
    std::function<HostBudget::Machine()> look_at_host;  // now
    Tenants::LookAtCgroups look_at_cgroups;             // of a process; cgroups_of when there is none
    CgroupReader cgroup_reader;
    StartTimeOf start_time_of = scheduler::start_time_of;
    StartTimeOf start_time_if_alive = scheduler::start_time_if_alive;
    HostMemoryOf host_memory_of;                // of a process, as the kernel has it; from /proc when there is none
    std::function<SegmentId()> new_segment_id;  // random ones when there is none
    SegmentMaker* segment_maker = nullptr;      // null: the scheduler lends no memory of its own
    std::vector<FoundGpu> gpus;                 // that NVML found at start
    int64_t gpus_most = bounds::kGpus;
    std::unique_ptr<TraceWriter> trace;  // or null
    Hooks hooks;
  };

  Engine(Options options, Transport& transport, policy::Instant now);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Connections: connected once, received any number of times, disconnected at most once (never after Transport::close). received() and
  // disconnected() let no exception out.
  void connected(ConnectionId connection, Peer peer);
  void received(ConnectionId connection, std::span<const std::byte> packet, policy::Instant now, Descriptors descriptors = {});
  void disconnected(ConnectionId connection, const char* why, policy::Instant now);

  // The MIG devices that NVML lists now, besides the GPUs that were found at start. Clients that named others are refused.
  void gpus_listed(const std::vector<GpuUuid>& mig_devices, policy::Instant now);
  void memory_sampled(const std::vector<GpuSample>& samples, policy::Instant now);
  HostDesk& host() { return host_; }
  void answer_mps(ConnectionId connection, const protocol::MpsGroup& answer);
  ClientSharing& sharing() { return sharing_; }
  // A message that could not be passed on with its descriptors, which were none of the client's fault.
  void not_delivered(ConnectionId connection, const protocol::Packet& packet, policy::Instant now);
  // About once a second while there are clients. With thousands of them it takes milliseconds: not `all` is its next part, so that clients
  // are served in between; true: that was the last.
  bool housekeep(policy::Instant now, bool all = true) { return housekeeping_.go_on(now, all); }
  void keep_accounts(policy::Instant now) { accounts_.keep(now); }  // of GPUs' time, for the next scheduler; housekeep does it too

  std::optional<policy::Instant> next_deadline() const;
  void deadline_reached(policy::Instant now);

  // Admin requests.
  Result<void> set(const protocol::admin::SetRequest& request, policy::Instant now);
  TenantOrders& orders() { return orders_; }

  GpuLooks::Wanted to_look_at() const { return looks_.wanted(absent_.hold().holds()); }
  EngineParts parts() const {
    return {policy_.epoch(), started_,         settings_,      policy_.steps(), clients_,          departures_, gpus_,
            tenants_,        limits_.ledger(), host_.lender(), usage_totals_,   bypasses_.watch(), notices_};
  }

 private:
  using Client = RegisteredClient;

  struct Connection {
    Peer peer;
    std::optional<policy::ClientId> client;
    std::optional<protocol::Register> awaits_listing;  // of the GPU that it named
    bool asked_mps = false;
    bool listed = false;  // NVML was asked since
  };

  // engine_connections.cc
  void receive(ConnectionId connection, std::span<const std::byte> packet, policy::Instant now, Descriptors descriptors);
  // After an error of our own that was thrown while it was served: the connection goes, the daemon stays.
  void give_up(ConnectionId connection, const char* problem, policy::Instant now);
  void ask_mps(ConnectionId connection, const protocol::AskMps& question);
  void answer_and_close(ConnectionId connection, const protocol::Packet& answer, Descriptors descriptors = {});
  void answer_own(ConnectionId connection, const protocol::AskOwn& question, policy::Instant now);
  void register_client(ConnectionId connection, const protocol::Register& message, policy::Instant now);
  std::optional<ClientMembership::Replaced> replace_client(const Peer& peer, policy::GpuId gpu, policy::Instant now);
  void answer_only(ConnectionId connection, const protocol::Register& message, uint16_t version, policy::GpuId gpu);
  bool awaits_listing(ConnectionId connection, const protocol::Register& message);
  // barred: the program may not use the GPU without a scheduler instead.
  void refuse(ConnectionId connection, const std::string& reason, policy::Instant now, bool barred = false);

  // engine_messages.cc
  struct Incoming;  // engine_messages.h
  void dispatch(Client& client, protocol::MessageType type, std::span<const std::byte> packet, policy::Instant now,
                Descriptors descriptors);

  void take_swap(Client& client, const protocol::SwapProgress& message, policy::Instant now);
  void warn_of_swap(const Client& client, const protocol::SwapProgress& message, policy::Instant now);
  void request_lock(policy::ClientId client, policy::Instant now);
  void change_memory(policy::MemoryChanged event, policy::Instant now);
  void apply(const policy::Event& event, policy::Instant now) { policy_.apply(event, now); }

  Settings settings_;
  const policy::Instant started_;
  Transport& transport_;
  const Hooks hooks_;

  // What is known.
  std::map<ConnectionId, Connection> connections_;
  Clients clients_;
  Gpus gpus_;
  KnownClients known_;
  Tenants tenants_;
  UsageTotals usage_totals_;
  PodNotices notices_;
  RepeatedWarnings warnings_;

  // Who acts on it, each on what it is given.
  const ClientMessenger messenger_{clients_, transport_};
  BelievedMemory believed_{{clients_, gpus_, tenants_, known_}};
  MemoryLimits limits_{{clients_, gpus_, tenants_, messenger_, known_, notices_}};
  PolicyDriver policy_;
  Departures departures_;
  HostDesk host_;
  GpuAdmission admission_{{settings_, gpus_, departures_, host_.lender(), known_, limits_, usage_totals_, policy_}};
  GpuLooks looks_{{settings_, clients_, gpus_, tenants_, departures_, believed_, policy_}};
  AbsentClients absent_;
  BypassGuard bypasses_{{settings_, clients_, gpus_, departures_, known_, tenants_, notices_, policy_}};
  ClientSharing sharing_{{settings_, clients_, tenants_, policy_}};
  KeptAccounts accounts_{{gpus_, tenants_, policy_}};
  TenantOrders orders_{{settings_, tenants_, gpus_, limits_, policy_, sharing_, bypasses_, warnings_}};
  Housekeeping housekeeping_{
      {settings_, clients_, gpus_, tenants_, known_, usage_totals_, believed_, limits_, departures_, absent_, host_, accounts_, policy_}};
  const MemoryReports reports_{{usage_totals_, limits_, host_}};
  OwnQuestions own_questions_{{clients_, tenants_}};
  ExportBroker exports_{clients_, tenants_, messenger_, warnings_};
  ClientMembership membership_;
};

}  // namespace nvshare::scheduler
