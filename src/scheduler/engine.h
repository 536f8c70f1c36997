// The daemon without its sockets: messages become policy events, policy actions become messages, and what the policy need not know of
// its clients (processes, tenants, GPUs by UUID) is kept here. One thread; every call names the time (CLOCK_MONOTONIC ns).
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
#include "scheduler/bypass_watch.h"
#include "scheduler/claims.h"
#include "scheduler/client_messenger.h"
#include "scheduler/clients.h"
#include "scheduler/departures.h"
#include "scheduler/engine_parts.h"
#include "scheduler/export_broker.h"
#include "scheduler/gpus.h"
#include "scheduler/host_lender.h"
#include "scheduler/identity.h"
#include "scheduler/known_clients.h"
#include "scheduler/log.h"
#include "scheduler/memory_limits.h"
#include "scheduler/memory_watch.h"
#include "scheduler/pod_notices.h"
#include "scheduler/policy_steps.h"
#include "scheduler/settings.h"
#include "scheduler/tenants.h"
#include "scheduler/usage_totals.h"

namespace nvshare::scheduler {

class Engine : private HostBorrowers {
 public:
  using HostMemoryOf = HostLender::MemoryOf;
  // What the engine asks of its surroundings. Each may be none.
  struct Hooks {
    std::function<void()> list_gpus;  // asks NVML for gpus_listed()
    // Where programs find their MPS daemon: leads to answer_mps(), at once or later. None: it is off.
    std::function<void(ConnectionId connection, const Peer& peer)> ask_mps;
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
  ~Engine() override;
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
  void segment_made(SegmentId segment, FileDescriptor memory, policy::Instant now);  // none: it could not be
  void segment_discarded(SegmentId segment, bool still_held, policy::Instant now);
  void answer_mps(ConnectionId connection, const protocol::MpsGroup& answer);
  // Which processes of that user are attached to its MPS daemon, all of them.
  void mps_seen(uid_t user, const std::set<pid_t>& attached, policy::Instant now);
  // A message that could not be passed on with its descriptors, which were none of the client's fault.
  void not_delivered(ConnectionId connection, const protocol::Packet& packet, policy::Instant now);
  // About once a second while there are clients. With thousands of them it takes milliseconds: not `all` is its next part, so that clients
  // are served in between; true: that was the last.
  bool housekeep(policy::Instant now, bool all = true);
  void keep_accounts(policy::Instant now);  // of GPUs' time, for the next scheduler; housekeep does it too

  std::optional<policy::Instant> next_deadline() const;
  void deadline_reached(policy::Instant now);

  // Admin requests.
  Result<policy::TenantId> add_run(const protocol::admin::TenantRequest& request);
  Result<policy::TenantId> tell_of_job(const protocol::admin::JobRequest& request, policy::Instant now);  // 0: nobody knows that job
  Result<void> set(const protocol::admin::SetRequest& request, policy::Instant now);
  // All of it is in force at once. An error: it is, but could not be persisted.
  Result<void> set_pods(const protocol::admin::PodsRequest& request, policy::Instant now);

  // At what NVML is to look.
  struct Look {
    std::vector<GpuUuid> in_use;            // with clients, or memory of dead ones; all, while a restart is waited out
    std::vector<GpuUuid> shared_by_limits;  // where a tenant has a compute limit
  };
  Look to_look_at() const;
  EngineParts parts() const {
    return {epoch_,   started_,         settings_, steps_,        clients_, departures_, gpus_,
            tenants_, limits_.ledger(), host_,     usage_totals_, bypass_,  notices_};
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
  // After a restart: what clients ask for waits until the clients known before are back.
  struct RestartHold {
    policy::Instant until = 0;
    std::vector<policy::ClientId> lock_requests;
    std::map<policy::ClientId, policy::MemoryChanged> growths;
  };

  // engine_connections.cc
  void receive(ConnectionId connection, std::span<const std::byte> packet, policy::Instant now, Descriptors descriptors);
  // After an error of our own that was thrown while it was served: the connection goes, the daemon stays.
  void give_up(ConnectionId connection, const char* problem, policy::Instant now);
  void ask_mps(ConnectionId connection);
  void tell_shares(policy::Instant now);                 // to the policy, of all clients
  void tell_share(Client& client, policy::Instant now);  // if it has changed
  void ask_progress(const policy::SendAskProgress& action);
  void take_progress(const Client& client, const protocol::Progress& message, policy::Instant now);
  // barred: the program may not use the GPU without a scheduler instead.
  void refuse(ConnectionId connection, const std::string& reason, policy::Instant now, bool barred = false);

  // engine_messages.cc
  struct Incoming;  // engine_messages.h
  void dispatch(Client& client, protocol::MessageType type, std::span<const std::byte> packet, policy::Instant now,
                Descriptors descriptors);

  // engine_registration.cc
  // What is known of a process that registers.
  struct Former {
    std::optional<ClaimBound> claims;        // of its client that has just left
    int64_t allocated = 0;                   // that was believed of that
    std::vector<policy::ClientId> replaced;  // whose memory is the newcomer's now
    bool returns = false;                    // it was a client of an earlier scheduler
    policy::ClientId id = 0;                 // then
    policy::TenantId tenant = 0;             // then
  };
  void register_client(ConnectionId connection, const protocol::Register& message, policy::Instant now);
  void answer_only(ConnectionId connection, const protocol::Register& message, uint16_t version, policy::GpuId gpu);
  Former take_former(const Peer& peer, policy::GpuId gpu, const protocol::Register& message, policy::Instant now);
  Client& add_client(ConnectionId connection, const protocol::Register& message, policy::GpuId gpu, const Tenant& tenant,
                     const Former& former, policy::Instant now);
  void log_joined(const Client& client, const Tenant& tenant, const protocol::Register& message, const Former& former, policy::Instant now);
  void record_names(const Client& client, const std::string& tenant, policy::Instant now);
  static bool wants_lock(const protocol::Register& message);
  policy::ClientJoined begin_client(Client& client, const Tenant& tenant, const protocol::Register& message, Former former,
                                    policy::Instant now);
  Result<policy::GpuId> gpu_of(const protocol::Register& message, const Peer& peer, policy::Instant now);
  // engine_gpus.cc
  bool awaits_listing(ConnectionId connection, const protocol::Register& message);
  std::set<policy::GpuId> gpus_that_count(policy::Instant now) const;
  bool make_room_for_gpu(const std::string* account, policy::Instant now);
  // How much more of its segments in host memory is in use.
  int64_t remember(Client& client, const protocol::MemoryReport& memory, policy::Instant now);
  void take_swap(Client& client, const protocol::SwapProgress& message, policy::Instant now);
  void warn_of_swap(const Client& client, const protocol::SwapProgress& message, policy::Instant now);
  void request_lock(policy::ClientId client, policy::Instant now);
  void change_memory(policy::MemoryChanged event, policy::Instant now);
  void leave(policy::ClientId client, bool memory_freed, const char* why, policy::Instant now);
  void save_tenants_soon(policy::Instant now);
  bool housekeep_on(policy::Instant now);   // a part
  bool keep_some_clients();                 // false: there are no more
  void forget_totals(policy::Instant now);  // of tenants that are no more
  void end_hold(policy::Instant now);
  void apply(const policy::Event& event, policy::Instant now);
  void apply(const std::vector<policy::Event>& events, policy::Instant now);  // one after the other
  void perform(const policy::Actions& actions);

  // engine_claims.cc: how much of what clients say is believed
  policy::Memory believe(Client& client, const protocol::MemoryReport& memory);
  void size_gpu(policy::GpuId gpu, int64_t claimed, policy::Instant now);
  void note_grant(policy::ClientId client, int64_t budget);
  void keep_on_gpu(const Client& client, bool may_lower = false);
  void prefetch(const policy::SendPrefetch& action);
  void note_prefetched(Client& client, const protocol::SwapProgress& message);

  // engine_departures.cc: clients that were known before a restart and are not back
  void count_absent(policy::Instant now);   // under their tenants' limits
  void forget_absent(policy::Instant now);  // those that have ended

  // engine_host.cc
  HostLender::Borrower borrower(const Client& client) const;
  void update_host_memory(policy::Instant now, bool force = false);  // looks at the host only if much was swapped, or when forced
  void prepare_swaps(policy::GpuId gpu);
  bool is_there(policy::ClientId client) const override { return clients_.find(client) != nullptr; }
  bool is_alive(pid_t pid, uint64_t start_time) const override;
  void lend(policy::ClientId client, const protocol::ArenaSegment& segment, Descriptors descriptors) override;
  void refuse(policy::ClientId client, const protocol::ArenaRefused& message, bool urgent, HostBudget::Bound bound,
              policy::Instant now) override;
  void ask_back(policy::ClientId client, const protocol::ArenaShrink& message) override;
  void host_room_changed(const policy::HostMemory& room, policy::Instant now) override;

  // engine_limits.cc
  // What a tenant's limits and priority come from, as it is to be.
  void change_limits(Tenant& tenant, const Tenant& changed, policy::Instant now);

  // engine_bypass.cc
  void look_for_bypasses(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  void note_bypass(const BypassWatch::Process& process, policy::GpuId gpu, policy::Instant now);
  void refuse_turns(policy::Instant now);
  // In what the tenant is not as all others: to be told before its first client, and taken back after its last one.
  std::vector<policy::Event> exceptions_of(const Tenant& tenant, bool begins) const;
  bool gets_no_turns(const Tenant& tenant) const { return tenant.suspended_in_force() || bypass_.refuses(tenant.id); }

  // engine_memory.cc
  void sampled(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  void see_foreign(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  void see_foreign(policy::Instant now);
  int64_t measure_clients(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  void take_over_account(policy::TenantId tenant, policy::GpuId gpu, policy::Instant now);
  void compare_use(policy::GpuId gpu, const UseSample& sample, policy::Instant now);
  void log_note(const policy::Note& note) const;
  // engine_own.cc
  void answer_own(ConnectionId connection, const protocol::AskOwn& question, policy::Instant now);
  std::set<policy::TenantId> own_tenants(const Peer& peer);
  void release(const Tenant& tenant, policy::Instant now);

  Settings settings_;
  const uint64_t epoch_;
  const policy::Instant started_;
  Transport& transport_;
  const ClientMessenger messenger_;
  const Hooks hooks_;
  PolicySteps steps_;
  const StartTimeOf start_time_if_alive_;
  KnownClients known_;
  Tenants tenants_;
  std::optional<std::set<std::string>> listed_pods_;  // UIDs, while the agent names all pods in several requests
  UsageTotals usage_totals_;
  std::map<ConnectionId, Connection> connections_;
  Clients clients_;
  Gpus gpus_;
  Departures departures_;
  std::optional<RestartHold> hold_;
  HostLender host_;
  std::optional<policy::Instant> save_at_;          // tenants that joined or left
  std::optional<policy::Instant> look_at_host_at_;  // clients have left
  struct Housekeeping {                             // its next part
    enum class Next { kTenants, kTotals, kMemory, kClients, kKnown, kAccounts };
    Next next = Next::kTenants;
    policy::ClientId client = 0;  // the last that was looked at
  };
  Housekeeping housekeeping_;
  BypassWatch bypass_;
  RepeatedWarnings warnings_;
  PodNotices notices_;
  MemoryLimits limits_{{clients_, gpus_, tenants_, messenger_, known_, notices_}};
  ExportBroker exports_{clients_, tenants_, messenger_, warnings_};
  struct OwnQuestions {  // in the second that began then, by account
    policy::Instant since = 0;
    std::map<std::string, int64_t> asked;
  };
  OwnQuestions own_questions_;
  TenantLines lines_;  // of joins and leaves
};

}  // namespace nvshare::scheduler
