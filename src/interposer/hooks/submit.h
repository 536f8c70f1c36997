// The one wrapper around everything that puts work on the GPU (class submit in entry_points.txt): it passes the gate.
#pragma once

#include <tuple>

#include "interposer/gate.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

inline constexpr int kNoStream = -1;  // synchronous, or the stream is inside a struct

// What the slow path needs to know of a submission's stream.
struct Target {
  CUstream stream;
  bool has_stream;
};

// Inside the gate, with some flag set: waits, outside, until the gate is open (or the stream captures, whose submissions only record).
// Returns the flags under which the caller, inside again, may submit.
uint32_t enter_slowly(Mark* mark, uint32_t flags, Target target);
// After the submission, still inside: leaves; paces the program if somebody waits for the GPU.
void leave_slowly(Mark* mark, uint32_t flags, Target target);

template <typename Call>
CUresult pass_gate(Target target, Call call) {
  Mark* mark = Gate::mark();
  if (mark == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;  // no memory for 64 bytes
  uint32_t flags = gate.enter(mark);
  if (flags == 0) [[likely]] {
    CUresult result = call();
    gate.leave(mark);
    return result;
  }
  flags = enter_slowly(mark, flags, target);
  if ((flags & Gate::kEnding) != 0 && (flags & Gate::kClosedMask) != 0) {
    gate.leave(mark);
    return CUDA_ERROR_DEINITIALIZED;  // as the driver answers once its own exit handler has run
  }
  CUresult result = call();
  leave_slowly(mark, flags, target);
  return result;
}

inline CUstream default_stream(CUstream stream, bool per_thread) { return stream == nullptr && per_thread ? CU_STREAM_PER_THREAD : stream; }

// Function: the slot in RealDriver. Stream: index of the CUstream among the arguments, or kNoStream. PerThread: a null stream (or none)
// means the calling thread's own default stream instead of the legacy one.
template <auto Function, int Stream, bool PerThread, typename... Arguments>
CUresult submit(Arguments... arguments) {
  const auto function = real_driver().*Function;
  Target target{PerThread ? CU_STREAM_PER_THREAD : nullptr, false};
  if constexpr (Stream != kNoStream) {
    target = {default_stream(std::get<static_cast<size_t>(Stream)>(std::tuple<Arguments...>(arguments...)), PerThread), true};
  }
  return pass_gate(target, [&] { return function(arguments...); });
}

}  // namespace nvshare::interposer
