// Batches of copies on the streams of green contexts. A driver crashes there if memory of the batch is mapped (seen with 580.159.04), which
// ours is to it. So the copies are made one by one, and what a driver refuses of a batch is refused here. Copies of arrays go to it as they
// are.
#pragma once

#include "cuda/driver_api.h"
#include "interposer/hooks/entry.h"

namespace nvshare::interposer {

using namespace cuda;

// True: the batch was made, or failed, as `result` says. `stream` is one that the program made; the caller is outside the gate.
bool batch_one_by_one(Entry entry, CUresult* result, CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                      CUmemcpyAttributes* attributes, size_t* begins, size_t kinds, size_t* failed, CUstream stream);
bool batch_one_by_one(Entry entry, CUresult* result, size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, size_t* failed, unsigned long long flags,
                      CUstream stream);

// The newer versions do not tell which copy failed.
inline bool batch_one_by_one(Entry entry, CUresult* result, CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                             CUmemcpyAttributes* attributes, size_t* begins, size_t kinds, CUstream stream) {
  return batch_one_by_one(entry, result, to, from, sizes, count, attributes, begins, kinds, nullptr, stream);
}
inline bool batch_one_by_one(Entry entry, CUresult* result, size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, unsigned long long flags,
                             CUstream stream) {
  return batch_one_by_one(entry, result, count, copies, nullptr, flags, stream);
}
// Any other copy.
template <typename... Others>
bool batch_one_by_one(Entry, CUresult*, Others...) {
  return false;
}

}  // namespace nvshare::interposer
