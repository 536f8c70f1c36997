// libnvidia-ml.so.1 over the same shared state: what exists, how full and how busy it is, and who uses it.
//
// Layouts: NVML API documentation, driver 580. A device's handle is its number plus one.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>
#include <utility>

#include "simgpu/config.h"
#include "simgpu/device_state.h"

#define SIM_API extern "C" [[gnu::visibility("default")]]

namespace simgpu {
namespace {

enum Result : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kTimeout = 10,
  kGpuIsLost = 15,
  kVersionMismatch = 25,
};

using Handle = void*;

struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct ProcessInfoV1 {
  unsigned pid;
  unsigned long long used;
};
struct ProcessInfoV2 {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct Utilization {
  unsigned gpu, memory;
};
struct ProcessSample {
  unsigned pid;
  unsigned long long time_us;
  unsigned sm, memory, encoder, decoder;
};
struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};

struct EventData {
  Handle device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kEventXid = 8;
struct EventSet {
  bool first_gpu = false;  // the only one that has events here
  uint32_t told = 0;       // XID
};

std::atomic<int> g_users{0};

Result enter() { return g_users.load() > 0 ? kSuccess : kUninitialized; }

int mig_part(Handle handle);

Result find(Handle handle, int* device) {
  if (const Result result = enter()) return result;
  if (mig_part(handle) >= 0) return kNotSupported;  // most questions are for whole GPUs
  const auto number = reinterpret_cast<intptr_t>(handle) - 1;
  if (number < 0 || number >= Machine::get().device_count()) return kInvalidArgument;
  if (Machine::get().faults().device_lost.load() != 0) return kGpuIsLost;
  *device = static_cast<int>(number);
  return kSuccess;
}

// With SIMGPU_MIG=N one GPU is divided into N MIG devices, which NVML alone knows.
constexpr intptr_t kMigHandles = 1000;
int mig_parent() { return Machine::get().device_of(kMigParent); }  // -1: this process does not see it
int mig_devices() { return mig_parent() < 0 ? 0 : config().mig_devices; }
int mig_part(Handle handle) {  // -1: it is none
  const intptr_t part = reinterpret_cast<intptr_t>(handle) - kMigHandles;
  return part >= 0 && part < mig_devices() ? static_cast<int>(part) : -1;
}

Handle to_handle(int device) { return reinterpret_cast<Handle>(static_cast<intptr_t>(device) + 1); }

void format_uuid(int device, char* text, size_t size) { std::snprintf(text, size, "%s", to_text(Machine::get().uuid(device)).c_str()); }

void format_mig_uuid(int part, char* text, size_t size) {
  format_uuid(mig_parent(), text, size);
  std::copy_n("MIG", 3, text);
  text[4] = static_cast<char>('a' + part);
}

int bus_of(int device) { return Machine::get().machine_number(device) + 1; }
void format_bus_id(int device, char* text, size_t size) {
  std::snprintf(text, size, "00000000:%02X:00.0", static_cast<unsigned char>(bus_of(device)));
}

template <typename Info>
Result running_processes(Handle handle, unsigned* count, Info* out) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  if (count == nullptr) return kInvalidArgument;
  const std::vector<ProcessUse> all = Machine::get().processes(device);
  const unsigned room = *count;
  *count = static_cast<unsigned>(all.size());
  if (all.empty()) return kSuccess;
  if (room < all.size() || out == nullptr) return kInsufficientSize;
  for (size_t i = 0; i < all.size(); ++i) {
    Info info{};
    info.pid = static_cast<unsigned>(all[i].pid);
    info.used = all[i].bytes;
    if constexpr (requires { info.gpu_instance; }) info.gpu_instance = info.compute_instance = ~0u;
    out[i] = info;
  }
  return kSuccess;
}

// Percent of the time since the previous question, at least 10 ms ago; per device and kind.
unsigned busy_percent(int device, Engine engine) {
  struct Sample {
    uint64_t at_ns = 0;
    uint64_t busy_ns = 0;
    unsigned percent = 0;
  };
  static auto* const kMutex = new std::mutex;
  static Sample samples[kMaxDevices][kEngines];
  std::lock_guard lock(*kMutex);
  Sample& last = samples[device][static_cast<int>(engine)];
  const uint64_t now = now_ns();
  if (now - last.at_ns < 10000000) return last.percent;
  const uint64_t busy = Machine::get().busy_ns(device, engine);
  const double percent = 100.0 * static_cast<double>(busy - last.busy_ns) / static_cast<double>(now - last.at_ns);
  last = {now, busy, last.at_ns == 0 ? 0 : static_cast<unsigned>(std::min(percent, 100.0))};
  return last.percent;
}

using Samples = std::vector<ProcessSample>;

// What a driver keeps of processes' time: how much each had had by when. A real one takes these samples by itself; here one is taken when
// somebody asks, at most every sixth of a second.
struct ProcessHistory {
  struct Moment {
    uint64_t at_us = 0;
    std::vector<ProcessUse> processes;
  };
  std::mutex mutex;
  std::array<std::vector<Moment>, kMaxDevices> moments;
};
constexpr uint64_t kSampleUs = 1000000 / 6;
constexpr size_t kMomentsMax = 600;

ProcessHistory& history() {
  static auto* const kHistory = new ProcessHistory;
  return *kHistory;
}

uint64_t wall_clock_us() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

// Of the processes that ran since then, how much of the time they did, up to the latest sample; returns when that was taken.
uint64_t sample_processes(int device, uint64_t since_us, Samples* out) {
  std::lock_guard lock(history().mutex);
  auto& moments = history().moments[static_cast<size_t>(device)];
  const uint64_t now_us = wall_clock_us();
  if (moments.empty() || now_us - moments.back().at_us >= kSampleUs) moments.push_back({now_us, Machine::get().processes(device)});
  if (moments.size() > kMomentsMax) moments.erase(moments.begin(), moments.begin() + kMomentsMax / 2);
  const ProcessHistory::Moment& last = moments.back();
  const ProcessHistory::Moment* first = &moments.front();
  for (const ProcessHistory::Moment& moment : moments) {
    if (moment.at_us <= since_us) first = &moment;
  }
  for (const ProcessUse& process : last.processes) {
    const auto known =
        std::find_if(first->processes.begin(), first->processes.end(), [&](const auto& use) { return use.pid == process.pid; });
    const uint64_t before = known != first->processes.end() ? std::min(known->compute_ns, process.compute_ns) : 0;
    const double percent =
        static_cast<double>(process.compute_ns - before) / 10.0 / static_cast<double>(std::max<uint64_t>(last.at_us - first->at_us, 1));
    const auto whole = static_cast<unsigned>(std::lround(std::min(percent, 100.0)));
    if (whole > 0) out->push_back({static_cast<unsigned>(process.pid), last.at_us, whole, 0, 0, 0});
  }
  return last.at_us;
}

Result initialise() {
  if (config().no_nvml) return kDriverNotLoaded;
  Machine::get();
  g_users.fetch_add(1);
  return kSuccess;
}

Result by_uuid(const char* text, Handle* out) {
  if (const Result result = enter()) return result;
  for (int part = 0; part < mig_devices(); ++part) {
    char uuid[48];
    format_mig_uuid(part, uuid, sizeof uuid);
    if (std::strcmp(uuid, text) != 0) continue;
    *out = reinterpret_cast<Handle>(kMigHandles + part);
    return kSuccess;
  }
  for (int i = 0; i < Machine::get().device_count(); ++i) {
    char uuid[48];
    format_uuid(i, uuid, sizeof uuid);
    if (std::strcmp(uuid, text) != 0) continue;
    *out = to_handle(i);
    return kSuccess;
  }
  return kNotFound;
}

Result by_bus_id(const char* text, Handle* out) {
  if (const Result result = enter()) return result;
  for (int i = 0; i < Machine::get().device_count(); ++i) {
    char id[32];
    format_bus_id(i, id, sizeof id);
    // Callers write the domain with four or eight digits.
    if (std::strcmp(id, text) != 0 && std::strcmp(id + 4, text) != 0) continue;
    *out = to_handle(i);
    return kSuccess;
  }
  return kNotFound;
}

Result by_index(unsigned index, Handle* out) {
  if (const Result result = enter()) return result;
  if (index >= static_cast<unsigned>(Machine::get().device_count())) return kInvalidArgument;
  *out = to_handle(static_cast<int>(index));
  return kSuccess;
}

}  // namespace

bool is_cuda() { return false; }

SIM_API Result nvmlInit() { return initialise(); }
SIM_API Result nvmlInit_v2() { return initialise(); }
SIM_API Result nvmlInitWithFlags(unsigned) { return initialise(); }
SIM_API Result nvmlShutdown() {
  if (const Result result = enter()) return result;
  g_users.fetch_sub(1);
  return kSuccess;
}
SIM_API const char* nvmlErrorString(Result result) { return result == kSuccess ? "Success" : "stand-in NVML error"; }

SIM_API Result nvmlSystemGetDriverVersion(char* text, unsigned size) {
  if (const Result result = enter()) return result;
  std::snprintf(text, size, "580.0.0-simgpu");
  return kSuccess;
}
SIM_API Result nvmlSystemGetCudaDriverVersion(int* version) {
  if (const Result result = enter()) return result;
  *version = 13000;
  return kSuccess;
}
SIM_API Result nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }

SIM_API Result nvmlDeviceGetCount_v2(unsigned* count) {
  if (const Result result = enter()) return result;
  *count = static_cast<unsigned>(Machine::get().device_count());
  return kSuccess;
}
SIM_API Result nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
SIM_API Result nvmlDeviceGetHandleByIndex(unsigned index, Handle* out) { return by_index(index, out); }
SIM_API Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* out) { return by_index(index, out); }
SIM_API Result nvmlDeviceGetHandleByUUID(const char* uuid, Handle* out) { return by_uuid(uuid, out); }
SIM_API Result nvmlDeviceGetHandleByPciBusId(const char* id, Handle* out) { return by_bus_id(id, out); }
SIM_API Result nvmlDeviceGetHandleByPciBusId_v2(const char* id, Handle* out) { return by_bus_id(id, out); }

SIM_API Result nvmlDeviceGetIndex(Handle handle, unsigned* index) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  *index = static_cast<unsigned>(device);
  return kSuccess;
}
SIM_API Result nvmlDeviceGetMinorNumber(Handle handle, unsigned* number) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  *number = static_cast<unsigned>(Machine::get().machine_number(device));
  return kSuccess;
}
SIM_API Result nvmlDeviceGetName(Handle handle, char* text, unsigned size) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  std::snprintf(text, size, "nvshare stand-in GPU");
  return kSuccess;
}
SIM_API Result nvmlDeviceGetUUID(Handle handle, char* text, unsigned size) {
  int device = 0;
  if (size < 41) return kInsufficientSize;
  if (mig_part(handle) >= 0) {
    format_mig_uuid(mig_part(handle), text, size);
    return kSuccess;
  }
  if (const Result result = find(handle, &device)) return result;
  format_uuid(device, text, size);
  return kSuccess;
}
SIM_API Result nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo* info) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  *info = {};
  info->bus = static_cast<unsigned>(bus_of(device));
  format_bus_id(device, info->id, sizeof info->id);
  std::memcpy(info->legacy_id, info->id + 4, 13);
  return kSuccess;
}
SIM_API Result nvmlDeviceGetPciInfo_v2(Handle handle, PciInfo* info) { return nvmlDeviceGetPciInfo_v3(handle, info); }

SIM_API Result nvmlDeviceGetP2PStatus(Handle one, Handle other, unsigned index, unsigned* status) {
  constexpr unsigned kByNvlink = 2, kOk = 0, kNotSupported = 5;
  int first = 0, second = 0;
  if (const Result result = find(one, &first)) return result;
  if (const Result result = find(other, &second)) return result;
  if (index > 5) return kInvalidArgument;
  const int group = config().nvlink_group;
  const bool joined =
      group > 1 && first != second && Machine::get().machine_number(first) / group == Machine::get().machine_number(second) / group;
  *status = index == kByNvlink && joined ? kOk : kNotSupported;
  return kSuccess;
}

SIM_API Result nvmlDeviceGetMigMode(Handle handle, unsigned* now, unsigned* after_reset) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  *now = *after_reset = device == mig_parent() && mig_devices() > 0 ? 1 : 0;
  return kSuccess;
}
SIM_API Result nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned* count) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  *count = 7;
  return kSuccess;
}
SIM_API Result nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned index, Handle* out) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  if (index >= 7) return kInvalidArgument;
  // The first index is free, as after a MIG device was destroyed.
  if (device != mig_parent() || index == 0 || index > static_cast<unsigned>(mig_devices())) return kNotFound;
  *out = reinterpret_cast<Handle>(kMigHandles + static_cast<intptr_t>(index) - 1);
  return kSuccess;
}
SIM_API Result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle handle, Handle* out) {
  if (const Result result = enter()) return result;
  if (mig_part(handle) < 0) return kInvalidArgument;
  *out = to_handle(0);
  return kSuccess;
}

SIM_API Result nvmlEventSetCreate(EventSet** set) {
  if (const Result result = enter()) return result;
  *set = new EventSet;
  return kSuccess;
}
SIM_API Result nvmlEventSetFree(EventSet* set) {
  delete set;
  return enter();
}
SIM_API Result nvmlDeviceGetSupportedEventTypes(Handle handle, unsigned long long* types) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  *types = kEventXid;
  return kSuccess;
}
SIM_API Result nvmlDeviceRegisterEvents(Handle handle, unsigned long long types, EventSet* set) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  if ((types & ~kEventXid) != 0) return kNotSupported;
  set->first_gpu = set->first_gpu || device == 0;
  return kSuccess;
}
SIM_API Result nvmlEventSetWait_v2(EventSet* set, EventData* data, unsigned timeout_ms) {
  for (const uint64_t end = now_ns() + timeout_ms * uint64_t{1000000};;) {
    if (const Result result = enter()) return result;
    const uint32_t xid = Machine::get().faults().xid.load();
    if (set->first_gpu && xid != std::exchange(set->told, xid) && xid != 0) {
      *data = {to_handle(0), kEventXid, xid, ~0u, ~0u};
      return kSuccess;
    }
    const uint64_t now = now_ns();
    if (now >= end) return kTimeout;
    const timespec left{static_cast<time_t>((end - now) / 1000000000), static_cast<long>((end - now) % 1000000000)};
    syscall(SYS_futex, &Machine::get().faults().xid, FUTEX_WAIT, xid, &left, nullptr, 0);
  }
}
SIM_API Result nvmlEventSetWait(EventSet* set, EventData* data, unsigned timeout_ms) { return nvmlEventSetWait_v2(set, data, timeout_ms); }

SIM_API Result nvmlDeviceGetMemoryInfo(Handle handle, Memory* out) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  const MemoryUse use = Machine::get().memory(device);
  *out = {use.total, use.total - use.used, use.used};
  return kSuccess;
}
SIM_API Result nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2* out) {
  int device = 0;
  if (out->version != (sizeof(MemoryV2) | 2u << 24)) return kVersionMismatch;
  if (mig_part(handle) >= 0) {
    if (Machine::get().faults().device_lost.load() != 0) return kGpuIsLost;
    const auto parts = static_cast<uint64_t>(std::max(mig_devices(), 1));
    const uint64_t part = Machine::get().memory(mig_parent()).total / parts;
    *out = {out->version, part, 0, part, 0};
    return kSuccess;
  }
  if (const Result result = find(handle, &device)) return result;
  const MemoryUse use = Machine::get().memory(device);
  *out = {out->version, use.total, 0, use.total - use.used, use.used};
  return kSuccess;
}
SIM_API Result nvmlDeviceGetUtilizationRates(Handle handle, Utilization* out) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  *out = {busy_percent(device, Engine::kCompute), busy_percent(device, Engine::kToDevice)};
  return kSuccess;
}

SIM_API Result nvmlDeviceGetComputeRunningProcesses(Handle handle, unsigned* count, ProcessInfoV1* out) {
  return running_processes(handle, count, out);
}
SIM_API Result nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned* count, ProcessInfoV2* out) {
  return running_processes(handle, count, out);
}
SIM_API Result nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, ProcessInfoV2* out) {
  return running_processes(handle, count, out);
}

// Nobody draws, and there is no MPS.
Result no_processes(Handle handle, unsigned* count) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  if (count == nullptr) return kInvalidArgument;
  *count = 0;
  return kSuccess;
}
SIM_API Result nvmlDeviceGetGraphicsRunningProcesses(Handle handle, unsigned* count, ProcessInfoV1*) { return no_processes(handle, count); }
SIM_API Result nvmlDeviceGetGraphicsRunningProcesses_v2(Handle handle, unsigned* count, ProcessInfoV2*) {
  return no_processes(handle, count);
}
SIM_API Result nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned* count, ProcessInfoV2*) {
  return no_processes(handle, count);
}
SIM_API Result nvmlDeviceGetMPSComputeRunningProcesses(Handle handle, unsigned* count, ProcessInfoV1*) {
  return no_processes(handle, count);
}
SIM_API Result nvmlDeviceGetMPSComputeRunningProcesses_v2(Handle handle, unsigned* count, ProcessInfoV2*) {
  return no_processes(handle, count);
}
SIM_API Result nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle handle, unsigned* count, ProcessInfoV2*) {
  return no_processes(handle, count);
}

SIM_API Result nvmlDeviceGetProcessUtilization(Handle handle, ProcessSample* out, unsigned* count, unsigned long long last_us) {
  int device = 0;
  if (const Result result = find(handle, &device)) return result;
  if (device == mig_parent() && mig_devices() > 0) return kNotSupported;
  if (count == nullptr) return kInvalidArgument;
  Samples samples;
  if (const uint64_t at_us = sample_processes(device, last_us, &samples); at_us <= last_us || samples.empty()) return kNotFound;
  const unsigned room = *count;
  *count = static_cast<unsigned>(samples.size());
  if (out == nullptr || room < samples.size()) return kInsufficientSize;
  std::copy(samples.begin(), samples.end(), out);
  return kSuccess;
}

}  // namespace simgpu
