// Calls that look at addresses when they are made, not when their work runs: nodes of graphs, their parameters, what is made of graphs. The
// driver answers "invalid value" for an address without memory (measured), and that is what an allocation is before the first turn and
// while it is swapped out.
//
// So they are asked without the gate, because most name no such memory, and making a graph may take seconds; an answer that may come of
// absent memory is asked for again inside the gate, where all memory is on the GPU. A call that failed has changed nothing. While a stream
// captures no memory leaves the GPU, so that such a call in a capture never waits, unless it is wrong.
#pragma once

#include "interposer/hooks/current_context.h"
#include "interposer/hooks/memory_kinds.h"
#include "interposer/hooks/reach.h"
#include "interposer/hooks/submit.h"

namespace nvshare::interposer {

// The same call inside the gate; waits for the lock where this process has it not.
template <typename Call>
CUresult again_with_memory(Entry entry, Call& call) {
  Mark* mark = Gate::mark();
  if (mark == nullptr) return call();
  uint32_t flags = entry.gate().enter(mark);
  if ((flags & Gate::kClosedMask) != 0) enter_slowly(entry.process(), mark, flags, Target{nullptr, false});
  const CUresult result = call();
  entry.gate().leave(mark);
  return result;
}

inline bool may_want_memory(CUresult result) {
  return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

// Virtual memory, which ours is to the driver, is there for a thread with a context only, as memory of pools is; plain memory for each
// (measured). So a thread without one borrows that of a GPU in use.
template <typename Call>
CUresult again_in_a_context(Entry entry, Call& call, CUresult result) {
  Process& process = entry.process();
  const uint32_t gpus = gpus_in_use(process);
  for (int ordinal = 0; ordinal < 32 && may_want_memory(result); ++ordinal) {
    if ((gpus >> ordinal & 1) == 0) continue;
    const BorrowedContext borrowed(process, ordinal);
    if (!borrowed) return result;
    result = again_with_memory(entry, call);
  }
  return result;
}

template <auto Function, typename... Arguments>
CUresult look(Entry entry, Arguments... arguments) {
  CUresult result = with_room<Function>(entry, arguments...);
  if (!may_want_memory(result) || !entry.process().active()) [[likely]]
    return result;
  Process& process = entry.process();
  auto call = [&] { return call_real<Function>(arguments...); };
  result = again_with_memory(entry, call);
  if (!may_want_memory(result)) return result;
  const Addresses named = named_by(arguments...);
  if (need_no_context(process, named)) result = again_in_a_context(entry, call, result);
  // A copy between GPUs: both are to reach the other's memory.
  if (result == CUDA_ERROR_INVALID_VALUE && reach_each_other(process, named)) result = again_with_memory(entry, call);
  return result;
}

}  // namespace nvshare::interposer
