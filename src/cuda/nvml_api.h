// NVML's functions that libnvshare.so stands in for, or calls when it does, as NVIDIA's NVML API reference
// (docs.nvidia.com/deploy/nvml-api) declares them, versions R418 to R580. nvml.h is for who only wants to know; this is the interface
// itself.
#pragma once

namespace nvshare::cuda::nvml {

enum Return : int {
  kSuccess = 0,
  kInvalidArgument = 2,
  kInsufficientSize = 7,
  kLibraryNotFound = 12,
  kFunctionNotFound = 13,
  kVersionMismatch = 25,
};

using Handle = void*;  // nvmlDevice_t

struct MemoryV1 {
  unsigned long long total, free, used;  // used includes what is reserved
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;  // used does not include what is reserved
};
inline constexpr unsigned kMemoryV2Version = sizeof(MemoryV2) | (2U << 24);

struct ProcessV1 {
  unsigned pid;
  unsigned long long used;
};
struct ProcessV2 {  // of the _v2 and _v3 functions
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;  // ~0: none
};

inline constexpr unsigned kUuidBytes = 96;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE

// One declaration a line: tools/generate_entry_points.py reads them.
namespace api {
extern "C" {
Return nvmlDeviceGetComputeRunningProcesses(Handle device, unsigned* count, ProcessV1* infos);
Return nvmlDeviceGetComputeRunningProcesses_v2(Handle device, unsigned* count, ProcessV2* infos);
Return nvmlDeviceGetComputeRunningProcesses_v3(Handle device, unsigned* count, ProcessV2* infos);
Return nvmlDeviceGetGraphicsRunningProcesses(Handle device, unsigned* count, ProcessV1* infos);
Return nvmlDeviceGetGraphicsRunningProcesses_v2(Handle device, unsigned* count, ProcessV2* infos);
Return nvmlDeviceGetGraphicsRunningProcesses_v3(Handle device, unsigned* count, ProcessV2* infos);
Return nvmlDeviceGetMPSComputeRunningProcesses(Handle device, unsigned* count, ProcessV1* infos);
Return nvmlDeviceGetMPSComputeRunningProcesses_v2(Handle device, unsigned* count, ProcessV2* infos);
Return nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle device, unsigned* count, ProcessV2* infos);
Return nvmlDeviceGetMemoryInfo(Handle device, MemoryV1* memory);
Return nvmlDeviceGetMemoryInfo_v2(Handle device, MemoryV2* memory);
Return nvmlDeviceGetUUID(Handle device, char* uuid, unsigned length);
}
}  // namespace api

}  // namespace nvshare::cuda::nvml
