#include "interposer/hooks/shortage.h"

#include <algorithm>

#include "interposer/gate/gate.h"
#include "interposer/log.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

// The driver does not say how much it lacks, so each attempt asks for twice as much as the one before.
constexpr uint32_t kAttemptsMax = 8;
constexpr uint64_t kStepMin = uint64_t{4} << 20;
constexpr uint64_t kStepMax = uint64_t{1} << 30;
constexpr uint64_t kStepShare = 64;  // of the GPU, for the first attempt
constexpr uint64_t kFirstStepMax = uint64_t{64} << 20;
constexpr int64_t kPauseFirst_ns = 2'000'000;  // what neighbours gave back may take a moment to come free
constexpr uint32_t kContextAttemptsMax = 100;  // of 50 ms: neighbours finish their turns and move out meanwhile
constexpr int64_t kContextPause_ns = 50'000'000;
constexpr size_t kContextRoom = size_t{1} << 30;  // on an H200 one takes 0.5 to 0.7 GiB, on smaller GPUs less
constexpr size_t kContextRoomShare = 16;          // of a small GPU

// Whether so much is free on that GPU that a context would fit. Where the program has no other context there the driver cannot be asked:
// no.
bool has_room_for_context(Device& device) {
  Process& process = device.process();
  const RealDriver& driver = real_driver();
  const cuda::CUcontext context = process.contexts.pin(device.ordinal());
  if (context == nullptr) return false;
  size_t free_bytes = 0;
  size_t total = 0;
  bool known = false;
  if (driver.cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {
    known = driver.cuMemGetInfo_v2(&free_bytes, &total) == cuda::CUDA_SUCCESS;
    cuda::CUcontext popped = nullptr;
    driver.cuCtxPopCurrent_v2(&popped);
  }
  process.contexts.unpin(context);
  return known && free_bytes >= std::min(kContextRoom, total / kContextRoomShare);
}

}  // namespace

bool Shortage::give_up(const Device& device, const char* why) const {
  log(LogLevel::kWarning, "%s is out of GPU memory on GPU %s: %s", what_ != nullptr ? what_ : "a driver call", device.gpu(), why);
  return false;
}

bool Shortage::make_room(Process& process) {
  cuda::CUcontext context = nullptr;
  Device* device = process.current_device(&context);
  return device != nullptr && !device->refused() && make_room(*device);
}

bool Shortage::make_room(Device& device) {
  const Mark* mark = Gate::mark();
  // A call within a call of ours: the outer one decides.
  if (mark == nullptr || mark->depth() > 0 || device.process().ending()) return false;
  if (attempts_ >= kAttemptsMax) return give_up(device, "no room could be made for it");
  const int64_t pause = kPauseFirst_ns << attempts_;
  if (attempts_++ == 0) {
    log(LogLevel::kDebug, "%s was out of GPU memory: asking for room", what_ != nullptr ? what_ : "a driver call");
    step_ = std::clamp<uint64_t>(device.total() / kStepShare, kStepMin, kFirstStepMax);
  }
  device.memory().give_back_caches();
  Link& link = device.link();
  if (!link.shared()) {
    sleep_ns(pause);  // nobody to ask; other programs may give something back
    return true;
  }
  device.process().wait_for_gate();  // who has the lock may ask for room
  if (device.process().ending()) return false;
  const uint64_t step = step_;
  step_ = std::min(step_ * 2, kStepMax);
  switch (device.turns().grow(step)) {
    case Turns::Growth::kGranted:
    case Turns::Growth::kLostLock:
      sleep_ns(pause);
      return true;
    case Turns::Growth::kOutOfMemory:
      break;
  }
  // That much can never be had, but less might do: once more with what the caches gave, then no more.
  if (attempts_ == 1) return true;
  return give_up(device, "the scheduler finds no room");
}

bool Shortage::make_room_for_context(Device& device) {
  if (device.process().ending() || device.refused()) return false;
  if (attempts_++ >= kContextAttemptsMax) return give_up(device, "no room could be made for a context");
  // Once after a moment: a neighbour may just have given something back.
  if (attempts_ > 1 && has_room_for_context(device))
    return give_up(device, "there is room; the driver has another reason to refuse a context");
  if (attempts_ == 1) log(LogLevel::kInfo, "GPU %s has no room for a context; waiting for neighbours to make some", device.gpu());
  device.memory().give_back_caches();
  sleep_ns(kContextPause_ns);
  return true;
}

}  // namespace nvshare::interposer
