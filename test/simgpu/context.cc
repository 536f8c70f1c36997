#include "simgpu/context.h"

#include <unistd.h>

#include <algorithm>

#include "simgpu/capture.h"
#include "simgpu/config.h"
#include "simgpu/graph_memory.h"

namespace simgpu {

constexpr unsigned kMapHost = 8;      // CU_CTX_MAP_HOST: a driver sets it itself
constexpr unsigned kAllFlags = 0xff;  // CU_CTX_FLAGS_MASK

Context* to_context(CUcontext handle) { return reinterpret_cast<Context*>(handle); }

bool valid_device(CUdevice device) { return device >= 0 && device < Machine::get().device_count(); }

Context* open_context(int device, unsigned flags, Context* revived) {
  Process& process = here();
  const uint64_t bytes = config().context_bytes;
  if (!Machine::get().charge(device, process.slot, Charge::kContext, bytes)) return nullptr;
  Context* context = revived != nullptr ? revived : new Context;
  context->device = device;
  context->flags = flags;
  context->id = process.next_id.fetch_add(1);
  context->charged_bytes = bytes;
  context->modules_charged.store(false);
  context->error.store(0);
  context->peers.store(0);
  context->alive.store(true, std::memory_order_release);
  Stream* legacy = create_stream(*context, CU_STREAM_DEFAULT, 0);
  {
    std::lock_guard lock(context->mutex);
    legacy->legacy = true;
    context->legacy = legacy;
  }
  if (revived == nullptr) {
    std::lock_guard lock(process.mutex);
    process.contexts.push_back(context);
  }
  return context;
}

void close_context(Context& context) {
  drain(context);
  if (!context.alive.exchange(false)) return;
  std::vector<Stream*> streams;
  {
    std::lock_guard lock(context.mutex);
    streams = context.streams;
    context.legacy = nullptr;
  }
  for (Stream* stream : streams) close_stream(*stream);
  free_memory_of(context);
  trim_graph_memory(context.device);
  Machine::get().release(context.device, here().slot, Charge::kContext, context.charged_bytes);
}

bool charge_context(Context& context, uint64_t bytes) {
  if (fault_strikes(Machine::get().faults().driver_oom)) return false;
  if (bytes == 0) return true;
  if (!Machine::get().charge(context.device, here().slot, Charge::kContext, bytes)) return false;
  std::lock_guard lock(here().mutex);
  context.charged_bytes += bytes;
  return true;
}

namespace {

CUresult create(CUcontext* out, unsigned flags, CUdevice device) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (t_thread.depth == static_cast<int>(t_thread.stack.size())) return CUDA_ERROR_INVALID_VALUE;
  if (fault_strikes(Machine::get().faults().context_oom)) return CUDA_ERROR_OUT_OF_MEMORY;
  Context* context = open_context(device, flags, nullptr);
  if (context == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  t_thread.stack[static_cast<size_t>(t_thread.depth++)] = context;
  *out = to_handle(context);
  return CUDA_SUCCESS;
}

CUresult destroy(CUcontext handle) {
  if (const CUresult result = enter_process()) return result;
  Context* context = to_context(handle);
  if (context == nullptr || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive.load()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  close_context(*context);
  if (t_thread.current() == context) --t_thread.depth;
  return CUDA_SUCCESS;
}

CUresult release_primary(CUdevice device, bool all) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Process& process = here();
  Context* closing = nullptr;
  {
    std::lock_guard lock(process.mutex);
    Process::Primary& primary = process.primaries[static_cast<size_t>(device)];
    if (primary.references == 0) return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    primary.references = all ? 0 : primary.references - 1;
    if (primary.references == 0) closing = primary.context;
  }
  if (closing != nullptr) close_context(*closing);
  return CUDA_SUCCESS;
}

// A green context may be current to one thread at a time.
void becomes_current(Context& context) {
  if (context.parent == nullptr) return;
  int holder = 0;
  const int thread = gettid();
  if (context.holder.compare_exchange_strong(holder, thread) || holder == thread) return;
  report_fault(context, CUDA_ERROR_INVALID_CONTEXT, "a green context was made current to a second thread");
}
void is_current_no_more(Context* context) {
  int thread = gettid();
  if (context != nullptr && context->parent != nullptr) context->holder.compare_exchange_strong(thread, 0);
}

CUresult push(CUcontext handle) {
  if (const CUresult result = enter_process()) return result;
  Context* context = to_context(handle);
  if (context == nullptr || !context->alive.load()) return CUDA_ERROR_INVALID_CONTEXT;
  if (t_thread.depth == static_cast<int>(t_thread.stack.size())) return CUDA_ERROR_INVALID_VALUE;
  t_thread.stack[static_cast<size_t>(t_thread.depth++)] = context;
  becomes_current(*context);
  return CUDA_SUCCESS;
}

CUresult pop(CUcontext* out) {
  if (const CUresult result = enter_process()) return result;
  if (t_thread.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  Context* context = t_thread.stack[static_cast<size_t>(--t_thread.depth)];
  if (out != nullptr) *out = to_handle(context);
  is_current_no_more(context);
  return CUDA_SUCCESS;
}

CUresult synchronise(Context& context) {
  if (t_thread.in_callback) return CUDA_ERROR_NOT_PERMITTED;  // documented of host functions
  if (const CUresult result = check_synchronisation(context)) return result;
  drain(context);
  return static_cast<CUresult>(context.error.load(std::memory_order_acquire));
}

}  // namespace

SIM_API CUresult cuCtxCreate(CUcontext* out, unsigned flags, CUdevice device) { return create(out, flags, device); }
SIM_API CUresult cuCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device) { return create(out, flags, device); }
SIM_API CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam*, int, unsigned flags, CUdevice device) {
  return create(out, flags, device);
}
SIM_API CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams*, unsigned flags, CUdevice device) { return create(out, flags, device); }
SIM_API CUresult cuCtxAttach(CUcontext* out, unsigned flags) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = t_thread.current();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->primary) context->attachments.fetch_add(1);
  *out = to_handle(context);
  return CUDA_SUCCESS;
}
// The last use ends the context. The primary one is for those who retained it (recorded).
SIM_API CUresult cuCtxDetach(CUcontext handle) {
  if (const CUresult result = enter_process()) return result;
  Context* context = to_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive.load()) return context->primary ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
  if (context->primary) return CUDA_SUCCESS;
  if (context->attachments.load() == 0) return destroy(handle);
  context->attachments.fetch_sub(1);
  return CUDA_SUCCESS;
}
SIM_API CUresult cuCtxDestroy(CUcontext context) { return destroy(context); }
SIM_API CUresult cuCtxDestroy_v2(CUcontext context) { return destroy(context); }
SIM_API CUresult cuCtxPushCurrent(CUcontext context) { return push(context); }
SIM_API CUresult cuCtxPushCurrent_v2(CUcontext context) { return push(context); }
SIM_API CUresult cuCtxPopCurrent(CUcontext* out) { return pop(out); }
SIM_API CUresult cuCtxPopCurrent_v2(CUcontext* out) { return pop(out); }

SIM_API CUresult cuCtxSetCurrent(CUcontext handle) {
  if (const CUresult result = enter_process()) return result;
  Context* context = to_context(handle);
  if (context == nullptr) {
    is_current_no_more(t_thread.current());
    if (t_thread.depth > 0) --t_thread.depth;
    return CUDA_SUCCESS;
  }
  if (!context->alive.load()) return CUDA_ERROR_INVALID_CONTEXT;
  is_current_no_more(t_thread.current());
  if (t_thread.depth == 0) t_thread.depth = 1;
  t_thread.stack[static_cast<size_t>(t_thread.depth - 1)] = context;
  becomes_current(*context);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetCurrent(CUcontext* out) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = to_handle(t_thread.current());
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice(CUdevice* out) {
  Context* context = nullptr;
  // A context that is gone says its device all the same (measured, driver 580).
  if (const CUresult result = enter(&context); result == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    context = t_thread.current();
  } else if (result != CUDA_SUCCESS) {
    return result;
  }
  *out = context->device;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice_v2(CUdevice* out, CUcontext handle) {
  if (const CUresult result = enter_process()) return result;
  const Context* context = handle == nullptr ? t_thread.current() : to_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *out = context->device;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetFlags(unsigned* out) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  *out = context->flags | (context->primary ? kMapHost : 0u);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetFlags(unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if ((flags & ~kAllFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetId(CUcontext handle, unsigned long long* out) {
  if (const CUresult result = enter_process()) return result;
  const Context* context = handle == nullptr ? t_thread.current() : to_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *out = context->id;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetApiVersion(CUcontext, unsigned* out) {
  if (const CUresult result = enter_process()) return result;
  *out = 3020;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSynchronize() {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  return synchronise(*context);
}

SIM_API CUresult cuCtxSynchronize_v2(CUcontext handle) {
  if (const CUresult result = enter_process()) return result;
  Context* context = handle == nullptr ? t_thread.current() : to_context(handle);
  if (context == nullptr || !context->alive.load()) return CUDA_ERROR_INVALID_CONTEXT;
  return synchronise(*context);
}

SIM_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  constexpr unsigned kDeviceSyncDepth = 3, kLast = 8;
  if (limit == kDeviceSyncDepth) return static_cast<CUresult>(215);  // CUDA_ERROR_UNSUPPORTED_LIMIT
  if (limit > kLast) return CUDA_ERROR_INVALID_VALUE;
  *value = 0;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetLimit(CUlimit, size_t) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  return charge_context(*context, 0) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuCtxGetCacheConfig(CUfunc_cache* out) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  *out = CUfunc_cache{};
  return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetCacheConfig(CUfunc_cache) {
  Context* context = nullptr;
  return enter(&context);
}

SIM_API CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  Process& process = here();
  static std::mutex* const kOpening = new std::mutex;  // open_context() takes Process::mutex itself
  std::lock_guard opening(*kOpening);
  Process::Primary& primary = process.primaries[static_cast<size_t>(device)];
  unsigned references = 0;
  {
    std::lock_guard lock(process.mutex);
    references = primary.references;
  }
  if (references == 0) {
    Context* context = open_context(device, primary.flags, primary.context);
    if (context == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard lock(process.mutex);
    context->primary = true;
    primary.context = context;
  }
  std::lock_guard lock(process.mutex);
  ++primary.references;
  *out = to_handle(primary.context);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return release_primary(device, false); }
SIM_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return release_primary(device, false); }
SIM_API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return release_primary(device, true); }
SIM_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return release_primary(device, true); }

SIM_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(here().mutex);
  const Process::Primary& primary = here().primaries[static_cast<size_t>(device)];
  if (flags != nullptr) *flags = primary.flags;
  if (active != nullptr) *active = primary.references > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

namespace {

CUresult set_primary_flags(CUdevice device, unsigned flags) {
  if (const CUresult result = enter_process()) return result;
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(here().mutex);
  here().primaries[static_cast<size_t>(device)].flags = flags;
  return CUDA_SUCCESS;
}

}  // namespace

SIM_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) { return set_primary_flags(device, flags); }
SIM_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) { return set_primary_flags(device, flags); }

}  // namespace simgpu
