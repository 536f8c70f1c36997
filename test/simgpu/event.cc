// Events. Recorded: the number of an entry on a stream. Reached: that entry is finished.
#include "simgpu/capture.h"
#include "simgpu/config.h"
#include "simgpu/context.h"
#include "simgpu/core.h"
#include "simgpu/ipc_event.h"

namespace simgpu {
namespace {

std::atomic<uint64_t> queries{0};
std::atomic<uint64_t> living{0};  // those that their context took along stay counted

class RecordWork : public Work {
 public:
  explicit RecordWork(Event* event) : event_(event) {}
  void run(Execution& execution) const override {
    std::lock_guard lock(event_->mutex);
    event_->time_ns = execution.ready_ns;
  }
  bool instant() const override { return true; }
  const char* name() const override { return "an event"; }

 private:
  Event* const event_;
};

// Also when the context is broken: another process may wait for it.
class SharedRecordWork : public Work {
 public:
  SharedRecordWork(std::shared_ptr<IpcEvent> event, uint64_t number) : event_(std::move(event)), number_(number) {}
  void run(Execution&) const override { event_->reach(number_); }
  bool instant() const override { return true; }
  bool always() const override { return true; }
  const char* name() const override { return "an interprocess event"; }

 private:
  const std::shared_ptr<IpcEvent> event_;
  const uint64_t number_;
};

class SharedWaitWork : public Work {
 public:
  SharedWaitWork(std::shared_ptr<IpcEvent> event, uint64_t number) : event_(std::move(event)), number_(number) {}
  void run(Execution& execution) const override {
    event_->wait(number_);
    execution.ready_ns = std::max(execution.ready_ns, now_ns());
  }
  const char* name() const override { return "a wait for an interprocess event"; }

 private:
  const std::shared_ptr<IpcEvent> event_;
  const uint64_t number_;
};

CUresult find_event(CUevent handle, Event** event) {
  if (const CUresult result = enter_process()) return result;
  auto* found = reinterpret_cast<Event*>(handle);
  if (found == nullptr || !found->alive.load(std::memory_order_acquire)) return CUDA_ERROR_INVALID_HANDLE;
  *event = found;
  return CUDA_SUCCESS;
}

CUresult record(CUevent handle, CUstream stream_handle, Default null_means) {
  Event* event = nullptr;
  Stream* stream = nullptr;
  if (const CUresult result = find_event(handle, &event)) return result;
  if (const CUresult result = find_stream(stream_handle, null_means, &stream)) return result;
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  {
    std::lock_guard context_lock(stream->context->mutex);
    if (Capture* capture = stream->capture.load()) {
      if (capture->invalid.load()) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      std::lock_guard lock(event->mutex);
      event->capture = capture;
      event->captured_nodes = stream->capture_tail;
      return CUDA_SUCCESS;
    }
  }
  std::shared_ptr<IpcEvent> shared;
  {
    std::lock_guard lock(event->mutex);
    shared = event->shared;
    if (shared) event->capture = nullptr;
  }
  if (shared) {
    const uint64_t number = shared->begin_record();
    const CUresult result = submit(*stream, Submission::kMarker, std::make_shared<SharedRecordWork>(shared, number));
    if (result != CUDA_SUCCESS) shared->reach(number);
    return result;
  }
  uint64_t sequence = 0;
  if (const CUresult result = submit(*stream, Submission::kMarker, std::make_shared<RecordWork>(event), {}, &sequence)) return result;
  std::lock_guard lock(event->mutex);
  event->capture = nullptr;
  event->captured_nodes.clear();
  event->stream = stream;
  event->sequence = sequence;
  return CUDA_SUCCESS;
}

constexpr unsigned kExternal = 1;  // CU_EVENT_RECORD_EXTERNAL, and that of waits: for captures only

CUresult record_with(unsigned flags, CUevent event, CUstream handle, Default null_means) {
  if (flags > kExternal) return CUDA_ERROR_INVALID_VALUE;
  Event* known = nullptr;
  Stream* stream = nullptr;
  if (const CUresult result = find_event(event, &known)) return result;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (flags == kExternal && known->context == stream->context && stream->capture.load() == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  return record(event, handle, null_means);
}

CUresult wait(CUstream stream_handle, Default null_means, CUevent handle) {
  Event* event = nullptr;
  Stream* stream = nullptr;
  if (const CUresult result = find_event(handle, &event)) return result;
  if (const CUresult result = find_stream(stream_handle, null_means, &stream)) return result;
  Dependency dependency{};
  std::shared_ptr<IpcEvent> shared;
  uint64_t number = 0;
  {
    std::lock_guard context_lock(stream->context->mutex);
    std::lock_guard lock(event->mutex);
    Capture* of_stream = stream->capture.load();
    if (event->capture != nullptr) {
      if (of_stream != nullptr && of_stream != event->capture) {
        of_stream->invalid.store(true);
        event->capture->invalid.store(true);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
      }
      return event->capture->join(*stream, event->captured_nodes);
    }
    shared = event->shared;
    number = shared ? shared->last_record() : 0;
    if (of_stream != nullptr) {  // work outside the capture cannot be waited for in it
      if (event->stream == nullptr && number == 0) return CUDA_SUCCESS;
      of_stream->invalid.store(true);
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    dependency = {event->stream, event->sequence};
  }
  if (shared) {
    if (shared->is_reached(number)) return CUDA_SUCCESS;
    return submit(*stream, Submission::kMarker, std::make_shared<SharedWaitWork>(shared, number));
  }
  if (dependency.stream == nullptr || dependency.stream->completed.load(std::memory_order_acquire) >= dependency.sequence) {
    return CUDA_SUCCESS;
  }
  return submit(*stream, Submission::kMarker, nullptr, {dependency});
}

// What an event waits for: false when it belongs to a capture, which this ruins.
bool read(Event& event, Dependency* last, std::shared_ptr<IpcEvent>* shared) {
  std::lock_guard lock(event.mutex);
  *last = {event.stream, event.sequence};
  *shared = event.shared;
  if (event.capture == nullptr) return true;
  event.capture->invalid.store(true);
  return false;
}

}  // namespace

static CUresult create(CUevent* out, unsigned flags, std::shared_ptr<IpcEvent> shared) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (!charge_context(*context, 0)) return CUDA_ERROR_OUT_OF_MEMORY;
  Process& process = here();
  Event* event = nullptr;
  {
    std::lock_guard lock(process.mutex);
    if (!process.spare_events.empty()) {
      event = process.spare_events.back();
      process.spare_events.pop_back();
    }
  }
  if (event == nullptr) event = Kept<Event>::make();
  living.fetch_add(1);
  {
    std::lock_guard lock(event->mutex);
    event->context = context;
    event->flags = flags;
    event->stream = nullptr;
    event->sequence = 0;
    event->time_ns = 0;
    event->capture = nullptr;
    event->captured_nodes.clear();
    event->shared = std::move(shared);
  }
  event->alive.store(true, std::memory_order_release);
  *out = to_handle(event);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuEventCreate(CUevent* out, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  constexpr unsigned kFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (out == nullptr || (flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) == 0) return create(out, flags, nullptr);
  if ((flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<IpcEvent> shared = IpcEvent::make();
  return shared ? create(out, flags, std::move(shared)) : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuIpcGetEventHandle(CUipcEventHandle* out, CUevent handle) {
  Event* event = nullptr;
  if (const CUresult result = find_event(handle, &event)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(event->mutex);
  if (!event->shared || !event->shared->made_here()) return CUDA_ERROR_INVALID_HANDLE;
  *out = event->shared->handle();
  return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcOpenEventHandle(CUevent* out, CUipcEventHandle handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool of_this_process = false;
  if (!IpcEvent::is_handle(handle, &of_this_process)) return CUDA_ERROR_MAP_FAILED;
  if (of_this_process) return CUDA_ERROR_INVALID_CONTEXT;
  std::shared_ptr<IpcEvent> shared = IpcEvent::open(handle);
  return shared ? create(out, CU_EVENT_DISABLE_TIMING, std::move(shared)) : CUDA_ERROR_INVALID_HANDLE;
}

// A record that is still queued keeps the object: it is recycled, never deleted, and its next user starts with no record.
SIM_API CUresult cuEventDestroy_v2(CUevent handle) {
  Event* event = nullptr;
  if (const CUresult result = find_event(handle, &event)) return result;
  if (!event->alive.exchange(false)) return CUDA_ERROR_INVALID_HANDLE;
  living.fetch_sub(1);
  Stream* stream = nullptr;
  uint64_t sequence = 0;
  {
    std::lock_guard lock(event->mutex);
    stream = event->stream;
    sequence = event->sequence;
    event->shared.reset();
  }
  // Only one that no worker will touch any more is recycled at once; the others are few and stay.
  if (stream == nullptr || stream->completed.load(std::memory_order_acquire) >= sequence) {
    std::lock_guard lock(here().mutex);
    here().spare_events.push_back(event);
  }
  return CUDA_SUCCESS;
}
SIM_API CUresult cuEventDestroy(CUevent handle) { return cuEventDestroy_v2(handle); }

SIM_API CUresult cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, Default::kLegacy); }
SIM_API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return record(event, stream, Default::kPerThread); }
SIM_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return record_with(flags, event, stream, Default::kLegacy);
}
SIM_API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags) {
  return record_with(flags, event, stream, Default::kPerThread);
}
SIM_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return flags > kExternal ? CUDA_ERROR_INVALID_VALUE : wait(stream, Default::kLegacy, event);
}
SIM_API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
  return flags > kExternal ? CUDA_ERROR_INVALID_VALUE : wait(stream, Default::kPerThread, event);
}

uint64_t event_queries() { return queries.load(std::memory_order_relaxed); }

SIM_API CUresult cuEventQuery(CUevent handle) {
  queries.fetch_add(1, std::memory_order_relaxed);
  Event* event = nullptr;
  if (const CUresult result = find_event(handle, &event)) return result;
  if (const CUresult result = check_unsafe_call()) return result;
  Dependency last{};
  std::shared_ptr<IpcEvent> shared;
  if (!read(*event, &last, &shared)) return CUDA_ERROR_CAPTURED_EVENT;
  if (shared && !shared->is_reached(shared->last_record())) return CUDA_ERROR_NOT_READY;
  if (last.stream != nullptr && last.stream->completed.load(std::memory_order_acquire) < last.sequence) return CUDA_ERROR_NOT_READY;
  return static_cast<CUresult>(event->context->error.load(std::memory_order_acquire));
}

SIM_API CUresult cuEventSynchronize(CUevent handle) {
  Event* event = nullptr;
  if (const CUresult result = find_event(handle, &event)) return result;
  if (const CUresult result = check_unsafe_call()) return result;
  Dependency last{};
  std::shared_ptr<IpcEvent> shared;
  if (!read(*event, &last, &shared)) return CUDA_ERROR_CAPTURED_EVENT;
  if (shared) shared->wait(shared->last_record());
  if (last.stream != nullptr) last.stream->wait(last.sequence);
  return static_cast<CUresult>(event->context->error.load(std::memory_order_acquire));
}

SIM_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  Event* events[2] = {};
  uint64_t times[2] = {};
  if (const CUresult result = find_event(start_handle, &events[0])) return result;
  if (const CUresult result = find_event(end_handle, &events[1])) return result;
  for (int i = 0; i < 2; ++i) {
    std::lock_guard lock(events[i]->mutex);
    if ((events[i]->flags & CU_EVENT_DISABLE_TIMING) != 0 || events[i]->stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (events[i]->stream->completed.load(std::memory_order_acquire) < events[i]->sequence) return CUDA_ERROR_NOT_READY;
    times[i] = events[i]->time_ns;
  }
  *milliseconds = static_cast<float>((static_cast<double>(times[1]) - static_cast<double>(times[0])) / 1e6);
  return CUDA_SUCCESS;
}
SIM_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

uint64_t living_events() { return living.load(); }

}  // namespace simgpu
