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
#include "scheduler/exports.h"
#include "scheduler/gpu_lock.h"
#include "scheduler/host_lender.h"
#include "scheduler/identity.h"
#include "scheduler/known_clients.h"
#include "scheduler/left_clients.h"
#include "scheduler/log.h"
#include "scheduler/memory_ledger.h"
#include "scheduler/memory_watch.h"
#include "scheduler/pod_notices.h"
#include "scheduler/settings.h"
#include "scheduler/tenants.h"
#include "scheduler/trace.h"
#include "scheduler/trace_ring.h"
#include "scheduler/usage_totals.h"

namespace nvshare::scheduler {

class ReportInParts;

using ConnectionId = uint64_t;

// The engine's way out. Neither call may call back into the engine.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void send(ConnectionId connection, const protocol::Packet& packet, Descriptors descriptors) = 0;
  // Closes it after what was sent; the engine has forgotten it already.
  virtual void close(ConnectionId connection) = 0;
};

class Engine : private HostBorrowers {
 public:
  using HostMemoryOf = HostLender::MemoryOf;
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
    int64_t gpus_most = bounds::kGpus;
    std::function<void()> list_gpus;     // asks NVML for gpus_listed(); may be none
    std::unique_ptr<TraceWriter> trace;  // or null
    // Where programs find their MPS daemon: leads to answer_mps(), at once or later. None: it is off.
    std::function<void(ConnectionId connection, const Peer& peer)> ask_mps;
    std::function<void(uid_t user)> client_joined;  // may be none
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

  // A GPU that NVML found at start; `total` bytes can be used by programs.
  void gpu_found(const GpuUuid& uuid, const std::string& name, int64_t total);
  // The MIG devices that NVML lists now, besides the GPUs that were found at start. Clients that named others are refused.
  void gpus_listed(const std::vector<GpuUuid>& mig_devices, policy::Instant now);
  void memory_sampled(const std::vector<GpuSample>& samples, policy::Instant now);
  void segment_made(SegmentId segment, FileDescriptor memory, policy::Instant now);  // none: it could not be
  void segment_discarded(SegmentId segment, bool still_held, policy::Instant now);
  void answer_mps(ConnectionId connection, const protocol::MpsGroup& answer);
  // Which processes of that user are attached to its MPS daemon, all of them.
  void mps_seen(uid_t user, const std::set<pid_t>& attached, policy::Instant now);
  bool has_mig_devices() const { return !mig_devices_.empty(); }  // as NVML last listed them
  // A message that could not be passed on with its descriptors, which were none of the client's fault.
  void not_delivered(ConnectionId connection, const protocol::Packet& packet, policy::Instant now);
  void housekeep(policy::Instant now);      // about once a second while there are clients
  void keep_accounts(policy::Instant now);  // of GPUs' time, for the next scheduler; housekeep does it too

  std::optional<policy::Instant> next_deadline() const;
  void deadline_reached(policy::Instant now);

  // Admin requests.
  TraceRing::Part recorded(const protocol::admin::TraceRequest& request, policy::Instant now) const {
    return trace_ring_.read(request.after, request.last_ns, now);
  }
  protocol::admin::StatusReport status(policy::Instant now) const;
  uint64_t changes() const { return changes_; }  // StatusReport::changes
  Result<policy::TenantId> add_run(const protocol::admin::TenantRequest& request);
  Result<policy::TenantId> tell_of_job(const protocol::admin::JobRequest& request, policy::Instant now);  // 0: nobody knows that job
  Result<void> set(const protocol::admin::SetRequest& request, policy::Instant now);
  // All of it is in force at once. An error: it is, but could not be persisted.
  Result<void> set_pods(const protocol::admin::PodsRequest& request, policy::Instant now);
  // What pods' owners should be told, with numbers above that one.
  std::vector<protocol::admin::PodNotice> notices_after(uint64_t number) const { return notices_.after(number); }

  size_t client_count() const { return clients_.size(); }
  bool has_runs() { return scheduler::has_runs(tenants_); }  // programs of `nvsharectl run` that live, with or without clients
  std::vector<GpuUuid> gpus_in_use() const;                  // with clients, or memory of dead ones; all, while a restart is waited out
  std::vector<GpuUuid> gpus_shared_by_limits() const;        // where a tenant has a compute limit
  bool awaits_departed() const { return !departed_.empty() || !left_.waiting().empty(); }
  const Settings& settings() const { return settings_; }
  bool uses_nvml() const { return uses_nvml_; }
  // For tests: what is wrong in the policy's state; nothing: nothing.
  std::optional<std::string> broken_promise() const { return policy::check_invariants(*state_); }
  const policy::State& policy_state() const { return *state_; }  // for tests

 private:
  friend class ReportInParts;

  struct Gpu {
    GpuUuid uuid{};
    std::string uuid_text;
    std::string name;
    int64_t nvml_total = 0;  // 0: not known
    int64_t real_total = 0;
    int64_t total = 0;  // as the policy knows it; 0 until the first client
    bool nvml = false;
    std::string named_by;          // the account of the client that named it first
    policy::Instant named_at = 0;  // when a client named it last
    std::optional<GpuLock> lock;
    ForeignMemoryWatch foreign;
    UtilizationMonitor use;
    std::optional<GpuSample> sample;  // the last
    bool prepares = false;            // some client was told to have host memory ready
    bool told() const { return total < real_total; }
    bool is_there() const { return !uuid_text.empty(); }  // else its place is free for another
  };
  struct Connection {
    Peer peer;
    std::optional<policy::ClientId> client;
    std::optional<protocol::Register> awaits_listing;  // of the GPU that it named
    bool asked_mps = false;
    bool listed = false;  // NVML was asked since
  };
  struct Client {
    ConnectionId connection = 0;
    policy::ClientId id = 0;
    policy::GpuId gpu = 0;
    policy::TenantId tenant = 0;
    pid_t pid = 0;
    uid_t uid = 0;
    uint64_t start_time = 0;
    std::string program;
    std::string lines_of;  // whose lines in the log its joining and leaving are
    protocol::Backend backend = protocol::Backend::kVmm;
    uint16_t version = 0;       // of the protocol
    std::string release;        // of the library; empty: not told
    std::string keeps_memory;   // as it says: why none of its memory leaves the GPU; empty: it does
    int64_t ceiling = 0;        // as the policy last said
    protocol::Memory memory{};  // as it says
    ClaimBound claims;
    uint64_t prefetch = 0;                  // under way, without the lock; 0: none
    int64_t unwritten = 0;                  // of what is not on the GPU: was never there, so it needs no host memory
    policy::Memory believed{};              // of it
    policy::Instant unlisted_since = 0;     // by NVML, though it lists others; 0: it is listed
    std::optional<int64_t> overhead_taken;  // taken instead of the policy's own figure until NVML has told
    uint64_t reports = 0;                   // of its memory, so far
    int64_t prepares = 0;                   // host memory that it was told to have ready
    bool seen_by_nvml = false;
    bool mps = false;          // its process is attached to its user's MPS daemon
    uint64_t share_group = 0;  // as the policy was told last (policy::ClientShares)
    bool measured = false;     // the same
    OverheadWatch overhead;
  };
  struct DepartedClient {
    pid_t pid = 0;
    policy::GpuId gpu = 0;
    policy::Instant since = 0;
    int64_t resident = 0;
    int64_t held = 0;               // bytes that the policy counts for it, without its context
    policy::Instant listed_at = 0;  // by NVML, last
    policy::Instant held_at = 0;    // the policy was told last
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
    policy::TenantId tenant = 0;             // then
  };
  void register_client(ConnectionId connection, const protocol::Register& message, policy::Instant now);
  void answer_only(ConnectionId connection, const protocol::Register& message, uint16_t version, policy::GpuId gpu);
  Former take_former(const Peer& peer, policy::GpuId gpu, const protocol::Register& message, policy::Instant now);
  Client& add_client(ConnectionId connection, const protocol::Register& message, policy::GpuId gpu, const Tenant& tenant,
                     const Former& former, policy::Instant now);
  void log_joined(const Client& client, const Tenant& tenant, const protocol::Register& message, const Former& former, policy::Instant now);
  static bool wants_lock(const protocol::Register& message);
  policy::ClientJoined begin_client(Client& client, const Tenant& tenant, const protocol::Register& message, Former former,
                                    policy::Instant now);
  Result<policy::GpuId> gpu_of(const protocol::Register& message, const Peer& peer, policy::Instant now);
  // engine_gpus.cc
  bool awaits_listing(ConnectionId connection, const protocol::Register& message);
  std::vector<Gpu>::iterator find_gpu(const GpuUuid& uuid);
  Result<void> admit_gpu(const GpuUuid& uuid, const char* uuid_text, const Peer& peer, policy::Instant now);
  Result<void> admit_one_more(const char* uuid_text, policy::Instant now);
  int64_t gpus_named_by(const std::string& account) const;
  std::set<policy::GpuId> gpus_that_count(policy::Instant now) const;
  bool make_room_for_gpu(const std::string* account, policy::Instant now);
  void remember(Client& client, const protocol::Memory& memory, policy::Instant now);
  void note_unwritten(Client& client, const protocol::Memory& memory) const;
  void take_swap(Client& client, const protocol::SwapProgress& message, policy::Instant now);
  void warn_of_swap(const Client& client, const protocol::SwapProgress& message, policy::Instant now);
  void request_lock(policy::ClientId client, policy::Instant now);
  void change_memory(policy::MemoryChanged event, policy::Instant now);
  void leave(policy::ClientId client, bool memory_freed, const char* why, policy::Instant now);
  void save_tenants_soon(policy::Instant now);
  void forget_totals(policy::Instant now);  // of tenants that are no more
  void end_hold(policy::Instant now);
  policy::Actions step(const policy::Event& event, policy::Instant now);
  void apply(const policy::Event& event, policy::Instant now);
  void trace(const policy::Event& event, policy::Instant now);
  void trace_names(const Client& client, const std::string& tenant, policy::Instant now);
  void perform(const policy::Actions& actions);
  template <typename Payload>
  void send(const Client& client, const Payload& payload, Descriptors descriptors = {}) {
    static_assert(protocol::kIsOneOf<Payload, protocol::SchedulerMessages> || protocol::kIsOneOf<Payload, protocol::OpeningAnswers>);
    const protocol::Packet packet = protocol::encode(payload, client.version);
    if (packet.length == 0) return;  // its version has no such message
    spdlog::debug("client {} <- {}", client.id, protocol::TypeOf<Payload>::name);
    transport_.send(client.connection, packet, std::move(descriptors));
  }
  template <typename Payload>
  void send_to(policy::ClientId id, const Payload& payload, Descriptors descriptors = {}) {
    if (const Client* client = find(id)) send(*client, payload, std::move(descriptors));
  }
  Client* find(policy::ClientId client);

  // engine_claims.cc: how much of what clients say is believed
  policy::Memory believe(Client& client, const protocol::Memory& memory);
  void size_gpu(policy::GpuId gpu, int64_t claimed, policy::Instant now);
  std::optional<int64_t> overhead_of_newcomer(const Client& client) const;
  bool is_of_same_owner(const Client& a, const Client& b) const;
  void see_claims(Client& client, const GpuSample& sample, int64_t* unexplained);
  bool lists_others(const GpuSample& sample) const;
  void note_grant(policy::ClientId client, int64_t budget);
  void prefetch(const policy::SendPrefetch& action);
  void note_prefetched(Client& client, const protocol::SwapProgress& message);

  // engine_departures.cc: memory that clients left behind, or may have that are not back after a restart
  std::optional<LeftClient> take_left(const Peer& peer, policy::GpuId gpu, std::vector<policy::ClientId>* replaced);
  void free_left(policy::Instant now);
  std::optional<policy::Instant> looks_at_left_at() const;
  void forget_left(policy::Instant now);
  void free_departed(policy::GpuId gpu, const GpuSample& sample, int64_t ours, policy::Instant now);
  void count_absent(policy::Instant now);   // under their tenants' limits: clients that were known before a restart and are not back
  void hold_absent(policy::Instant now);    // the same on their GPUs
  void forget_absent(policy::Instant now);  // those that have ended

  // engine_exports.cc: memory handed from process to process
  bool is_alone(const Client& client) const;  // it belongs to no run, job, pod, container or unit
  void import(const Client& importer, const protocol::Import& message, policy::Instant now);
  void exported(const Client& exporter, const protocol::Exported& message, Descriptors descriptors);
  void inherit(const std::optional<ImportKey>& heir);
  void client_left_exports(policy::ClientId client);

  // engine_host.cc
  HostLender::Borrower borrower(const Client& client) const;
  void update_host_memory(policy::Instant now, bool force = false);  // looks at the host only if much was swapped, or when forced
  void prepare_swaps(policy::GpuId gpu);
  bool is_there(policy::ClientId client) const override { return clients_.contains(client); }
  bool is_alive(pid_t pid, uint64_t start_time) const override;
  void lend(policy::ClientId client, const protocol::ArenaSegment& segment, Descriptors descriptors) override;
  void refuse(policy::ClientId client, const protocol::ArenaRefused& message, bool urgent, HostBudget::Bound bound,
              policy::Instant now) override;
  void ask_back(policy::ClientId client, const protocol::ArenaShrink& message) override;
  void host_room_changed(int64_t room, policy::Instant now) override;

  // engine_limits.cc: the tenants' memory limits
  void perform(const MemoryLedger::Decisions& decisions, policy::Instant now);
  protocol::UpdateLimit limit_message(const Client& client) const;
  void note_over_limit(policy::TenantId tenant, policy::GpuId gpu);
  void keep_lease(policy::ClientId client);
  static int64_t most_on_gpu(const Client& client);  // bytes
  void keep_on_gpu(const Client& client, bool may_lower = false);
  // Whether what the node reserved for the tenant fits beside what it reserved for the others that are on that GPU.
  Result<void> admit_reservation(policy::GpuId gpu, const Tenant& tenant) const;
  // What a tenant's limits and priority come from, as it is to be.
  void change_limits(Tenant& tenant, const Tenant& changed, policy::Instant now);
  void recall_limit(Tenant& tenant, const std::string& gpu, int64_t memory);  // as a client that came back was told it there
  using ReportsOfTenants = std::map<policy::TenantId, protocol::admin::TenantReport*>;
  void report_limits(const ReportsOfTenants& reports) const;

  // engine_notices.cc
  void note_bypass(const BypassWatch::Process& process, policy::GpuId gpu, policy::Instant now);
  void note_refusal(const Client& client, int64_t bytes, policy::Instant now);
  std::string users_of(policy::TenantId tenant, policy::GpuId gpu) const;

  // engine_bypass.cc
  void look_for_bypasses(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  void refuse_turns(policy::Instant now);
  // In what the tenant is not as all others: to be told before its first client, and taken back after its last one.
  std::vector<policy::Event> exceptions_of(const Tenant& tenant, bool begins) const;
  bool gets_no_turns(const Tenant& tenant) const { return tenant.paused_in_force() || bypassed_.contains(tenant.id); }
  void report_bypasses(protocol::admin::StatusReport* report, policy::Instant now) const;

  // engine_memory.cc
  void sampled(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  void see_foreign(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  void see_foreign(policy::Instant now);
  int64_t used_by(const Client& client, const GpuSample& sample) const;
  int64_t measure_clients(policy::GpuId gpu, const GpuSample& sample, policy::Instant now);
  void take_over_account(policy::TenantId tenant, policy::GpuId gpu, policy::Instant now);
  void compare_use(policy::GpuId gpu, const UseSample& sample, policy::Instant now);
  // engine_report.cc
  static ReportsOfTenants by_tenant(protocol::admin::StatusReport* report);
  static protocol::admin::GpuReport report_of(const Gpu& gpu, const policy::GpuView* view);
  static protocol::admin::TenantReport report_of(const Tenant& tenant);
  void report_compute(const policy::GpuView& gpu, const ReportsOfTenants& reports) const;
  void report_usage(const policy::GpuView& gpu, const ReportsOfTenants& reports) const;
  void log_note(const policy::Note& note) const;
  std::string name_of_client(const policy::ClientView& view) const;
  std::string waiting_sentence(const policy::ClientView& view, policy::Instant now) const;  // empty when it does not wait
  std::string why_waiting(const Client& client, policy::Instant now) const;
  // Who asks is process `viewer`, for whom that limit holds.
  std::vector<protocol::TenantUse> use_of(policy::TenantId tenant, policy::GpuId gpu, uint64_t limit, pid_t viewer) const;
  // engine_own.cc
  void answer_own(ConnectionId connection, const protocol::AskOwn& question, policy::Instant now);
  std::set<policy::TenantId> own_tenants(const Peer& peer);
  protocol::admin::StatusReport own_report(const Peer& peer, const std::set<policy::TenantId>& own, policy::Instant now) const;
  void release(const Tenant& tenant, policy::Instant now);
  protocol::admin::ClientReport report_of(const policy::ClientView& view, const std::string& gpu, policy::Instant now) const;

  Settings settings_;
  const uint64_t epoch_;
  const policy::Instant started_;
  std::unique_ptr<TraceWriter> trace_;
  TraceRing trace_ring_;
  uint64_t changes_ = 1;
  Transport& transport_;
  policy::StatePointer state_;
  const StartTimeOf start_time_if_alive_;
  KnownClients known_;
  Tenants tenants_;
  Exports exports_;
  MemoryLedger ledger_;
  std::optional<std::set<std::string>> listed_pods_;  // UIDs, while the agent names all pods in several requests
  UsageTotals usage_totals_;
  std::set<std::pair<policy::TenantId, policy::GpuId>> over_limit_;  // that were told in the log
  std::vector<Gpu> gpus_;                                            // by GpuId; places of those that were forgotten are used again
  std::map<ConnectionId, Connection> connections_;
  std::map<policy::ClientId, Client> clients_;
  std::map<std::pair<pid_t, policy::GpuId>, policy::ClientId> of_processes_;  // the same; a process of which nothing is known is not there
  std::map<policy::ClientId, DepartedClient> departed_;
  LeftClients left_;
  std::pair<policy::Instant, policy::ClientId> looked_up_to_ = {0, 0};  // of left_.waiting(), by free_left
  policy::Instant looked_at_left_ = 0;
  std::set<policy::ClientId> held_absent_;  // whose memory the policy was told of by hold_absent
  std::optional<RestartHold> hold_;
  HostLender host_;
  std::optional<policy::Instant> save_at_;  // tenants that joined or left
  int64_t managed_clients_ = 0;             // of backend kManaged
  bool uses_nvml_ = false;
  const int64_t gpus_most_;
  std::function<void()> list_gpus_;
  std::function<void(ConnectionId, const Peer&)> ask_mps_;
  std::function<void(uid_t)> client_joined_;
  BypassWatch bypass_;
  PodNotices notices_;
  std::set<policy::TenantId> bypassed_;  // by a process of theirs, so they get no turns
  std::set<GpuUuid> mig_devices_;        // as NVML last listed them
  bool nvml_sees_pids_ = false;
  RepeatedWarnings warnings_;
  struct OwnQuestions {  // in the second that began then, by account
    policy::Instant since = 0;
    std::map<std::string, int64_t> asked;
  };
  OwnQuestions own_questions_;
  TenantLines lines_;  // of joins and leaves
};

}  // namespace nvshare::scheduler
