// The calls that copy and fill, in all their variants.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "simgpu/array.h"
#include "simgpu/context.h"
#include "simgpu/copy.h"

namespace simgpu {
namespace {

constexpr Timing kBlocking = Timing::kBlocking;
constexpr Timing kAsynchronous = Timing::kAsynchronous;
constexpr Expect kDevice = Expect::kDevice;
constexpr Expect kAny = Expect::kAny;

Transfer line(uint64_t target, uint64_t source, uint64_t bytes) {
  Transfer transfer;
  transfer.target = target;
  transfer.source = source;
  transfer.width = bytes;
  return transfer;
}

Sides sides_of(CUcontext source, CUcontext target) {
  const Context* from = to_context(source);
  const Context* to = to_context(target);
  return {from != nullptr ? from->device : -1, to != nullptr ? to->device : -1};
}

CUresult copy_3d(const CUDA_MEMCPY3D* description, CUstream stream, Default null_means, Timing timing, Sides sides = {}) {
  if (description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Transfer transfer;
  if (const CUresult result = to_transfer(*description, &transfer)) return result;
  const auto side = [](CUmemorytype type) { return type == CU_MEMORYTYPE_DEVICE ? kDevice : kAny; };
  return copy(transfer, side(description->srcMemoryType), side(description->dstMemoryType), stream, null_means, timing, sides);
}

CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* description, CUstream stream, Default null_means, Timing timing) {
  if (description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return copy_3d(reinterpret_cast<const CUDA_MEMCPY3D*>(description), stream, null_means, timing,
                 sides_of(description->srcContext, description->dstContext));
}

bool is_mapped(CUdeviceptr address) {
  AddressSpace::Reading reading(here().memory);
  const Range* range = reading.find(address);
  return range != nullptr && range->kind == RangeKind::kMapping;
}

// As the driver does (seen with 580.159.04).
void crash_if_mapped(const Stream& stream, CUdeviceptr target, CUdeviceptr source) {
  if (stream.context->parent == nullptr || (!is_mapped(target) && !is_mapped(source))) return;
  std::fprintf(stderr, "simgpu: a batch of copies of mapped memory on a green context's stream, with which the driver crashes\n");
  std::abort();
}

// What is looked at before the first copy (measured).
bool is_sound(const size_t* sizes, size_t count, const CUmemcpyAttributes* attributes, const size_t* begins, size_t kinds,
              size_t* fail_index) {
  if (count == 0 || attributes == nullptr || begins == nullptr || kinds == 0 || kinds > count || begins[0] != 0) return false;
  for (size_t i = 0; i < kinds; ++i) {
    const CUmemcpyAttributes& each = attributes[i];
    if (each.srcAccessOrder < 1 || each.srcAccessOrder > 3 || each.flags > 1 || (i > 0 && begins[i] <= begins[i - 1])) return false;
  }
  const size_t empty = static_cast<size_t>(std::find(sizes, sizes + count, size_t{0}) - sizes);
  if (empty < count) *fail_index = empty;
  return empty == count;
}

// A stream of a green context, while no context is current (measured).
bool refuses_batches(const Stream& stream) { return t_thread.current() == nullptr && stream.context->parent != nullptr; }

CUresult copy_batch(const CUdeviceptr* targets, const CUdeviceptr* sources, const size_t* sizes, size_t count,
                    const CUmemcpyAttributes* attributes, const size_t* begins, size_t kinds, size_t* fail_index, CUstream handle,
                    Default null_means) {
  size_t unnamed = 0;
  if (fail_index == nullptr) fail_index = &unnamed;
  if (targets == nullptr || sources == nullptr || sizes == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  *fail_index = SIZE_MAX;
  const bool sound = is_sound(sizes, count, attributes, begins, kinds, fail_index);
  if (refuses_batches(*stream)) return CUDA_ERROR_INVALID_VALUE;
  if (count > 0 && (sound || *fail_index != SIZE_MAX)) crash_if_mapped(*stream, targets[0], sources[0]);
  if (!sound) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = copy(line(targets[i], sources[i], sizes[i]), kAny, kAny, handle, null_means, kAsynchronous);
    if (result == CUDA_SUCCESS) continue;
    *fail_index = i;
    return result;
  }
  return CUDA_SUCCESS;
}

bool is_sound(const CUDA_MEMCPY3D_BATCH_OP& each) {
  const auto too_short = [&](const CUmemcpy3DOperand& side) {
    const size_t row = side.op.ptr.rowLength, layer = side.op.ptr.layerHeight;
    return (row != 0 && row < each.extent[0]) || (layer != 0 && layer < each.extent[1]);
  };
  return each.extent[0] != 0 && each.extent[1] != 0 && each.extent[2] != 0 && !too_short(each.src) && !too_short(each.dst) &&
         each.srcAccessOrder >= 1 && each.srcAccessOrder <= 3 && each.flags <= 1;
}

CUDA_MEMCPY3D description_of(const CUDA_MEMCPY3D_BATCH_OP& each) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = each.src.op.ptr.ptr;
  copy.dstDevice = each.dst.op.ptr.ptr;
  const auto or_extent = [&](size_t given, int at) { return given != 0 ? given : each.extent[at]; };
  copy.srcPitch = or_extent(each.src.op.ptr.rowLength, 0);
  copy.srcHeight = or_extent(each.src.op.ptr.layerHeight, 1);
  copy.dstPitch = or_extent(each.dst.op.ptr.rowLength, 0);
  copy.dstHeight = or_extent(each.dst.op.ptr.layerHeight, 1);
  copy.WidthInBytes = each.extent[0];
  copy.Height = each.extent[1];
  copy.Depth = each.extent[2];
  return copy;
}

CUresult copy_3d_batch(size_t count, const CUDA_MEMCPY3D_BATCH_OP* all, size_t* fail_index, unsigned long long flags, CUstream handle,
                       Default null_means) {
  size_t unnamed = 0;
  if (fail_index == nullptr) fail_index = &unnamed;
  if (all == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  if (const CUresult result = find_stream(handle, null_means, &stream)) return result;
  *fail_index = SIZE_MAX;
  for (size_t i = 0; i < count; ++i) {
    if (all[i].src.type != CU_MEMCPY_OPERAND_TYPE_POINTER || all[i].dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER) {
      return CUDA_ERROR_NOT_SUPPORTED;  // arrays: not made yet
    }
    if (!is_sound(all[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  if (count == 0 || flags != 0 || refuses_batches(*stream)) return CUDA_ERROR_INVALID_VALUE;
  crash_if_mapped(*stream, all[0].dst.op.ptr.ptr, all[0].src.op.ptr.ptr);
  for (size_t i = 0; i < count; ++i) {
    const CUDA_MEMCPY3D copy = description_of(all[i]);
    const CUresult result = copy_3d(&copy, handle, null_means, kAsynchronous);
    if (result == CUDA_SUCCESS) continue;
    *fail_index = i;
    return result;
  }
  return CUDA_SUCCESS;
}

CUresult copy_2d(const CUDA_MEMCPY2D* flat, CUstream stream, Default null_means, Timing timing) {
  if (flat == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_MEMCPY3D full{};
  full.srcXInBytes = flat->srcXInBytes;
  full.srcY = flat->srcY;
  full.srcMemoryType = flat->srcMemoryType;
  full.srcHost = flat->srcHost;
  full.srcDevice = flat->srcDevice;
  full.srcArray = flat->srcArray;
  full.srcPitch = flat->srcPitch;
  full.dstXInBytes = flat->dstXInBytes;
  full.dstY = flat->dstY;
  full.dstMemoryType = flat->dstMemoryType;
  full.dstHost = flat->dstHost;
  full.dstDevice = flat->dstDevice;
  full.dstArray = flat->dstArray;
  full.dstPitch = flat->dstPitch;
  full.WidthInBytes = flat->WidthInBytes;
  full.Height = flat->Height;
  full.Depth = 1;
  return copy_3d(&full, stream, null_means, timing);
}

CUresult fill_rows(CUdeviceptr to, size_t pitch, uint32_t value, uint32_t element, size_t width, size_t height, CUstream stream,
                   Default null_means, Timing timing) {
  return fill({to, pitch, value, element, width, height}, stream, null_means, timing);
}

}  // namespace

CUresult to_transfer(const CUDA_MEMCPY3D& d, Transfer* out) {
  Transfer transfer;
  transfer.width = d.WidthInBytes;
  transfer.rows = std::max<size_t>(d.Height, 1);
  transfer.slices = std::max<size_t>(d.Depth, 1);
  uint64_t source = d.srcMemoryType == CU_MEMORYTYPE_HOST ? address(d.srcHost) : d.srcDevice;
  uint64_t source_pitch = d.srcPitch != 0 ? d.srcPitch : d.WidthInBytes;
  uint64_t source_height = std::max(d.srcHeight, d.Height);
  if (d.srcMemoryType == CU_MEMORYTYPE_ARRAY && !locate(d.srcArray, &source, &source_pitch, &source_height))
    return CUDA_ERROR_INVALID_HANDLE;
  uint64_t target = d.dstMemoryType == CU_MEMORYTYPE_HOST ? address(d.dstHost) : d.dstDevice;
  uint64_t target_pitch = d.dstPitch != 0 ? d.dstPitch : d.WidthInBytes;
  uint64_t target_height = std::max(d.dstHeight, d.Height);
  if (d.dstMemoryType == CU_MEMORYTYPE_ARRAY && !locate(d.dstArray, &target, &target_pitch, &target_height))
    return CUDA_ERROR_INVALID_HANDLE;
  transfer.source_pitch = source_pitch;
  transfer.target_pitch = target_pitch;
  transfer.source_slice = source_pitch * source_height;
  transfer.target_slice = target_pitch * target_height;
  transfer.source = source + d.srcXInBytes + d.srcY * source_pitch + d.srcZ * transfer.source_slice;
  transfer.target = target + d.dstXInBytes + d.dstY * target_pitch + d.dstZ * transfer.target_slice;
  *out = transfer;
  return CUDA_SUCCESS;
}

SIM_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return copy(line(to, address(from), bytes), kAny, kDevice, nullptr, kLegacy, kBlocking);
}
SIM_API CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return copy(line(to, address(from), bytes), kAny, kDevice, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy(line(to, address(from), bytes), kAny, kDevice, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy(line(to, address(from), bytes), kAny, kDevice, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return copy(line(address(to), from, bytes), kDevice, kAny, nullptr, kLegacy, kBlocking);
}
SIM_API CUresult cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) {
  return copy(line(address(to), from, bytes), kDevice, kAny, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(line(address(to), from, bytes), kDevice, kAny, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(line(address(to), from, bytes), kDevice, kAny, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(line(to, from, bytes), kDevice, kDevice, nullptr, kLegacy, kBlocking);
}
SIM_API CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(line(to, from, bytes), kDevice, kDevice, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(line(to, from, bytes), kDevice, kDevice, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(line(to, from, bytes), kDevice, kDevice, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(line(to, from, bytes), kAny, kAny, nullptr, kLegacy, kBlocking);
}
SIM_API CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy(line(to, from, bytes), kAny, kAny, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(line(to, from, bytes), kAny, kAny, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(line(to, from, bytes), kAny, kAny, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext target, CUdeviceptr from, CUcontext source, size_t bytes) {
  return copy(line(to, from, bytes), kDevice, kDevice, nullptr, kLegacy, kBlocking, sides_of(source, target));
}
SIM_API CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext target, CUdeviceptr from, CUcontext source, size_t bytes) {
  return copy(line(to, from, bytes), kDevice, kDevice, nullptr, kPerThread, kBlocking, sides_of(source, target));
}
SIM_API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext target, CUdeviceptr from, CUcontext source, size_t bytes, CUstream stream) {
  return copy(line(to, from, bytes), kDevice, kDevice, stream, kLegacy, kAsynchronous, sides_of(source, target));
}
SIM_API CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext target, CUdeviceptr from, CUcontext source, size_t bytes,
                                        CUstream stream) {
  return copy(line(to, from, bytes), kDevice, kDevice, stream, kPerThread, kAsynchronous, sides_of(source, target));
}
SIM_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* description) { return copy_2d(description, nullptr, kLegacy, kBlocking); }
SIM_API CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* description) { return copy_2d(description, nullptr, kPerThread, kBlocking); }
SIM_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* description, CUstream stream) {
  return copy_2d(description, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* description, CUstream stream) {
  return copy_2d(description, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* description) { return copy_3d(description, nullptr, kLegacy, kBlocking); }
SIM_API CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D* description) { return copy_3d(description, nullptr, kPerThread, kBlocking); }
SIM_API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* description, CUstream stream) {
  return copy_3d(description, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D* description, CUstream stream) {
  return copy_3d(description, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* description) { return copy_3d_peer(description, nullptr, kLegacy, kBlocking); }
SIM_API CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER* description) {
  return copy_3d_peer(description, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* description, CUstream stream) {
  return copy_3d_peer(description, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER* description, CUstream stream) {
  return copy_3d_peer(description, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemcpyBatchAsync(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count, CUmemcpyAttributes* attributes,
                                    size_t* begins, size_t kinds, size_t* fail_index, CUstream stream) {
  return copy_batch(targets, sources, sizes, count, attributes, begins, kinds, fail_index, stream, kLegacy);
}
SIM_API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                                       CUmemcpyAttributes* attributes, size_t* begins, size_t kinds, CUstream stream) {
  return copy_batch(targets, sources, sizes, count, attributes, begins, kinds, nullptr, stream, kLegacy);
}
SIM_API CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP* all, size_t* fail_index, unsigned long long flags,
                                      CUstream stream) {
  return copy_3d_batch(count, all, fail_index, flags, stream, kLegacy);
}
SIM_API CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* all, unsigned long long flags, CUstream stream) {
  return copy_3d_batch(count, all, nullptr, flags, stream, kLegacy);
}
SIM_API CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                                         CUmemcpyAttributes* attributes, size_t* begins, size_t kinds, size_t* fail_index,
                                         CUstream stream) {
  return copy_batch(targets, sources, sizes, count, attributes, begins, kinds, fail_index, stream, kPerThread);
}
SIM_API CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                                            CUmemcpyAttributes* attributes, size_t* begins, size_t kinds, CUstream stream) {
  return copy_batch(targets, sources, sizes, count, attributes, begins, kinds, nullptr, stream, kPerThread);
}
SIM_API CUresult cuMemcpy3DBatchAsync_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP* all, size_t* fail_index, unsigned long long flags,
                                           CUstream stream) {
  return copy_3d_batch(count, all, fail_index, flags, stream, kPerThread);
}
SIM_API CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP* all, unsigned long long flags, CUstream stream) {
  return copy_3d_batch(count, all, nullptr, flags, stream, kPerThread);
}
SIM_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* description) { return copy_2d(description, nullptr, kLegacy, kBlocking); }
SIM_API CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* description) {
  return copy_2d(description, nullptr, kPerThread, kBlocking);
}

SIM_API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  return fill_rows(to, 0, value, 1, count, 1, nullptr, kLegacy, kBlocking);
}
SIM_API CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count) {
  return fill_rows(to, 0, value, 1, count, 1, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return fill_rows(to, 0, value, 1, count, 1, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return fill_rows(to, 0, value, 1, count, 1, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, 1, width, height, nullptr, kLegacy, kBlocking);
}
SIM_API CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, 1, width, height, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) {
  return fill_rows(to, pitch, value, 1, width, height, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) {
  return fill_rows(to, pitch, value, 1, width, height, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  return fill_rows(to, 0, value, 2, count, 1, nullptr, kLegacy, kBlocking);
}
SIM_API CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count) {
  return fill_rows(to, 0, value, 2, count, 1, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return fill_rows(to, 0, value, 2, count, 1, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return fill_rows(to, 0, value, 2, count, 1, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, 2, width, height, nullptr, kLegacy, kBlocking);
}
SIM_API CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, 2, width, height, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream) {
  return fill_rows(to, pitch, value, 2, width, height, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream) {
  return fill_rows(to, pitch, value, 2, width, height, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  return fill_rows(to, 0, value, 4, count, 1, nullptr, kLegacy, kBlocking);
}
SIM_API CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned value, size_t count) {
  return fill_rows(to, 0, value, 4, count, 1, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return fill_rows(to, 0, value, 4, count, 1, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return fill_rows(to, 0, value, 4, count, 1, stream, kPerThread, kAsynchronous);
}
SIM_API CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, 4, width, height, nullptr, kLegacy, kBlocking);
}
SIM_API CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
  return fill_rows(to, pitch, value, 4, width, height, nullptr, kPerThread, kBlocking);
}
SIM_API CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream) {
  return fill_rows(to, pitch, value, 4, width, height, stream, kLegacy, kAsynchronous);
}
SIM_API CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream) {
  return fill_rows(to, pitch, value, 4, width, height, stream, kPerThread, kAsynchronous);
}

}  // namespace simgpu
