// Memory: plain, virtual, managed, pooled, and what is said about it.
#include <unistd.h>

#include <cstring>

#include "simgpu/testing.h"

namespace simgpu_testing {
namespace {

constexpr uint64_t kPoison = 0xA5A5A5A5A5A5A5A5;

class Memory : public GpuTest {};
class VirtualMemory : public GpuTest {};

TEST_F(Memory, NewMemoryHoldsNoZeros) {
  EXPECT_EQ(kPoison, read(allocate(4096), 1)[0]);
  EXPECT_EQ(kPoison, read(allocate(4 * kMiB), 1)[0]);
  const CUdeviceptr address = reserve(2 * kMiB);
  const CUmemGenericAllocationHandle handle = create(2 * kMiB);
  ASSERT_OK(cuMemMap(address, 2 * kMiB, 0, handle, 0));
  allow_access(address, 2 * kMiB);
  EXPECT_EQ(kPoison, read(address, 1)[0]);
  EXPECT_OK(cuMemUnmap(address, 2 * kMiB));
  EXPECT_OK(cuMemRelease(handle));
}

TEST_F(Memory, CapacityIsEnforced) {
  const uint64_t before = free_bytes();
  EXPECT_EQ(60 * kMiB, before);  // 64 less a context
  CUdeviceptr address = 0;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, before + 1));
  ASSERT_OK(cuMemAlloc_v2(&address, before));
  CUdeviceptr small = 0;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&small, 1));
  ASSERT_OK(cuMemFree_v2(address));
  EXPECT_EQ(before, free_bytes());
}

TEST_F(Memory, SmallAllocationsShareABlockThatGoesBack) {
  const uint64_t before = free_bytes();
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 2000; ++i) all.push_back(allocate(1000));
  EXPECT_EQ(before - 2 * kMiB, free_bytes());
  for (size_t i = 1; i < all.size(); ++i) EXPECT_GE(all[i], all[i - 1] + 1000);
  for (size_t i = 0; i < all.size(); i += 2) EXPECT_OK(cuMemFree_v2(all[i]));
  for (size_t i = 1; i < all.size(); i += 2) EXPECT_OK(cuMemFree_v2(all[i]));
  EXPECT_EQ(before, free_bytes());
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(all[0]));
}

TEST_F(Memory, ContextGivesBackWhatItHeld) {
  const uint64_t before = free_bytes();
  CUcontext second = nullptr;
  ASSERT_OK(cuCtxCreate_v2(&second, 0, 0));
  allocate(8 * kMiB);
  allocate(100);
  void* host = nullptr;
  ASSERT_OK(cuMemAllocHost_v2(&host, 4096));
  ASSERT_OK(cuCtxDestroy_v2(second));
  EXPECT_EQ(before, free_bytes());
}

TEST_F(Memory, RowsOfAPitchedCopyLandInTheirPlaces) {
  CUdeviceptr device = 0;
  size_t pitch = 0;
  ASSERT_OK(cuMemAllocPitch_v2(&device, &pitch, 100, 10, 4));
  EXPECT_EQ(512u, pitch);
  std::vector<unsigned char> host(100 * 10);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<unsigned char>(i * 7);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 100;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = device;
  copy.dstPitch = pitch;
  copy.WidthInBytes = 100;
  copy.Height = 10;
  ASSERT_OK(cuMemcpy2D_v2(&copy));
  std::vector<unsigned char> row(100);
  for (size_t y = 0; y < 10; ++y) {
    ASSERT_OK(cuMemcpyDtoH_v2(row.data(), device + y * pitch, 100));
    EXPECT_EQ(0, std::memcmp(row.data(), &host[y * 100], 100)) << y;
  }
}

TEST_F(Memory, FillsOfAllWidths) {
  const CUdeviceptr device = allocate(64);
  ASSERT_OK(cuMemsetD8_v2(device, 0x11, 8));
  ASSERT_OK(cuMemsetD16_v2(device + 8, 0x2233, 4));
  ASSERT_OK(cuMemsetD32_v2(device + 16, 0x44556677, 2));
  EXPECT_EQ((std::vector<uint64_t>{0x1111111111111111, 0x2233223322332233, 0x4455667744556677}), read(device, 3));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(device + 2, 0, 1));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(16, 0, 1));
}

TEST_F(Memory, StreamOrderedFreeHappensWhenTheStreamIsThere) {
  const uint64_t before = free_bytes();
  const CUstream own = stream();
  CUdeviceptr address = 0;
  ASSERT_OK(cuMemAllocAsync(&address, 4 * kMiB, own));
  ASSERT_OK(launch("sim_touch", {address, 4 * kMiB, 20000000}, own));
  ASSERT_OK(cuMemFreeAsync(address, own));
  EXPECT_EQ(before - 4 * kMiB, free_bytes());
  ASSERT_OK(cuStreamSynchronize(own));
  EXPECT_EQ(before, free_bytes());
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(address, own));
}

TEST_F(Memory, PageableSourceMayChangeAfterTheCall) {
  const CUdeviceptr device = allocate(4096);
  std::vector<uint64_t> host(512, 7);
  const CUstream own = stream();
  ASSERT_OK(launch("sim_spin", {20000000}, own));
  ASSERT_OK(cuMemcpyHtoDAsync_v2(device, host.data(), 4096, own));
  std::fill(host.begin(), host.end(), 9);
  ASSERT_OK(cuStreamSynchronize(own));
  EXPECT_EQ(std::vector<uint64_t>(512, 7), read(device, 512));
}

TEST_F(Memory, RegisteredTwiceIsRefused) {
  std::vector<uint64_t> host(1024);
  ASSERT_OK(cuMemHostRegister_v2(host.data(), 8192, 0));
  EXPECT_EQ(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(host.data(), 8192, 0));
  ASSERT_OK(cuMemHostUnregister(host.data()));
  EXPECT_EQ(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(host.data()));
}

TEST_F(Memory, ManagedMayExceedTheDevice) {
  CUdeviceptr address = 0;
  constexpr uint64_t kBytes = 96 * kMiB;  // of 64
  ASSERT_OK(cuMemAllocManaged(&address, kBytes, CU_MEM_ATTACH_GLOBAL));
  const uint64_t half = kBytes / 2 / 8;
  ASSERT_OK(launch("sim_fill", {address, half, 1}));
  ASSERT_OK(launch("sim_fill", {address + half * 8, half, 2}));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_LT(free_bytes(), 16 * kMiB);
  const auto* host = reinterpret_cast<const uint64_t*>(address);
  EXPECT_EQ(simgpu::fill_word(1, 5), host[5]);
  EXPECT_EQ(simgpu::fill_word(2, 5), host[half + 5]);
  // Plain memory pushes managed pages out.
  const CUdeviceptr plain = allocate(40 * kMiB);
  EXPECT_OK(cuMemFree_v2(plain));
  ASSERT_OK(cuMemPrefetchAsync(address, kBytes, CU_DEVICE_CPU, nullptr));
  ASSERT_OK(cuCtxSynchronize());
  EXPECT_EQ(60 * kMiB, free_bytes());
  ASSERT_OK(cuMemFree_v2(address));
}

TEST_F(VirtualMemory, UnmapTakesWholeMappingsOnly) {
  const CUdeviceptr address = reserve(8 * kMiB);
  const CUmemGenericAllocationHandle handle = create(4 * kMiB);
  ASSERT_OK(cuMemMap(address, 4 * kMiB, 0, handle, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(address, 2 * kMiB));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(address + 2 * kMiB, 2 * kMiB));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(address, 6 * kMiB));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(address, 8 * kMiB));  // something is mapped
  EXPECT_OK(cuMemUnmap(address, 4 * kMiB));
  EXPECT_OK(cuMemRelease(handle));
  EXPECT_OK(cuMemAddressFree(address, 8 * kMiB));
}

TEST_F(VirtualMemory, MappingNeedsSetAccess) {
  const CUdeviceptr address = reserve(2 * kMiB);
  const CUmemGenericAllocationHandle handle = create(2 * kMiB);
  ASSERT_OK(cuMemMap(address, 2 * kMiB, 0, handle, 0));
  ASSERT_OK(launch("sim_fill", {address, 10, 1}));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  EXPECT_OK(cuMemUnmap(address, 2 * kMiB));
  EXPECT_OK(cuMemRelease(handle));
}

TEST_F(VirtualMemory, IsFreeWhenTheLastHandleAndMappingAreGone) {
  const uint64_t before = free_bytes();
  const CUdeviceptr address = reserve(4 * kMiB);
  const CUmemGenericAllocationHandle handle = create(2 * kMiB);
  ASSERT_OK(cuMemMap(address, 2 * kMiB, 0, handle, 0));
  ASSERT_OK(cuMemMap(address + 2 * kMiB, 2 * kMiB, 0, handle, 0));
  ASSERT_OK(cuMemRelease(handle));
  EXPECT_EQ(before - 2 * kMiB, free_bytes());
  CUmemGenericAllocationHandle again = 0;
  ASSERT_OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(address)));
  ASSERT_OK(cuMemUnmap(address, 4 * kMiB));
  EXPECT_EQ(before - 2 * kMiB, free_bytes());
  ASSERT_OK(cuMemRelease(again));
  EXPECT_EQ(before, free_bytes());
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemRelease(again));
}

TEST_F(VirtualMemory, ContentSurvivesAMoveOfItsMapping) {
  const CUdeviceptr address = reserve(4 * kMiB);
  const CUmemGenericAllocationHandle handle = create(2 * kMiB);
  ASSERT_OK(cuMemMap(address, 2 * kMiB, 0, handle, 0));
  allow_access(address, 2 * kMiB);
  ASSERT_OK(launch("sim_fill", {address, 2 * kMiB / 8, 77}));
  ASSERT_OK(cuCtxSynchronize());
  ASSERT_OK(cuMemUnmap(address, 2 * kMiB));
  ASSERT_OK(cuMemMap(address + 2 * kMiB, 2 * kMiB, 0, handle, 0));
  allow_access(address + 2 * kMiB, 2 * kMiB);
  EXPECT_EQ(simgpu::fill_word(77, 1), read(address + 2 * kMiB, 2)[1]);
  ASSERT_OK(cuMemUnmap(address + 2 * kMiB, 2 * kMiB));
  ASSERT_OK(cuMemRelease(handle));
}

TEST_F(VirtualMemory, SharedByDescriptor) {
  const CUmemGenericAllocationHandle secret = create(2 * kMiB);
  int fd = -1;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&fd, secret, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  const CUmemGenericAllocationHandle open = create(2 * kMiB, true);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&fd, open, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 128));
  ASSERT_OK(cuMemExportToShareableHandle(&fd, open, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  const CUdeviceptr address = reserve(4 * kMiB);
  ASSERT_OK(cuMemMap(address, 2 * kMiB, 0, open, 0));
  ASSERT_OK(cuMemMap(address + 2 * kMiB, 2 * kMiB, 0, imported, 0));
  allow_access(address, 4 * kMiB);
  ASSERT_OK(cuMemsetD8_v2(address, 3, 8));
  EXPECT_EQ(0x0303030303030303u, read(address + 2 * kMiB, 1)[0]);
  ASSERT_OK(cuMemUnmap(address, 4 * kMiB));
  for (const CUmemGenericAllocationHandle handle : {secret, open, imported}) ASSERT_OK(cuMemRelease(handle));
}

TEST_F(VirtualMemory, AddressRangeIsOneHandleOnly) {
  const CUdeviceptr address = reserve(6 * kMiB);
  const CUmemGenericAllocationHandle first = create(2 * kMiB);
  const CUmemGenericAllocationHandle second = create(2 * kMiB);
  ASSERT_OK(cuMemMap(address, 2 * kMiB, 0, first, 0));
  ASSERT_OK(cuMemMap(address + 2 * kMiB, 2 * kMiB, 0, second, 0));
  allow_access(address, 4 * kMiB);
  CUdeviceptr base = 0;
  size_t size = 0;
  ASSERT_OK(cuMemGetAddressRange_v2(&base, &size, address + 2 * kMiB + 4096));
  EXPECT_EQ(address + 2 * kMiB, base);
  EXPECT_EQ(2 * kMiB, size);
  ASSERT_OK(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 2 * kMiB));
  EXPECT_EQ(address, base);
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, address + 4 * kMiB));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address + 4 * kMiB));
  CUipcMemHandle ipc{};
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, address));
  unsigned capable = 1;
  ASSERT_OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
  EXPECT_EQ(0u, capable);
  ASSERT_OK(cuMemUnmap(address, 4 * kMiB));
  ASSERT_OK(cuMemRelease(first));
  ASSERT_OK(cuMemRelease(second));
}

TEST_F(VirtualMemory, UnmappingUnderACopyIsReported) {
  const CUdeviceptr address = reserve(16 * kMiB);
  const CUmemGenericAllocationHandle handle = create(16 * kMiB);
  ASSERT_OK(cuMemMap(address, 16 * kMiB, 0, handle, 0));
  allow_access(address, 16 * kMiB);
  void* host = nullptr;
  ASSERT_OK(cuMemAllocHost_v2(&host, 16 * kMiB));
  const CUstream own = stream();
  const uint64_t before = control("faults");
  ASSERT_OK(launch("sim_spin", {50000000}, own));
  ASSERT_OK(cuMemcpyDtoHAsync_v2(host, address, 16 * kMiB, own));
  ASSERT_OK(cuMemUnmap(address, 16 * kMiB));
  EXPECT_EQ(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(own));
  EXPECT_EQ(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
  EXPECT_GT(control("faults"), before);
  EXPECT_OK(cuMemRelease(handle));
}

TEST_F(VirtualMemory, ErrorsStickToTheirContext) {
  const CUdeviceptr address = reserve(2 * kMiB);
  ASSERT_OK(launch("sim_fill", {address, 10, 1}));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  CUdeviceptr memory = 0;
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&memory, 8));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, launch("sim_noop", {}));
  CUcontext second = nullptr;
  ASSERT_OK(cuCtxCreate_v2(&second, 0, 0));
  EXPECT_OK(cuMemAlloc_v2(&memory, 8));
  EXPECT_OK(cuCtxDestroy_v2(second));
}

}  // namespace
}  // namespace simgpu_testing
