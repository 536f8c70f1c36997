// Memory of other processes and of other devices.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "simgpu/testing.h"

namespace simgpu_testing {
namespace {

class Ipc : public GpuTest {};

constexpr uint64_t kBytes = 4 * kMiB;

template <typename Handle>
std::string to_hex(const Handle& handle) {
  std::string text;
  char digits[3];
  for (char c : handle.reserved) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

template <typename Handle = CUipcMemHandle>
Handle from_hex(const std::string& text) {
  Handle handle{};
  for (size_t i = 0; i < sizeof handle && 2 * i + 1 < text.size(); ++i) {
    handle.reserved[i] = static_cast<std::remove_reference_t<decltype(handle.reserved[0])>>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

// Opens what it is told, adds 1 to its first word, and says what it found.
int open_and_write() {
  CUcontext context = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
  say("ready");
  const CUipcMemHandle handle = from_hex(hear());
  CUdeviceptr address = 0;
  CUdeviceptr again = 0;
  if (cuIpcOpenMemHandle_v2(&address, handle, 0) != CUDA_ERROR_INVALID_VALUE) return 2;  // the flag is mandatory
  if (cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS) return 3;
  if (cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS || again != address) return 4;
  if (cuMemFree_v2(address) != CUDA_ERROR_INVALID_VALUE) return 5;
  CUcontext beside = nullptr;
  if (cuCtxCreate_v2(&beside, 0, 0) != CUDA_SUCCESS) return 10;
  if (cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_ERROR_INVALID_HANDLE) return 11;
  if (cuMemGetAddressRange_v2(nullptr, nullptr, address) != CUDA_ERROR_NOT_FOUND) return 12;
  if (cuCtxDestroy_v2(beside) != CUDA_SUCCESS || cuMemGetAddressRange_v2(nullptr, nullptr, address) != CUDA_SUCCESS) return 13;
  uint64_t word = 0;
  if (cuMemcpyDtoH_v2(&word, address, 8) != CUDA_SUCCESS) return 6;
  say(std::to_string(word));
  ++word;
  if (cuMemcpyHtoD_v2(address, &word, 8) != CUDA_SUCCESS) return 7;
  if (cuIpcCloseMemHandle(address) != CUDA_SUCCESS || cuMemcpyDtoH_v2(&word, address, 8) != CUDA_SUCCESS) return 8;
  if (cuIpcCloseMemHandle(address) != CUDA_SUCCESS || cuIpcCloseMemHandle(address) != CUDA_ERROR_INVALID_VALUE) return 9;
  return 0;
}
const bool kOpenAndWrite = add_role("open_and_write", open_and_write);

TEST_F(Ipc, PlainMemoryIsTheSameInAnotherProcess) {
  for (uint64_t bytes : {kBytes, uint64_t{4096}}) {
    allocate(512);  // so that the small one does not begin its page
    CUdeviceptr address = allocate(bytes);
    uint64_t word = 41;
    ASSERT_OK(cuMemcpyHtoD_v2(address, &word, 8));
    CUipcMemHandle handle{};
    ASSERT_OK(cuIpcGetMemHandle(&handle, address + 256));  // means the allocation
    CUdeviceptr own = 0;
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    Other other("open_and_write");
    ASSERT_EQ("ready", other.word());
    other.tell(to_hex(handle));
    EXPECT_EQ("41", other.word());
    EXPECT_EQ(0, other.wait());
    EXPECT_EQ(42u, read(address, 1)[0]);
    ASSERT_OK(cuMemFree_v2(address));
  }
}

// Opens two events. Waits for the first, records the second after it, then once more behind a kernel that does not end, and is killed.
int order_by_events() {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  CUstream stream = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
  if (cuModuleLoadData(&module, "") != CUDA_SUCCESS || cuModuleGetFunction(&spin, module, "sim_spin") != CUDA_SUCCESS) return 2;
  if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return 3;
  say("ready");
  CUevent theirs = nullptr;
  CUevent mine = nullptr;
  if (cuIpcOpenEventHandle(&theirs, from_hex<CUipcEventHandle>(hear())) != CUDA_SUCCESS) return 4;
  if (cuIpcOpenEventHandle(&mine, from_hex<CUipcEventHandle>(hear())) != CUDA_SUCCESS) return 5;
  CUipcEventHandle again{};
  if (cuIpcGetEventHandle(&again, mine) != CUDA_ERROR_INVALID_HANDLE) return 6;
  if (cuEventQuery(theirs) != CUDA_ERROR_NOT_READY) return 7;
  if (cuStreamWaitEvent(stream, theirs, 0) != CUDA_SUCCESS || cuStreamQuery(stream) != CUDA_ERROR_NOT_READY) return 8;
  if (cuEventRecord(mine, stream) != CUDA_SUCCESS || cuEventQuery(mine) != CUDA_ERROR_NOT_READY) return 9;
  say("queued");
  if (hear() != "end") return 10;
  if (cuEventSynchronize(theirs) != CUDA_SUCCESS || cuStreamSynchronize(stream) != CUDA_SUCCESS) return 11;
  uint64_t ns = 1000;
  void* arguments[] = {&ns};
  if (cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr) != CUDA_SUCCESS) return 12;
  if (cuEventRecord(mine, stream) != CUDA_SUCCESS) return 13;
  say("recorded");
  hear();
  return 14;
}
const bool kOrderByEvents = add_role("order_by_events", order_by_events);

TEST_F(Ipc, EventsOrderWorkOfTwoProcesses) {
  constexpr unsigned kShared = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  CUevent mine = nullptr;
  CUevent theirs = nullptr;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&mine, CU_EVENT_INTERPROCESS));
  ASSERT_OK(cuEventCreate(&mine, kShared));
  ASSERT_OK(cuEventCreate(&theirs, kShared));
  CUipcEventHandle handles[2] = {};
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&handles[0], event()));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuIpcGetEventHandle(nullptr, mine));
  ASSERT_OK(cuIpcGetEventHandle(&handles[0], mine));
  ASSERT_OK(cuIpcGetEventHandle(&handles[1], theirs));
  CUevent own = nullptr;
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenEventHandle(&own, handles[0]));
  EXPECT_EQ(CUDA_ERROR_MAP_FAILED, cuIpcOpenEventHandle(&own, CUipcEventHandle{}));
  EXPECT_OK(cuEventQuery(mine));  // never recorded
  EXPECT_OK(cuEventSynchronize(theirs));

  Other other("order_by_events");
  ASSERT_EQ("ready", other.word());
  CUstream work = stream();
  control("set_faults hang_kernel");  // no kernel ends before it is taken back
  ASSERT_OK(launch("sim_spin", {1000}, work));
  ASSERT_OK(cuEventRecord(mine, work));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventQuery(mine));
  for (const CUipcEventHandle& handle : handles) other.tell(to_hex(handle));
  ASSERT_EQ("queued", other.word());
  control("set_faults ");
  EXPECT_OK(cuEventSynchronize(theirs));
  EXPECT_OK(cuEventQuery(mine));
  float ms = 0;
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, mine, theirs));

  // What its process did not live to reach holds nobody up.
  control("set_faults hang_kernel");
  other.tell("end");
  ASSERT_EQ("recorded", other.word());
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventQuery(theirs));
  ASSERT_OK(cuStreamWaitEvent(work, theirs, 0));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(work));
  other.kill_now();
  EXPECT_OK(cuStreamSynchronize(work));
  control("set_faults ");
  EXPECT_OK(cuEventDestroy_v2(theirs));
  EXPECT_OK(cuEventDestroy_v2(mine));
}

CUmemoryPool shared_pool(CUmemAllocationHandleType handles) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = handles;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  EXPECT_OK(cuMemPoolCreate(&pool, &properties));
  return pool;
}

// Imports a pool and an allocation of it, and adds 1 to its first word.
int import_pool() {
  CUcontext context = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) return 1;
  say("ready");
  const int fd = open(hear().c_str(), O_RDWR | O_CLOEXEC);
  CUmemoryPool pool = nullptr;
  void* handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  if (cuMemPoolImportFromShareableHandle(&pool, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS) return 2;
  close(fd);
  CUdeviceptr address = 0;
  if (cuMemAllocFromPoolAsync(&address, 4096, pool, nullptr) != CUDA_ERROR_INVALID_VALUE) return 3;  // it is not this process's
  auto data = from_hex<CUmemPoolPtrExportData>(hear());
  auto forged = data;
  forged.reserved[0] ^= 1;
  if (cuMemPoolImportPointer(&address, pool, &forged) != CUDA_ERROR_INVALID_VALUE) return 4;
  if (cuMemPoolImportPointer(&address, pool, &data) != CUDA_SUCCESS) return 5;
  if (cuIpcCloseMemHandle(address) != CUDA_ERROR_INVALID_VALUE) return 6;
  uint64_t word = 0;
  if (cuMemcpyDtoH_v2(&word, address, 8) != CUDA_SUCCESS) return 7;
  say(std::to_string(word));
  ++word;
  if (cuMemcpyHtoD_v2(address, &word, 8) != CUDA_SUCCESS) return 8;
  if (cuMemFreeAsync(address, nullptr) != CUDA_SUCCESS || cuCtxSynchronize() != CUDA_SUCCESS) return 9;
  if (cuMemcpyDtoH_v2(&word, address, 8) == CUDA_SUCCESS) return 10;
  return cuMemPoolDestroy(pool) == CUDA_SUCCESS ? 0 : 11;
}
const bool kImportPool = add_role("import_pool", import_pool);

TEST_F(Ipc, APoolMadeToBeSharedIsTheSameInAnotherProcess) {
  CUmemoryPool closed = shared_pool(CU_MEM_HANDLE_TYPE_NONE);
  CUmemoryPool pool = shared_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  int fd = -1;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportToShareableHandle(&fd, closed, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemPoolPtrExportData data{};
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, allocate(kBytes)));
  for (uint64_t bytes : {kBytes, uint64_t{4096}}) {
    CUdeviceptr address = 0;
    ASSERT_OK(cuMemAllocFromPoolAsync(&address, bytes, pool, nullptr));
    uint64_t word = 41;
    ASSERT_OK(cuMemcpyHtoD_v2(address, &word, 8));
    ASSERT_OK(cuMemPoolExportPointer(&data, address));
    CUdeviceptr own = 0;
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemPoolImportPointer(&own, pool, &data));  // this process made the pool
    Other other("import_pool");
    ASSERT_EQ("ready", other.word());
    other.tell("/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd));
    other.tell(to_hex(data));
    EXPECT_EQ("41", other.word());
    EXPECT_EQ(0, other.wait());
    EXPECT_EQ(42u, read(address, 1)[0]);
    ASSERT_OK(cuMemFreeAsync(address, nullptr));
  }
  close(fd);
  EXPECT_OK(cuMemPoolDestroy(pool));
  EXPECT_OK(cuMemPoolDestroy(closed));
}

TEST_F(Ipc, VirtualMemoryCannotBeHandedOver) {
  CUdeviceptr address = reserve(kBytes);
  CUmemGenericAllocationHandle physical = create(kBytes, true);
  ASSERT_OK(cuMemMap(address, kBytes, 0, physical, 0));
  allow_access(address, kBytes);
  CUipcMemHandle handle{};
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, address));
  EXPECT_OK(cuMemUnmap(address, kBytes));
  EXPECT_OK(cuMemRelease(physical));
  EXPECT_OK(cuMemAddressFree(address, kBytes));
}

// A kernel of device 1 on device 0's memory.
CUresult use_from(CUcontext user, CUdeviceptr address) {
  CUcontext popped = nullptr;
  CUmodule module = nullptr;
  CUfunction fill = nullptr;
  cuCtxPushCurrent_v2(user);
  cuModuleLoadData(&module, "");
  cuModuleGetFunction(&fill, module, "sim_fill");
  uint64_t words = 512, seed = 1;
  void* arguments[] = {&address, &words, &seed};
  cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
  const CUresult result = cuCtxSynchronize();
  cuCtxPopCurrent_v2(&popped);
  return result;
}

int use_peers() {
  CUcontext first = nullptr;
  CUcontext popped = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&first, 0, 0) != CUDA_SUCCESS) return 1;
  CUdeviceptr plain = 0;
  CUdeviceptr mapped = 0;
  CUmemGenericAllocationHandle physical = 0;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (cuMemAlloc_v2(&plain, kBytes) != CUDA_SUCCESS || cuMemAddressReserve(&mapped, kBytes, 0, 0, 0) != CUDA_SUCCESS ||
      cuMemCreate(&physical, kBytes, &properties, 0) != CUDA_SUCCESS || cuMemMap(mapped, kBytes, 0, physical, 0) != CUDA_SUCCESS ||
      cuMemSetAccess(mapped, kBytes, &access, 1) != CUDA_SUCCESS)
    return 2;
  auto user = [&] {  // a new one each time: a fault breaks it
    CUcontext context = nullptr;
    cuCtxCreate_v2(&context, 0, 1);
    cuCtxPopCurrent_v2(&popped);
    return context;
  };
  auto enable = [&](CUcontext context) {
    cuCtxPushCurrent_v2(context);
    const CUresult result = cuCtxEnablePeerAccess(first, 0);
    const CUresult again = cuCtxEnablePeerAccess(first, 0);
    cuCtxPopCurrent_v2(&popped);
    return result == CUDA_SUCCESS && again == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  };
  if (cuCtxEnablePeerAccess(first, 0) != CUDA_ERROR_INVALID_CONTEXT) return 3;
  if (use_from(user(), plain) != CUDA_ERROR_ILLEGAL_ADDRESS) return 4;
  CUcontext enabled = user();
  if (!enable(enabled) || use_from(enabled, plain) != CUDA_SUCCESS) return 5;
  // Of virtual memory that says nothing.
  if (use_from(enabled, mapped) != CUDA_ERROR_ILLEGAL_ADDRESS) return 6;
  access.location.id = 1;
  if (cuMemSetAccess(mapped, kBytes, &access, 1) != CUDA_SUCCESS) return 7;
  if (use_from(user(), mapped) != CUDA_SUCCESS || use_from(first, mapped) != CUDA_SUCCESS) return 8;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (cuMemSetAccess(mapped, kBytes, &access, 1) != CUDA_SUCCESS || use_from(first, mapped) != CUDA_SUCCESS) return 9;
  if (use_from(user(), mapped) != CUDA_ERROR_ILLEGAL_ADDRESS) return 10;
  return 0;
}
const bool kUsePeers = add_role("use_peers", use_peers);

// A GPU's current pool is one of its own.
int set_pools() {
  CUmemoryPool own = nullptr;
  CUmemoryPool others = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetDefaultMemPool(&own, 0) != CUDA_SUCCESS) return 1;
  if (cuDeviceGetDefaultMemPool(&others, 1) != CUDA_SUCCESS) return 2;
  if (cuDeviceSetMemPool(0, others) != CUDA_ERROR_INVALID_VALUE) return 3;
  return cuDeviceSetMemPool(0, own) == CUDA_SUCCESS ? 0 : 4;
}
const bool kSetPools = add_role("set_pools", set_pools);

// A kernel of one GPU's module in a stream of the other.
int launch_elsewhere() {
  CUcontext contexts[2] = {};
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUstream streams[2] = {};
  if (cuInit(0) != CUDA_SUCCESS) return 1;
  for (int i = 1; i >= 0; --i) {
    if (cuCtxCreate_v2(&contexts[i], 0, i) != CUDA_SUCCESS || cuStreamCreate(&streams[i], 1) != CUDA_SUCCESS) return 2;
  }
  if (cuModuleLoadData(&module, "") != CUDA_SUCCESS || cuModuleGetFunction(&function, module, "sim_noop") != CUDA_SUCCESS) return 3;
  const auto launched = [&](CUstream stream) { return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr); };
  return launched(streams[0]) == CUDA_SUCCESS && launched(streams[1]) == CUDA_ERROR_INVALID_HANDLE ? 0 : 4;
}
const bool kLaunchElsewhere = add_role("launch_elsewhere", launch_elsewhere);

TEST_F(Ipc, AnotherDevicesStreamTakesNoKernel) {
  const std::string state = std::string(std::getenv("SIMGPU_STATE")) + "-elsewhere";
  Other other("launch_elsewhere", {"SIMGPU_COUNT=2", "SIMGPU_STATE=" + state});
  EXPECT_EQ(0, other.wait());
  unlink(state.c_str());
}

TEST_F(Ipc, AnotherDevicesPoolIsNotSet) {
  const std::string state = std::string(std::getenv("SIMGPU_STATE")) + "-pools";
  Other other("set_pools", {"SIMGPU_COUNT=2", "SIMGPU_STATE=" + state});
  EXPECT_EQ(0, other.wait());
  unlink(state.c_str());
}

TEST_F(Ipc, AnotherDevicesMemoryNeedsAccess) {
  const std::string state = std::string(std::getenv("SIMGPU_STATE")) + "-two";
  Other other("use_peers", {"SIMGPU_COUNT=2", "SIMGPU_STATE=" + state});
  EXPECT_EQ(0, other.wait());
  unlink(state.c_str());
}

}  // namespace
}  // namespace simgpu_testing
