#include "interposer/process/synchronize.h"

#include <vector>

#include "interposer/process/device.h"
#include "interposer/process/least_memory.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"
#include "interposer/sync.h"

namespace nvshare::interposer {

using cuda::CUcontext;
using cuda::CUresult;

namespace {

constexpr int64_t kSettlePause_ns = 1'000'000;

enum Settling : uint32_t { kNot, kUnderWay, kOnceMore };
constinit std::atomic<uint32_t> settling{kNot};
constinit std::atomic<uint32_t> giving_back{0};

// False: a context is on its way out.
bool give_back_frees(Process& process, const uint64_t (&until)[kDevicesMax]) {
  const RealDriver& driver = real_driver();
  bool whole = true;
  process.for_each_device([&](Device& device) {
    if (until[device.ordinal()] == 0) return;
    const ContextsStay stay(process.contexts, device.ordinal());
    whole = whole && stay;
    const CUcontext context = stay ? process.contexts.pin(device.ordinal()) : nullptr;
    if (context == nullptr) return;
    if (driver.cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {
      device.memory().stream_frees.waited(nullptr, until[device.ordinal()]);
      CUcontext popped = nullptr;
      driver.cuCtxPopCurrent_v2(&popped);
    }
    process.contexts.unpin(context);
  });
  return whole;
}

// False: a context is on its way out. Then it is looked for once more.
bool settle_once(Process& process) {
  const auto put_off = [&] {
    imports_leave.store(true, std::memory_order_seq_cst);
    return process.captures.capturing();  // else the capture ended before it saw that
  };
  if (process.ending()) return true;
  if (process.captures.capturing()) return put_off();
  uint64_t until[kDevicesMax] = {};
  process.for_each_device([&](Device& device) { until[device.ordinal()] = device.memory().stream_frees.begins_wait(); });
  // Any GPU of the program may be at work on it.
  if (!synchronize(process.contexts, process.captures, Contexts::kAllGpus)) return process.captures.capturing() && put_off();
  {
    const GivingBack gives_back(process);
    if (!gives_back) return true;
    if (!give_back_frees(process, until)) return false;
  }
  process.ipc.collect();
  if (!process.ending()) least_memory.give_back(process.contexts, process.captures);
  return true;
}

void* settle_body(void* argument) {
  Process& process = *static_cast<Process*>(argument);
  cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
  if (const auto exchange = real_driver().cuThreadExchangeStreamCaptureMode; exchange != nullptr) exchange(&mode);
  uint32_t under_way = kUnderWay;
  do {
    settling.store(under_way = kUnderWay, std::memory_order_seq_cst);
    while (!settle_once(process)) sleep_ns(kSettlePause_ns);
  } while (!settling.compare_exchange_strong(under_way, kNot, std::memory_order_seq_cst));
  return nullptr;
}

}  // namespace

bool synchronize(Contexts& contexts, Captures& captures, int ordinal) {
  const NotCancelled whole_wait;  // a driver's wait may be a thread's end, and captures would be held off for good
  const CapturesHeldOff held_off(captures);
  if (!held_off) return false;
  bool whole = true;
  const RealDriver& driver = real_driver();
  for (CUcontext context : contexts.all(ordinal)) {
    // Each for its own wait only: another's work may wait for the program to destroy this one.
    const Contexts::Pinned pinned = contexts.pin(context);
    if (pinned == Contexts::Pinned::kGone) continue;  // its work went with it
    if (pinned == Contexts::Pinned::kOnItsWayOut) return false;
    // A context that has faulted runs nothing any more: its work has ended, if badly.
    if (driver.cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {
      const CUresult result = driver.cuCtxSynchronize();
      whole = result < cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result > cuda::CUDA_ERROR_CAPTURED_EVENT;  // one that no hook saw
      CUcontext popped = nullptr;
      driver.cuCtxPopCurrent_v2(&popped);
    }
    contexts.unpin(context);
    if (!whole) return false;
  }
  return true;
}

bool synchronize_before_free(Captures& captures, CUcontext context, CUresult* result) {
  const NotCancelled whole_wait;
  const CapturesHeldOff held_off(captures);
  if (!held_off) return false;
  const RealDriver& driver = real_driver();
  CUcontext current = nullptr;
  driver.cuCtxGetCurrent(&current);
  const bool elsewhere = context != nullptr && current != context;
  *result = elsewhere ? driver.cuCtxPushCurrent_v2(context) : cuda::CUDA_SUCCESS;
  if (*result == cuda::CUDA_SUCCESS) {
    *result = driver.cuCtxSynchronize();
    CUcontext popped = nullptr;
    if (elsewhere) driver.cuCtxPopCurrent_v2(&popped);
  }
  return true;
}

bool settle(Process& process) {
  uint32_t seen = settling.load(std::memory_order_seq_cst);
  while (seen != kOnceMore) {
    if (!settling.compare_exchange_strong(seen, seen == kNot ? kUnderWay : kOnceMore, std::memory_order_seq_cst)) continue;
    if (seen != kNot) return true;
    pthread_t thread{};
    if (start_thread(&thread, settle_body, &process, "nvshare-settle")) return pthread_detach(thread) == 0;
    settling.store(kNot, std::memory_order_seq_cst);
    return false;
  }
  return true;
}

GivingBack::GivingBack(const Process& process) {
  giving_back.fetch_add(1, std::memory_order_seq_cst);
  may_ = !process.ending();
}
GivingBack::~GivingBack() { giving_back.fetch_sub(1, std::memory_order_seq_cst); }

bool settle_gives_back() { return giving_back.load(std::memory_order_seq_cst) > 0; }

void settling_reset_after_fork() {
  settling.store(kNot, std::memory_order_relaxed);
  giving_back.store(0, std::memory_order_relaxed);
  imports_leave.store(false, std::memory_order_relaxed);
}

void settling_ends(int64_t patience_ns) {
  const int64_t deadline = now_ns() + patience_ns;
  while (settle_gives_back() && now_ns() < deadline) sleep_ns(kSettlePause_ns);
}

}  // namespace nvshare::interposer
