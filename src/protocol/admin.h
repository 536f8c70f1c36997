// Admin requests: what nvsharectl (and other node-local tools) and nvshare-scheduler say over <runtime>/admin/admin.sock, a stream
// socket. One JSON object per line each way, one reply per request, in order. A reply is {"ok":true,...} or {"ok":false,"error":"..."}.
//
//   {"request":"status"}                                               -> StatusReport's fields
//   {"request":"status","changes":17,"within_ms":1000}
//                       -> what is new since then, once StatusReport::changes is no longer 17 (report_changes.h); else all, so long later
//                       "early_ms":300: viewers share reports: all of it may come so much earlier, and be so old
//                       "brief":true: without the fields that have the defaults below; with thousands of clients that is half of it
//   {"request":"tenant","pid":123,"name":"train","gpu_memory_limit":0} -> {"ok":true,"tenant":7}: the process tree rooted at pid is one
//   tenant
//   {"request":"set","tenant":"train","gpu_memory_limit":"8Gi"}        -> a limit in effect at once; 0 = none
//   {"request":"set","tenant":"train","gpu_core_limit":40}            -> the same, percent of each GPU's time, granted; 100 = none
//   {"request":"set","tenant":"train","gpu_core_ceiling":40}          -> the same, but a ceiling alone, which raises nobody's share
//   {"request":"set","tenant":"train","priority":-5}                 -> its place among those that wait; 0 = as everybody
//   {"request":"set","tenant":"train","sharing":"turns"}             -> whatever the setting `sharing` says: "together", "turns", "auto",
//   or "node"
//   {"request":"set","tenant":"train","paused":true}                  -> its turns end, and it gets none until paused is false
//   {"request":"set","tenant":"train","release":true}                -> its turns end now; what it needs it asks for anew
//   {"request":"set","settings":{"switch_time_mode":"fixed",...}}      -> settings by their names in scheduler.toml
//   {"request":"pods","pods":[{"uid":"0b4e...","name":"team/train","gpu_memory_limit":0,"gpu_core_limit":40,
//                              "gpu_memory_on":{"GPU-...":4294967296},"priority":0,"sharing":"turns","turn_seconds":20,"ends":false,
//                              "only_lowers":false},
//                             {"uid":"77aa...","gone":true}],"complete":false}
//                       -> {"ok":true,"refused":{"0b4e...":"why its memory limit is not in force"}}: limits of pods by their UID, in
//                       effect at once and for processes that come later. complete: all pods that there are; others are gone.
//                       A pod that is gone is held to what it had last, for as long as it has processes; gone or not, its UID is its own
//                       "list":"first" and "list":"last" instead of complete: the first and the last of several requests that name all pods
//                       together, where one does not take them
//                       "member_of":"0b4e...": its processes belong to that pod's tenant, because both share a claim; what else is said of
//                       it holds for processes that it had before only_lowers: not all that holds for the pod is known; each of its limits
//                       is the lower of this and the one before "notices_after":0: the answer also has "notices", what pods' owners should
//                       be told, with numbers above that one
//   {"request":"job","job":123,"pid":4567,"user":"ann","partition":"gpu","gpu_memory_limit":0,"gpu_memory_percent":0,
//                    "gpu_core_limit":40,"gpu_core_ceiling":100,"priority":0}
//                       -> {"ok":true,"tenant":7}: the process tree rooted at pid (a step's slurmstepd) belongs to that Slurm job. All
//                       steps of a job are one tenant; the limits of its first step hold, and "set" with tenant "job=123" changes them
//   {"request":"job","job":123,"ends":true}                            -> as a pod's
//   {"request":"job","job":123,"suspended":true}                       -> its processes are about to be stopped: paused until it is false
//   {"request":"job","job":123,"gone":true}                            -> it has ended: forgotten once its processes are gone
//   {"request":"trace","after":0,"last_ns":0}
//                       -> {"ok":true,"lines":["{...}",...],"next":1234,"more":false}: what the scheduler remembers of the last minute, in
//                       parts, as lines of scheduler/trace.h. after: "next" of the part before, 0 for the first one; last_ns: of the first
//                       one, only so far back; 0: all
//   {"request":"shutdown"}                                             -> the scheduler ends; programs go on without it
//
// Unknown fields are ignored by both sides and missing ones have the defaults below, so neighbouring versions understand each other. The
// defaults of a report's fields never change: brief ones are read by them.
// Bytes and nanoseconds; amounts of memory are also accepted as text ("8Gi"). Pure functions, thread-safe. For daemons and tools only:
// needs exceptions inside, throws none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace nvshare::protocol::admin {

inline constexpr size_t kRequestBytesMax = 5 << 20;       // of one line: a node with so many pods and GPUs is not seen, but fits
inline constexpr int64_t kMemoryMost = int64_t{1} << 50;  // bytes, of any limit: 1024Ti
inline constexpr size_t kPodsMax = 1000;                  // of one request; a node has 110 to 500
inline constexpr size_t kPodNameBytesMax = 128;           // longer ones are cut
inline constexpr size_t kGpusOfPodMax = 64;               // seven MIG devices of each of eight GPUs, and some
inline constexpr size_t kJobTextBytesMax = 64;            // of a job's user and partition; longer ones are cut
inline constexpr int64_t kStatusWaitMsMax = 10'000;       // that a status may be waited for
inline constexpr int32_t kPriorityMin = -100;             // of a tenant: higher is served first, 0 by default; it moves nobody's limits
inline constexpr int32_t kPriorityMax = 100;
// How a tenant shares GPUs: as the setting `sharing` says, or as is said here.
inline constexpr const char* kSharingWords[] = {"node", "together", "turns", "auto"};
bool is_sharing_word(std::string_view text);
inline constexpr int32_t kTurnSecondsMax = 3600;

// What clients have done on one GPU, those that have left included: no count goes back while the scheduler runs.
struct UsageReport {
  std::string gpu;             // GpuReport::uuid
  uint64_t grants = 0;         // turns that began
  uint64_t turns = 0;          // of them ended
  uint64_t drops = 0;          // requests to end one
  uint64_t unanswered = 0;     // of them not answered in time
  uint64_t failed_drains = 0;  // of them answered with "cannot"
  int64_t running_ns = 0;
  int64_t waiting_ns = 0;
  int64_t swapping_ns = 0;
  int64_t throttled_ns = 0;  // in which they wanted to run and a compute limit did not let them
  int64_t billed_ns = 0;     // of the GPU's time, where a tenant has a compute limit
  int64_t swapped_out = 0;   // bytes over the link
  int64_t swapped_in = 0;
  int64_t unmoved = 0;             // bytes that left without a copy, as they had not changed
  int64_t prefetched = 0;          // of swapped_in, while another program ran
  int64_t prefetched_in_vain = 0;  // of these, what left again before it was used
  int64_t memory_peak = 0;         // bytes that its clients had allocated together, as they said; of a tenant, not of a GPU
};

struct GpuReport {
  std::string uuid;  // "GPU-xxxxxxxx-..."
  std::string name;
  int64_t total = 0;       // the GPU's memory, or what the scheduler is configured to take it for
  int64_t real_total = 0;  // the GPU's memory
  bool told = false;       // total is configured, by NVSHARE_GPU_PHYSICAL_MEMORY_MB
  int64_t foreign = 0;     // used by programs that are not clients
  int64_t safe_limit = 0;  // what may be resident
  int64_t overhead = 0;    // contexts of all clients
  int64_t departed = 0;    // of dead clients, not yet seen free
  bool nvml = false;       // foreign memory is known
  uint64_t switches = 0;
  int64_t switch_time_ns = 0;
  std::string compute_mode;  // "unlimited", "together", "turns" or "rotation" (turns as long as swaps ask for)
  uint64_t compute_mode_changes = 0;
  int64_t window_ns = 0;             // over which ComputeReport::share_window counts
  std::string sharing = "together";  // of tenants that share as measured: "together" or "turns"
  int64_t sharing_percent = 0;       // work done that way, percent of that the other way, as measured last; 0: not measured
  uint64_t sharing_trials = 0;       // measurements so far
  int64_t swap_unbilled_ns = 0;      // beside compute limits, time in which nobody ran because memory moved: nobody's
  int64_t nvml_span_ns = 0;          // the latest time that ComputeReport::nvml_share counts over; 0: NVML was not asked, or cannot tell
  double nvml_others = -1;           // percent of it that programs which are no clients used, by NVML's samples; -1: not known
  std::string nvml_unknown;          // why NVML cannot tell; empty: it can, or was not asked
  double bandwidth_out = 0;          // bytes per second, 0 until measured
  double bandwidth_in = 0;
  UsageReport usage;  // of all tenants, those that are gone included
};

// A tenant's memory on one GPU, all its clients together.
struct TenantMemoryReport {
  std::string gpu;      // GpuReport::uuid
  int64_t limit = 0;    // in force: the lowest of the node's and of what its programs' environments say; 0 = none
  int64_t charged = 0;  // against it
  int64_t leased = 0;   // what its clients may charge without asking, `charged` included; 0 without a limit
  bool over = false;    // more is charged than the limit, which was lowered: nothing more is granted
  uint64_t asking = 0;  // clients that wait for headroom
  uint64_t silent = 0;  // clients that did not say in time what they do not use
  uint64_t asks = 0;    // allocations so far that had to ask for headroom
};

// A tenant's use of one GPU's time. Only of GPUs where a tenant has, or had, a compute limit.
struct ComputeReport {
  std::string gpu;                // GpuReport::uuid
  double quota = 100;             // percent that it is entitled to among the tenants that are active (docs/adr/0017)
  double share_window = 0;        // percent of the last complete window (GpuReport::window_ns) that it used
  double share = 0;               // the same since it is billed
  int64_t used_ns = 0;            // since then
  int64_t throttled_time_ns = 0;  // in which it wanted to run and its limit did not let it
  int64_t debt_ns = 0;            // used beyond its limit, to be paid back
  bool active = false;            // counts in the shares
  bool throttled = false;
  // By NVML's samples of its processes, percent of the last GpuReport::nvml_span_ns; -1: not known. An approximation that nothing is billed
  // by: scheduler/gpus/utilization_monitor.h says how far the two may lie apart.
  double nvml_share = -1;
  double nvml_billed = -1;    // what was billed of the same time
  bool nvml_differs = false;  // they have lain far apart for long
};

struct TenantReport {
  uint64_t id = 0;
  std::string name;
  std::string kind;  // "run" (nvsharectl run), "job" (of Slurm), "pod", "container", "unit" or "process"
  uint32_t job = 0;  // its number; 0: it is none
  std::string user;  // of a job: who submitted it, and where
  std::string partition;
  int64_t gpu_memory_limit = 0;  // 0 = none
  int priority = 0;
  bool ends = false;                       // a pod that is being deleted: its clients get their next turn before others, once
  uint64_t clients = 0;                    // now
  uint64_t clients_ever = 0;               // since the tenant is known, those now included
  bool has_asked = false;                  // a process of it asked what it may use: by NVML, or before its first context
  std::vector<TenantMemoryReport> memory;  // on each GPU where it has clients
  int32_t gpu_core_limit = 100;            // percent of each GPU's time: its ceiling, the lowest of all that limit it; 100 = none
  int32_t gpu_core_reserved = 0;           // the same: what it was granted, at most its ceiling; 0 = none
  std::vector<ComputeReport> compute;
  std::vector<UsageReport> usage;  // on each GPU where it has, or had, clients
  bool paused = false;             // suspended by the administrator: its programs get no turns; not the client state of that name
  std::string sharing = "node";    // in force: one of kSharingWords
  int64_t turn_most_ns = 0;        // its turns are no longer while others wait; 0 = as all others'
  int32_t root = 0;                // of a run: the process that its tree begins at; 0: none, or it has ended
  uint64_t changed = 0;            // not sent: report_changes.h
};

// What a client has on its GPU, and what of it counts against its tenant's limit. Bytes.
struct ClientMemoryReport {
  int64_t allocated = 0;
  int64_t resident = 0;
  int64_t swapped = 0;
  int64_t unswappable = 0;
  std::string keeps_memory;  // empty, or why all of its memory stays on the GPU: a sentence's end
  int64_t overhead = 0;
  int64_t budget = 0;
  int64_t gpu_memory_limit = 0;  // the tenant's, in force on this GPU, 0 = none
  int64_t charged = 0;           // against it, by this client
  int64_t lease = 0;             // what it may charge without asking
};

// Host memory for what a client swaps out. Bytes.
struct ClientHostReport {
  int64_t host_memory = 0;  // ready for swapping
  // Lent to it: its own memory, and the scheduler's.
  int64_t host_memory_process = 0;
  int64_t host_memory_scheduler = 0;
  int64_t host_memory_missing = 0;  // that it asked for to swap out to, and could not have
  std::string host_memory_bound;    // empty, or what keeps it from that: a sentence's end
};

// What a client did since it joined: its turns, the time in its states, the bytes that moved.
struct ClientTotalsReport {
  uint64_t turns = 0;
  uint64_t drops = 0;
  uint64_t unanswered = 0;     // drops that it did not answer in time
  uint64_t failed_drains = 0;  // drops that it answered with "cannot"
  int64_t time_running_ns = 0;
  int64_t time_waiting_ns = 0;
  int64_t time_swapping_ns = 0;
  int64_t swapped_out_total = 0;  // over the link
  int64_t swapped_in_total = 0;
  int64_t unmoved_total = 0;             // that left without a copy, as they had not changed
  int64_t prefetched_total = 0;          // of swapped_in_total, while another program ran
  int64_t prefetched_in_vain_total = 0;  // of these, what left again before it was used
};

// The parts are bases, because their fields are this object's fields in JSON.
struct ClientReport : ClientMemoryReport, ClientHostReport, ClientTotalsReport {
  uint64_t id = 0;
  int32_t pid = 0;
  std::string program;
  uint64_t tenant = 0;      // TenantReport::id
  std::string gpu;          // GpuReport::uuid
  std::string backend;      // "vmm", "managed" or "none"
  uint32_t protocol = 1;    // the version that it and the scheduler use
  std::string library;      // its release; empty: it is too old to say
  std::string state;        // "idle", "waiting", "loading", "running", "paused", "dropping" or "unresponsive"
  int64_t since_ns = 0;     // for how long it has been in that state
  bool mps = false;         // its process is attached to an MPS daemon of the scheduler's
  std::string mps_group;    // its user's trust group whose daemon that is; empty: the one without a name
  std::string waiting_for;  // empty, or a sentence
  uint32_t gang_gpus = 0;   // its turns begin and end on so many GPUs together; 0: on this one alone
  bool drainable = true;    // false: so many failed drains in a row that its memory counts as unswappable for now
  uint64_t changed = 0;     // not sent: report_changes.h
};

// A process that uses a GPU, by NVML, without being a client, though limits hold for its tenant.
struct BypassReport {
  int32_t pid = 0;
  std::string program;
  std::string tenant;
  std::string gpu;             // GpuReport::uuid
  int64_t used = 0;            // bytes of the GPU's memory
  int64_t since_ns = 0;        // for how long
  bool turns_refused = false;  // the tenant's programs get no turns meanwhile
};

// An MPS daemon that the scheduler looks after: one for each trust group whose programs asked for it.
struct MpsReport {
  uint32_t user = 0;
  std::string group;      // of that user's; empty: programs that name none
  std::string state;      // "down", "starting", "serving" or "ending"
  int32_t pid = 0;        // of the daemon; 0: none
  uint64_t programs = 0;  // processes that are attached to it
  uint64_t restarts = 0;  // times that it ended while it served
  std::string trouble;    // empty, or what went wrong last: a sentence
};

// What bounds programs that say too much, and how often it did. scheduler/bounds.h says why each is there.
struct BoundsReport {
  std::map<std::string, int64_t> values;  // in force, by their names
  int64_t connections = 0;                // now
  uint64_t connections_refused = 0;       // since the scheduler began
  uint64_t reads_paused = 0;              // times that a connection was not read for a while
};

struct StatusReport {
  std::string version;
  int32_t pid = 0;
  std::string runtime_dir;
  uint64_t epoch = 0;
  // Another number where a viewer should look again at once: a client came, left, runs or waits, a limit changed. What only grows, as
  // amounts and times, leaves it alone. 0: the scheduler is too old to say.
  uint64_t changes = 0;
  // Only in answers to viewers that have a report: the number of that one, whose clients and tenants that have not changed since then are
  // left out, and the ids of all clients. 0: nothing is left out.
  uint64_t since = 0;
  std::vector<uint64_t> there;
  int64_t uptime_ns = 0;
  bool nvml = false;
  int64_t host_memory_available = 0;  // room for more swapped bytes
  int64_t host_memory_budget = 0;     // that can be lent for swapping in all, as things stand
  int64_t host_memory_reserved = 0;   // of it lent, or kept for a tenant's next use
  int64_t host_memory_used = 0;       // by swapped memory
  std::string host_memory_bound;      // what the budget comes from
  std::string switch_time_mode;       // "auto" or "fixed"
  std::vector<GpuReport> gpus;
  std::vector<TenantReport> tenants;
  std::vector<ClientReport> clients;
  BoundsReport bounds;
  std::vector<BypassReport> bypasses;
  std::vector<MpsReport> mps;
  bool own = false;  // of the asker's own tenants alone (messages.h, OwnReport): what is not theirs is left out
};

struct StatusRequest {
  uint64_t changes = 0;   // as the asker knows them
  int64_t within_ms = 0;  // how long to wait for others, at most kStatusWaitMsMax; 0: not at all
  int64_t early_ms = 0;   // all of it may come so much earlier, and be so old, where another viewer has it then
  bool brief = false;     // as decode_status() reads it: without fields that have their defaults. Older schedulers leave out none
};
struct ShutdownRequest {};
struct TenantRequest {
  int32_t pid = 0;
  std::string name;
  int64_t gpu_memory_limit = 0;
  bool gang_turns = true;        // on several GPUs: turns on all of them together
  int32_t gpu_core_limit = 100;  // its reservation, and a ceiling; 100 = none
  int32_t priority = 0;
  int64_t gpu_memory_reserved = 0;  // of each GPU that it uses; 0 = none
  int32_t gpu_core_ceiling = 100;   // besides; 100 = none
  std::vector<std::string> gpus;    // UUIDs of those that it will see; none: not known
};
struct SetRequest {
  std::map<std::string, std::string> settings;  // name in scheduler.toml -> value as text
  std::string tenant;                           // name or id of a tenant; empty = none
  std::optional<int64_t> gpu_memory_limit;      // of that tenant; 0 = none
  std::optional<int32_t> gpu_core_limit;        // of that tenant: its reservation, and a ceiling; 100 = none
  std::optional<int32_t> priority;              // of that tenant
  std::optional<int32_t> gpu_core_ceiling;      // of that tenant, besides; 100 = none
  std::optional<bool> paused;                   // of that tenant: its programs get no turns
  bool release = false;                         // that tenant's turns end now
  std::optional<std::string> sharing;           // of that tenant: one of kSharingWords
};
struct PodRequest {
  std::string uid;                               // as Kubernetes writes it
  std::string name;                              // "namespace/name", for people
  int64_t gpu_memory_limit = 0;                  // of all its processes together, on each GPU; 0 = none
  int32_t gpu_core_limit = 100;                  // its ceiling; 100 = none
  bool gone = false;                             // there is no such pod any more; what it had goes on for processes that it has left
  int32_t priority = 0;                          // added to what `set` says
  bool ends = false;                             // it is being deleted
  std::map<std::string, int64_t> gpu_memory_on;  // what it was granted on these GPUs, by UUID: lowers the limit there
  bool only_lowers = false;                      // not all is known of it: what it has already stays where that is less
  int32_t gpu_core_reserved = 0;                 // of its ceiling what it was granted; 0 = none
  std::string member_of;                         // another pod's UID, whose tenant its processes belong to; empty: its own
  std::string sharing = "node";                  // one of kSharingWords; what `set` says of the tenant goes before it
  int32_t turn_seconds = 0;                      // the longest turn while others wait, 1..kTurnSecondsMax; 0 = as long as all others'
  bool operator==(const PodRequest&) const = default;
};
struct PodsRequest {
  enum class List { kNone, kFirst, kLast };
  std::vector<PodRequest> pods;
  bool complete = false;  // there are no others
  // Of all pods, in requests of at most kPodsMax: a pod that none of them names from the first to the last is gone. A first one begins
  // anew.
  List list = List::kNone;
  std::optional<uint64_t> notices_after;  // asks for notices with numbers above this one
};
// What happened to a pod and its owner should know; in the plugin's hands an event of the pod.
struct PodNotice {
  uint64_t number = 0;  // ascending, also over restarts of the scheduler while the machine runs
  std::string uid;      // the pod's
  std::string reason;   // one word, as events have it: "NotShared", "GpuOutOfMemory"
  std::string text;
};
struct JobRequest {
  uint32_t job = 0;
  int32_t pid = 0;        // of a step's slurmstepd; 0: no step is told of
  std::string user;       // who submitted it, for people
  std::string partition;  // for people
  int64_t gpu_memory_limit = 0;
  int32_t gpu_memory_percent = 0;  // of the GPU that its first program uses, as a limit besides; 0 = none
  int32_t gpu_core_limit = 100;    // its reservation, and a ceiling; 100 = none
  int32_t gpu_core_ceiling = 100;  // besides; 100 = none
  int32_t priority = 0;
  bool ends = false;              // it is being ended
  bool gone = false;              // it has ended
  std::optional<bool> suspended;  // its processes are being stopped, or go on
};
struct TraceRequest {
  uint64_t after = 0;
  int64_t last_ns = 0;
};
struct TracePart {
  std::vector<std::string> lines;
  uint64_t next = 0;
  bool more = false;  // the next part has lines already
};
// Whether a tenant waits for a turn, and who has the GPU: for the hundreds that start programs, which need no more of a status.
struct TurnRequest {
  uint64_t tenant = 0;  // TenantReport::id
};
struct TurnReport {
  bool waits = false;  // and no program of the tenant has a turn. False: of what follows only `again_ms` says something
  int64_t waited_ns = 0;
  uint32_t gpu = 0;      // its place among StatusReport::gpus
  std::string holder;    // the tenant that has the GPU, of several the one that has it longest; empty: none has
  std::string state;     // ClientReport::state of its program
  int64_t held_ns = 0;   // for how long it has been in that state
  uint64_t others = 0;   // programs that have the GPU, too
  int64_t left_ns = 0;   // of the holder's turn, as things stand; 0: not known
  int64_t again_ms = 0;  // not to be asked again before: the more ask, the longer
};
using Request = std::variant<StatusRequest, TenantRequest, SetRequest, PodsRequest, JobRequest, TraceRequest, TurnRequest, ShutdownRequest>;

// A pod's UID as PodRequest takes it: hexadecimal digits and '-', up to 64.
bool is_pod_uid(std::string_view text);

// One line, its newline included.
std::string encode(const Request& request);
std::string encode(const StatusReport& report, bool brief = false);
// The same in steps: clients as they become known, then tenants, then all else.
class StatusText {
 public:
  // `bytes`: about how long it will be.
  StatusText(bool brief, size_t bytes);
  StatusText(StatusText&&) noexcept;
  ~StatusText();

  void add(std::span<const ClientReport> clients);
  void add(std::span<const TenantReport> tenants);  // no clients come behind them
  size_t clients() const { return clients_; }       // so far
  size_t tenants() const { return tenants_; }       // the same
  // The report begins with the clients and tenants that were added. Once.
  std::string finish(const StatusReport& report);

 private:
  struct Parts;

  void end_clients();

  const bool brief_;
  size_t clients_ = 0, tenants_ = 0;
  std::unique_ptr<Parts> parts_;
};
std::string encode_ok();
std::string encode_notices(const std::vector<PodNotice>& notices);
std::string encode_tenant(uint64_t tenant);
std::string encode_trace_part(const TracePart& part);
std::string encode_turn(const TurnReport& turn);
std::string encode_error(std::string_view text);

// One line, with or without its newline. Errors name the field.
Result<Request> decode_request(std::string_view line);

// The reply's own error when it is {"ok":false,...}.
Result<StatusReport> decode_status(std::string_view line);
Result<uint64_t> decode_tenant(std::string_view line);
Result<TracePart> decode_trace_part(std::string_view line);
Result<TurnReport> decode_turn(std::string_view line);
// None where the scheduler is older than they are.
Result<std::vector<PodNotice>> decode_notices(std::string_view line);
Result<void> decode_ok(std::string_view line);

}  // namespace nvshare::protocol::admin
