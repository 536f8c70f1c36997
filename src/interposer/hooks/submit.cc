#include "interposer/hooks/submit.h"

#include "interposer/gate/pacer.h"
#include "interposer/hooks/shortage.h"
#include "interposer/process/process.h"

namespace nvshare::interposer {

namespace {

bool captures(Target target) {
  // The legacy stream cannot capture, and asking it while another stream captures would break that capture.
  if (!target.has_stream || target.stream == nullptr || target.stream == CU_STREAM_LEGACY) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const RealDriver& driver = real_driver();
  return driver.cuStreamIsCapturing != nullptr && driver.cuStreamIsCapturing(target.stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace

void finish_memop(Process& process, bool per_thread) {
  const NotCancelled whole_wait;
  if (!process.captures.begin_synchronize()) return;
  real_driver().cuStreamSynchronize(per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY);
  process.captures.end_synchronize();
}

uint32_t enter_slowly(Process& process, Mark* mark, uint32_t flags, Target target) {
  for (;;) {
    if ((flags & Gate::kClosedMask) == 0 || (flags & Gate::kEnding) != 0) return flags;
    if (mark->depth() > 1) return flags;
    // A drain ends only when no stream captures, and a capture begins only with the gate open: a capturing stream's memory is there.
    if ((flags & Gate::kCapturing) != 0 && captures(target)) return flags;
    process.gate.leave(mark);
    process.wait_for_gate();
    flags = process.gate.enter(mark);
    mark->waited_entry = mark->entries();
  }
}

void leave_slowly(Process& process, Mark* mark, uint32_t flags, Target target) {
  // While a stream captures, an event on another may break the capture (the legacy stream waits for all of them); a synchronous call
  // leaves nothing in flight.
  bool watched = (flags & Gate::kWatched) != 0;
  bool paced = watched && target.has_stream && (flags & (Gate::kCapturing | Gate::kClosedMask)) == 0;
  if (watched) mark->submissions.store(mark->submissions.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (paced) {
    if (mark->entries() == mark->waited_entry) process.first_submitted();
    if (mark->pacer == nullptr) mark->pacer = new Pacer(process);
    mark->pacer->submitted(target.stream);
  }
  process.gate.leave(mark);
  if (paced && mark->depth() == 0) hold_back(process, mark);
}

void hold_back(Process& process, Mark* mark) {
  if (mark->pacer != nullptr) mark->pacer->hold((process.gate.flags() & Gate::kLimited) != 0);
}

const char* name_of_slot(const void* slot) {
  const auto* table = reinterpret_cast<const char*>(&real_driver());
  return kSlotNames[static_cast<size_t>(static_cast<const char*>(slot) - table) / sizeof(void*)];
}

CUresult again_with_room(Process& process, const char* what, Target target, Attempt attempt, void* call) {
  if (!process.active()) return CUDA_ERROR_OUT_OF_MEMORY;
  Shortage shortage(what);
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  while (result == CUDA_ERROR_OUT_OF_MEMORY) {
    if ((process.gate.flags() & Gate::kCapturing) != 0 && captures(target)) return result;
    if (!shortage.make_room(process)) return result;
    result = attempt(process, call, target);
  }
  return result;
}

}  // namespace nvshare::interposer
