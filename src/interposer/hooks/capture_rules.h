// Whether a stream captures, and what a capture forbids in the threads whose mode it is not relaxed for, and ours would do unnoticed.
#pragma once

#include "interposer/hooks/current_context.h"
#include "interposer/process/green_contexts.h"
#include "interposer/process/least_memory.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

// `stream`: with the per-thread default stream resolved. The legacy stream cannot capture, and asking it while another stream captures
// would break that capture.
inline CUstreamCaptureStatus capture_status(Process& process, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!process.captures.capturing() || stream == nullptr || stream == CU_STREAM_LEGACY) return status;
  return real_driver().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS ? status : CU_STREAM_CAPTURE_STATUS_NONE;
}
inline bool stream_captures(Process& process, CUstream stream) { return capture_status(process, stream) != CU_STREAM_CAPTURE_STATUS_NONE; }

inline bool is_of_captures(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

// A capture forbids calls such as allocations, frees and changes of a pointer's attributes in threads that have not relaxed their mode.
// What we serve ourselves would go unnoticed: so the driver is asked for the least memory that there is, and if it refuses that, and ends
// the capture, so do we (measured: 900 for each of them).
inline CUresult forbidden_by_a_capture(Process& process) {
  if (!process.captures.capturing()) [[likely]]
    return CUDA_SUCCESS;
  CUdeviceptr least = 0;
  const CUresult result = real_driver().cuMemAlloc_v2(&least, 1);
  CUcontext current = nullptr;
  if (result != CUDA_SUCCESS) return is_of_captures(result) ? result : CUDA_SUCCESS;
  real_driver().cuCtxGetCurrent(&current);
  if (!least_memory.keep(least, process.green_contexts.primary_of(current))) real_driver().cuMemFree_v2(least);
  return CUDA_SUCCESS;
}

// The same for what names memory of that GPU and needs no context to be current, frees and attributes (measured: 900 without one, too): one
// of the GPU's is, while the driver is asked.
inline CUresult forbidden_by_a_capture(Process& process, int ordinal) {
  if (!process.captures.capturing()) [[likely]]
    return CUDA_SUCCESS;
  const BorrowedContext borrowed(process, ordinal);
  return forbidden_by_a_capture(process);
}

// The same for allocations and frees in a stream's order, on a stream that does not capture itself (measured: 906 on the legacy stream
// beside a capture that it would wait for, and 900 on every stream where cuMemAlloc is forbidden). The driver is asked in that stream. A
// thread's own default stream is no stream of a green context (measured: 400, whatever else is wrong with the call).
inline CUresult forbidden_in_order(Process& process, CUstream stream) {
  const bool of_green = stream == CU_STREAM_PER_THREAD && process.green_contexts.is_current();
  if (!process.captures.capturing() && !of_green) [[likely]]
    return CUDA_SUCCESS;
  CUdeviceptr least = 0;
  const CUresult result = real_driver().cuMemAllocAsync(&least, 1, stream);
  if (result == CUDA_SUCCESS) real_driver().cuMemFreeAsync(least, stream);
  return is_of_captures(result) || (of_green && result == CUDA_ERROR_INVALID_HANDLE) ? result : CUDA_SUCCESS;
}

}  // namespace nvshare::interposer
