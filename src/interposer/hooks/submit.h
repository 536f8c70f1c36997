// The wrappers around everything that puts work on the GPU (class submit in entry_points.txt: it passes the gate) or makes the driver take
// GPU memory for itself (class grows). Both ask for room and try again where the driver is out of memory (shortage.h).
#pragma once

#include <atomic>
#include <tuple>
#include <type_traits>

#include "interposer/hooks/batches.h"
#include "interposer/hooks/entry.h"
#include "interposer/hooks/nowhere.h"
#include "interposer/hooks/reach.h"
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
uint32_t enter_slowly(Process& process, Mark* mark, uint32_t flags, Target target);
// After the submission, still inside: leaves; paces the program if somebody waits for the GPU.
void leave_slowly(Process& process, Mark* mark, uint32_t flags, Target target);
// Outside the gate: waits if too much of this thread's work is in flight. For who was inside for more than the submission.
void hold_back(Process& process, Mark* mark);

// A call that was out of memory, again and again, inside the gate, as long as room can be made (`what`: its name, or null). The
// out-of-memory comes back at once where trying again is not safe: on a capturing stream, whose capture the failure has ended.
using Attempt = CUresult (*)(Process& process, void* call, Target target);
CUresult again_with_room(Process& process, const char* what, Target target, Attempt attempt, void* call);
// The name of the driver's function in that slot.
const char* name_of_slot(const void* slot);

// From: Entry or Within (entry.h).
template <typename From, typename Call>
CUresult pass_gate_once(From from, Target target, Call& call) {
  Mark* mark = Gate::mark();
  if (mark == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;  // no memory for 64 bytes
  uint32_t flags = from.gate().enter(mark);
  if (flags == 0) [[likely]] {
    CUresult result = call();
    from.gate().leave(mark);
    return result;
  }
  flags = enter_slowly(from.process(), mark, flags, target);
  if ((flags & Gate::kEnding) != 0 && (flags & Gate::kClosedMask) != 0) {
    from.gate().leave(mark);
    return CUDA_ERROR_DEINITIALIZED;  // as the driver answers once its own exit handler has run
  }
  CUresult result = call();
  leave_slowly(from.process(), mark, flags, target);
  return result;
}

// Function: the slot in RealDriver, for the log.
template <auto Function = nullptr, typename From, typename Call>
CUresult pass_gate(From from, Target target, Call call) {
  CUresult result = pass_gate_once(from, target, call);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) [[likely]]
    return result;
  const char* what = nullptr;
  if constexpr (!std::is_null_pointer_v<decltype(Function)>) what = name_of_slot(&(real_driver().*Function));
  return again_with_room(
      from.process(), what, target,
      [](Process& process, void* again, Target on) { return pass_gate_once(From::of(process), on, *static_cast<Call*>(again)); }, &call);
}

// Outside the gate at first: what grows need not wait for a turn as long as there is room.
template <auto Function, typename... Arguments>
CUresult with_room(Entry entry, Arguments... arguments) {
  const auto function = real_driver().*Function;
  CUresult result = function(arguments...);
  if (result != CUDA_ERROR_OUT_OF_MEMORY) [[likely]]
    return result;
  auto call = [&] { return function(arguments...); };
  return again_with_room(
      entry.process(), name_of_slot(&(real_driver().*Function)), Target{nullptr, false},
      [](Process& process, void* again, Target on) { return pass_gate_once(Entry::of(process), on, *static_cast<decltype(call)*>(again)); },
      &call);
}

// The program has set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of some memory.
inline constinit std::atomic<bool> sync_memops_wanted{false};
// Waits for the default stream, unless something captures.
void finish_memop(Process& process, bool per_thread);

inline CUstream default_stream(CUstream stream, bool per_thread) { return stream == nullptr && per_thread ? CU_STREAM_PER_THREAD : stream; }

// Stream: index of the CUstream among the arguments, or kNoStream. PerThread: a null stream (or none) means the calling thread's own
// default stream instead of the legacy one.
template <int Stream, bool PerThread, typename... Arguments>
Target target_of(Arguments... arguments) {
  if constexpr (Stream == kNoStream) {
    return {default_stream(nullptr, PerThread), false};
  } else {
    return {default_stream(std::get<static_cast<size_t>(Stream)>(std::tuple<Arguments...>(arguments...)), PerThread), true};
  }
}

// Function: the slot in RealDriver.
template <auto Function, int Stream, bool PerThread, typename... Arguments>
CUresult submit(Entry entry, Arguments... arguments) {
  const auto function = real_driver().*Function;
  const Target target = target_of<Stream, PerThread>(arguments...);
  const CUresult result = pass_gate<Function>(entry, target, [&] { return function(arguments...); });
  if constexpr (Stream == kNoStream) {
    if (sync_memops_wanted.load(std::memory_order_relaxed) && result == CUDA_SUCCESS) [[unlikely]]
      finish_memop(entry.process(), PerThread);
  }
  return result;
}

// A fill without length or rows, which asks for nothing. Of three sizes the first is the pitch, of which one row needs none.
template <typename... Arguments>
bool is_of_nothing(Arguments... arguments) {
  int sizes = (std::is_same_v<Arguments, size_t> + ...);
  const auto is_none = [&sizes]<typename Argument>(Argument argument) {
    if constexpr (std::is_same_v<Argument, size_t>) return sizes-- < 3 && argument == 0;
    return false;
  };
  return (is_none(arguments) || ...);
}

// Fills: see reach.h.
template <auto Function, int Stream, bool PerThread, typename... Arguments>
CUresult submit_fill(Entry entry, CUdeviceptr target, Arguments... arguments) {
  if (opened_to_others.load(std::memory_order_relaxed)) [[unlikely]] {
    const CUstream stream = target_of<Stream, PerThread>(target, arguments...).stream;
    // Then it is an address without memory, so that the driver says first what else is wrong: a capture that has failed, a context.
    if (!is_of_nothing(arguments...) && fill_lacks_access(entry.process(), target, stream)) target = kNowhere;
  }
  return submit<Function, Stream, PerThread>(entry, target, arguments...);
}

// Where the call has addresses of two GPUs and cannot be made as it is: by the peer variant. False: it is not of that kind.
inline bool by_peers(Process& process, bool per_thread, CUresult* result, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_by_peers(process, to, from, bytes, nullptr, per_thread, result);
}
inline bool by_peers(Process& process, bool per_thread, CUresult* result, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_by_peers(process, to, from, bytes, &stream, per_thread, result);
}
// The peer variant itself: a driver takes other contexts than the memory's for plain memory. Of what ours is to it that is said for GPUs
// that reach each other only.
inline bool by_peers(Process& process, bool per_thread, CUresult* result, CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                     size_t bytes) {
  return lie_apart(process, to, from) && copy_by_peers(process, to, from, bytes, nullptr, per_thread, result);
}
inline bool by_peers(Process& process, bool per_thread, CUresult* result, CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                     size_t bytes, CUstream stream) {
  return lie_apart(process, to, from) && copy_by_peers(process, to, from, bytes, &stream, per_thread, result);
}
template <typename Description>
requires std::is_same_v<Description, CUDA_MEMCPY2D> || std::is_same_v<Description, CUDA_MEMCPY3D> ||
    std::is_same_v<Description, CUDA_MEMCPY3D_PEER>
bool by_peers(Process& process, bool per_thread, CUresult* result, const Description* copy) {
  return copy != nullptr && copy_by_peers(process, *copy, nullptr, per_thread, result);
}
template <typename Description>
requires std::is_same_v<Description, CUDA_MEMCPY2D> || std::is_same_v<Description, CUDA_MEMCPY3D> ||
    std::is_same_v<Description, CUDA_MEMCPY3D_PEER>
bool by_peers(Process& process, bool per_thread, CUresult* result, const Description* copy, CUstream stream) {
  return copy != nullptr && copy_by_peers(process, *copy, &stream, per_thread, result);
}
template <typename... Others>
bool by_peers(Process&, bool, CUresult*, Others...) {
  return false;
}

// Copies (class submit, cuMemcpy*): see reach.h and batches.h.
template <auto Function, int Stream, bool PerThread, typename... Arguments>
CUresult submit_copy(Entry entry, Arguments... arguments) {
  CUresult result = CUDA_SUCCESS;
  if (batch_one_by_one(entry, &result, arguments...)) [[unlikely]]
    return result;
  result = submit<Function, Stream, PerThread>(entry, arguments...);
  if (result != CUDA_ERROR_INVALID_VALUE) [[likely]]
    return result;
  const Addresses named = named_by(arguments...);
  Process& process = entry.process();
  if (!names_several_gpus(process, named)) return result;
  if (reach_each_other(process, named)) result = submit<Function, Stream, PerThread>(entry, arguments...);
  if (result != CUDA_ERROR_INVALID_VALUE) return result;
  return pass_gate<Function>(entry, target_of<Stream, PerThread>(arguments...), [&] {
    CUresult copied = CUDA_ERROR_INVALID_VALUE;
    by_peers(process, PerThread, &copied, arguments...);
    return copied;
  });
}

}  // namespace nvshare::interposer
