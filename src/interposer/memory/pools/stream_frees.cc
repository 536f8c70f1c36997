#include "interposer/memory/pools/stream_frees.h"

#include <algorithm>

#include "interposer/process/device.h"
#include "interposer/process/process.h"
#include "interposer/process/synchronize.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUresult;
using cuda::CUstream;

namespace {

constexpr size_t kUnfinishedStreamsMax = 16;  // that one look asks about in vain
constexpr size_t kMany = 4096;                // frees that wait for the GPU: then it is asked about them

constexpr int64_t kPassLook_ns = 500'000;

}  // namespace

bool StreamFrees::add(const Free& pending) {
  Lock lock(blocks_.mutex);
  Block* block = blocks_.lookup(pending.address);
  if (block == nullptr || Blocks::notes_of(*block, pending.address).freed) return false;
  Blocks::notes_of(*block, pending.address).freed = true;
  Blocks::notes_of(*block, pending.address).gone = pending.at_once;
  frees_.push_back(pending);
  frees_.back().number = ++last_;
  if (pending.event == nullptr) deferred_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

CUdeviceptr StreamFrees::reuse(size_t bytes, CUstream stream, uint64_t thread, CUcontext context) {
  const size_t most = bytes > SlabSet::kSlotBytesMax ? bytes + bytes / 8 + (size_t{2} << 20) : SlabSet::slot_bytes(bytes);
  CUdeviceptr reused = 0;
  cuda::CUevent event = nullptr;
  {
    Lock lock(blocks_.mutex);
    for (size_t i = frees_.size(); i-- > 0;) {
      const Free& pending = frees_[i];
      if (!pending.reusable || pending.stream != stream || pending.thread != thread || pending.stream_context != context) continue;
      if (pending.context != context) continue;  // it would end with another context
      if (pending.capacity < bytes || pending.capacity > most) continue;
      reused = pending.address;
      event = pending.event;
      if (event == nullptr) deferred_.fetch_sub(1, std::memory_order_relaxed);
      frees_.erase(frees_.begin() + static_cast<ptrdiff_t>(i));
      break;
    }
  }
  if (event != nullptr) real_driver().cuEventDestroy_v2(event);
  return reused;
}

bool StreamFrees::is_over(const AllocationRange& range) {
  if (!range.freed || range.gone) return range.gone;
  // No capture begins meanwhile; beside one that is under way an older event, or one of another stream, may be asked about.
  const CapturesHeldOff held_off(device_.process().captures);
  const RelaxedCaptureMode relaxed(device_.process().captures);
  Lock lock(blocks_.mutex);
  const auto pending = std::find_if(frees_.begin(), frees_.end(), [&](const Free& each) { return each.address == range.base; });
  if (pending == frees_.end()) return true;  // it has been given back meanwhile
  return pending->event != nullptr && real_driver().cuEventQuery(pending->event) == cuda::CUDA_SUCCESS;
}

void StreamFrees::collect_done() {
  {
    Lock lock(blocks_.mutex);
    if (frees_.empty()) return;
  }
  const CUcontext context = device_.process().contexts.pin(device_.ordinal());
  if (context == nullptr) return;
  const RealDriver& driver = real_driver();
  if (driver.cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {
    pass(true);
    CUcontext popped = nullptr;
    driver.cuCtxPopCurrent_v2(&popped);
  }
  device_.process().contexts.unpin(context);
}

void StreamFrees::collect_within(int64_t patience_ns) {
  const Process& process = device_.process();
  const int64_t deadline = now_ns() + patience_ns;
  for (;;) {
    // What has no event another thread waits for, so that this one does not wait longer for it.
    const bool unknown = deferred_.load(std::memory_order_relaxed) > 0;
    if (unknown && !settle(device_.process())) wait_here();
    pass(false);
    {
      Lock lock(blocks_.mutex);
      if (frees_.empty() && !settle_gives_back()) return;
    }
    if (now_ns() >= deadline || process.captures.capturing() || process.ending()) return;
    sleep_ns(kPassLook_ns);
  }
}

void StreamFrees::wait_here() {
  Process& process = device_.process();
  std::vector<CUcontext> contexts;
  uint64_t until = 0;
  {
    Lock lock(blocks_.mutex);
    until = last_;
    for (const Free& pending : frees_) {
      const bool known = std::find(contexts.begin(), contexts.end(), pending.stream_context) != contexts.end();
      if (pending.event == nullptr && !known) contexts.push_back(pending.stream_context);
    }
  }
  for (CUcontext context : contexts) {
    bool done = false;
    if (context == nullptr) {
      done = synchronize(process.contexts, process.captures, Contexts::kAllGpus);
    } else if (process.contexts.pin(context) == Contexts::Pinned::kYes) {
      CUresult ignored = cuda::CUDA_SUCCESS;  // the context's earlier failure is no reason to keep its memory
      done = synchronize_before_free(process.captures, context, &ignored);
      process.contexts.unpin(context);
    }
    const ContextsStay stay(process.contexts, device_.ordinal());
    if (done && stay) waited(context, until);
  }
}

void StreamFrees::stream_leaves(CUstream stream) {
  Lock lock(blocks_.mutex);
  for (Free& pending : frees_) {
    if (pending.stream == stream && stream != cuda::CU_STREAM_PER_THREAD) pending.reusable = false;  // its event tells when it is done
  }
}

void StreamFrees::pass(bool nothing_runs) {
  const RealDriver& driver = real_driver();
  std::vector<Free> passed;
  const NotCancelled whole;
  CapturesHeldOff held_off(device_.process().captures);
  if (!held_off) return;
  // What is taken out of these books is given back before its context ends, which would give it back as well.
  const ContextsStay stay(device_.process().contexts, device_.ordinal());
  if (!stay) return;
  {
    Lock lock(blocks_.mutex);
    // A stream passes its frees one after the other: of one whose oldest is not done no other is asked about. So a look costs a question
    // for each free that is done, once, and for some streams that are not, however many frees wait.
    Free unfinished[kUnfinishedStreamsMax];
    size_t unfinished_count = 0;
    const auto stands_behind = [&](const Free& pending) {
      return std::any_of(unfinished, unfinished + unfinished_count, [&](const Free& other) {
        return other.stream == pending.stream && other.thread == pending.thread && other.stream_context == pending.stream_context;
      });
    };
    const auto is_done = [&](const Free& pending) {
      if (pending.event == nullptr) return nothing_runs && (pending.stream_context == nullptr || stay.keeps(pending.stream_context));
      if (unfinished_count == kUnfinishedStreamsMax || stands_behind(pending)) return false;
      if (driver.cuEventQuery(pending.event) == cuda::CUDA_SUCCESS) return true;
      unfinished[unfinished_count++] = pending;
      return false;
    };
    std::erase_if(frees_, [&](const Free& pending) {
      if (!is_done(pending)) return false;
      passed.push_back(pending);
      if (pending.event == nullptr) deferred_.fetch_sub(1, std::memory_order_relaxed);
      return true;
    });
  }
  for (const Free& pending : passed) {
    if (pending.event != nullptr) driver.cuEventDestroy_v2(pending.event);
    size_t requested = 0;
    freed_.give_back(pending.address, false, &requested);
  }
}

uint64_t StreamFrees::last_number() {
  Lock lock(blocks_.mutex);
  return last_;
}

void StreamFrees::waited(CUcontext context, uint64_t until) {
  if (until == 0) return;
  std::vector<CUdeviceptr> passed;
  {
    Lock lock(blocks_.mutex);
    std::erase_if(frees_, [&](const Free& pending) {
      const bool done = pending.event == nullptr && pending.number <= until && (context == nullptr || pending.stream_context == context);
      if (done) passed.push_back(pending.address);
      return done;
    });
    deferred_.fetch_sub(static_cast<uint32_t>(passed.size()), std::memory_order_relaxed);
  }
  size_t requested = 0;
  for (CUdeviceptr address : passed) freed_.give_back(address, false, &requested);
}

void StreamFrees::green_leaves(CUcontext green, int64_t patience_ns) {
  const Process& process = device_.process();
  const int64_t deadline = now_ns() + patience_ns;
  std::vector<cuda::CUevent> ended;
  for (bool gone = false; !gone;) {
    pass(false);
    Lock lock(blocks_.mutex);
    gone = std::none_of(frees_.begin(), frees_.end(), [&](const Free& each) { return each.green == green && each.event != nullptr; });
    if (!gone && now_ns() < deadline && !process.captures.capturing() && !process.ending()) {
      lock.unlock();
      sleep_ns(kPassLook_ns);
      lock.lock();
      continue;
    }
    for (Free& each : frees_) {
      if (each.green != green || each.event == nullptr) continue;
      ended.push_back(each.event);
      each.event = nullptr;
      each.reusable = false;
      deferred_.fetch_add(1, std::memory_order_relaxed);
    }
    gone = true;
  }
  for (cuda::CUevent event : ended) real_driver().cuEventDestroy_v2(event);
}

void StreamFrees::look_if_many() {
  {
    Lock lock(blocks_.mutex);
    if (frees_.size() < std::max(kMany, looked_at_ * 2)) return;
  }
  collect();
  Lock lock(blocks_.mutex);
  looked_at_ = frees_.size();
}

std::vector<CUdeviceptr> StreamFrees::context_gone(const Blocks&, CUcontext context) {
  held(blocks_.mutex);
  std::vector<CUdeviceptr> passed;
  for (size_t i = frees_.size(); i-- > 0;) {
    Free& pending = frees_[i];
    if (pending.context != context && pending.stream_context != context) continue;  // its event went with the context
    const Block* block = blocks_.lookup(pending.address);
    const bool stays = pending.context != context || (block != nullptr && block->context == nullptr);
    if (stays && pending.stream_context != context) {
      pending.context = nullptr;  // the free waits for another context's stream
      continue;
    }
    if (stays) {
      passed.push_back(pending.address);
    } else {
      blocks_.set_requested(pending.address, 0);  // refunded when it was freed
    }
    if (pending.event == nullptr) deferred_.fetch_sub(1, std::memory_order_relaxed);
    frees_.erase(frees_.begin() + static_cast<ptrdiff_t>(i));
  }
  return passed;
}

bool wait_before_free(Device& device, CUcontext context, CUresult* result) {
  if (context != nullptr) return synchronize_before_free(device.process().captures, context, result);
  // Any context of the GPU may have used it.
  return synchronize(device.process().contexts, device.process().captures, device.ordinal());
}

}  // namespace nvshare::interposer
