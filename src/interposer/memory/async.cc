// Stream-ordered allocation (cuMemAllocAsync, pools): served from the same blocks and slabs as cuMemAlloc, so that it swaps like them.
#include <algorithm>
#include <atomic>

#include "interposer/gate/gate.h"
#include "interposer/log.h"
#include "interposer/memory/allocations.h"
#include "interposer/memory/charges.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUresult;
using cuda::CUstream;

namespace {

constexpr size_t kUnfinishedStreamsMax = 16;  // that one look asks about in vain
constexpr size_t kPendingMax = 4096;          // frees that wait for the GPU; past it the oldest are waited for

CUstream resolve(CUstream stream, bool per_thread) { return stream == nullptr && per_thread ? cuda::CU_STREAM_PER_THREAD : stream; }

uint64_t thread_of(CUstream stream) {
  Mark* mark = stream == cuda::CU_STREAM_PER_THREAD ? Gate::mark() : nullptr;
  return mark != nullptr ? mark->thread.load(std::memory_order_relaxed) : 0;
}

// Copies open memory to other GPUs only where the program sees some. With one GPU pools share the slabs of plain memory: slabs of their own
// are 2 MiB more for each size class.
SlabUse use_of_pools() {
  static constinit std::atomic<int> gpus{0};  // of a process that has begun: it does not change
  int count = gpus.load(std::memory_order_relaxed);
  if (count == 0 && real_driver().cuDeviceGetCount(&count) == cuda::CUDA_SUCCESS) gpus.store(count, std::memory_order_relaxed);
  return count == 1 ? SlabUse::kPlain : SlabUse::kPool;
}

}  // namespace

void Allocations::now_of_pool(CUdeviceptr address) {
  if (Block* block = blocks_.lookup(address)) Blocks::notes_of(*block, address).of_pool = true;
}

bool Allocations::is_of_pool(CUdeviceptr address) {
  Lock lock(blocks_.mutex);
  Block* block = blocks_.lookup(address);
  return block != nullptr && Blocks::notes_of(*block, address).of_pool;
}

void Allocations::set_requested(CUdeviceptr address, size_t bytes) {
  Block* block = blocks_.lookup(address);
  if (block == nullptr) return;
  if (block->slab == nullptr) {
    block->requested = bytes;
  } else {
    SlabSet::set_requested(block->slab, address, bytes);
  }
  Blocks::notes_of(*block, address) = new_notes();
}

bool Allocations::defer(const AsyncFree& pending) {
  Lock lock(blocks_.mutex);
  Block* block = blocks_.lookup(pending.address);
  if (block == nullptr || Blocks::notes_of(*block, pending.address).freed) return false;
  Blocks::notes_of(*block, pending.address).freed = true;
  Blocks::notes_of(*block, pending.address).gone = pending.at_once;
  async_frees_.push_back(pending);
  if (pending.event == nullptr) deferred_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

CUresult Allocations::allocate_async(CUdeviceptr* address, size_t bytes, CUstream stream, bool per_thread, CUcontext context) {
  if (address == nullptr || bytes == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIZE_MAX / 2 || !charge(device_, charged_bytes(bytes))) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  stream = resolve(stream, per_thread);
  const uint64_t thread = thread_of(stream);
  size_t most = bytes > SlabSet::kSlotBytesMax ? bytes + bytes / 8 + (size_t{2} << 20) : SlabSet::slot_bytes(bytes);
  CUdeviceptr reused = 0;
  cuda::CUevent event = nullptr;
  {
    Lock lock(blocks_.mutex);
    for (size_t i = async_frees_.size(); i-- > 0;) {
      const AsyncFree& pending = async_frees_[i];
      if (!pending.reusable || pending.stream != stream || pending.thread != thread || pending.stream_context != context) continue;
      if (pending.context != context) continue;  // it would end with another context
      if (pending.capacity < bytes || pending.capacity > most) continue;
      reused = pending.address;
      event = pending.event;
      async_frees_.erase(async_frees_.begin() + static_cast<ptrdiff_t>(i));
      break;
    }
  }
  if (reused != 0) {
    if (event != nullptr) real_driver().cuEventDestroy_v2(event);
    Lock lock(blocks_.mutex);
    set_requested(reused, bytes);
    now_of_pool(reused);
    *address = reused;
    return cuda::CUDA_SUCCESS;
  }
  collect_async(false);
  CUresult result = place(address, bytes, context, use_of_pools());
  if (result == cuda::CUDA_SUCCESS) {
    Lock lock(blocks_.mutex);
    now_of_pool(*address);
  } else {
    refund(device_, charged_bytes(bytes));
  }
  return result;
}

bool Allocations::free_async(CUdeviceptr address, CUstream stream, bool per_thread, CUcontext context, CUresult* result) {
  AsyncFree pending{};
  size_t requested = 0;
  if (!measure(address, &requested, &pending.capacity, &pending.context)) return false;
  pending.reusable = use_of_pools() == SlabUse::kPlain || is_of_pool(address);
  pending.address = address;
  pending.stream = resolve(stream, per_thread);
  pending.thread = thread_of(pending.stream);
  pending.stream_context = context;
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
  if (!defer(pending)) {
    if (pending.event != nullptr) driver.cuEventDestroy_v2(pending.event);
    *result = cuda::CUDA_ERROR_INVALID_VALUE;
    return true;
  }
  *result = cuda::CUDA_SUCCESS;
  refund(device_, charged_bytes(requested));
  bool crowded = false;
  {
    Lock lock(blocks_.mutex);
    crowded = async_frees_.size() > kPendingMax;
  }
  if (crowded) collect_async(true);
  return true;
}

bool Allocations::is_over(const AllocationRange& range) {
  if (!range.freed || range.gone) return range.gone;
  // No capture begins meanwhile; beside one that is under way an older event, or one of another stream, may be asked about.
  const CapturesHeldOff held_off(device_.process().captures);
  const RelaxedCaptureMode relaxed(device_.process().captures);
  Lock lock(blocks_.mutex);
  const auto pending =
      std::find_if(async_frees_.begin(), async_frees_.end(), [&](const AsyncFree& each) { return each.address == range.base; });
  if (pending == async_frees_.end()) return true;  // it has been given back meanwhile
  return pending->event != nullptr && real_driver().cuEventQuery(pending->event) == cuda::CUDA_SUCCESS;
}

void Allocations::collect_done() {
  {
    Lock lock(blocks_.mutex);
    if (async_frees_.empty()) return;
  }
  const CUcontext context = device_.process().contexts.pin(device_.ordinal());
  if (context == nullptr) return;
  const RealDriver& driver = real_driver();
  if (driver.cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {
    collect_async(false);
    CUcontext popped = nullptr;
    driver.cuCtxPopCurrent_v2(&popped);
  }
  device_.process().contexts.unpin(context);
}

void Allocations::stream_leaves(CUstream stream) {
  Lock lock(blocks_.mutex);
  for (AsyncFree& pending : async_frees_) {
    if (pending.stream == stream && stream != cuda::CU_STREAM_PER_THREAD) pending.reusable = false;  // its event tells when it is done
  }
}

void Allocations::collect_async(bool wait) {
  const RealDriver& driver = real_driver();
  std::vector<AsyncFree> passed;
  CapturesHeldOff held_off(device_.process().captures);
  if (!held_off) return;
  {
    Lock lock(blocks_.mutex);
    // A stream passes its frees one after the other: of one whose oldest is not done no other is asked about. So a look costs a question
    // for each free that is done, once, and for some streams that are not, however many frees wait.
    AsyncFree unfinished[kUnfinishedStreamsMax];
    size_t unfinished_count = 0;
    const auto stands_behind = [&](const AsyncFree& pending) {
      return std::any_of(unfinished, unfinished + unfinished_count, [&](const AsyncFree& other) {
        return other.stream == pending.stream && other.thread == pending.thread && other.stream_context == pending.stream_context;
      });
    };
    const auto is_done = [&](const AsyncFree& pending) {
      if (wait || pending.event == nullptr) return true;
      if (unfinished_count == kUnfinishedStreamsMax || stands_behind(pending)) return false;
      if (driver.cuEventQuery(pending.event) == cuda::CUDA_SUCCESS) return true;
      unfinished[unfinished_count++] = pending;
      return false;
    };
    std::erase_if(async_frees_, [&](const AsyncFree& pending) {
      if (!is_done(pending)) return false;
      passed.push_back(pending);
      if (pending.event == nullptr) deferred_.fetch_sub(1, std::memory_order_relaxed);
      return true;
    });
  }
  for (const AsyncFree& pending : passed) {
    if (pending.event != nullptr) {
      if (wait) driver.cuEventSynchronize(pending.event);
      driver.cuEventDestroy_v2(pending.event);
    } else {
      CUresult ignored = cuda::CUDA_SUCCESS;  // the context's earlier failure is no reason to keep its memory
      wait_before_free(pending.stream_context, &ignored);
    }
    size_t requested = 0;
    give_back(pending.address, false, &requested);
  }
}

}  // namespace nvshare::interposer
