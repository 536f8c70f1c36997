// Green contexts: parts of the primary context with streams of their own. No multiprocessors are set apart: work runs as anywhere else.
// As documented, one keeps the primary context alive, which waits for it, and may be current to one thread at a time; its memory is the
// primary context's. A second thread that makes one current is a fault here.
#include <cstring>

#include "simgpu/context.h"

namespace simgpu {
namespace {

constexpr unsigned kMultiprocessors = 1;  // CU_DEV_RESOURCE_TYPE_SM
constexpr int kCount = 132;
constexpr size_t kCountAt = 96;  // in CUdevResource
constexpr size_t kResourceBytes = 144;
constexpr auto kInvalidResource = static_cast<CUresult>(914);

Context* to_green(CUgreenCtx handle) {
  auto* context = reinterpret_cast<Context*>(handle);
  return context != nullptr && context->parent != nullptr && context->alive.load() ? context : nullptr;
}

CUresult resources(void* out, unsigned type) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != kMultiprocessors) return kInvalidResource;
  std::memset(out, 0, kResourceBytes);
  std::memcpy(out, &type, sizeof type);
  std::memcpy(static_cast<char*>(out) + kCountAt, &kCount, sizeof kCount);
  return CUDA_SUCCESS;
}

}  // namespace

SIM_API CUresult cuDeviceGetDevResource(CUdevice device, void* out, unsigned type) {
  if (const CUresult result = enter_process()) return result;
  return valid_device(device) ? resources(out, type) : CUDA_ERROR_INVALID_DEVICE;
}

// A description of nothing means everything (measured).
SIM_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* out, void* resource, unsigned count) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || resource == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc, CUdevice device, unsigned flags) {
  if (const CUresult result = enter_process()) return result;
  if (out == nullptr || flags != 1) return CUDA_ERROR_INVALID_VALUE;
  CUcontext primary = nullptr;
  if (const CUresult result = cuDevicePrimaryCtxRetain(&primary, device)) return result;
  auto* context = new Context;
  context->device = device;
  context->parent = reinterpret_cast<Context*>(primary);
  context->id = here().next_id.fetch_add(1);
  Stream* standard = create_stream(*context, CU_STREAM_DEFAULT, 0);
  {
    std::lock_guard lock(context->mutex);
    standard->legacy = true;
    context->legacy = standard;
  }
  std::lock_guard lock(here().mutex);
  here().contexts.push_back(context);
  *out = reinterpret_cast<CUgreenCtx>(context);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  if (const CUresult result = enter_process()) return result;
  Context* context = to_green(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  drain(*context);
  context->alive.store(false);
  return cuDevicePrimaryCtxRelease_v2(context->device);
}

SIM_API CUresult cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx handle) {
  if (const CUresult result = enter_process()) return result;
  if (to_green(handle) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUcontext>(handle);
  return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* out) {
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, Default::kLegacy, &stream)) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = stream->context->parent != nullptr ? reinterpret_cast<CUgreenCtx>(stream->context) : nullptr;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxStreamCreate(CUstream* out, CUgreenCtx handle, unsigned flags, int priority) {
  if (const CUresult result = enter_process()) return result;
  Context* context = to_green(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (out == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *out = to_handle(create_stream(*context, flags, priority));
  return CUDA_SUCCESS;
}

}  // namespace simgpu
