#include "interposer/memory/allocations.h"

#include <atomic>

#include "base/amount.h"
#include "interposer/log.h"
#include "interposer/memory/blocks/address_book.h"
#include "interposer/memory/limits/charges.h"
#include "interposer/memory/pools/pools.h"
#include "interposer/process/device.h"
#include "interposer/process/least_memory.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUresult;
using cuda::CUstream;

namespace {

constexpr size_t kSlabShare = 1024;  // of the GPU, for one slab: what is free in slabs counts as in use, too

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

CUstream resolve(CUstream stream, bool per_thread) { return stream == nullptr && per_thread ? cuda::CU_STREAM_PER_THREAD : stream; }

// Copies open memory to other GPUs only where the program sees some. With one GPU pools share the slabs of plain memory: slabs of their own
// are 2 MiB more for each size class.
SlabUse use_of_pools() {
  static constinit std::atomic<int> gpus{0};  // of a process that has begun: it does not change
  int count = gpus.load(std::memory_order_relaxed);
  if (count == 0 && real_driver().cuDeviceGetCount(&count) == cuda::CUDA_SUCCESS) gpus.store(count, std::memory_order_relaxed);
  return count == 1 ? SlabUse::kPlain : SlabUse::kPool;
}

}  // namespace

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
        new_blocks_.allocate({round_up(bytes, plain ? SlabSet::kAlignment : kChargeUnitBytes), bytes, context, nullptr, 0, use}, &block);
    if (result == cuda::CUDA_SUCCESS) *address = block->base;
    return result;
  }
  for (;;) {
    size_t slab_bytes = 0;
    {
      Lock lock(blocks_.mutex);
      CUdeviceptr slot = blocks_.slabs.take(bytes, context, use);
      if (slot != 0) {
        *address = slot;
        return cuda::CUDA_SUCCESS;
      }
      if (slab_coming_) {
        slab_came_.wait(blocks_.mutex);
        continue;
      }
      slab_coming_ = true;
      slab_bytes = blocks_.slabs.next_slab_bytes(bytes, device_.total() / kSlabShare, use);
    }
    CUresult result = new_blocks_.allocate({slab_bytes, slab_bytes, context, nullptr, 0, use}, &block);
    if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY && slab_bytes > kChargeUnitBytes) {
      slab_bytes = kChargeUnitBytes;
      result = new_blocks_.allocate({slab_bytes, slab_bytes, context, nullptr, 0, use}, &block);
    }
    Lock lock(blocks_.mutex);
    if (result == cuda::CUDA_SUCCESS) blocks_.slabs.add_slab(block, bytes, use);
    slab_coming_ = false;
    slab_came_.notify_all();
    if (result == cuda::CUDA_SUCCESS) continue;
    // Small allocations of all sizes share the driver's own pages, so the program may count on what is free in them.
    const CUdeviceptr slot = result == cuda::CUDA_ERROR_OUT_OF_MEMORY ? blocks_.slabs.take_larger(bytes, context, use) : 0;
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
  if (use_.allocated() + bytes <= device_.limit().ceiling()) result = new_blocks_.allocate(order, &block);
  if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY) {
    result = backing_.make(order, &block);
    if (result == cuda::CUDA_SUCCESS) {
      log(LogLevel::kInfo, "%s of managed memory are left to demand paging: %s are allocated, at most %s fit", amount(bytes).text,
          amount(use_.allocated()).text, amount(device_.limit().ceiling()).text);
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

bool Allocations::free(CUdeviceptr address, CUresult* result) {
  size_t requested = 0;
  StreamFrees::Free deferred{};
  if (!measure(address, &requested, &deferred.capacity, &deferred.context)) {
    Lock lock(blocks_.mutex);
    Block* block = blocks_.lookup(address);
    *result = cuda::CUDA_ERROR_INVALID_VALUE;  // inside an allocation, or freed already in stream order
    return block != nullptr && !block->cached;
  }
  *result = cuda::CUDA_SUCCESS;
  const uint64_t waits = stream_frees_.begins_wait();
  if (!wait_before_free(device_, deferred.context, result)) {
    // Something captures, which waiting would break: freed when that has ended.
    deferred.address = address;
    deferred.stream_context = deferred.context;
    deferred.reusable = false;
    deferred.at_once = true;
    if (!stream_frees_.add(deferred)) {
      *result = cuda::CUDA_ERROR_INVALID_VALUE;
    } else {
      refund(device_, charged_bytes(requested));
    }
    return true;
  }
  if (*result == cuda::CUDA_ERROR_NOT_PERMITTED) return true;  // in a callback of the driver's: nothing was waited for
  // An address that two threads free at once is a bug of the program.
  if (!freed_.give_back(address, true, &requested)) *result = cuda::CUDA_ERROR_INVALID_VALUE;
  stream_frees_.waited(deferred.context, waits);
  least_memory.give_back(device_.process().captures, deferred.context);
  return true;
}

// ---- in stream order ----

void Allocations::now_of_pool(CUdeviceptr address) {
  if (Block* block = blocks_.lookup(address)) Blocks::notes_of(*block, address).of_pool = true;
}

bool Allocations::is_of_pool(CUdeviceptr address) {
  Lock lock(blocks_.mutex);
  Block* block = blocks_.lookup(address);
  return block != nullptr && Blocks::notes_of(*block, address).of_pool;
}

CUresult Allocations::allocate_async(CUdeviceptr* address, size_t bytes, CUstream stream, bool per_thread, CUcontext context) {
  if (address == nullptr || bytes == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIZE_MAX / 2 || !charge(device_, charged_bytes(bytes))) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  stream = resolve(stream, per_thread);
  const CUdeviceptr reused = stream_frees_.reuse(bytes, stream, Captures::thread_of(stream), context);
  if (reused != 0) {
    Lock lock(blocks_.mutex);
    blocks_.set_requested(reused, bytes);
    now_of_pool(reused);
    *address = reused;
    return cuda::CUDA_SUCCESS;
  }
  stream_frees_.collect();
  CUresult result = place(address, bytes, context, use_of_pools());
  if (result == cuda::CUDA_SUCCESS) {
    Lock lock(blocks_.mutex);
    now_of_pool(*address);
  } else {
    refund(device_, charged_bytes(bytes));
  }
  return result;
}

bool Allocations::free_async(CUdeviceptr address, CUstream stream, bool per_thread, CUcontext context, CUcontext green, CUresult* result) {
  StreamFrees::Free pending{};
  size_t requested = 0;
  if (!measure(address, &requested, &pending.capacity, &pending.context)) return false;
  pending.reusable = use_of_pools() == SlabUse::kPlain || is_of_pool(address);
  pending.address = address;
  pending.stream = resolve(stream, per_thread);
  pending.thread = Captures::thread_of(pending.stream);
  pending.stream_context = context;
  pending.green = green;
  const RealDriver& driver = real_driver();
  *result = driver.cuEventCreate(&pending.event, cuda::CU_EVENT_DISABLE_TIMING);
  if (*result == cuda::CUDA_SUCCESS) {
    *result = driver.cuEventRecord(pending.event, pending.stream);
    if (*result != cuda::CUDA_SUCCESS) {
      driver.cuEventDestroy_v2(pending.event);
      return true;  // a bad stream: nothing was freed
    }
  } else {
    pending.event = nullptr;
  }
  if (!stream_frees_.add(pending)) {
    if (pending.event != nullptr) driver.cuEventDestroy_v2(pending.event);
    *result = cuda::CUDA_ERROR_INVALID_VALUE;
    return true;
  }
  *result = cuda::CUDA_SUCCESS;
  refund(device_, charged_bytes(requested));
  stream_frees_.look_if_many();
  return true;
}

// ---- behind handles of the program's ----

CUresult Allocations::allocate_handle(ProgramHandle* handle) {
  if (!charge(device_, handle->bytes, "virtual memory")) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  Block* block = nullptr;
  CUresult result = new_blocks_.allocate({handle->bytes, handle->bytes, nullptr, handle}, &block);
  if (result == cuda::CUDA_SUCCESS) {
    handle->block = block;
  } else {
    refund(device_, handle->bytes);
  }
  return result;
}

void Allocations::free_handle(Block* block) {
  refund(device_, block->requested);
  {
    Lock lock(blocks_.mutex);
    block->handle_ends = true;
    if (block->unswappable) use_.drop_unswappable(block->bytes);
  }
  freed_.retire(block, false);
}

// ---- the end of a context ----

bool Allocations::outlives_context(const Block& block) {
  if (block.kind != BlockKind::kVmm) return false;  // the driver's own allocation, which goes with the context
  return block.slab != nullptr ? SlabSet::outlives_context(block.slab) : block.notes.outlives_context();
}

size_t Allocations::charged_for(const Block& block) {
  if (block.slab == nullptr) return charged_bytes(block.requested);
  size_t charged = 0;
  for (uint32_t slot = 0; slot < block.slab->slots; ++slot) {
    if ((block.slab->occupied[slot / 64] >> (slot % 64) & 1) != 0) charged += charged_bytes(block.slab->requested[slot]);
  }
  return charged;
}

std::vector<CUdeviceptr> Allocations::of_pools(const Block& block) {
  if (block.slab != nullptr) return SlabSet::of_pools(block.slab);
  return block.notes.of_pool ? std::vector<CUdeviceptr>{block.base} : std::vector<CUdeviceptr>{};
}

void Allocations::context_gone(CUcontext context) {
  freed_.trim(context);
  std::vector<Block*> dead;
  std::vector<CUdeviceptr> passed;
  std::vector<CUdeviceptr> ended;
  std::vector<CUdeviceptr> pooled;  // that go nevertheless: these backends serve pools from the context's memory
  {
    Lock lock(blocks_.mutex);
    for (Block* block : blocks_.by_address()) {
      if (block->context != context || block->cached) continue;
      if (!outlives_context(*block)) {
        dead.push_back(block);
        continue;
      }
      block->context = nullptr;
      if (block->slab == nullptr) continue;
      for (CUdeviceptr address : SlabSet::ends_with_context(block->slab)) ended.push_back(address);
    }
    passed = stream_frees_.context_gone(blocks_, context);
    for (Block* block : dead) {
      const size_t charged = charged_for(*block);
      for (CUdeviceptr address : of_pools(*block)) pooled.push_back(address);
      if (block->slab != nullptr) blocks_.slabs.remove(block->slab);
      if (block->kind != BlockKind::kVmm) block->context = nullptr;
      refund(device_, charged);
    }
  }
  for (CUdeviceptr address : pooled) device_.process().pools.take(address);
  for (Block* block : dead) freed_.retire(block, false);
  size_t requested = 0;
  for (CUdeviceptr address : passed) freed_.give_back(address, false, &requested);
  for (CUdeviceptr address : ended) freed_.give_back(address, true, &requested);
}

}  // namespace nvshare::interposer
