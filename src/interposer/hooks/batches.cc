#include "interposer/hooks/batches.h"

#include <algorithm>

#include "interposer/hooks/submit.h"
#include "interposer/process/green_contexts.h"
#include "interposer/process/process.h"
#include "interposer/symbols/real_driver.h"

namespace nvshare::interposer {

namespace {

bool is_of_green(Process& process, CUstream stream) {
  const bool made = stream != nullptr && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
  if (!made || !process.active() || !process.green_contexts.any()) [[likely]]
    return false;
  const RealDriver& driver = real_driver();
  CUgreenCtx green = nullptr;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver.cuStreamGetGreenCtx(stream, &green) == CUDA_SUCCESS && green != nullptr &&
         driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
}

bool has_known_order(unsigned source_access_order, unsigned flags) {
  return source_access_order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && source_access_order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
         (flags & ~CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE) == 0;
}

// What a driver refuses of the batch before it looks at an address (measured); `*failed`: the copy that it names.
bool is_sound(const size_t* sizes, size_t count, const CUmemcpyAttributes* attributes, const size_t* begins, size_t kinds, size_t* failed) {
  if (count == 0 || kinds == 0 || kinds > count || begins[0] != 0) return false;
  for (size_t i = 0; i < kinds; ++i) {
    if (begins[i] >= count || (i > 0 && begins[i] <= begins[i - 1])) return false;
    if (!has_known_order(attributes[i].srcAccessOrder, attributes[i].flags)) return false;
  }
  for (size_t i = 0; i < count; ++i) {
    if (sizes[i] != 0) continue;
    *failed = i;
    return false;
  }
  return true;
}

// Without one a driver refuses a batch on a green context's stream (measured); copies one by one would be made.
bool has_context() {
  CUcontext current = nullptr;
  return real_driver().cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr;
}

bool names_addresses(const CUDA_MEMCPY3D_BATCH_OP& copy) {
  return copy.src.type == CU_MEMCPY_OPERAND_TYPE_POINTER && copy.dst.type == CU_MEMCPY_OPERAND_TYPE_POINTER;
}

bool is_sound(const CUDA_MEMCPY3D_BATCH_OP& copy) {
  if (copy.extent[0] == 0 || copy.extent[1] == 0 || copy.extent[2] == 0) return false;
  for (const CUmemcpy3DOperand* side : {&copy.src, &copy.dst}) {
    const size_t row = side->op.ptr.rowLength, layer = side->op.ptr.layerHeight;
    if ((row != 0 && row < copy.extent[0]) || (layer != 0 && layer < copy.extent[1])) return false;
  }
  return has_known_order(copy.srcAccessOrder, copy.flags);
}

CUDA_MEMCPY3D single(const CUDA_MEMCPY3D_BATCH_OP& batch) {
  CUDA_MEMCPY3D copy{};
  const auto& from = batch.src.op.ptr;
  const auto& to = batch.dst.op.ptr;
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = from.ptr;
  copy.srcPitch = from.rowLength != 0 ? from.rowLength : batch.extent[0];
  copy.srcHeight = from.layerHeight != 0 ? from.layerHeight : batch.extent[1];
  copy.dstDevice = to.ptr;
  copy.dstPitch = to.rowLength != 0 ? to.rowLength : batch.extent[0];
  copy.dstHeight = to.layerHeight != 0 ? to.layerHeight : batch.extent[1];
  copy.WidthInBytes = batch.extent[0];
  copy.Height = batch.extent[1];
  copy.Depth = batch.extent[2];
  return copy;
}

// `make(i)` makes a copy; `during_call(i)`: its source may change once the call has returned.
template <typename Make, typename DuringCall>
CUresult make_all(size_t count, size_t* failed, CUstream stream, Make make, DuringCall during_call) {
  bool wait = false;
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = make(i);
    if (result != CUDA_SUCCESS) {
      *failed = i;
      return result;
    }
    wait = wait || during_call(i);
  }
  return wait ? real_driver().cuStreamSynchronize(stream) : CUDA_SUCCESS;
}

}  // namespace

bool batch_one_by_one(Entry entry, CUresult* result, CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                      CUmemcpyAttributes* attributes, size_t* begins, size_t kinds, size_t* failed, CUstream stream) {
  Process& process = entry.process();
  if (!is_of_green(process, stream) || to == nullptr || from == nullptr || sizes == nullptr || attributes == nullptr || begins == nullptr)
    return false;
  size_t unnamed = 0;
  if (failed == nullptr) failed = &unnamed;
  *failed = SIZE_MAX;
  *result = CUDA_ERROR_INVALID_VALUE;
  if (!is_sound(sizes, count, attributes, begins, kinds, failed) || !has_context()) return true;
  const auto make = [&](size_t i) { return submit_copy<&RealDriver::cuMemcpyAsync, 3, false>(entry, to[i], from[i], sizes[i], stream); };
  size_t kind = 0;
  *result = make_all(count, failed, stream, make, [&](size_t i) {
    if (kind + 1 < kinds && begins[kind + 1] <= i) ++kind;
    return attributes[kind].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  });
  return true;
}

bool batch_one_by_one(Entry entry, CUresult* result, size_t count, CUDA_MEMCPY3D_BATCH_OP* copies, size_t* failed, unsigned long long flags,
                      CUstream stream) {
  Process& process = entry.process();
  if (!is_of_green(process, stream) || copies == nullptr || !std::all_of(copies, copies + count, names_addresses)) return false;
  size_t unnamed = 0;
  if (failed == nullptr) failed = &unnamed;
  *failed = SIZE_MAX;
  *result = CUDA_ERROR_INVALID_VALUE;
  const bool sound = count != 0 && flags == 0 && std::all_of(copies, copies + count, [](const auto& copy) { return is_sound(copy); });
  if (!sound || !has_context()) return true;
  const auto make = [&](size_t i) {
    const CUDA_MEMCPY3D copy = single(copies[i]);
    return submit_copy<&RealDriver::cuMemcpy3DAsync_v2, 1, false>(entry, &copy, stream);
  };
  *result = make_all(count, failed, stream, make,
                     [&](size_t i) { return copies[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL; });
  return true;
}

}  // namespace nvshare::interposer
