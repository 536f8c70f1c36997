// Memory that the driver allocates for the program and that cannot leave the GPU: arrays, memory of graphs, of exported pools. It is
// counted like any other, but it needs the lock and room in the budget before the driver allocates it, because there is no turn to put it
// off to.
#include <algorithm>

#include "interposer/gate/gate.h"
#include "interposer/log.h"
#include "interposer/memory/memory.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUresult;

CUresult Memory::claim_unswappable(size_t bytes, const char* what) {
  if (bytes > SIZE_MAX / 2 || !charge(bytes, what)) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  Client& client = device_.client();
  Mark* mark = Gate::mark();
  if (mark == nullptr) {
    refund(bytes);
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (bool trimmed = false;;) {
    process().wait_for_gate();
    if (Process::ending()) {
      refund(bytes);
      return cuda::CUDA_ERROR_DEINITIALIZED;
    }
    const uint32_t flags = gate.enter(mark);
    const bool open = (flags & device_.gate_bit()) == 0;
    bool running = false;
    {
      Lock lock(mutex_);
      running = running_;
      if (open && running && resident() + bytes <= client.budget()) {
        allocated_.fetch_add(bytes, std::memory_order_relaxed);
        resident_.fetch_add(bytes, std::memory_order_relaxed);
        unswappable_.fetch_add(bytes, std::memory_order_relaxed);
        return cuda::CUDA_SUCCESS;
      }
    }
    gate.leave(mark);
    if (!open || !running) {
      sleep_ns(1'000'000);  // the lock went in between; or the turn has not quite begun
      continue;
    }
    if (!trimmed) {
      trimmed = true;
      give_back_caches();
      continue;
    }
    if (client.grow(bytes) != Client::Growth::kOutOfMemory) continue;
    refund(bytes);
    log(LogLevel::kInfo, "%s of %zu bytes was refused: the scheduler finds no room (%zu bytes allocated, %zu of them on the GPU)", what,
        bytes, allocated(), resident());
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  }
}

void Memory::set_holding(size_t claimed, const Holding& holding) {
  auto known = std::find_if(holdings_.begin(), holdings_.end(), [&](const Holding& other) { return other.key == holding.key; });
  size_t before = claimed;
  if (known != holdings_.end()) {
    before += known->bytes;
    holdings_.erase(known);
  }
  if (holding.bytes > 0) holdings_.push_back(holding);
  change_unswappable(before, holding.bytes);
}

void Memory::settle_unswappable(size_t claimed, const Holding& holding) {
  {
    Lock lock(mutex_);
    if (holding.bytes > 0) {
      set_holding(claimed, holding);
    } else {
      change_unswappable(claimed, 0);
    }
  }
  gate.leave(Gate::mark());
  changed();
}

void Memory::change_unswappable(size_t from, size_t to) {
  if (to == from) return;
  // Unsigned, so that a fall is an addition of its complement.
  const size_t difference = to - from;
  unswappable_.fetch_add(difference, std::memory_order_relaxed);
  resident_.fetch_add(difference, std::memory_order_relaxed);
  allocated_.fetch_add(difference, std::memory_order_relaxed);
  if (to > from) {
    device_.client().charge_unasked(to - from);
  } else {
    refund(from - to);
  }
}

size_t Memory::release_unswappable(uint64_t key) {
  size_t bytes = 0;
  {
    Lock lock(mutex_);
    auto found = std::find_if(holdings_.begin(), holdings_.end(), [&](const Holding& holding) { return holding.key == key; });
    if (found == holdings_.end()) return 0;
    bytes = found->bytes;
    change_unswappable(bytes, 0);
    holdings_.erase(found);
  }
  changed();
  return bytes;
}

void Memory::hold_again(const Holding& holding) {
  Lock lock(mutex_);
  set_holding(0, holding);
}

// ---- stores of the driver's ----

size_t Memory::store_bytes(uint64_t store) const {
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

void Memory::settle_driver_memory(size_t claimed, uint64_t store) {
  const size_t bytes = store_bytes(store);
  {
    Lock lock(mutex_);
    set_holding(claimed, {store, bytes, nullptr, true});
  }
  gate.leave(Gate::mark());
  changed();
}

void Memory::measure_driver_memory(uint64_t store) {
  const size_t bytes = store_bytes(store);
  {
    Lock lock(mutex_);
    set_holding(0, {store, bytes, nullptr, true});
  }
  changed();
}

void Memory::driver_memory_trimmed(uint64_t store) {
  driver_trims_.fetch_add(1, std::memory_order_acq_rel);
  measure_driver_memory(store);
}

void Memory::trim_driver_memory() {
  std::vector<uint64_t> stores;
  {
    Lock lock(mutex_);
    for (const Holding& holding : holdings_) {
      if (holding.is_store) stores.push_back(holding.key);
    }
  }
  if (stores.empty()) return;
  CapturesHeldOff held_off;
  if (!held_off) return;
  driver_trims_.fetch_add(1, std::memory_order_acq_rel);  // before: a launch that comes between claims its memory anew
  for (uint64_t store : stores) {
    if (store == kGraphs) {
      real_driver().cuDeviceGraphMemTrim(device_.ordinal());
    } else {
      real_driver().cuMemPoolTrimTo(reinterpret_cast<cuda::CUmemoryPool>(store), 0);
    }
    measure_driver_memory(store);
  }
}

void Memory::forget_holdings(CUcontext context) {
  std::erase_if(holdings_, [&](const Holding& holding) REQUIRES(mutex_) {
    if (holding.context != context) return false;
    change_unswappable(holding.bytes, 0);
    return true;
  });
}

void Memory::give_back_caches() {
  collect_async(true);
  trim_cache();
  trim_driver_memory();
}

}  // namespace nvshare::interposer
