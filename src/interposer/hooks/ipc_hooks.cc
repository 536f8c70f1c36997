// Legacy IPC and peer access. IPC events are the driver's own: work that was submitted is done before memory leaves the GPU, so an event
// that was recorded comes to pass; and a wait for one that a neighbour records later waits for nothing, by the driver's rules.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/entry.h"
#include "interposer/hooks/nowhere.h"
#include "interposer/hooks/reach.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/ipc.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

template <auto Function>
CUresult open_memory(Process& process, CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  CUresult result = CUDA_SUCCESS;
  // The flags are looked at before the context is (measured).
  if (process.current_is_gone() && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (process.active() && process.ipc.open(address, handle, flags, &result)) {
    if (result == CUDA_SUCCESS) opened_to_others.store(true, std::memory_order_relaxed);
    return result;
  }
  return call_real<Function>(address, handle, flags);
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  Process& process = Entry().process();
  CUresult result = CUDA_SUCCESS;
  // As natively: memory of a pool is not handed over in this way.
  AllocationRange range;
  bool within = false;
  if (process.current_is_gone()) return address == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_CONTEXT_IS_DESTROYED;  // measured
  CUcontext current = nullptr;
  if (process.active() && real_driver().cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (Device* owner = process.active() ? process.owner(address, &range, &within) : nullptr) {
    if (process.pools.placed_at(range.base).pool != nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (owner->memory().stream_frees.is_over(range)) return call_real<&RealDriver::cuIpcGetMemHandle>(handle, kNowhere);
  }
  if (process.active() && process.ipc.export_memory(handle, address, &result)) return result;
  if (within) address = kNowhere;  // of ours, but no memory of the program's
  return call_real<&RealDriver::cuIpcGetMemHandle>(handle, address);
}

NVSHARE_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return open_memory<&RealDriver::cuIpcOpenMemHandle>(Entry().process(), address, handle, flags);
}
NVSHARE_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return open_memory<&RealDriver::cuIpcOpenMemHandle_v2>(Entry().process(), address, handle, flags);
}

NVSHARE_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  Process& process = Entry().process();
  CUresult result = CUDA_SUCCESS;
  if (process.current_is_gone()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (process.active() && process.ipc.close(address, &result)) return result;
  return call_real<&RealDriver::cuIpcCloseMemHandle>(address);
}

NVSHARE_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuCtxEnablePeerAccess>(peer, flags);
  if (result != CUDA_SUCCESS || !process.active()) return result;
  process.peers.enabled(peer);
  peers_enabled.store(true, std::memory_order_relaxed);
  look_at_fills_of_peers();
  return result;
}

NVSHARE_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuCtxDisablePeerAccess>(peer);
  if (result == CUDA_SUCCESS && process.active()) process.peers.disabled(peer);
  return result;
}

}  // extern "C"
}  // namespace nvshare::interposer
