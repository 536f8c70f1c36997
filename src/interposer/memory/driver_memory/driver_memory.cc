#include "interposer/memory/driver_memory/driver_memory.h"

#include <algorithm>
#include <utility>

#include "base/amount.h"
#include "interposer/gate/gate.h"
#include "interposer/log.h"
#include "interposer/memory/limits/charges.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUresult;

void DriverMemory::changed() { device_.turns().memory_changed(); }

// ---- holdings ----

CUresult DriverMemory::claim(size_t bytes, const char* what) {
  if (bytes > SIZE_MAX / 2 || !charge(device_, bytes, what)) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  Mark* mark = Gate::mark();
  if (mark == nullptr) {
    refund(device_, bytes);
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (bool trimmed = false, waited = false;;) {
    device_.process().wait_for_gate();
    if (device_.process().ending()) {
      refund(device_, bytes);
      return cuda::CUDA_ERROR_DEINITIALIZED;
    }
    const uint32_t flags = device_.process().gate.enter(mark);
    const bool open = (flags & device_.gate_bit()) == 0;
    bool running = false;
    if (open && residency_.claim(bytes, &running)) return cuda::CUDA_SUCCESS;
    device_.process().gate.leave(mark);
    if (!open || !running) {
      sleep_ns(1'000'000);  // the lock went in between; or the turn has not quite begun
      continue;
    }
    if (!trimmed) {
      trimmed = true;
      device_.memory().give_back_caches();
      continue;
    }
    if (device_.turns().grow(bytes) != Turns::Growth::kOutOfMemory) continue;
    if (!std::exchange(waited, true)) {
      device_.memory().give_back_caches(DeviceMemory::kLongWork_ns);
      continue;
    }
    refund(device_, bytes);
    log(LogLevel::kInfo, "%s of %s was refused: the scheduler finds no room (%s allocated, %s of them on the GPU)", what,
        amount(bytes).text, amount(use_.allocated()).text, amount(use_.resident()).text);
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  }
}

void DriverMemory::set(size_t claimed, const Holding& holding) {
  auto known = std::find_if(holdings_.begin(), holdings_.end(), [&](const Holding& other) { return other.key == holding.key; });
  size_t before = claimed;
  if (known != holdings_.end()) {
    before += known->bytes;
    holdings_.erase(known);
  }
  if (holding.bytes > 0) holdings_.push_back(holding);
  change(before, holding.bytes);
}

void DriverMemory::settle(size_t claimed, const Holding& holding) {
  {
    Lock lock(mutex_);
    if (holding.bytes > 0) {
      set(claimed, holding);
    } else {
      change(claimed, 0);
    }
  }
  device_.process().gate.leave(Gate::mark());
  changed();
}

void DriverMemory::change(size_t from, size_t to) {
  if (to > from) {
    use_.add_fixed(to - from);
    device_.turns().charge_unasked(to - from);
  } else if (to < from) {
    use_.drop_fixed(from - to);
    refund(device_, from - to);
  }
}

DriverMemory::Holding DriverMemory::release(uint64_t key) {
  Holding released{};
  {
    Lock lock(mutex_);
    auto found = std::find_if(holdings_.begin(), holdings_.end(), [&](const Holding& holding) { return holding.key == key; });
    if (found == holdings_.end()) return released;
    released = *found;
    change(released.bytes, 0);
    holdings_.erase(found);
  }
  changed();
  return released;
}

void DriverMemory::hold_again(const Holding& holding) {
  {
    Lock lock(mutex_);
    set(0, holding);
  }
  changed();
}

void DriverMemory::inherit(size_t bytes) {
  use_.add_fixed(bytes);
  device_.turns().charge_unasked(bytes);
  changed();
}

void DriverMemory::disinherit(size_t bytes) {
  refund(device_, bytes);
  use_.drop_fixed(bytes);
  changed();
}

void DriverMemory::context_gone(CUcontext context) {
  Lock lock(mutex_);
  std::erase_if(holdings_, [&](const Holding& holding) {
    if (holding.context != context) return false;
    change(holding.bytes, 0);
    return true;
  });
}

// ---- stores of the driver's ----

size_t DriverMemory::store_bytes(uint64_t store) const {
  const RealDriver& driver = real_driver();
  cuda::cuuint64_t bytes = 0;
  CUresult result = cuda::CUDA_SUCCESS;
  if (store == kGraphs) {
    result = driver.cuDeviceGetGraphMemAttribute(device_.ordinal(), cuda::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes);
  } else {
    result = driver.cuMemPoolGetAttribute(reinterpret_cast<cuda::CUmemoryPool>(store), cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
  }
  return result == cuda::CUDA_SUCCESS ? bytes : 0;
}

void DriverMemory::settle_store(size_t claimed, uint64_t store) {
  const size_t bytes = store_bytes(store);
  {
    Lock lock(mutex_);
    set(claimed, {store, bytes, nullptr, true});
  }
  device_.process().gate.leave(Gate::mark());
  changed();
}

void DriverMemory::measure(uint64_t store) {
  const size_t bytes = store_bytes(store);
  {
    Lock lock(mutex_);
    set(0, {store, bytes, nullptr, true});
  }
  changed();
}

void DriverMemory::trimmed(uint64_t store) {
  trims_.fetch_add(1, std::memory_order_acq_rel);
  measure(store);
}

void DriverMemory::trim() {
  std::vector<uint64_t> stores;
  Lock pools_stay(device_.process().pools.lives);
  {
    Lock lock(mutex_);
    for (const Holding& holding : holdings_) {
      if (holding.is_store) stores.push_back(holding.key);
    }
  }
  if (stores.empty()) return;
  CapturesHeldOff held_off(device_.process().captures);
  if (!held_off) return;
  trims_.fetch_add(1, std::memory_order_acq_rel);  // before: a launch that comes between claims its memory anew
  for (uint64_t store : stores) {
    if (store == kGraphs) {
      real_driver().cuDeviceGraphMemTrim(device_.ordinal());
    } else {
      real_driver().cuMemPoolTrimTo(reinterpret_cast<cuda::CUmemoryPool>(store), 0);
    }
    measure(store);
  }
}

}  // namespace nvshare::interposer
