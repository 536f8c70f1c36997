// The client protocol: what libnvshare.so and nvshare-scheduler say to each other over a Unix SOCK_SEQPACKET socket.
//
// One packet is one message: a Header, then the payload struct of its type, nothing after it. Integers are little-endian and laid out
// as declared (no padding; wire_sizes.cc). Sizes are in bytes, times in nanoseconds of CLOCK_MONOTONIC unless said otherwise.
// codec.h encodes and decodes; every decode checks type, version and length, and the ranges given here.
//
// Versions (docs/adr/0011). Each side speaks kVersionMin .. kVersionMax; Register tells the client's range, Registered the version that
// both use from then on, the newest that both speak; without one, Refused says both ranges. What a later version adds is marked below:
// a message that earlier versions do not have ("since version 2") is not sent to who speaks one of these, and a struct grows only at its
// end, by fields for which 0 means "not told": an earlier version's message is the struct cut short. Register and Refused are the same in
// all versions, because they are read before there is one. golden/ has every version's messages byte for byte.
//
// One connection is one *client*: one process on one GPU. How a connection lives:
//   client: Register                       scheduler: Registered (or closes, after Refused)
//   client: About
//   client: ReqLock                        scheduler: LockOk(grant, budget) now or later; LockOk again, same grant, when the budget changes
//   client: runs; MemUpdate when its memory changes; SwapProgress while it moves memory
//   scheduler: DropLock(grant)             client: LockReleased(grant, dropped) once its GPU work is done, or (not_drained): lock kept
//          before that EndsSoon(grant), where DropLock asks for it and it knows when that will be
//   scheduler: DropLock(grant, together)   client: Drained once its GPU work is done, or LockReleased(not_drained); it keeps the
//                                          lock and its gate closed until the scheduler says KeepLock (go on), or DropLock without
//                                          `together`
//   client: LockReleased(grant, early) whenever it notices that it has nothing to do; where Contention.pause_us allows it,
//           LockPaused(grant) instead, and LockResumed(grant) when it goes on: it keeps the lock, and is billed for no time in between
//   scheduler: AskProgress                 client: Progress
//   scheduler: Evict(bytes) to a client without the lock      client: SwapProgress, ending with finished=1
//   scheduler: Prefetch(budget) to a client without the lock  client: SwapProgress of its own direction, ending with finished=1
//   client: ArenaRequest(total)            scheduler: ArenaSegment per segment as it is there, ArenaRefused for what it cannot have
//   scheduler: ArenaShrink(bytes)          client: ArenaReturned per segment, then ArenaShrunk
// Instead of Register: AskMps, which MpsGroup answers, or AskOwn, which OwnReport answers; the scheduler then closes the connection.
// Every grant carries the scheduler's epoch (a new one at each start) and a grant id; what carries a stale pair is ignored.
//
// Memory that one process of a tenant hands to another (legacy IPC; the program's handle names exporter, export and nonce):
//   importer: Import                       scheduler, to the exporter: ExportWanted
//   exporter: Exported with descriptors, as many messages as it takes; the scheduler passes each on as Imported
//   importer: ImportClosed                 exporter: ExportEnded when it frees the memory; its death says the same
//   scheduler, to one importer that still has it: ImportInherited. The memory lives on and is counted as that client's from then on
//
// The tenant's memory limit is one for all its clients on a GPU, and the scheduler keeps the ledger. It *leases headroom*: each client may
// charge as much as its *lease* says, without asking. All leases of a tenant together never pass the limit, except after it was lowered.
//   scheduler: Registered(lease)           that is the whole lease from then on
//   client: AskHeadroom(bytes)             when an allocation needs more than is left; the scheduler may first
//   scheduler: RecallHeadroom(bytes)       to the tenant's other clients      client: HeadroomReturned, at once, with what it does not use
//   scheduler: Headroom(bytes, granted)    the answer: the lease grows by `bytes`; or it is refused. Also unasked, with request 0
//   client: HeadroomTaken(bytes)           what cannot be refused any more
//   scheduler: UpdateLimit                 what limit there is, and what the tenant's other clients use: for people, cuMemGetInfo and logs
// Leases change by differences, in the order of the connection's messages, so both sides count the same. A new connection begins with
// what the client says it holds (Register.lease).
//
// A message may come with descriptors (SCM_RIGHTS, base/descriptors.h) if its type allows it: codec.h says how many.
//
// *Budget*: the most bytes the client may have resident on the GPU. Without the lock the budget is what is resident now: memory that is
// allocated then exists as an address only, and gets GPU memory in the next turn. With the lock, an allocation that would pass the budget
// sends MemUpdate with `wanted` > 0 and waits: WaitForMem says that the wait has begun, MemAvailable ends it. A client may lower its own
// budget at any time (MemUpdate.budget, valid if MemUpdate.budget_sequence is that of the last budget the scheduler sent).
#pragma once

#include <cstdint>

namespace nvshare::protocol {

inline constexpr uint16_t kVersionMin = 1;  // oldest version this build speaks
inline constexpr uint16_t kVersionMax = 3;  // newest
inline constexpr uint32_t kMessageBytesMax = 512;

enum class MessageType : uint16_t {
  // client to scheduler
  kRegister = 1,
  kReqLock = 2,
  kLockReleased = 3,
  kMemUpdate = 4,
  kSwapProgress = 5,
  // 6 is reserved: Idle, which nobody ever sent
  kAskWhyWaiting = 24,
  kAskHeadroom = 32,
  kHeadroomReturned = 33,
  kHeadroomTaken = 34,
  kImport = 7,
  kExported = 8,
  kImportClosed = 9,
  kExportEnded = 10,
  kDrained = 11,
  kAbout = 12,
  kLockPaused = 13,
  kLockResumed = 14,
  kKeepsMemory = 15,
  kArenaRequest = 16,
  kArenaReturned = 17,
  kArenaShrunk = 18,
  kArenaHeld = 19,
  kAskMps = 20,
  kAskOwn = 21,
  kProgress = 22,
  kEndsSoon = 23,
  // scheduler to client
  kRegistered = 64,
  kRefused = 65,
  kLockOk = 66,
  kDropLock = 67,
  kWaitForMem = 68,
  kMemAvailable = 69,
  kEvict = 70,
  kUpdateLimit = 71,
  kContention = 72,
  kWhyWaiting = 96,
  kTenantUse = 97,
  kExportWanted = 73,
  kImported = 74,
  kImportInherited = 75,
  kKeepLock = 76,
  kMpsGroup = 77,
  kPrepareSwap = 80,
  kArenaSegment = 81,
  kArenaRefused = 82,
  kArenaShrink = 83,
  kOwnReport = 84,
  kAskProgress = 85,
  kPrefetch = 86,
  kHeadroom = 104,
  kRecallHeadroom = 105,
};

struct Header {
  uint16_t type;
  uint16_t version;
  uint32_t length;  // of the whole packet, this header included; 8 .. kMessageBytesMax
};

// The memory of one client as it stands. resident <= allocated.
struct MemoryReport {
  uint64_t allocated;       // what the program holds, on the GPU and swapped, our rounding and caches included
  uint64_t resident;        // of it on the GPU
  uint64_t unswappable;     // of it that cannot leave the GPU
  uint64_t swappable_host;  // host memory ready for swapping: segments made and pinned
  uint64_t charged;         // against the tenant's limit: what the program holds, rounded as the driver would, caches of ours not included
};

enum class Backend : uint8_t { kVmm = 0, kManaged = 1, kNone = 2 };

// A lease that is no bound. A client whose tenant has no limit holds one.
inline constexpr uint64_t kLeaseMax = uint64_t{1} << 50;

inline constexpr uint32_t kReleaseBytes = 32;

// The same in all versions: what else is to be told by then comes after Registered.
struct Register {
  uint16_t version_min;  // the client speaks version_min .. version_max; the header's version is version_min
  uint16_t version_max;
  uint8_t backend;       // Backend
  uint8_t has_lock;      // 1 when it re-registers holding a lock that the previous scheduler granted
  uint8_t wants_lock;    // 1 when it re-registers while waiting for the lock
  uint8_t asks_only;     // 1: it only wants the answer, Registered and TenantUse, and becomes no client; the connection ends
  uint8_t gpu_uuid[16];  // as cuDeviceGetUuid gives it
  uint64_t gpu_total_bytes;
  uint64_t memory_limit;  // from the program's own environment; 0 = none. Can only lower what the node allows
  uint64_t client_id;     // that it had before, 0 at first
  uint64_t lease;         // that it holds from an earlier scheduler, at most kLeaseMax
  uint64_t node_limit;    // that an earlier scheduler told it; 0 = none
  int32_t pid;            // in the client's own namespace: for people to read, never trusted
  uint32_t gpu_ordinal;   // the program's device number, for people
  MemoryReport memory;
  char gpu_name[64];  // NUL-terminated
  char program[64];   // NUL-terminated, the program's short name
};

struct Registered {
  uint16_t version;  // that both sides use from now on
  uint16_t reserved[3];
  uint64_t client_id;
  uint64_t epoch;
  uint64_t memory_limit;     // the tenant's on this GPU, all its processes together; 0 = none
  uint64_t node_limit;       // of it what the node says; 0 = none
  uint64_t lease;            // at least what Register said
  uint64_t others_charged;   // by the tenant's other clients on this GPU
  uint64_t memory_ceiling;   // allocated bytes past this can never fit and fail with out of memory
  uint64_t gpu_total_bytes;  // the GPU's size as the scheduler takes it: smaller than the real one when it is configured so
  // since version 2
  char release[kReleaseBytes];  // the scheduler's, NUL-terminated, for people
  uint64_t tenant;              // whose client it is, as `nvsharectl status` numbers it
  char tenant_name[64];         // NUL-terminated, for people
  uint8_t skip_unchanged;       // 1: what did not change since it came in is to leave without a copy
  uint8_t reserved_too[7];
};

// After Registered, once. Since version 2.
struct About {
  char release[kReleaseBytes];  // the library's, NUL-terminated, for people: a program keeps the library that it started with
};

inline constexpr uint32_t kKeepsWhyBytes = 128;

// Since version 2. All memory that the client has, or gets from now on, stays on the GPU. Told once to each scheduler.
struct KeepsMemory {
  char why[kKeepsWhyBytes];  // a sentence's end for people, NUL-terminated: "it called cuNewFunction, which this release does not know"
};

enum class OwnWish : uint8_t { kReport = 0, kRelease = 1 };
// Since version 2. Instead of Register: about the asker's own tenant, and from outside containers about all of its user's.
struct AskOwn {
  uint8_t wish;  // OwnWish; kRelease: turns of `tenant` end now, too, as if it had nothing to do
  uint8_t reserved[7];
  uint64_t tenant;  // one that OwnReport lists; else 0
};
// Since version 2. The answer; with it a sealed memfd of so many bytes: a line as admin.h's status. Pids are the asker's, 0: not seen by
// it.
struct OwnReport {
  uint64_t bytes;
};

// The same in all versions.
struct Refused {
  char reason[256];  // NUL-terminated
  uint8_t barred;    // 1: the program may not use the GPU without a scheduler instead
  uint8_t reserved[7];
};

struct ReqLock {
  uint64_t request;  // counts up
};

struct Grant {
  uint64_t epoch;
  uint64_t grant;
};

struct LockOk {
  Grant grant;
  uint64_t budget;
  uint64_t budget_sequence;
};

struct DropLock {
  Grant grant;
  uint64_t attempt;  // counts up; Drained repeats it
  uint8_t together;  // 1: other clients of the tenant leave their GPUs at the same time, none before all have drained
  uint8_t reserved[7];
  // since version 3
  uint8_t tells_end;  // 1: EndsSoon is wanted; never with `together`
  uint8_t reserved_too[7];
};

struct KeepLock {
  Grant grant;
};

struct Drained {
  Grant grant;
  uint64_t attempt;  // of the last DropLock
};

// After a DropLock that asks for it (tells_end): its GPU work ends in about the time that it takes until another client's first work is on
// the GPU (docs/adr/0021), so the next turn may begin, if its client may run beside this one. LockReleased follows as ever. Since
// version 3.
struct EndsSoon {
  Grant grant;
  uint64_t attempt;  // of the last DropLock
};

enum class ReleaseReason : uint8_t { kDropped = 0, kEarly = 1, kNotDrained = 2 };

struct LockReleased {
  Grant grant;
  uint8_t reason;  // ReleaseReason
  uint8_t reserved[3];
  uint32_t idle_us;       // for so long before that the GPU had nothing to do for the client, as far as it knows; not billed as use
  uint64_t reserved_too;  // libraries of 0.2 and before say here how long the drain took
  uint64_t used_ns;       // from the turn's first submission to the end of its last work, as the client saw it; 0 = nothing was submitted.
                          // What else the turn lasted is not billed, as far as the scheduler believes it. Of a burst that ended by
                          // itself also without what passed until the GPU ran it, and until its end was known (docs/adr/0010)
  MemoryReport memory;
  // since version 3
  uint64_t submissions;  // in the turn, all of which have ended: how fast the client was beside others; 0 = it does not say
};

// The client's GPU work has ended and its gate is closed: until LockResumed it uses nothing of the GPU, and is not billed. It keeps the
// lock and may go on at any time without asking. DropLock ends that, as it ends a turn: when others come, when the pause lasts, or when
// what allowed it had changed already. Since version 2.
struct LockPaused {
  Grant grant;
  uint64_t used_ns;  // as in LockReleased: of the time since the turn began, or since the last LockResumed
  // since version 3
  uint64_t submissions;  // the same
};

// After LockPaused: the gate is open. Since version 2.
struct LockResumed {
  Grant grant;
};

struct MemUpdate {
  MemoryReport memory;
  uint64_t budget;           // what the client holds itself to
  uint64_t budget_sequence;  // of the last budget it received
  uint64_t reserved;         // libraries of 0.2 and before say their limit here
  uint64_t wanted;           // more bytes than the budget allows that an allocation waits for; 0 = none, or the request is withdrawn
  uint64_t request;          // counts up with each wait; MemAvailable repeats it
};

struct WaitForMem {
  uint64_t request;
};
struct MemAvailable {
  uint64_t request;  // the MemUpdate it answers
  uint8_t granted;   // 1: the budget below covers the request; 0: out of memory, nothing can be moved
  uint8_t reserved[7];
  uint64_t budget;
  uint64_t budget_sequence;
};

struct Evict {
  uint64_t eviction;  // counts up
  uint64_t bytes;     // to move out, at least, if that much is resident and swappable
};

// How much does the client get done? Since version 3.
struct AskProgress {
  uint64_t question;  // counts up
  uint8_t counts;     // 1: submissions count from now on, with what is in flight bounded as if somebody waited; 0: no longer for this
  uint8_t reserved[7];
};
// The answer, at once. Since version 3.
struct Progress {
  uint64_t question;
  uint64_t submissions;  // of its process, that were counted so far: only differences mean something
};

// The client's turn comes next: swapped memory is to come in beside who runs, until so much of the client's is on the GPU. That is its
// budget until it has told that this has ended, or gets the lock. It ends soon, whatever came of it: what a LockOk, the end of the
// connection, or a failure leaves out is missing then. Since version 3.
struct Prefetch {
  uint64_t prefetch;  // counts up
  uint64_t budget;
};

enum class SwapDirection : uint8_t {
  kOut = 0,
  kIn = 1,
  kAhead = 2,  // in, for a Prefetch; since version 3
};

struct SwapProgress {
  uint8_t direction;  // SwapDirection
  uint8_t finished;   // 1: last message of this movement
  uint8_t failed;     // 1: it stopped early (host memory short, a copy failed, or in: the turn ended); the rest stays where it was
  uint8_t mistaken;   // 1: memory that was taken to be unchanged was not; from now on all of it is copied. Since version 2
  uint8_t reserved[4];
  uint64_t id;          // the eviction, the grant, or the prefetch
  uint64_t moved;       // bytes of this movement so far (released, or mapped)
  uint64_t copied;      // of them over the link (unchanged or never written memory needs no copy)
  uint64_t elapsed_ns;  // since the movement began, without waits for host memory to be made and for room on the GPU, and without the
                        // time for what was not copied because it was unchanged
  MemoryReport memory;
  // since version 2
  uint64_t unchanged;  // bytes that left without a copy, because the host had one that was still true
};

// A thread of the program has waited for the GPU for long: for whom?
struct AskWhyWaiting {
  uint64_t question;  // counts up
};

struct WhyWaiting {
  uint64_t question;
  char text[256];  // NUL-terminated, for people
};

inline constexpr uint32_t kProcessesPerMessage = 24;
inline constexpr uint32_t kTenantProcessesMax = 65536;

struct TenantProcess {
  int32_t pid;  // as the asker sees it: in its own PID namespace
  uint32_t reserved;
  uint64_t allocated;  // on that GPU, as charged against the limit
};

// What the asker's tenant has on the GPU: processes first .. first + kProcessesPerMessage, in as many messages as it takes, at least one.
// Processes that the asker's PID namespace does not show are in the sum, not in the list.
struct TenantUse {
  uint64_t memory_limit;  // the tenant's, or the asker's own if that is lower; 0 = none
  uint64_t gpu_total_bytes;
  uint64_t allocated;  // by all clients of the tenant, as charged
  uint32_t processes;  // in all messages
  uint32_t first;
  TenantProcess process[kProcessesPerMessage];
};

// How things stand, also as the use of the tenant's other clients changes, though not with each allocation.
struct UpdateLimit {
  uint64_t memory_limit;  // the tenant's on this GPU; 0 = none
  uint64_t node_limit;    // of it what the node says; 0 = none
  uint64_t memory_ceiling;
  uint64_t others_charged;  // by the tenant's other clients on this GPU
};

// ---- the tenant's memory limit ----

// What is left of the lease goes back with it, so that nobody holds headroom while waiting for more.
struct AskHeadroom {
  uint64_t request;   // counts up; one at a time
  uint64_t bytes;     // to be charged at once; 1 .. kLeaseMax
  uint64_t returned;  // that the lease has shrunk by
};

struct Headroom {
  uint64_t request;  // of the AskHeadroom that it answers; 0: none, the limit was raised
  uint64_t bytes;    // that the lease grows by
  uint64_t limit;    // in force now; 0 = none
  uint64_t others_charged;
  uint8_t granted;  // 1: `bytes` covers the request; 0: refused, the limit does not allow it
  uint8_t reserved[7];
};

struct RecallHeadroom {
  uint64_t recall;  // counts up
  uint64_t bytes;   // wanted; what is in use stays
};

struct HeadroomReturned {
  uint64_t recall;
  uint64_t bytes;    // that the lease has shrunk by
  uint64_t charged;  // now
};

// Memory became the client's that nobody can refuse any more (it inherited what it had imported, or the driver took more than it was asked
// for): its lease has grown by as much, whatever the limit says.
struct HeadroomTaken {
  uint64_t bytes;
};

// Contention.limited: bits.
inline constexpr uint32_t kLimitedCompute = 1;  // a compute limit or slicing applies on this client's GPU: the lock's holder is billed
inline constexpr uint32_t kLimitedAll = kLimitedCompute;
inline constexpr uint32_t kIdleReleaseUsMax = 10'000'000;

// Sent to a client that holds the lock when it begins or ceases to have waiters. The first three fields are of the turn and end with it.
// The others stay in force, beyond turns, until the next Contention or the end of the connection: they are sent at its begin and when they
// change, to a client without the lock too, not with each grant.
struct Contention {
  uint32_t waiters;          // clients that wait for this GPU
  uint32_t memory_waiters;   // of them, and of its gang's members there that grow, those that wait because memory does not suffice
  uint64_t swap_cost_ns;     // what giving up the GPU to the next one is expected to cost
  uint32_t limited;          // kLimited* bits: while not 0, work in flight is bounded and idleness is noticed as it begins
  uint32_t idle_release_us;  // release the lock early once idle for this long; 0 = the client's own default; at most kIdleReleaseUsMax
  // Since version 2. Others of the client's gang hold the lock: without the lock it does not allocate, but gets the lock first.
  uint8_t gang_runs;
  uint8_t reserved[3];
  uint32_t pause_us;  // once idle for this long it may send LockPaused instead of releasing the lock; 0 = it may not; at most
                      // kIdleReleaseUsMax
  // Since version 3.
  uint8_t held;  // 1, or before the first: without a scheduler it waits for the next one. 0: it need not, if all its memory is on the GPU
  uint8_t reserved_too[7];
};

// ---- Memory handed from process to process ----
inline constexpr int kChunksPerMessage = 16;  // one descriptor each

struct Import {
  uint64_t request;    // the importer's, counts up
  uint64_t exporter;   // client id
  uint64_t export_id;  // the exporter's
  uint8_t nonce[16];   // only who was handed the handle knows it
};

struct ExportWanted {
  uint64_t ticket;  // the scheduler's; Exported repeats it
  uint64_t export_id;
  uint8_t nonce[16];
};

enum class ExportStatus : uint8_t {
  kOk = 0,
  kUnknown = 1,  // no such memory, or not any more
  kRefused = 2,  // of another tenant, and not both programs of one user that nobody grouped
  kFailed = 3,   // the driver gave no descriptors
};

// Chunks first .. first + (number of descriptors) of the memory. Any status but kOk comes without, and is the last.
struct Exported {
  uint64_t ticket;
  uint64_t bytes;        // of all chunks
  uint64_t chunk_bytes;  // of each but the last
  uint32_t chunks;
  uint32_t first;
  uint8_t status;  // ExportStatus
  uint8_t reserved[7];
};

struct Imported {
  uint64_t request;  // of the Import; the rest as in Exported
  uint64_t bytes;
  uint64_t chunk_bytes;
  uint32_t chunks;
  uint32_t first;
  uint8_t status;
  uint8_t reserved[7];
};

struct ImportClosed {
  uint64_t request;
};
struct ExportEnded {
  uint64_t export_id;
};
struct ImportInherited {
  uint64_t request;
};

// ---- host memory for swapping ----
//
// It has one budget a node, so every byte of it is lent by the scheduler, in *segments*: multiples of kArenaUnitBytes, at most
// kArenaSegmentBytesMax. Segment ids are the scheduler's, unique beyond its restarts. A lent segment counts as the client's until
// ArenaReturned, or the client's end.
inline constexpr uint64_t kArenaUnitBytes = uint64_t{2} << 20;
inline constexpr uint64_t kArenaSegmentBytesMax = uint64_t{256} << 20;
inline constexpr uint64_t kArenaBytesMax = kArenaUnitBytes << 28;  // of all segments of a client

// Whose memory a segment is: the client's own, which a lease is only leave to make; or the scheduler's, passed on as a descriptor.
enum class ArenaOwner : uint8_t { kProcess = 0, kScheduler = 1 };

// The client wants segments of so many bytes in sum, those that it has included. Replaces its earlier requests.
struct ArenaRequest {
  uint64_t request;  // counts up
  uint64_t total;    // a multiple of kArenaUnitBytes, at most kArenaBytesMax
  uint8_t owner;     // ArenaOwner: whose memory it is to be; the scheduler's settings may say otherwise
  uint8_t urgent;    // 1: memory has to be swapped out now; 0: it only prepares for that
  uint8_t reserved[6];
};

// One segment. With the scheduler's own memory a descriptor comes with it: a memfd of at least `bytes`, all of it populated.
struct ArenaSegment {
  uint64_t segment;
  uint64_t bytes;
  uint8_t owner;  // ArenaOwner
  uint8_t reserved[7];
};

// The rest of what was asked for is not to be had now.
struct ArenaRefused {
  uint64_t request;
  uint64_t missing;  // bytes
};

// Others need it: give back what is unused, about so much.
struct ArenaShrink {
  uint64_t shrink;  // counts up
  uint64_t bytes;
};

struct ArenaReturned {
  uint64_t segment;
};

// The answer to ArenaShrink, after what it gave back.
struct ArenaShrunk {
  uint64_t shrink;
  uint64_t bytes;  // 0: nothing is unused
};

// After Registered: a segment that an earlier scheduler lent.
struct ArenaHeld {
  uint64_t segment;
  uint64_t bytes;
  uint8_t owner;  // ArenaOwner
  uint8_t reserved[7];
};

// So much of the client's memory may have to move out when its neighbours come: have host memory ready for it, in the background.
struct PrepareSwap {
  uint64_t bytes;
};

// Since version 2. Where programs of its user find their MPS daemon; before, or instead of, Register.
struct AskMps {
  uint64_t reserved;
  // since version 3
  char group[40];  // NUL-terminated; that of its user's programs that name the same (trust_group.h); empty: of those that name none
};

enum class MpsState : uint8_t {
  kOff = 0,     // the setting mps is off
  kServes = 1,  // programs that start with CUDA_MPS_PIPE_DIRECTORY=directory share the GPU under it
  kCannot = 2,  // `reason` says why not
};

// Since version 2. The answer, once the daemon serves or it is known that it does not.
struct MpsGroup {
  uint8_t state;  // MpsState
  uint8_t reserved[7];
  char directory[128];  // NUL-terminated; a path, empty unless it serves
  char reason[256];     // NUL-terminated
};

}  // namespace nvshare::protocol
