// Allocation and free in the order of streams, from the program's pools. Ours serve them but for foreign ones (memory/pools/pools.h), which
// the driver serves and which are counted.
#include "interposer/generated/hooks.h"
#include "interposer/hooks/capture_rules.h"
#include "interposer/hooks/current_context.h"
#include "interposer/hooks/frees.h"
#include "interposer/hooks/submit.h"
#include "interposer/hooks/unswappable.h"
#include "interposer/memory/driver_memory/graph_memory.h"

namespace nvshare::interposer {

namespace {

// It counts against the limit on the GPU of its stream; where it lies is the driver's affair.
template <typename Real>
CUresult allocate_of_managed_pool(Entry entry, CUdeviceptr* address, size_t bytes, const Pools::Pool& pool, Real real) {
  Process& process = entry.process();
  CUcontext current = nullptr;
  Device* device = process.current_device(&current);
  if (device == nullptr || device->refused() || address == nullptr || bytes == 0) return real();
  const size_t charged = charged_bytes(bytes);
  if (bytes > SIZE_MAX / 2 || !charge(*device, charged, "an allocation from a pool of managed memory")) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = pass_gate_once(entry, {nullptr, false}, real);
  if (result != CUDA_SUCCESS) {
    refund(*device, charged);
    return result;
  }
  refund_managed(process, process.pools.placed_managed(*address, pool.handle, bytes, device->ordinal()));
  return result;
}

// From a pool of our own, or (foreign) from the driver's, counted by what that pool has from the GPU.
template <typename Real>
CUresult allocate_in_order(Entry entry, CUdeviceptr* address, size_t bytes, CUstream stream, bool per_thread, const Pools::Pool& pool,
                           CUcontext context, Real real) {
  Process& process = entry.process();
  if (pool.managed) return allocate_of_managed_pool(entry, address, bytes, pool, real);
  Device* device = process.device(pool.ordinal);
  if (device == nullptr || device->refused()) return real();  // host memory, another process's, or a GPU that is not governed
  DeviceMemory& memory = device->memory();
  // Where nothing is shared nor limited, the driver's own pools have all their features: our plain memory would end with the context.
  const bool of_driver = device->backend() == protocol::Backend::kNone && !device->link().shared() && device->limit().bytes() == 0;
  if (of_driver) process.pools.make_foreign(pool.handle);
  if (!pool.foreign && !of_driver) {
    if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!process.pools.charge(pool.handle, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = memory.allocations.allocate_async(address, bytes, stream, per_thread, context);
    if (result == CUDA_SUCCESS) {
      process.pools.placed(*address, pool.handle, bytes);
    } else {
      process.pools.refund(pool.handle, bytes);
    }
    return result;
  }
  Shortage shortage("an allocation from a pool");
  for (;;) {
    const size_t claimed = charged_bytes(bytes);
    CUresult result = memory.driver.claim(claimed, "an allocation from a pool that may be shared");
    if (result != CUDA_SUCCESS) return result;
    result = real();
    memory.driver.settle_store(claimed, reinterpret_cast<uintptr_t>(pool.handle));
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !shortage.make_room(*device)) return result;
  }
}

// The pool of that handle; one without a handle: the driver is to answer.
Pools::Pool pool_named(Process& process, CUmemoryPool pool) {
  Pools::Pool known;
  if (process.pools.find(pool, &known)) return known;
  known = {};
  process.for_each_device([&](Device& device) {
    CUmemoryPool standard = nullptr;
    if (real_driver().cuDeviceGetDefaultMemPool(&standard, device.ordinal()) != CUDA_SUCCESS || standard != pool) return;
    known.handle = pool;
    known.ordinal = device.ordinal();
    process.pools.made(known);
  });
  return known;
}

// `pool_on(device)`: which pool it is to come from, on a stream of that GPU; one without a handle: the driver is to answer. `real`: the
// driver's call. `stream`: as the program named it.
template <typename PoolOn, typename Real>
CUresult allocate_on_stream(Entry entry, CUdeviceptr* address, size_t bytes, CUstream stream, bool per_thread, PoolOn pool_on, Real real) {
  Process& process = entry.process();
  const CUstream resolved = default_stream(stream, per_thread);
  if (bytes == 0) return real();  // which is no error, but beside a capture
  if (stream_captures(process, resolved)) {
    process.graph_memory.node_made();
    return real();
  }
  AtStream at(process, resolved);
  CUcontext context = nullptr;
  Device* device = process.current_device(&context);
  if (device == nullptr || device->refused()) return real();
  const Pools::Pool pool = pool_on(*device);
  if (pool.handle == nullptr) return real();
  if (const CUresult result = forbidden_in_order(process, resolved); result != CUDA_SUCCESS) return result;
  return allocate_in_order(entry, address, bytes, stream, per_thread, pool, context, real);
}

template <auto Function, bool PerThread>
CUresult allocate_async(Entry entry, CUdeviceptr* address, size_t bytes, CUstream stream) {
  Process& process = entry.process();
  const auto current = [&](Device& device) { return process.pools.current(device.ordinal()); };
  return allocate_on_stream(entry, address, bytes, stream, PerThread, current, [&] { return call_real<Function>(address, bytes, stream); });
}

template <auto Function, bool PerThread>
CUresult allocate_from_pool(Entry entry, CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  Process& process = entry.process();
  const auto named = [&](Device& device) {
    Pools::Pool known = process.pools.current(device.ordinal());
    if (known.handle != pool) known = pool_named(process, pool);
    // Another GPU's memory for this context's stream: the driver's, because ours is not mapped there.
    if (known.ordinal != device.ordinal()) known.foreign = true;
    return known;
  };
  return allocate_on_stream(entry, address, bytes, stream, PerThread, named,
                            [&] { return call_real<Function>(address, bytes, pool, stream); });
}

template <auto Function, bool PerThread>
CUresult free_async(Process& process, CUdeviceptr address, CUstream stream) {
  Device* owner = owner_for_free(process, &address);
  CUresult result = CUDA_SUCCESS;
  const CUstreamCaptureStatus status = capture_status(process, default_stream(stream, PerThread));
  const bool captured = status != CU_STREAM_CAPTURE_STATUS_NONE;
  if (owner == nullptr) {
    auto real = [&] { return call_real<Function>(address, stream); };
    return captured ? real() : free_of_driver(process, address, real);
  }
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;  // whatever is freed (measured)
  // Only a graph's own allocations are freed in it. The driver refuses, and its graph cannot be changed afterwards (an H200), so it is
  // asked.
  if (captured) return call_real<Function>(kNowhere, stream);
  AtStream at(process, default_stream(stream, PerThread));
  if (at.context() == nullptr) return call_real<Function>(address, stream);  // which says so
  if (process.current_is_gone()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if ((result = forbidden_in_order(process, default_stream(stream, PerThread))) != CUDA_SUCCESS) return result;
  const Pools::Placed placed = process.pools.take(address);
  if (!owner->memory().allocations.free_async(address, stream, PerThread, at.context(), at.green(), &result))
    result = call_real<Function>(address, stream);
  if (result != CUDA_SUCCESS) process.pools.put_back(placed);
  return result;
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async<&RealDriver::cuMemAllocAsync, false>(Entry(), address, bytes, stream);
}
NVSHARE_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async<&RealDriver::cuMemAllocAsync_ptsz, true>(Entry(), address, bytes, stream);
}
NVSHARE_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_from_pool<&RealDriver::cuMemAllocFromPoolAsync, false>(Entry(), address, bytes, pool, stream);
}
NVSHARE_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return allocate_from_pool<&RealDriver::cuMemAllocFromPoolAsync_ptsz, true>(Entry(), address, bytes, pool, stream);
}
NVSHARE_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_async<&RealDriver::cuMemFreeAsync, false>(Entry().process(), address, stream);
}
NVSHARE_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_async<&RealDriver::cuMemFreeAsync_ptsz, true>(Entry().process(), address, stream);
}

}  // extern "C"
}  // namespace nvshare::interposer
