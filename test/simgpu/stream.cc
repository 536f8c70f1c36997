// Streams: queues that run in order, each on a worker thread of its own once there is something that takes time.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <thread>

#include "simgpu/capture.h"
#include "simgpu/config.h"
#include "simgpu/core.h"

namespace simgpu {
namespace {

// As on the real driver, a submission waits while that much is queued on its stream.
constexpr uint64_t kQueueMax = 1024;
// Longer work shares its engine with other processes in slices.
constexpr double kSliceNs = 5e6;

uint64_t run_entry(Stream& stream, const Stream::Entry& entry, uint64_t ready_ns) {
  Context& context = *stream.context;
  if (!entry.work) return ready_ns;
  if (context.error.load(std::memory_order_acquire) != 0 && !entry.work->always()) return ready_ns;
  Execution execution{stream, context, context.device, here().slot, ready_ns};
  entry.work->run(execution);
  return execution.ready_ns;
}

void recycle(Stream& stream) {
  Process& process = here();
  std::lock_guard lock(process.mutex);
  process.spare_streams.push_back(&stream);
}

void work_on(Stream* stream) {
  prctl(PR_SET_TIMERSLACK, 1000ul);
  pthread_setname_np(pthread_self(), "simgpu");
  std::unique_lock lock(stream->mutex);
  while (true) {
    while (stream->queue.empty() && !stream->closing) {
      stream->worker_waits = true;
      stream->wake_worker.wait(lock);
      stream->worker_waits = false;
    }
    if (stream->queue.empty()) break;
    Stream::Entry& entry = stream->queue.front();  // stays where it is while others are appended
    uint64_t ready = std::max(entry.enqueued_ns, stream->clock_ns);
    lock.unlock();
    for (const Dependency& dependency : entry.dependencies) {
      if (dependency.stream->completed.load(std::memory_order_acquire) >= dependency.sequence) continue;
      dependency.stream->wait(dependency.sequence);
      ready = std::max(ready, now_ns());
    }
    ready = run_entry(*stream, entry, ready);
    lock.lock();
    const Stream::Entry done = std::move(entry);
    stream->queue.pop_front();
    stream->clock_ns = ready;
    stream->completed.fetch_add(1, std::memory_order_release);
    if (stream->waiters > 0) stream->progress.notify_all();
    lock.unlock();  // `done` may free memory: not under the lock
    lock.lock();
  }
  stream->has_worker = false;
  lock.unlock();
  recycle(*stream);
}

void start_worker(Stream& stream) {
  // The program's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  stream.has_worker = true;
  std::thread(work_on, &stream).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool all_done(const std::vector<Dependency>& dependencies) {
  return std::all_of(dependencies.begin(), dependencies.end(), [](const Dependency& dependency) {
    return dependency.stream->completed.load(std::memory_order_acquire) >= dependency.sequence;
  });
}

// The legacy stream waits for all blocking streams, and they for it.
void add_legacy_order(Stream& stream, std::vector<Dependency>& dependencies) {
  Context& context = *stream.context;
  if (stream.legacy) {
    for (Stream* other : context.streams) {
      if (other != &stream && other->blocking() && !other->idle()) dependencies.push_back({other, other->submitted.load()});
    }
  } else if (stream.blocking() && context.legacy != nullptr && !context.legacy->idle()) {
    dependencies.push_back({context.legacy, context.legacy->submitted.load()});
  }
}

void enqueue(Stream& stream, WorkPtr work, std::vector<Dependency> dependencies) {
  std::lock_guard lock(stream.mutex);
  const bool instant = stream.queue.empty() && (!work || work->instant()) && all_done(dependencies);
  stream.submitted.fetch_add(1, std::memory_order_release);
  if (instant) {
    if (work) stream.clock_ns = run_entry(stream, {std::move(work), 0, {}}, now_ns());
    stream.completed.fetch_add(1, std::memory_order_release);
    return;
  }
  stream.queue.push_back({std::move(work), now_ns(), std::move(dependencies)});
  if (!stream.has_worker) {
    start_worker(stream);
  } else if (stream.worker_waits) {
    stream.wake_worker.notify_one();
  }
}

void count_submission(Submission kind) {
  if (kind == Submission::kMarker) return;
  Process& process = here();
  SharedState& shared = Machine::get().shared();
  process.submissions.fetch_add(1, std::memory_order_relaxed);
  shared.submissions.fetch_add(1, std::memory_order_relaxed);
  const uint32_t forbidden = process.forbidden.load(std::memory_order_seq_cst);
  if (forbidden == 0 || (forbidden == 1 && kind != Submission::kKernel)) return;
  process.violations.fetch_add(1);
  shared.violations.fetch_add(1);
}

}  // namespace

void Stream::wait(uint64_t sequence) {
  if (completed.load(std::memory_order_acquire) >= sequence) return;
  std::unique_lock lock(mutex);
  ++waiters;
  progress.wait(lock, [&] { return completed.load(std::memory_order_acquire) >= sequence; });
  --waiters;
}

void Execution::occupy(Engine engine, double duration_ns) {
  Machine& machine = Machine::get();
  do {
    const double slice = std::min(duration_ns, kSliceNs);
    duration_ns -= slice;
    ready_ns = machine.reserve(device, slot, engine, ready_ns, slice);
    if (ready_ns > now_ns()) sleep_until_ns(ready_ns);
  } while (duration_ns > 0);
}

void Execution::fault(CUresult error, const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  report_fault(context, error, text);
}

Stream* create_stream(Context& context, unsigned flags, int priority) {
  Process& process = here();
  Stream* stream = nullptr;
  StreamHandle* handle = nullptr;
  {
    std::lock_guard lock(process.mutex);
    if (!process.spare_streams.empty()) {
      stream = process.spare_streams.back();
      process.spare_streams.pop_back();
    }
    if (!process.spare_handles.empty()) {
      handle = process.spare_handles.back();
      process.spare_handles.pop_back();
    }
  }
  if (stream == nullptr) stream = new Stream;
  if (handle == nullptr) handle = Kept<StreamHandle>::make();
  {
    std::lock_guard lock(stream->mutex);
    stream->handle = handle;
    stream->closing = false;
    stream->context = &context;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = process.next_id.fetch_add(1);
    stream->legacy = false;
    stream->clock_ns = 0;
  }
  stream->alive.store(true, std::memory_order_release);
  handle->stream.store(stream, std::memory_order_release);
  std::lock_guard lock(context.mutex);
  context.streams.push_back(stream);
  return stream;
}

void close_stream(Stream& stream) {
  if (!stream.alive.exchange(false)) return;
  {
    std::lock_guard lock(stream.context->mutex);
    Context& context = *stream.context;
    std::erase(context.streams, &stream);
    std::erase_if(context.left, [](const Dependency& each) { return each.stream->completed.load() >= each.sequence; });
    if (!stream.idle()) context.left.push_back({&stream, stream.submitted.load()});
    if (Capture* capture = stream.capture.load()) capture->lose(stream);
  }
  stream.handle->stream.store(nullptr, std::memory_order_release);
  {
    std::lock_guard lock(here().mutex);
    here().spare_handles.push_back(stream.handle);
  }
  bool had_worker = false;
  {
    std::lock_guard lock(stream.mutex);
    stream.closing = true;
    had_worker = stream.has_worker;
    stream.wake_worker.notify_one();
  }
  if (!had_worker) recycle(stream);
}

void drain(Context& context) {
  std::vector<Dependency> all;
  {
    std::lock_guard lock(context.mutex);
    all = context.left;
    for (Stream* stream : context.streams) all.push_back({stream, stream->submitted.load()});
  }
  for (const Dependency& each : all) each.stream->wait(each.sequence);
  if (!context.primary) return;
  std::vector<Context*> green;  // waited for with the primary context
  {
    std::lock_guard lock(here().mutex);
    for (Context* other : here().contexts) {
      if (other->parent == &context && other->alive.load()) green.push_back(other);
    }
  }
  for (Context* each : green) drain(*each);
}

CUresult submit(Stream& stream, Submission kind, WorkPtr work, std::vector<Dependency> dependencies, uint64_t* sequence) {
  if (sequence != nullptr) *sequence = 0;
  const uint64_t submitted = stream.submitted.load(std::memory_order_acquire);
  if (submitted - stream.completed.load(std::memory_order_acquire) >= kQueueMax) stream.wait(submitted - kQueueMax + 1);
  Context& context = *stream.context;
  std::lock_guard lock(context.mutex);
  if (Capture* capture = stream.capture.load(std::memory_order_acquire)) {
    return capture->add(stream, std::move(work));
  }
  if (stream.legacy) {
    for (Stream* other : context.streams) {
      Capture* capture = other->blocking() ? other->capture.load() : nullptr;
      if (capture == nullptr) continue;
      capture->invalid.store(true);
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  count_submission(kind);
  add_legacy_order(stream, dependencies);
  enqueue(stream, std::move(work), std::move(dependencies));
  if (sequence != nullptr) *sequence = stream.submitted.load();
  return CUDA_SUCCESS;
}

CUresult submit_and_wait(Stream& stream, Submission kind, WorkPtr work) {
  uint64_t sequence = 0;
  if (const CUresult result = submit(stream, kind, std::move(work), {}, &sequence)) return result;
  stream.wait(sequence);
  return static_cast<CUresult>(stream.context->error.load(std::memory_order_acquire));
}

}  // namespace simgpu
