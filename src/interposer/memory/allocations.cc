#include "interposer/memory/allocations.h"

#include <algorithm>

#include "interposer/gate/gate.h"
#include "interposer/link/turns.h"
#include "interposer/log.h"
#include "interposer/memory/charges.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUresult;

namespace {

constexpr size_t kSlabShare = 1024;  // of the GPU, for one slab: what is free in slabs counts as in use, too
constexpr int64_t kLockPause_ns = 100'000;
constexpr int64_t kSettling_ns = 2'000'000;
constexpr int64_t kOutOfMemoryPatience_ns = 2'000'000'000;  // a neighbour's memory may take a moment to come free

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Threads without a mark pass the gate unseen.
void leave_gate() {
  if (Mark* mark = Gate::mark()) gate.leave(mark);
}

}  // namespace

void Allocations::changed() { device_.turns().memory_changed(); }

// ---- blocks ----

CUresult Allocations::map_block(Block& block) {
  for (uint32_t i = 0; i < block.chunk_count; ++i) {
    CUresult result = backing_.map(block, i);
    for (int64_t start = now_ns(); result == cuda::CUDA_ERROR_OUT_OF_MEMORY && now_ns() - start < kOutOfMemoryPatience_ns;) {
      trim_cache();
      sleep_ns(2'000'000);
      result = backing_.map(block, i);
    }
    if (result != cuda::CUDA_SUCCESS) {
      for (uint32_t done = 0; done < i; ++done) {
        backing_.unmap(block, done);
        block.chunks[done].state = ChunkState::kFresh;
      }
      return result;
    }
    block.chunks[i].state = ChunkState::kResident;
  }
  return cuda::CUDA_SUCCESS;
}

// True: inside the gate, and whether an allocation gets memory now or in the next turn is settled. False: it waited, and the gate is to be
// looked at anew.
bool Allocations::enter_gate(bool needs_lock) {
  const TurnSigns& signs = device_.turns().signs;
  Mark* mark = Gate::mark();
  if (needs_lock) device_.process().wait_for_gate();
  const uint32_t flags = mark != nullptr ? gate.enter(mark) : gate.flags();
  if ((flags & device_.gate_bit()) == 0 || Process::ending()) return true;
  if (signs.draining()) {
    leave_gate();
    gate.begin_waiting();
    gate.wait_change(flags, kSettling_ns);
    gate.end_waiting();
    return false;
  }
  if (signs.gang_runs()) {
    leave_gate();
    device_.process().wait_for_gate(&signs);
    return false;
  }
  return true;
}

// Takes a block that is kept for reuse, or counts a new one. False: there is no room for it.
bool Allocations::reserve(const BlockOrder& order, bool needs_lock, Attempt* made) {
  made->block = take_cached(order);
  if (made->block != nullptr) return true;
  // What was seen of the gate may be stale: a turn that has begun meanwhile counts, and no drain gets past this thread.
  made->now = blocks_.running;
  bool room = made->now ? use_.resident() + order.bytes <= device_.turns().signs.budget()
                        : use_.allocated() + order.bytes <= device_.limit().ceiling();
  if (needs_lock && !made->now) room = false;
  if (!room) return false;
  use_.add_allocated(order.bytes);
  if (made->now) use_.add_resident(order.bytes);
  return true;
}

bool Allocations::attempt(const BlockOrder& order, bool needs_lock, Attempt* made) {
  Lock lock(blocks_.mutex);
  if (residency_.all_stays() != needs_lock) return false;
  if (!reserve(order, needs_lock, made) || made->block != nullptr) return true;
  lock.unlock();
  Block* block = nullptr;
  made->result = backing_.make(order, &block);
  if (made->result == cuda::CUDA_SUCCESS && made->now) {
    made->result = map_block(*block);
    if (made->result != cuda::CUDA_SUCCESS) {
      backing_.dispose(block);
      block = nullptr;
    }
  }
  lock.lock();
  // Too late for the swap engine, which has brought in all that the turn needs: once more, as a program that runs.
  const bool late = block != nullptr && !made->now && blocks_.running;
  if (block != nullptr && !late) {
    block->in_resident = made->now;
    blocks_.insert(block);
    access_.follow(blocks_, *block);  // access may have changed since it was mapped
  } else {
    if (made->now) use_.drop_resident(order.bytes);
    use_.drop_allocated(order.bytes);
  }
  lock.unlock();
  if (late) {
    backing_.dispose(block);
    return false;
  }
  made->block = block;
  changed();
  return true;
}

CUresult Allocations::refuse(size_t bytes, const char* why) const {
  log(LogLevel::kInfo, "an allocation of %zu bytes was refused: %s (%zu bytes allocated, %zu of them on the GPU; budget %zu, at most %zu)",
      bytes, why, use_.allocated(), use_.resident(), device_.turns().signs.budget(), device_.limit().ceiling());
  return cuda::CUDA_ERROR_OUT_OF_MEMORY;
}

// After a refusal: was it for a ceiling that has only fallen for a moment?
bool Allocations::ceiling_rose_again(size_t bytes, CeilingWait* wait) const {
  sleep_ns(kSettling_ns);  // of a ceiling that fell in that moment we hear after the refusal
  bool was_above = false;
  while (use_.allocated() + bytes > device_.limit().ceiling()) {
    was_above = true;
    if (Process::ending() || !device_.limit().may_rise_to(use_.allocated() + bytes, wait)) return false;
    sleep_ns(kSettling_ns);
  }
  return was_above;
}

CUresult Allocations::allocate_block(const BlockOrder& order, Block** out) {
  const size_t bytes = order.bytes;
  CeilingWait ceiling_wait;
  for (bool trimmed = false;;) {
    const bool needs_lock = residency_.all_stays();
    if (!enter_gate(needs_lock)) continue;
    Attempt made;
    const bool settled = attempt(order, needs_lock, &made);
    leave_gate();
    if (!settled) continue;
    if (made.block != nullptr) {
      *out = made.block;
      return cuda::CUDA_SUCCESS;
    }
    if (made.result != cuda::CUDA_SUCCESS && made.result != cuda::CUDA_ERROR_OUT_OF_MEMORY) return made.result;
    if (!trimmed) {
      trimmed = true;
      const size_t before = use_.resident() + use_.allocated();
      give_back_caches();
      if (use_.resident() + use_.allocated() < before) continue;
    }
    if (made.result == cuda::CUDA_ERROR_OUT_OF_MEMORY) return refuse(bytes, "the driver has no memory");
    const bool waits = !made.now && !needs_lock;
    if (waits && !device_.limit().may_rise_to(use_.allocated() + bytes, &ceiling_wait)) return refuse(bytes, "it can never fit");
    if (Process::ending()) return cuda::CUDA_ERROR_DEINITIALIZED;
    if (waits) {  // for the ceiling
      sleep_ns(kSettling_ns);
      continue;
    }
    if (!made.now) {  // the lock was lost meanwhile, or the turn has not quite begun
      sleep_ns(kLockPause_ns);
      continue;
    }
    switch (device_.turns().grow(bytes)) {
      case Turns::Growth::kGranted:
      case Turns::Growth::kLostLock:
        break;
      case Turns::Growth::kOutOfMemory:
        if (!ceiling_rose_again(bytes, &ceiling_wait)) return refuse(bytes, "the scheduler finds no room");
        break;
    }
  }
}

// ---- allocation ----

CUresult Allocations::allocate(CUdeviceptr* address, size_t bytes, CUcontext context) {
  if (address == nullptr || bytes == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIZE_MAX / 2 || !charge(device_, charged_bytes(bytes))) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = place(address, bytes, context, SlabUse::kPlain);
  if (result != cuda::CUDA_SUCCESS) refund(device_, charged_bytes(bytes));
  return result;
}

CUresult Allocations::place(CUdeviceptr* address, size_t bytes, CUcontext context, SlabUse use) {
  Block* block = nullptr;
  // The driver's own memory is not shared among allocations: it hands over whole ones to other processes.
  const bool plain = device_.backend() == protocol::Backend::kNone;
  if (plain || bytes > SlabSet::kSlotBytesMax) {
    CUresult result =
        allocate_block({round_up(bytes, plain ? SlabSet::kAlignment : kChargeUnitBytes), bytes, context, nullptr, 0, use}, &block);
    if (result == cuda::CUDA_SUCCESS) *address = block->base;
    return result;
  }
  for (;;) {
    size_t slab_bytes = 0;
    {
      Lock lock(blocks_.mutex);
      CUdeviceptr slot = slabs_.take(bytes, context, use);
      if (slot != 0) {
        *address = slot;
        return cuda::CUDA_SUCCESS;
      }
      if (slab_coming_) {
        slab_came_.wait(blocks_.mutex);
        continue;
      }
      slab_coming_ = true;
      slab_bytes = slabs_.next_slab_bytes(bytes, device_.total() / kSlabShare, use);
    }
    CUresult result = allocate_block({slab_bytes, slab_bytes, context, nullptr, 0, use}, &block);
    if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY && slab_bytes > kChargeUnitBytes) {
      slab_bytes = kChargeUnitBytes;
      result = allocate_block({slab_bytes, slab_bytes, context, nullptr, 0, use}, &block);
    }
    Lock lock(blocks_.mutex);
    if (result == cuda::CUDA_SUCCESS) slabs_.add_slab(block, bytes, use);
    slab_coming_ = false;
    slab_came_.notify_all();
    if (result == cuda::CUDA_SUCCESS) continue;
    // Small allocations of all sizes share the driver's own pages, so the program may count on what is free in them.
    const CUdeviceptr slot = result == cuda::CUDA_ERROR_OUT_OF_MEMORY ? slabs_.take_larger(bytes, context, use) : 0;
    if (slot == 0) return result;
    *address = slot;
    return cuda::CUDA_SUCCESS;
  }
}

// What no longer fits beside the rest under the client's ceiling is left to demand paging, as without nvshare: the driver takes pages of it
// off the GPU when anybody needs the room, so it is not counted (a program may use more managed memory than the GPU has), only charged
// against the tenant's limit.
CUresult Allocations::allocate_managed(CUdeviceptr* address, size_t bytes, unsigned flags, CUcontext context) {
  if (address == nullptr || bytes == 0 || flags == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIZE_MAX / 2 || !charge(device_, charged_bytes(bytes))) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  BlockOrder order{bytes, bytes, context};
  order.managed = flags;
  Block* block = nullptr;
  CUresult result = cuda::CUDA_ERROR_OUT_OF_MEMORY;
  if (use_.allocated() + bytes <= device_.limit().ceiling()) result = allocate_block(order, &block);
  if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY) {
    result = backing_.make(order, &block);
    if (result == cuda::CUDA_SUCCESS) {
      log(LogLevel::kInfo, "%zu bytes of managed memory are left to demand paging: %zu are allocated, at most %zu fit", bytes,
          use_.allocated(), device_.limit().ceiling());
      Lock lock(blocks_.mutex);
      block->demand = true;
      blocks_.insert(block);
    }
  }
  if (result != cuda::CUDA_SUCCESS) {
    refund(device_, charged_bytes(bytes));
    return result;
  }
  *address = block->base;
  return cuda::CUDA_SUCCESS;
}

// ---- free ----

bool Allocations::measure(CUdeviceptr address, size_t* requested, size_t* capacity, CUcontext* context) {
  Lock lock(blocks_.mutex);
  Block* block = blocks_.lookup(address);
  if (block == nullptr || block->cached) return false;
  *context = block->context;
  if (block->slab != nullptr) {
    CUdeviceptr base = 0;
    if (!SlabSet::slot_of(block->slab, address, &base, requested) || base != address) return false;
    if (Blocks::notes_of(*block, address).freed) return false;
    *capacity = SlabSet::slot_bytes(*requested);
    return true;
  }
  *requested = block->requested;
  *capacity = block->kind == BlockKind::kPlain ? block->address_bytes : block->bytes;
  return block->base == address && !block->notes.freed;
}

bool Allocations::give_back(CUdeviceptr address, bool charged, size_t* requested) {
  Block* retired = nullptr;
  {
    Lock lock(blocks_.mutex);
    Block* block = blocks_.lookup(address);
    if (block == nullptr || block->cached) return false;
    if (block->slab != nullptr) {
      bool empty = false;
      if (!slabs_.give_back(block->slab, address, requested, &empty)) return false;
      if (empty) retired = block;
    } else {
      if (block->base != address) return false;
      *requested = block->requested;
      retired = block;
    }
  }
  if (charged) refund(device_, charged_bytes(*requested));
  if (retired != nullptr) retire(retired, true);
  return true;
}

bool Allocations::free(CUdeviceptr address, CUresult* result) {
  size_t requested = 0;
  AsyncFree deferred{};
  if (!measure(address, &requested, &deferred.capacity, &deferred.context)) {
    Lock lock(blocks_.mutex);
    Block* block = blocks_.lookup(address);
    *result = cuda::CUDA_ERROR_INVALID_VALUE;  // inside an allocation, or freed already in stream order
    return block != nullptr && !block->cached;
  }
  *result = cuda::CUDA_SUCCESS;
  if (!wait_before_free(deferred.context, result)) {
    // Something captures, which waiting would break: freed when that has ended.
    deferred.address = address;
    deferred.stream_context = deferred.context;
    deferred.reusable = false;
    deferred.at_once = true;
    if (!defer(deferred)) {
      *result = cuda::CUDA_ERROR_INVALID_VALUE;
    } else {
      refund(device_, charged_bytes(requested));
    }
    return true;
  }
  // An address that two threads free at once is a bug of the program.
  if (!give_back(address, true, &requested)) *result = cuda::CUDA_ERROR_INVALID_VALUE;
  if (deferred_.load(std::memory_order_relaxed) > 0) collect_async(false);
  return true;
}

}  // namespace nvshare::interposer
