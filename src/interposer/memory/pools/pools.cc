#include "interposer/memory/pools/pools.h"

#include <algorithm>
#include <iterator>

#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUdeviceptr;
using cuda::CUmemoryPool;
using cuda::CUmemPool_attribute;

// What a pool would have from the driver: whole pages.
size_t Pools::reserved(size_t used) {
  constexpr size_t kPageBytes = size_t{2} << 20;
  return (used + kPageBytes - 1) / kPageBytes * kPageBytes;
}

Pools::Pool* Pools::lookup(CUmemoryPool pool) {
  for (Pool& known : pools_) {
    if (known.handle == pool) return &known;
  }
  return nullptr;
}

void Pools::made(const Pool& pool) {
  Lock lock(mutex_);
  if (Pool* known = lookup(pool.handle)) {
    *known = pool;
  } else {
    pools_.push_back(pool);
  }
}

void Pools::gone(CUmemoryPool pool) {
  Lock lock(mutex_);
  std::erase_if(pools_, [&](const Pool& known) { return known.handle == pool; });
  for (CUmemoryPool& current : current_) {
    if (current == pool) current = nullptr;  // the default one again
  }
}

bool Pools::find(CUmemoryPool pool, Pool* found) {
  Lock lock(mutex_);
  const Pool* known = lookup(pool);
  if (known == nullptr) return false;
  *found = *known;
  return true;
}

void Pools::make_foreign(CUmemoryPool pool) {
  Lock lock(mutex_);
  if (Pool* known = lookup(pool)) known->foreign = true;
}

void Pools::set_access(CUmemoryPool pool, uint32_t opened, uint32_t closed) {
  Lock lock(mutex_);
  for (std::vector<Placed>& all : placed_) {
    for (Placed& each : all) {
      if (each.pool == pool) each.open_to = (each.open_to | opened) & ~closed;
    }
  }
}

std::vector<Pools::Reach> Pools::reach() {
  std::vector<Reach> found;
  Lock lock(mutex_);
  for (const std::vector<Placed>& all : placed_) {
    for (const Placed& each : all) {
      if (each.charged_to < 0) found.push_back({each.address, each.open_to});
    }
  }
  return found;
}

Pools::Pool Pools::current(int ordinal) {
  if (ordinal < 0 || ordinal >= kDevicesMax) return {};
  {
    Lock lock(mutex_);
    if (const Pool* known = current_[ordinal] != nullptr ? lookup(current_[ordinal]) : nullptr) return *known;
  }
  CUmemoryPool handle = nullptr;
  if (real_driver().cuDeviceGetMemPool(&handle, ordinal) != cuda::CUDA_SUCCESS) return {};
  Lock lock(mutex_);
  current_[ordinal] = handle;
  if (const Pool* known = lookup(handle)) return *known;
  Pool pool;
  pool.handle = handle;
  pool.ordinal = ordinal;
  pools_.push_back(pool);
  return pool;
}

void Pools::set_current(int ordinal, CUmemoryPool pool) {
  if (ordinal < 0 || ordinal >= kDevicesMax) return;
  Lock lock(mutex_);
  current_[ordinal] = pool;
}

bool Pools::charge(CUmemoryPool pool, size_t bytes) {
  Lock lock(mutex_);
  Pool* known = lookup(pool);
  if (known == nullptr) return true;
  if (known->bytes_max != 0 && (bytes > known->bytes_max || known->used + known->asked > known->bytes_max - bytes)) return false;
  known->asked += bytes;
  return true;
}

void Pools::refund(CUmemoryPool pool, size_t bytes) {
  Lock lock(mutex_);
  if (Pool* known = lookup(pool)) known->asked -= std::min(known->asked, bytes);
}

void Pools::placed(CUdeviceptr address, CUmemoryPool pool, size_t bytes) {
  placed_any_.store(true, std::memory_order_relaxed);
  Lock lock(mutex_);
  bucket(address).push_back({address, pool, bytes});
  Pool* known = lookup(pool);
  if (known == nullptr) return;
  known->asked -= std::min(known->asked, bytes);
  known->used += bytes;
  known->used_high = std::max(known->used_high, known->used);
  known->reserved_high = std::max(known->reserved_high, reserved(known->used));
}

Pools::Placed Pools::placed_managed(CUdeviceptr address, CUmemoryPool pool, size_t bytes, int charged_to) {
  placed_managed_any_.store(true, std::memory_order_relaxed);
  Lock lock(mutex_);
  for (Placed& each : bucket(address)) {
    if (each.address != address) continue;
    const Placed before = each;
    each = {address, pool, bytes, charged_to, 0};
    return before;
  }
  bucket(address).push_back({address, pool, bytes, charged_to, 0});
  return {};
}

std::vector<Pools::Placed> Pools::managed_of(int ordinal) {
  std::vector<Placed> found;
  if (!placed_managed_any()) return found;
  Lock lock(mutex_);
  for (const std::vector<Placed>& all : placed_) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(found), [ordinal](const Placed& each) { return each.charged_to == ordinal; });
  }
  return found;
}

Pools::Placed Pools::take(CUdeviceptr address) {
  Lock lock(mutex_);
  std::vector<Placed>& all = bucket(address);
  for (Placed& each : all) {
    if (each.address != address) continue;
    const Placed taken = each;
    each = all.back();
    all.pop_back();
    if (Pool* known = lookup(taken.pool)) known->used -= std::min(known->used, taken.bytes);
    return taken;
  }
  return {};
}

void Pools::put_back(const Placed& placed_before) {
  if (placed_before.pool == nullptr) return;
  Lock lock(mutex_);
  if (Pool* known = lookup(placed_before.pool)) known->used += placed_before.bytes;
  bucket(placed_before.address).push_back(placed_before);
}

Pools::Placed Pools::placed_at(CUdeviceptr address) {
  Lock lock(mutex_);
  for (const Placed& each : bucket(address)) {
    if (each.address == address) return each;
  }
  return {};
}

bool Pools::attribute(CUmemoryPool pool, CUmemPool_attribute attribute, uint64_t* value) {
  Lock lock(mutex_);
  const Pool* known = lookup(pool);
  if (known == nullptr || known->foreign) return false;
  switch (attribute) {
    case cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *value = reserved(known->used);
      return true;
    case cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *value = known->reserved_high;
      return true;
    case cuda::CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *value = known->used;
      return true;
    case cuda::CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *value = known->used_high;
      return true;
    case cuda::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case cuda::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case cuda::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    case cuda::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return false;
  }
  return false;  // of a later driver
}

void Pools::reset_high(CUmemoryPool pool, CUmemPool_attribute attribute) {
  Lock lock(mutex_);
  Pool* known = lookup(pool);
  if (known == nullptr) return;
  if (attribute == cuda::CU_MEMPOOL_ATTR_USED_MEM_HIGH) known->used_high = known->used;
  if (attribute == cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) known->reserved_high = reserved(known->used);
}

}  // namespace nvshare::interposer
