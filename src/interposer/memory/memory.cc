#include "interposer/memory/memory.h"

#include <algorithm>
#include <new>

#include "interposer/gate/gate.h"
#include "interposer/link/client.h"
#include "interposer/log.h"
#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUresult;

namespace {

constexpr size_t kSlabShare = 1024;  // of the GPU, for one slab: what is free in slabs counts as in use, too
constexpr int64_t kLockPause_ns = 100'000;
constexpr int64_t kOutOfMemoryPatience_ns = 2'000'000'000;  // a neighbour's memory may take a moment to come free

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// ---- registry ----

void Memory::insert(Block* block) {
  if (block->kind == BlockKind::kHandle) {
    handle_blocks_.push_back(block);
    return;
  }
  auto place = std::lower_bound(blocks_.begin(), blocks_.end(), block, [](const Block* a, const Block* b) { return a->base < b->base; });
  blocks_.insert(place, block);
  follow_accessors(*block);  // they may have changed since it was mapped
}

void Memory::erase(Block* block) {
  if (block->kind == BlockKind::kHandle) {
    std::erase(handle_blocks_, block);
    return;
  }
  auto place = std::lower_bound(blocks_.begin(), blocks_.end(), block, [](const Block* a, const Block* b) { return a->base < b->base; });
  if (place == blocks_.end() || *place != block) return;
  blocks_.erase(place);
  ending_.push_back({block->base, block->bytes});
}

// The driver knows memory there, and would free it or tell of it: memory of ours that the program has no allocation in, or not any more.
bool Memory::known_to_driver_alone(const Block* block, CUdeviceptr address) const {
  if (block != nullptr) return block->kind == BlockKind::kVmm || (block->kind == BlockKind::kManaged && !block->of_program);
  return std::any_of(ending_.begin(), ending_.end(), [&](const Ending& each) { return address - each.base < each.bytes; });
}

Block* Memory::lookup(CUdeviceptr address) {
  auto after = std::upper_bound(blocks_.begin(), blocks_.end(), address, [](CUdeviceptr a, const Block* b) { return a < b->base; });
  if (after == blocks_.begin()) return nullptr;
  Block* block = *(after - 1);
  return address - block->base < block->bytes ? block : nullptr;
}

bool Memory::find(CUdeviceptr address, Range* range, bool* within) {
  Lock lock(mutex_);
  Block* block = lookup(address);
  if (within != nullptr) *within = known_to_driver_alone(block, address);
  if (block == nullptr || block->cached || block->of_program) return false;
  range->context = block->context;
  range->resident = running_;
  if (block->slab != nullptr) {
    if (!slabs_.slot_of(block->slab, address, &range->base, &range->bytes)) return false;
  } else {
    if (address - block->base >= block->requested) return false;
    range->base = block->base;
    range->bytes = block->requested;
  }
  const AllocationNotes& notes = notes_of(*block, address);
  range->id = notes.id;
  range->sync_memops = notes.sync_memops;
  return true;
}

bool Memory::set_sync_memops(CUdeviceptr address, bool wanted) {
  Range range;
  if (!find(address, &range)) return false;
  Lock lock(mutex_);
  if (Block* block = lookup(address)) notes_of(*block, range.base).sync_memops = wanted;
  return true;
}

bool Memory::overlaps(CUdeviceptr address, size_t bytes) {
  CUdeviceptr last = address + std::max<size_t>(bytes, 1) - 1;
  if (last < address) last = ~CUdeviceptr{0};
  Lock lock(mutex_);
  auto after = std::upper_bound(blocks_.begin(), blocks_.end(), last, [](CUdeviceptr a, const Block* b) { return a < b->base; });
  // From the last one that begins before the range's end, backwards; they do not overlap each other.
  for (; after != blocks_.begin(); --after) {
    const Block* block = *(after - 1);
    if (block->base + block->bytes <= address) break;
    if (block->kind == BlockKind::kVmm) return true;
  }
  for (const Block* block : handle_blocks_) {
    if (block->base != 0 && block->base <= last && address < block->base + block->address_bytes) return true;
  }
  return false;
}

void Memory::set_window(Block& block, CUdeviceptr base, size_t bytes) {
  Lock lock(mutex_);  // overlaps() reads both
  block.base = base;
  block.address_bytes = bytes;
}

bool Memory::owns_handle(cuda::CUmemGenericAllocationHandle handle) {
  if (handle == 0) return false;
  Lock lock(mutex_);
  auto has = [handle](const Block* block) {
    for (uint32_t i = 0; i < block->chunk_count; ++i) {
      if (block->chunks[i].handle == handle) return true;
    }
    return false;
  };
  return std::any_of(blocks_.begin(), blocks_.end(), has) || std::any_of(handle_blocks_.begin(), handle_blocks_.end(), has);
}

// ---- making and mapping blocks ----

CUresult Memory::new_block(const Order& order, Block** out) {
  const RealDriver& driver = real_driver();
  const size_t bytes = order.bytes;
  Block* block = new Block;
  block->bytes = bytes;
  block->requested = order.requested;
  block->context = order.context;
  block->for_pool = order.use == SlabUse::kPool;
  block->notes = new_notes();
  switch (device_.backend()) {
    case protocol::Backend::kVmm:
      block->kind = BlockKind::kVmm;
      break;
    case protocol::Backend::kManaged:
      block->kind = BlockKind::kManaged;
      break;
    case protocol::Backend::kNone:
      block->kind = BlockKind::kPlain;
      break;
  }
  if (order.handle != nullptr) {
    block->kind = BlockKind::kHandle;
    block->handle = order.handle;
  } else if (order.managed != 0) {
    block->kind = BlockKind::kManaged;
    block->of_program = true;
  }
  CUresult result = cuda::CUDA_SUCCESS;
  switch (block->kind) {
    case BlockKind::kVmm:
      result = driver.cuMemAddressReserve(&block->base, bytes, 0, 0, 0);
      break;
    case BlockKind::kManaged:
      result = driver.cuMemAllocManaged(&block->base, bytes, block->of_program ? order.managed : cuda::CU_MEM_ATTACH_GLOBAL);
      break;
    case BlockKind::kPlain:
      result = driver.cuMemAlloc_v2(&block->base, order.requested);  // another process that opens it is told its size
      break;
    case BlockKind::kHandle:
      break;  // the program reserves its own addresses; the window comes when it is needed
  }
  if (result != cuda::CUDA_SUCCESS) {
    delete block;
    return result;
  }
  block->address_bytes = block->base == 0 ? 0 : block->kind == BlockKind::kPlain ? order.requested : bytes;
  block->chunk_count = static_cast<uint32_t>((bytes + kChunkBytesMax - 1) / kChunkBytesMax);
  block->chunks = new Chunk[block->chunk_count];
  for (uint32_t i = 0; i < block->chunk_count; ++i) {
    block->chunks[i].bytes = static_cast<uint32_t>(std::min(kChunkBytesMax, bytes - chunk_offset(i)));
  }
  *out = block;
  return cuda::CUDA_SUCCESS;
}

CUresult Memory::map_chunk(Block& block, uint32_t index) {
  Chunk& chunk = block.chunks[index];
  if (block.kind == BlockKind::kHandle) return process().vmm().place(block);
  if (block.kind != BlockKind::kVmm) return cuda::CUDA_SUCCESS;
  const RealDriver& driver = real_driver();
  cuda::CUmemAllocationProp properties{};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_.ordinal();
  // So that any of it can be handed to another process later: see docs/adr/0004.
  if (device_.exportable()) properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUresult result = driver.cuMemCreate(&chunk.handle, chunk.bytes, &properties, 0);
  if (result != cuda::CUDA_SUCCESS) {
    chunk.handle = 0;
    return result;
  }
  CUdeviceptr address = block.base + chunk_offset(index);
  result = driver.cuMemMap(address, chunk.bytes, 0, chunk.handle, 0);
  if (result == cuda::CUDA_SUCCESS) {
    chunk.accessors = 0;
    result = set_chunk_access(block, index);
    if (result == cuda::CUDA_SUCCESS) return result;
    driver.cuMemUnmap(address, chunk.bytes);
  }
  driver.cuMemRelease(chunk.handle);
  chunk.handle = 0;
  return result;
}

void Memory::unmap_chunk(Block& block, uint32_t index) {
  Chunk& chunk = block.chunks[index];
  if (block.kind == BlockKind::kHandle) {
    process().vmm().displace(block);
    return;
  }
  if (chunk.handle == 0) return;
  CUresult unmapped = real_driver().cuMemUnmap(block.base + chunk_offset(index), chunk.bytes);
  CUresult released = real_driver().cuMemRelease(chunk.handle);
  // A driver that has gone (the program frees in its last exit handlers) took the memory with it.
  const bool gone = unmapped == cuda::CUDA_ERROR_DEINITIALIZED;
  if (!gone && (unmapped != cuda::CUDA_SUCCESS || released != cuda::CUDA_SUCCESS)) {
    log(LogLevel::kError, "giving back %u bytes of GPU memory failed (CUDA errors %d, %d)", chunk.bytes, static_cast<int>(unmapped),
        static_cast<int>(released));
  }
  chunk.handle = 0;
}

CUresult Memory::map_block(Block& block) {
  for (uint32_t i = 0; i < block.chunk_count; ++i) {
    CUresult result = map_chunk(block, i);
    for (int64_t start = now_ns(); result == cuda::CUDA_ERROR_OUT_OF_MEMORY && now_ns() - start < kOutOfMemoryPatience_ns;) {
      trim_cache();
      sleep_ns(2'000'000);
      result = map_chunk(block, i);
    }
    if (result != cuda::CUDA_SUCCESS) {
      for (uint32_t done = 0; done < i; ++done) {
        unmap_chunk(block, done);
        block.chunks[done].state = ChunkState::kFresh;
      }
      return result;
    }
    block.chunks[i].state = ChunkState::kResident;
  }
  return cuda::CUDA_SUCCESS;
}

void Memory::dispose(Block* block) {
  for (uint32_t i = 0; i < block->chunk_count; ++i) unmap_chunk(*block, i);
  for (uint32_t i = 0; i < block->chunk_count; ++i) {
    arena_.give_back(block->chunks[i].host);
    arena_.give_back(block->chunks[i].kept.slot);
  }
  CUresult result = cuda::CUDA_SUCCESS;
  switch (block->kind) {
    case BlockKind::kVmm:
      result = real_driver().cuMemAddressFree(block->base, block->address_bytes);
      break;
    case BlockKind::kManaged:
    case BlockKind::kPlain:
      // It went with its context, and the address may be somebody else's by now.
      if (block->context != nullptr) result = real_driver().cuMemFree_v2(block->base);
      break;
    case BlockKind::kHandle:
      if (block->base != 0) result = real_driver().cuMemAddressFree(block->base, block->address_bytes);
      if (block->handle_ends) delete block->handle;
      break;
  }
  if (result != cuda::CUDA_SUCCESS && result != cuda::CUDA_ERROR_DEINITIALIZED && result != cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    log(LogLevel::kDebug, "giving back an address range failed (CUDA error %d)", static_cast<int>(result));
  }
  {
    Lock lock(mutex_);
    auto ended = std::find_if(ending_.begin(), ending_.end(), [&](const Ending& each) { return each.base == block->base; });
    if (ended != ending_.end()) ending_.erase(ended);
  }
  delete[] block->chunks;
  delete block;
}

// ---- allocation ----

bool Memory::charge(size_t bytes, const char* what) {
  Client& client = device_.client();
  if (client.charge(bytes)) return true;
  // What the driver keeps for the program's next use.
  const uint64_t before = device_.limit().charged();
  trim_driver_memory();
  if (device_.limit().charged() < before && client.charge(bytes)) return true;
  device_.limit().log_refusal(what, bytes, kGranularity, kSmallGranularity);
  return false;
}

void Memory::refund(size_t bytes) { device_.limit().lease().refund(bytes); }

CUresult Memory::allocate_block(const Order& order, Block** out) {
  const size_t bytes = order.bytes;
  Client& client = device_.client();
  Mark* mark = Gate::mark();
  for (bool trimmed = false;;) {
    const bool needs_lock = this->needs_lock();
    if (needs_lock) process().wait_for_gate();
    uint32_t flags = mark != nullptr ? gate.enter(mark) : gate.flags();
    if ((flags & device_.gate_bit()) != 0 && client.draining() && !Process::ending()) {
      // Whether this allocation gets memory now or in the next turn is not settled yet.
      if (mark != nullptr) gate.leave(mark);
      gate.begin_waiting();
      gate.wait_change(flags, 2'000'000);
      gate.end_waiting();
      continue;
    }
    if ((flags & device_.gate_bit()) != 0 && client.gang_runs() && !Process::ending()) {
      if (mark != nullptr) gate.leave(mark);
      process().wait_to_join(client);
      continue;
    }
    Lock lock(mutex_);
    if (this->needs_lock() != needs_lock) {
      lock.unlock();
      if (mark != nullptr) gate.leave(mark);
      continue;
    }
    Block* block = take_cached(order);
    bool now = false;
    bool room = true;
    if (block == nullptr) {
      // What was seen of the gate may be stale: a turn that has begun meanwhile counts, and no drain gets past this thread.
      now = running_;
      room = now ? resident() + bytes <= client.budget() : allocated() + bytes <= device_.limit().ceiling();
      if (needs_lock && !now) room = false;
      if (room) {
        allocated_.fetch_add(bytes, std::memory_order_relaxed);
        if (now) resident_.fetch_add(bytes, std::memory_order_relaxed);
      }
    }
    lock.unlock();
    CUresult result = cuda::CUDA_SUCCESS;
    if (block == nullptr && room) {
      result = new_block(order, &block);
      if (result == cuda::CUDA_SUCCESS && now) {
        result = map_block(*block);
        if (result != cuda::CUDA_SUCCESS) {
          dispose(block);
          block = nullptr;
        }
      }
      lock.lock();
      // Too late for the mover, which has brought in all that the turn needs: once more, as a program that runs.
      bool late = block != nullptr && !now && running_;
      if (block != nullptr && !late) {
        block->in_resident = now;
        insert(block);
      } else {
        allocated_.fetch_sub(bytes, std::memory_order_relaxed);
        if (now) resident_.fetch_sub(bytes, std::memory_order_relaxed);
      }
      lock.unlock();
      if (late) {
        dispose(block);
        if (mark != nullptr) gate.leave(mark);
        continue;
      }
      changed();
    }
    if (mark != nullptr) gate.leave(mark);
    if (block != nullptr) {
      *out = block;
      return cuda::CUDA_SUCCESS;
    }
    if (result != cuda::CUDA_SUCCESS && result != cuda::CUDA_ERROR_OUT_OF_MEMORY) return result;
    if (!trimmed) {
      trimmed = true;
      size_t before = resident() + allocated();
      give_back_caches();
      if (resident() + allocated() < before) continue;
    }
    auto out_of_memory = [&](const char* why) {
      log(LogLevel::kInfo,
          "an allocation of %zu bytes was refused: %s (%zu bytes allocated, %zu of them on the GPU; budget %zu, at most %zu)", bytes, why,
          allocated(), resident(), client.budget(), device_.limit().ceiling());
      return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    };
    if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY) return out_of_memory("the driver has no memory");
    if (!now && !needs_lock) return out_of_memory("it can never fit");
    if (Process::ending()) return cuda::CUDA_ERROR_DEINITIALIZED;
    if (!now) {  // the lock was lost meanwhile, or the turn has not quite begun
      sleep_ns(kLockPause_ns);
      continue;
    }
    switch (client.grow(bytes)) {
      case Client::Growth::kGranted:
      case Client::Growth::kLostLock:
        break;
      case Client::Growth::kOutOfMemory:
        return out_of_memory("the scheduler finds no room");
    }
  }
}

CUresult Memory::allocate(CUdeviceptr* address, size_t bytes, CUcontext context) {
  if (address == nullptr || bytes == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIZE_MAX / 2 || !charge(charged_bytes(bytes))) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = place(address, bytes, context, SlabUse::kPlain);
  if (result != cuda::CUDA_SUCCESS) refund(charged_bytes(bytes));
  return result;
}

CUresult Memory::place(CUdeviceptr* address, size_t bytes, CUcontext context, SlabUse use) {
  Block* block = nullptr;
  // The driver's own memory is not shared among allocations: it hands over whole ones to other processes.
  const bool plain = device_.backend() == protocol::Backend::kNone;
  if (plain || bytes > SlabSet::kSlotBytesMax) {
    CUresult result =
        allocate_block({round_up(bytes, plain ? SlabSet::kAlignment : kGranularity), bytes, context, nullptr, 0, use}, &block);
    if (result == cuda::CUDA_SUCCESS) *address = block->base;
    return result;
  }
  for (;;) {
    size_t slab_bytes = 0;
    {
      Lock lock(mutex_);
      CUdeviceptr slot = slabs_.take(bytes, context, use);
      if (slot != 0) {
        *address = slot;
        return cuda::CUDA_SUCCESS;
      }
      if (slab_coming_) {
        slab_came_.wait(mutex_);
        continue;
      }
      slab_coming_ = true;
      slab_bytes = slabs_.next_slab_bytes(bytes, device_.total() / kSlabShare, use);
    }
    CUresult result = allocate_block({slab_bytes, slab_bytes, context, nullptr, 0, use}, &block);
    if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY && slab_bytes > kGranularity) {
      slab_bytes = kGranularity;
      result = allocate_block({slab_bytes, slab_bytes, context, nullptr, 0, use}, &block);
    }
    Lock lock(mutex_);
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

// ---- free ----

bool Memory::measure(CUdeviceptr address, size_t* requested, size_t* capacity, CUcontext* context) {
  Lock lock(mutex_);
  Block* block = lookup(address);
  if (block == nullptr || block->cached) return false;
  *context = block->context;
  if (block->slab != nullptr) {
    CUdeviceptr base = 0;
    if (!slabs_.slot_of(block->slab, address, &base, requested) || base != address) return false;
    if (notes_of(*block, address).freed) return false;
    *capacity = SlabSet::slot_bytes(*requested);
    return true;
  }
  *requested = block->requested;
  *capacity = block->kind == BlockKind::kPlain ? block->address_bytes : block->bytes;
  return block->base == address && !block->notes.freed;
}

bool Memory::give_back(CUdeviceptr address, bool charged, size_t* requested) {
  Block* retired = nullptr;
  {
    Lock lock(mutex_);
    Block* block = lookup(address);
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
  if (charged) refund(charged_bytes(*requested));
  if (retired != nullptr) retire(retired, true);
  return true;
}

bool Memory::free(CUdeviceptr address, CUresult* result) {
  size_t requested = 0;
  AsyncFree deferred{};
  if (!measure(address, &requested, &deferred.capacity, &deferred.context)) {
    Lock lock(mutex_);
    Block* block = lookup(address);
    *result = cuda::CUDA_ERROR_INVALID_VALUE;  // inside an allocation, or freed already in stream order
    return block != nullptr && !block->cached;
  }
  *result = cuda::CUDA_SUCCESS;
  if (!wait_before_free(deferred.context, result)) {
    // Something captures, which waiting would break: freed when that has ended.
    deferred.address = address;
    deferred.stream_context = deferred.context;
    deferred.reusable = false;
    if (!defer(deferred)) {
      *result = cuda::CUDA_ERROR_INVALID_VALUE;
    } else {
      refund(charged_bytes(requested));
    }
    return true;
  }
  // An address that two threads free at once is a bug of the program.
  if (!give_back(address, true, &requested)) *result = cuda::CUDA_ERROR_INVALID_VALUE;
  if (deferred_.load(std::memory_order_relaxed) > 0) collect_async(false);
  return true;
}

// ---- reports ----

void Memory::changed() { device_.client().memory_changed(); }

protocol::Memory Memory::report() {
  protocol::Memory report{};
  report.resident = resident();
  report.allocated = std::max<uint64_t>(allocated(), report.resident);
  report.unswappable = needs_lock() ? report.resident : std::min<uint64_t>(unswappable_.load(std::memory_order_relaxed), report.resident);
  report.swappable_host = arena_.ready_bytes();
  report.charged = device_.limit().charged();
  return report;
}

bool Memory::needs_lock() const { return device_.backend() == protocol::Backend::kNone || keeps_.load(std::memory_order_acquire); }

bool Memory::keep_resident() {
  {
    Lock lock(mutex_);
    auto absent = [](const Block* block) {
      return block->kind != BlockKind::kPlain && !block->demand && resident_bytes(*block) < block->bytes;
    };
    if (!running_ &&
        (std::any_of(blocks_.begin(), blocks_.end(), absent) || std::any_of(handle_blocks_.begin(), handle_blocks_.end(), absent))) {
      return false;
    }
    keeps_.store(true, std::memory_order_release);
    for (Block* block : blocks_) drop_kept(*block);
    for (Block* block : handle_blocks_) drop_kept(*block);
  }
  changed();
  return true;
}

void Memory::reset_after_fork() {
  mutex_.reset_after_fork();
  arena_.reset_after_fork();
}

}  // namespace nvshare::interposer
