// What NVML tells a tenant's programs of a GPU's memory and processes: the tenant's limit and its own use, whoever else uses the GPU.
// Figures come from the scheduler, so that programs that use no CUDA (nvidia-smi) see the same. MIG devices pass through.
#include <algorithm>

#include "cuda/nvml.h"
#include "interposer/generated/nvml_table.h"
#include "interposer/hooks/entry.h"
#include "interposer/link/tenant_use.h"
#include "interposer/symbols/real_nvml.h"

namespace nvshare::interposer {

namespace {

constexpr int kPatience_ms = 1000;  // such programs ask again and again

bool uuid_of(Handle device, uint8_t (&uuid)[16]) {
  char text[cuda::nvml::kUuidBytes] = {};
  if (call_nvml<&NvmlTable::nvmlDeviceGetUUID>(device, static_cast<char*>(text), static_cast<unsigned>(sizeof text)) !=
      cuda::nvml::kSuccess)
    return false;
  if (text[0] != 'G') return false;  // "MIG-..."
  return static_cast<bool>(cuda::parse_uuid(text, uuid));
}

// The tenant's use; false: the driver's answer stands.
bool use_of(Process& process, Handle device, uint64_t total, TenantUse* use) {
  uint8_t uuid[16];
  return uuid_of(device, uuid) && ask_tenant_use(process, uuid, total, kPatience_ms, use);
}

uint64_t real_total(Handle device) {
  MemoryV1 memory{};
  return call_nvml<&NvmlTable::nvmlDeviceGetMemoryInfo>(device, &memory) == cuda::nvml::kSuccess ? memory.total : 0;
}

template <typename Memory>
void show(const TenantUse& use, Memory* memory) {
  const uint64_t total = shown_total(memory->total, use.total, use.limit);
  memory->total = total;
  memory->used = std::min(total, use.used);
  memory->free = total - memory->used;
}

template <auto Function, typename Info>
Return processes(Process& process, Handle device, unsigned* count, Info* infos, bool computing) {
  TenantUse use;
  const uint64_t total = count != nullptr ? real_total(device) : 0;
  if (total == 0 || !use_of(process, device, total, &use)) return call_nvml<Function>(device, count, infos);
  if (!computing) use.processes.clear();  // the tenant's programs all compute
  const unsigned room = *count;
  *count = static_cast<unsigned>(use.processes.size());
  if (use.processes.empty()) return cuda::nvml::kSuccess;
  if (infos == nullptr || room < use.processes.size()) return cuda::nvml::kInsufficientSize;
  for (size_t i = 0; i < use.processes.size(); ++i) {
    infos[i] = Info{};
    infos[i].pid = static_cast<unsigned>(use.processes[i].pid);
    infos[i].used = use.processes[i].allocated;
    if constexpr (requires { infos[i].gpu_instance; }) infos[i].gpu_instance = infos[i].compute_instance = ~0U;
  }
  return cuda::nvml::kSuccess;
}

}  // namespace

extern "C" {

NVSHARE_EXPORT Return nvmlDeviceGetMemoryInfo(Handle device, MemoryV1* memory) {
  const Return result = call_nvml<&NvmlTable::nvmlDeviceGetMemoryInfo>(device, memory);
  TenantUse use;
  if (result == cuda::nvml::kSuccess && memory != nullptr && use_of(Entry().process(), device, memory->total, &use)) show(use, memory);
  return result;
}
NVSHARE_EXPORT Return nvmlDeviceGetMemoryInfo_v2(Handle device, MemoryV2* memory) {
  const Return result = call_nvml<&NvmlTable::nvmlDeviceGetMemoryInfo_v2>(device, memory);
  TenantUse use;
  if (result == cuda::nvml::kSuccess && memory != nullptr && use_of(Entry().process(), device, memory->total, &use)) {
    show(use, memory);
    memory->reserved = 0;  // what the driver sets aside is not the tenant's
  }
  return result;
}

NVSHARE_EXPORT Return nvmlDeviceGetComputeRunningProcesses(Handle device, unsigned* count, ProcessV1* infos) {
  return processes<&NvmlTable::nvmlDeviceGetComputeRunningProcesses>(Entry().process(), device, count, infos, true);
}
NVSHARE_EXPORT Return nvmlDeviceGetComputeRunningProcesses_v2(Handle device, unsigned* count, ProcessV2* infos) {
  return processes<&NvmlTable::nvmlDeviceGetComputeRunningProcesses_v2>(Entry().process(), device, count, infos, true);
}
NVSHARE_EXPORT Return nvmlDeviceGetComputeRunningProcesses_v3(Handle device, unsigned* count, ProcessV2* infos) {
  return processes<&NvmlTable::nvmlDeviceGetComputeRunningProcesses_v3>(Entry().process(), device, count, infos, true);
}
NVSHARE_EXPORT Return nvmlDeviceGetGraphicsRunningProcesses(Handle device, unsigned* count, ProcessV1* infos) {
  return processes<&NvmlTable::nvmlDeviceGetGraphicsRunningProcesses>(Entry().process(), device, count, infos, false);
}
NVSHARE_EXPORT Return nvmlDeviceGetGraphicsRunningProcesses_v2(Handle device, unsigned* count, ProcessV2* infos) {
  return processes<&NvmlTable::nvmlDeviceGetGraphicsRunningProcesses_v2>(Entry().process(), device, count, infos, false);
}
NVSHARE_EXPORT Return nvmlDeviceGetGraphicsRunningProcesses_v3(Handle device, unsigned* count, ProcessV2* infos) {
  return processes<&NvmlTable::nvmlDeviceGetGraphicsRunningProcesses_v3>(Entry().process(), device, count, infos, false);
}
NVSHARE_EXPORT Return nvmlDeviceGetMPSComputeRunningProcesses(Handle device, unsigned* count, ProcessV1* infos) {
  return processes<&NvmlTable::nvmlDeviceGetMPSComputeRunningProcesses>(Entry().process(), device, count, infos, false);
}
NVSHARE_EXPORT Return nvmlDeviceGetMPSComputeRunningProcesses_v2(Handle device, unsigned* count, ProcessV2* infos) {
  return processes<&NvmlTable::nvmlDeviceGetMPSComputeRunningProcesses_v2>(Entry().process(), device, count, infos, false);
}
NVSHARE_EXPORT Return nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle device, unsigned* count, ProcessV2* infos) {
  return processes<&NvmlTable::nvmlDeviceGetMPSComputeRunningProcesses_v3>(Entry().process(), device, count, infos, false);
}

}  // extern "C"
}  // namespace nvshare::interposer
