// Contexts: what they take, how they end.
#pragma once

#include "simgpu/core.h"

namespace simgpu {

// Null: the device has no memory left for it. A primary context is made once and revived later: programs keep its handle.
Context* open_context(int device, unsigned flags, Context* revived);
// Waits for its work, frees all that it owns.
void close_context(Context& context);
// The context takes more for the driver's own use; it keeps it to its end. False: out of memory (or the fault driver_oom struck).
bool charge_context(Context& context, uint64_t bytes);
bool valid_device(CUdevice device);

// Frees memory that a context owns; in memory.cc.
void free_memory_of(Context& context);

// The first address of the spans that the context's kernels may not use because it is another device's memory; 0: they may.
uint64_t out_of_reach(const Context& context, const std::vector<Span>& spans);
bool may_use(const Context& context, const Range& range);  // its device's kernels

}  // namespace simgpu
