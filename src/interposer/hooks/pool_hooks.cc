// Memory pools: the driver keeps the pool and its settings, the counts are ours (memory/pools/pools.h).
#include "interposer/generated/hooks.h"
#include "interposer/hooks/entry.h"
#include "interposer/hooks/reach.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

void measure(Process& process, CUmemoryPool pool) {
  Pools::Pool known;
  if (!process.active() || !process.pools.find(pool, &known) || !known.foreign) return;
  if (Device* device = process.device(known.ordinal)) device->memory().driver.measure(reinterpret_cast<uintptr_t>(pool));
}

// One that the driver has made itself.
void note_managed(Process& process, CUmemoryPool pool) {
  Pools::Pool known;
  if (process.pools.find(pool, &known)) return;
  known.handle = pool;
  known.foreign = known.managed = true;
  process.pools.made(known);
}

}  // namespace

extern "C" {

NVSHARE_EXPORT CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemPoolCreate>(pool, properties);
  Lock lock(process.pools.lives);
  CUresult result = call_real<&RealDriver::cuMemPoolCreate>(pool, properties);
  if (result != CUDA_SUCCESS) return result;
  Pools::Pool made;
  made.handle = *pool;
  const bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED;
  made.managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  made.ordinal = on_device ? properties->location.id : -1;
  made.foreign = !on_device || properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
  made.bytes_max = properties->maxSize;
  process.pools.made(made);
  return result;
}

NVSHARE_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemPoolDestroy>(pool);
  Lock lock(process.pools.lives);
  CUresult result = call_real<&RealDriver::cuMemPoolDestroy>(pool);
  if (result != CUDA_SUCCESS) return result;
  Pools::Pool known;
  // Its allocations live on. Those of the driver's stay counted until the pool would be trimmed, which it cannot be any more.
  if (process.pools.find(pool, &known) && known.foreign) {
    if (Device* device = process.device(known.ordinal)) device->memory().driver.release(reinterpret_cast<uintptr_t>(pool));
  }
  process.pools.gone(pool);
  return result;
}

// Its memory belongs to another process, which counts it.
NVSHARE_EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle, CUmemAllocationHandleType type,
                                                           unsigned long long flags) {
  Process& process = Entry().process();
  if (!process.active()) return call_real<&RealDriver::cuMemPoolImportFromShareableHandle>(pool, handle, type, flags);
  Lock lock(process.pools.lives);
  CUresult result = call_real<&RealDriver::cuMemPoolImportFromShareableHandle>(pool, handle, type, flags);
  if (result != CUDA_SUCCESS) return result;
  Pools::Pool imported;
  imported.handle = *pool;
  imported.foreign = true;
  process.pools.made(imported);
  return result;
}

// What other GPUs may use from now on has to come from the driver's pool; what we have served of it is opened to them.
NVSHARE_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuMemPoolSetAccess>(pool, access, count);
  Pools::Pool known;
  if (result != CUDA_SUCCESS || access == nullptr || !process.active()) return result;
  if (!process.pools.find(pool, &known)) {
    // A default pool that nobody has used yet.
    process.for_each_device([&](Device& device) { process.pools.current(device.ordinal()); });
    if (!process.pools.find(pool, &known)) return result;
  }
  uint32_t opened = 0, closed = 0;
  for (size_t i = 0; i < count; ++i) {
    const CUmemLocation& location = access[i].location;
    const bool of_gpu = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (of_gpu && location.id == known.ordinal) continue;
    const bool none = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (!none) process.pools.make_foreign(pool);
    if (of_gpu && location.id >= 0 && location.id < 32) (none ? closed : opened) |= 1u << location.id;
  }
  Device* owner = known.ordinal >= 0 ? process.device(known.ordinal) : nullptr;
  if ((opened | closed) == 0 || owner == nullptr) return result;
  process.pools.set_access(pool, opened, closed);
  if (!process.pools.placed_any()) return result;
  owner->memory().access.follow_pools(process.pools.reach());
  opened_to_others.store(true, std::memory_order_relaxed);  // its slabs have other pools' memory, and are used again
  return result;
}

NVSHARE_EXPORT CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuDeviceSetMemPool>(ordinal, pool);
  if (result == CUDA_SUCCESS) process.pools.set_current(ordinal, pool);
  return result;
}

NVSHARE_EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  Process& process = Entry().process();
  const CUresult result = call_real<&RealDriver::cuMemGetDefaultMemPool>(pool, location, type);
  if (result == CUDA_SUCCESS && type == CU_MEM_ALLOCATION_TYPE_MANAGED) note_managed(process, *pool);
  return result;
}

NVSHARE_EXPORT CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  Process& process = Entry().process();
  const CUresult result = call_real<&RealDriver::cuMemGetMemPool>(pool, location, type);
  if (result == CUDA_SUCCESS && type == CU_MEM_ALLOCATION_TYPE_MANAGED) note_managed(process, *pool);
  return result;
}

// The same for memory of every kind and place.
NVSHARE_EXPORT CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuMemSetMemPool>(location, type, pool);
  const bool of_gpu = result == CUDA_SUCCESS && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
  if (of_gpu) process.pools.set_current(location->id, pool);
  return result;
}

NVSHARE_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  CUresult result = call_real<&RealDriver::cuMemPoolTrimTo>(pool, keep);
  if (result == CUDA_SUCCESS) measure(Entry().process(), pool);
  return result;
}

NVSHARE_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  Process& process = Entry().process();
  uint64_t count = 0;
  if (value == nullptr || !process.active() || !process.pools.attribute(pool, attribute, &count)) {
    return call_real<&RealDriver::cuMemPoolGetAttribute>(pool, attribute, value);
  }
  *static_cast<cuuint64_t*>(value) = count;
  return CUDA_SUCCESS;
}

// The driver judges the value: a high-water mark can be set to zero only, which means to what is in use now.
NVSHARE_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  Process& process = Entry().process();
  CUresult result = call_real<&RealDriver::cuMemPoolSetAttribute>(pool, attribute, value);
  if (result == CUDA_SUCCESS && process.active()) process.pools.reset_high(pool, attribute);
  return result;
}

}  // extern "C"
}  // namespace nvshare::interposer
