// Start and end of what we are a guest of: cuInit, contexts.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/entry.h"
#include "interposer/hooks/reach.h"
#include "interposer/hooks/shortage.h"
#include "interposer/process/green_contexts.h"
#include "interposer/process/synchronize.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/symbols/references.h"

namespace nvshare::interposer {

namespace {

// A context takes hundreds of MiB. Where the driver has no room for it, the GPU's scheduler hears of us before we have one.
template <auto Function, typename... Arguments>
CUresult create(Process& process, CUdevice ordinal, Arguments... arguments) {
  CUresult result = call_real<Function>(arguments...);
  if (result != CUDA_ERROR_OUT_OF_MEMORY || !process.active()) return result;
  Device* device = process.attach(ordinal);
  Shortage shortage("the creation of a context");
  while (result == CUDA_ERROR_OUT_OF_MEMORY && device != nullptr && device->link().shared() && shortage.make_room_for_context(*device)) {
    result = call_real<Function>(arguments...);
  }
  return result;
}

// The device on which cuCtxCreate just made the current context. Refused: destroys it again.
CUresult made(Process& process, CUresult result, CUcontext* context, CUdevice device) {
  if (result != CUDA_SUCCESS || !process.active() || context == nullptr) return result;
  if (process.context_made(*context, device)) {
    contexts_made.store(true, std::memory_order_relaxed);
    look_at_fills_of_peers();
    return result;
  }
  real_driver().cuCtxDestroy_v2(*context);
  process.context_left(*context);
  *context = nullptr;
  return CUDA_ERROR_NOT_PERMITTED;
}

template <auto Function>
CUresult destroy(Process& process, CUcontext context) {
  if (!process.active()) return call_real<Function>(context);
  process.context_leaves(context);
  CUresult result = call_real<Function>(context);
  if (result == CUDA_SUCCESS) {
    process.context_left(context);
  } else {
    process.contexts.stays(context);
    settle_imports(process);
  }
  return result;
}

// `call` may end the primary context.
template <typename Call>
CUresult end_primary_by(Process& process, CUcontext context, CUdevice device, Call call) {
  process.context_leaves(context);
  CUresult result = call();
  unsigned flags = 0;
  int alive = 0;
  // Parts of the program may have retained it where no hook saw it.
  if (real_driver().cuDevicePrimaryCtxGetState(device, &flags, &alive) == CUDA_SUCCESS && alive != 0) {
    process.contexts.stays(context);
    settle_imports(process);
  } else {
    process.context_left(context);
  }
  return result;
}

template <auto Function>
CUresult end_primary(Process& process, CUdevice device) {
  CUcontext context = process.active() ? process.contexts.primary(device) : nullptr;
  if (context == nullptr) return call_real<Function>(device);
  return end_primary_by(process, context, device, [&] { return call_real<Function>(device); });
}

template <auto Function>
CUresult release_primary(Process& process, CUdevice device) {
  if (process.active() && process.contexts.release_keeps_primary(device)) return call_real<Function>(device);
  return end_primary<Function>(process, device);
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuInit(unsigned flags) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuInit>(flags);
  if (result != CUDA_SUCCESS) return result;
  if (!process.active()) process.start();
  hook_references_to_sessions();  // libraries initialise the driver before they use it
  return result;
}

NVSHARE_EXPORT CUresult cuCtxCreate(CUcontext* context, unsigned flags, CUdevice device) {
  Process& process = Entry().process();
  return made(process, create<&RealDriver::cuCtxCreate>(process, device, context, flags, device), context, device);
}

NVSHARE_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  Process& process = Entry().process();
  return made(process, create<&RealDriver::cuCtxCreate_v2>(process, device, context, flags, device), context, device);
}

NVSHARE_EXPORT CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count, unsigned flags, CUdevice device) {
  Process& process = Entry().process();
  return made(process, create<&RealDriver::cuCtxCreate_v3>(process, device, context, affinity, count, flags, device), context, device);
}

NVSHARE_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
  Process& process = Entry().process();
  return made(process, create<&RealDriver::cuCtxCreate_v4>(process, device, context, parameters, flags, device), context, device);
}

NVSHARE_EXPORT CUresult cuCtxDestroy(CUcontext context) { return destroy<&RealDriver::cuCtxDestroy>(Entry().process(), context); }
NVSHARE_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) { return destroy<&RealDriver::cuCtxDestroy_v2>(Entry().process(), context); }

// A context ends when it was detached from as often as it was made and attached to.
NVSHARE_EXPORT CUresult cuCtxAttach(CUcontext* context, unsigned flags) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuCtxAttach>(context, flags);
  if (result == CUDA_SUCCESS && process.active()) process.contexts.attached(*context);
  return result;
}

NVSHARE_EXPORT CUresult cuCtxDetach(CUcontext context) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuCtxDetach>(context);
  if (process.contexts.detach_keeps(context)) {
    CUresult result = call_real<&RealDriver::cuCtxDetach>(context);
    if (result != CUDA_SUCCESS) process.contexts.attached(context);
    return result;
  }
  return destroy<&RealDriver::cuCtxDetach>(process, context);
}

NVSHARE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Process& process = Entry().process();
  CUresult result = create<&RealDriver::cuDevicePrimaryCtxRetain>(process, device, context, device);
  if (result != CUDA_SUCCESS || !process.active()) return result;
  process.contexts.primary_made(*context, device);
  if (process.context_made(*context, device)) return result;
  real_driver().cuDevicePrimaryCtxRelease_v2(device);
  return CUDA_ERROR_NOT_PERMITTED;
}

// It retains the primary context until it is destroyed.
NVSHARE_EXPORT CUresult cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc resources, CUdevice device, unsigned flags) {
  Process& process = Entry().process();
  const CUresult result = create<&RealDriver::cuGreenCtxCreate>(process, device, handle, resources, device, flags);
  if (result != CUDA_SUCCESS || !process.active()) return result;
  GreenContexts::Green green{*handle, nullptr, nullptr, device};
  const RealDriver& driver = real_driver();
  if (driver.cuCtxFromGreenCtx(&green.context, *handle) != CUDA_SUCCESS) return result;
  if (driver.cuDevicePrimaryCtxRetain(&green.primary, device) != CUDA_SUCCESS) return result;
  driver.cuDevicePrimaryCtxRelease_v2(device);
  process.contexts.primary_made(green.primary, device);
  if (process.context_made(green.primary, device)) {
    process.green_contexts.made(green);
    return result;
  }
  driver.cuGreenCtxDestroy(*handle);
  return CUDA_ERROR_NOT_PERMITTED;
}

NVSHARE_EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  Process& process = Entry().process();
  GreenContexts::Green green;
  if (!process.active() || !process.green_contexts.find(handle, &green)) return call_real<&RealDriver::cuGreenCtxDestroy>(handle);
  // What was freed in the order of its streams is known to be done by their events.
  if (Device* device = process.device(green.ordinal)) device->memory().stream_frees.green_leaves(green.context, DeviceMemory::kLongWork_ns);
  auto destroy_it = [&] {
    const CUresult destroyed = call_real<&RealDriver::cuGreenCtxDestroy>(handle);
    if (destroyed != CUDA_SUCCESS) return destroyed;
    process.green_contexts.gone(handle);
    process.green_context_left(green.context);
    return destroyed;
  };
  if (!process.contexts.release_keeps_primary(green.ordinal)) return end_primary_by(process, green.primary, green.ordinal, destroy_it);
  const CUresult result = destroy_it();
  if (result != CUDA_SUCCESS) process.contexts.primary_made(green.primary, green.ordinal);
  return result;
}

// A conversion may give another handle than the first one.
NVSHARE_EXPORT CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  Process& process = Entry().process();
  const CUresult result = call_real<&RealDriver::cuCtxFromGreenCtx>(context, handle);
  GreenContexts::Green green;
  if (result != CUDA_SUCCESS || !process.active() || !process.green_contexts.find(handle, &green)) return result;
  if (process.green_contexts.primary_of(*context) == *context) {
    green.context = *context;
    process.green_contexts.made(green);
  }
  return result;
}

NVSHARE_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return release_primary<&RealDriver::cuDevicePrimaryCtxRelease>(Entry().process(), device);
}
NVSHARE_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release_primary<&RealDriver::cuDevicePrimaryCtxRelease_v2>(Entry().process(), device);
}
NVSHARE_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return end_primary<&RealDriver::cuDevicePrimaryCtxReset>(Entry().process(), device);
}
NVSHARE_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return end_primary<&RealDriver::cuDevicePrimaryCtxReset_v2>(Entry().process(), device);
}

}  // extern "C"
}  // namespace nvshare::interposer
