// The objects behind the driver's handles and what every call does first.
//
// Objects are never deleted while the process lives: a handle that was destroyed is recognised (`alive`), not dereferenced into freed
// memory; streams and events are recycled. Lock order: Process::mutex, Context::mutex, Stream::mutex, CaptureRegistry, AddressSpace,
// the shared mutex of Machine. Work runs with none of them held.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "simgpu/address_space.h"
#include "simgpu/device_state.h"
#include "simgpu/driver_calls.h"
#include "simgpu/keep.h"

#define SIM_API extern "C" [[gnu::visibility("default")]]

namespace simgpu {

using namespace nvshare::cuda;

struct Context;
struct Stream;
class Capture;
class IpcEvent;
struct Graph;
struct GraphNode;

// ---- Work ----
// A span of memory that a piece of work needs.
struct Span {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool write = false;
};

// Where and when a piece of work runs: on the stream's worker thread.
struct Execution {
  Stream& stream;
  Context& context;
  int device;
  int slot;
  uint64_t ready_ns;  // in: not before; out: when it was done, on the device's clock

  // Takes an engine for that long; sleeps.
  void occupy(Engine engine, double duration_ns);
  // The context is broken from here on: prints what happened, counts it.
  [[gnu::format(printf, 3, 4)]] void fault(CUresult error, const char* format, ...);
  // Brings managed pages of the spans to the device. False (after a fault) when a span may not be used.
  bool prepare(const std::vector<Span>& spans, CUresult error, const char* who);
};

// Immutable, because a graph runs it again and again.
class Work {
 public:
  virtual ~Work() = default;
  virtual void run(Execution& execution) const = 0;
  virtual void spans(std::vector<Span>&) const {}
  // Takes no time and touches no memory: may be done by the submitting thread when the stream is idle.
  virtual bool instant() const { return false; }
  // Runs even when the context is broken (so that nobody waits for ever).
  virtual bool always() const { return false; }
  // It names memory that is not there: no graph with such a node is instantiated.
  virtual bool lacks_memory() const { return false; }
  // No stream takes it although a graph does: memory operations on memory of pools (recorded).
  virtual bool refused_by_streams() const { return false; }
  // What it is as a node of a graph.
  virtual CUgraphNodeType node_type() const { return CU_GRAPH_NODE_TYPE_EMPTY; }
  virtual const char* name() const = 0;
};
using WorkPtr = std::shared_ptr<const Work>;

struct Dependency {
  Stream* stream;
  uint64_t sequence;
};

// ---- Handles ----
struct Event {
  std::atomic<bool> alive{true};
  Context* context = nullptr;
  unsigned flags = 0;
  std::mutex mutex;
  Stream* stream = nullptr;  // of the last record; null: never recorded
  uint64_t sequence = 0;
  uint64_t time_ns = 0;  // of the last record that was reached
  Capture* capture = nullptr;
  std::vector<GraphNode*> captured_nodes;
  std::shared_ptr<IpcEvent> shared;  // of an interprocess event: its records, instead of stream and sequence
};

// What the program holds. It is given out again as soon as its stream is destroyed, while that one's work may go on.
struct StreamHandle {
  std::atomic<Stream*> stream{nullptr};
};

struct Stream {
  std::atomic<bool> alive{true};
  StreamHandle* handle = nullptr;
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  std::atomic<uint64_t> id{0};
  bool legacy = false;

  std::atomic<Capture*> capture{nullptr};  // guarded by Context::mutex for writing
  std::vector<GraphNode*> capture_tail;    // guarded by Context::mutex

  std::mutex mutex;
  std::condition_variable wake_worker;
  std::condition_variable progress;
  struct Entry {
    WorkPtr work;  // null: only waits
    uint64_t enqueued_ns = 0;
    std::vector<Dependency> dependencies;
  };
  std::deque<Entry> queue;  // the front one may be running
  bool has_worker = false;
  bool worker_waits = false;
  bool closing = false;
  int waiters = 0;
  uint64_t clock_ns = 0;  // when the last work was done
  // Numbers of the last submitted and the last finished entry. They go on when the object is recycled.
  std::atomic<uint64_t> submitted{0};
  std::atomic<uint64_t> completed{0};

  bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
  bool idle() const { return completed.load(std::memory_order_acquire) == submitted.load(std::memory_order_acquire); }
  void wait(uint64_t sequence);
};

struct Context {
  std::atomic<bool> alive{true};
  std::atomic<int> error{0};  // sticky
  int device = 0;
  unsigned flags = 0;
  bool primary = false;
  std::atomic<int> holder{0};  // of a green one: the thread to which it is current
  Context* parent = nullptr;   // the primary one, of which a green context is a part; else null
  std::atomic<uint64_t> id{0};
  std::mutex mutex;  // orders submissions
  Stream* legacy = nullptr;
  std::vector<Stream*> streams;  // all, the legacy one too
  std::vector<Dependency> left;  // what streams still had to do when they were destroyed
  uint64_t charged_bytes = 0;    // guarded by Process::mutex
  std::atomic<bool> modules_charged{false};
  std::atomic<uint32_t> attachments{0};  // cuCtxAttach, of one that is not primary
  std::atomic<uint32_t> peers{0};        // devices (bits) whose memory its kernels may use
};

struct Process {
  int slot = -1;
  AddressSpace memory;
  std::mutex mutex;
  std::vector<Context*> contexts;
  struct Primary {
    Context* context = nullptr;
    unsigned references = 0;
    unsigned flags = 0;
  };
  std::array<Primary, kMaxDevices> primaries;
  std::vector<Stream*> spare_streams;
  std::vector<StreamHandle*> spare_handles;  // the last one destroyed is the next one given out
  std::vector<Event*> spare_events;
  std::atomic<uint64_t> next_id{1};
  // See control.h.
  std::atomic<uint32_t> forbidden{0};
  std::atomic<uint64_t> submissions{0};
  std::atomic<uint64_t> violations{0};
  std::atomic<uint64_t> faults{0};
};

// Null before cuInit and in a forked child.
Process* process();
// For use where enter() has succeeded.
inline Process& here() { return *process(); }
CUresult initialise_process();

// ---- What each thread has ----
struct ThreadState {
  std::array<Context*, 64> stack;
  int depth;
  CUstreamCaptureMode capture_mode;
  bool in_callback;  // runs a host function of the program's
  Context* current() const { return depth == 0 ? nullptr : stack[static_cast<size_t>(depth - 1)]; }
};
extern thread_local ThreadState t_thread;

// The checks that every call makes: initialised, not a forked child, device there.
CUresult enter_process();
// And those that need a current context: it is alive and not broken.
CUresult enter(Context** context);

// ---- Contexts, streams, events ----
Context* to_context(CUcontext handle);
inline CUcontext to_handle(Context* context) { return reinterpret_cast<CUcontext>(context); }
inline CUstream to_handle(Stream* stream) { return reinterpret_cast<CUstream>(stream->handle); }
inline CUevent to_handle(Event* event) { return reinterpret_cast<CUevent>(event); }

Stream* create_stream(Context& context, unsigned flags, int priority);
// Takes the stream out of its context, and ends the capture that began on it; what is queued still runs.
void close_stream(Stream& stream);
void drain(Context& context);

enum class Default { kLegacy, kPerThread };
inline constexpr Default kLegacy = Default::kLegacy;
inline constexpr Default kPerThread = Default::kPerThread;
// The stream behind a handle, of a usable context; checks what enter() checks.
CUresult find_stream(CUstream handle, Default null_means, Stream** stream);

enum class Submission { kKernel, kCopy, kOther, kMarker };  // kMarker: events, waits, host functions: not work of the GPU

// Queues work. *sequence (may be null) is what to wait for; 0 when it went into a capture instead.
CUresult submit(Stream& stream, Submission kind, WorkPtr work, std::vector<Dependency> dependencies = {}, uint64_t* sequence = nullptr);
CUresult submit_and_wait(Stream& stream, Submission kind, WorkPtr work);

// Work of this process, queued or running, that uses the span; the name of it, or null.
const char* work_in_flight_on(uint64_t address, uint64_t bytes);
void report_fault(Context& context, CUresult error, const char* text);

// A draw with that rate (parts per million). Cheap when the rate is 0.
bool fault_strikes(const std::atomic<uint32_t>& rate_ppm);

}  // namespace simgpu
