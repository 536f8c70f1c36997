// The calls on streams.
#include <algorithm>
#include <vector>

#include "simgpu/capture.h"
#include "simgpu/context.h"
#include "simgpu/core.h"
#include "simgpu/graph.h"

namespace simgpu {
namespace {

// The calling thread's default streams, one a context; they end with the thread.
struct ThreadStreams {
  struct Each {
    Context* context;
    uint64_t context_id;
    Stream* stream;
    uint64_t stream_id;
  };
  std::vector<Each> streams;
  ~ThreadStreams() {
    if (process() == nullptr) return;
    for (const Each& each : streams) {
      if (each.context->alive.load() && each.stream->id == each.stream_id) close_stream(*each.stream);
    }
  }
};
thread_local ThreadStreams t_streams;

Stream* per_thread_stream(Context& context) {
  for (ThreadStreams::Each& each : t_streams.streams) {
    if (each.context != &context) continue;
    if (each.context_id == context.id) return each.stream;
    each = {&context, context.id, create_stream(context, CU_STREAM_DEFAULT, 0), 0};
    each.stream_id = each.stream->id;
    return each.stream;
  }
  Stream* stream = create_stream(context, CU_STREAM_DEFAULT, 0);
  t_streams.streams.push_back({&context, context.id, stream, stream->id});
  return stream;
}

class CallbackWork : public Work {
 public:
  CallbackWork(CUhostFn function, CUstreamCallback callback, void* data) : function_(function), callback_(callback), data_(data) {}
  void run(Execution& execution) const override {
    const int error = execution.context.error.load();
    t_thread.in_callback = true;
    if (callback_ != nullptr) {
      callback_(to_handle(&execution.stream), static_cast<CUresult>(error), data_);
    } else if (error == 0) {
      function_(data_);
    }
    t_thread.in_callback = false;
  }
  bool always() const override { return callback_ != nullptr; }
  CUgraphNodeType node_type() const override { return CU_GRAPH_NODE_TYPE_HOST; }
  const char* name() const override { return "a host function"; }

 private:
  const CUhostFn function_;
  const CUstreamCallback callback_;
  void* const data_;
};

CUresult synchronise(CUstream handle, Default null_means) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (const CUresult result = check_synchronisation(*stream)) return result;
  if (stream->legacy) {  // which waits for all blocking streams
    std::vector<Dependency> all;
    {
      std::lock_guard lock(stream->context->mutex);
      for (Stream* other : stream->context->streams) {
        if (other->blocking()) all.push_back({other, other->submitted.load()});
      }
    }
    for (const Dependency& each : all) each.stream->wait(each.sequence);
  } else {
    stream->wait(stream->submitted.load(std::memory_order_acquire));
  }
  return static_cast<CUresult>(stream->context->error.load(std::memory_order_acquire));
}

CUresult query(CUstream handle, Default null_means) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (const CUresult result = check_synchronisation(*stream)) return result;
  if (!stream->idle()) return CUDA_ERROR_NOT_READY;
  return static_cast<CUresult>(stream->context->error.load(std::memory_order_acquire));
}

CUresult add_callback(CUstream handle, Default null_means, CUhostFn function, CUstreamCallback callback, void* data) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  if (function == nullptr && callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return submit(*stream, Submission::kMarker, std::make_shared<CallbackWork>(function, callback, data));
}

template <typename Read>
CUresult read(CUstream handle, Default null_means, Read read_from) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  read_from(*stream);
  return CUDA_SUCCESS;
}

constexpr int kGreatestPriority = -5;  // a number beyond the range counts as its end

CUresult create(CUstream* out, unsigned flags, int priority) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (out == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  if (!charge_context(*context, 0)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = to_handle(create_stream(*context, flags, std::clamp(priority, kGreatestPriority, 0)));
  return CUDA_SUCCESS;
}

}  // namespace

WorkPtr make_host_function(CUhostFn function, void* data) { return std::make_shared<CallbackWork>(function, nullptr, data); }

CUresult find_stream(CUstream handle, Default null_means, Stream** stream) {
  Stream* found = nullptr;
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    Context* context = nullptr;
    if (const CUresult result = enter(&context)) return result;
    const bool per_thread = handle == CU_STREAM_PER_THREAD || (handle == nullptr && null_means == Default::kPerThread);
    if (per_thread && context->parent != nullptr) return CUDA_ERROR_INVALID_HANDLE;  // no stream of a green context's (measured)
    *stream = per_thread ? per_thread_stream(*context) : context->legacy;
    return CUDA_SUCCESS;
  }
  if (const CUresult result = enter_process()) return result;
  found = reinterpret_cast<StreamHandle*>(handle)->stream.load(std::memory_order_acquire);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *stream = found;
  return static_cast<CUresult>(found->context->error.load(std::memory_order_acquire));
}

SIM_API CUresult cuStreamCreate(CUstream* out, unsigned flags) { return create(out, flags, 0); }
SIM_API CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) { return create(out, flags, priority); }

SIM_API CUresult cuStreamDestroy_v2(CUstream handle) {
  if (const CUresult result = enter_process()) return result;
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return CUDA_ERROR_INVALID_HANDLE;
  Stream* stream = reinterpret_cast<StreamHandle*>(handle)->stream.load(std::memory_order_acquire);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  close_stream(*stream);
  return CUDA_SUCCESS;
}
SIM_API CUresult cuStreamDestroy(CUstream handle) { return cuStreamDestroy_v2(handle); }

SIM_API CUresult cuStreamSynchronize(CUstream stream) { return synchronise(stream, Default::kLegacy); }
SIM_API CUresult cuStreamSynchronize_ptsz(CUstream stream) { return synchronise(stream, Default::kPerThread); }
SIM_API CUresult cuStreamQuery(CUstream stream) { return query(stream, Default::kLegacy); }
SIM_API CUresult cuStreamQuery_ptsz(CUstream stream) { return query(stream, Default::kPerThread); }

SIM_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return add_callback(stream, Default::kLegacy, function, nullptr, data);
}
SIM_API CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* data) {
  return add_callback(stream, Default::kPerThread, function, nullptr, data);
}
SIM_API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned) {
  return add_callback(stream, Default::kLegacy, nullptr, callback, data);
}
SIM_API CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void* data, unsigned) {
  return add_callback(stream, Default::kPerThread, nullptr, callback, data);
}

SIM_API CUresult cuStreamGetCtx(CUstream stream, CUcontext* out) {
  return read(stream, Default::kLegacy, [&](Stream& s) { *out = to_handle(s.context); });
}
SIM_API CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext* out) {
  return read(stream, Default::kPerThread, [&](Stream& s) { *out = to_handle(s.context); });
}
SIM_API CUresult cuStreamGetDevice(CUstream stream, CUdevice* out) {
  return read(stream, Default::kLegacy, [&](Stream& s) { *out = s.context->device; });
}
SIM_API CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice* out) {
  return read(stream, Default::kPerThread, [&](Stream& s) { *out = s.context->device; });
}
SIM_API CUresult cuStreamGetFlags(CUstream stream, unsigned* out) {
  return read(stream, Default::kLegacy, [&](Stream& s) { *out = s.flags; });
}
SIM_API CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned* out) {
  return read(stream, Default::kPerThread, [&](Stream& s) { *out = s.flags; });
}
SIM_API CUresult cuStreamGetPriority(CUstream stream, int* out) {
  return read(stream, Default::kLegacy, [&](Stream& s) { *out = s.priority; });
}
SIM_API CUresult cuStreamGetPriority_ptsz(CUstream stream, int* out) {
  return read(stream, Default::kPerThread, [&](Stream& s) { *out = s.priority; });
}
SIM_API CUresult cuStreamGetId(CUstream stream, unsigned long long* out) {
  return read(stream, Default::kLegacy, [&](Stream& s) { *out = s.id; });
}
SIM_API CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long* out) {
  return read(stream, Default::kPerThread, [&](Stream& s) { *out = s.id; });
}

}  // namespace simgpu
