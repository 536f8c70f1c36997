// Waiting for the GPU work of the program, without ever meeting a capture.
#pragma once

#include "cuda/driver_api.h"
#include "interposer/process/captures.h"
#include "interposer/process/contexts.h"

namespace nvshare::interposer {

// Waits for all work of all contexts on that GPU, or of the process (kAllGpus): any GPU may use any other's memory. Contexts are pinned
// meanwhile. False: a stream captures, or a context is on its way out; not all was waited for.
bool synchronize(Contexts& contexts, Captures& captures, int ordinal);

// Earlier GPU work of that context is done on return (null: of the current one). False: a stream captures, so nothing may be waited for.
bool synchronize_before_free(Captures& captures, cuda::CUcontext context, cuda::CUresult* result);

}  // namespace nvshare::interposer
