#include "cuda/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>

namespace nvshare::cuda {
namespace {

// From NVML's API reference.
using Return = int;
constexpr Return kSuccess = 0;
constexpr Return kNotFound = 6;
constexpr Return kInsufficientSize = 7;
constexpr uint64_t kValueNotAvailable = UINT64_MAX;

struct MemoryV1 {
  unsigned long long total, free, used;  // used includes what is reserved
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;  // used does not include what is reserved
};
constexpr unsigned kMemoryV2Version = sizeof(MemoryV2) | (2U << 24);

struct ProcessInfo {  // of the _v2 and _v3 functions
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

struct ProcessSample {  // nvmlProcessUtilizationSample_t
  unsigned pid;
  unsigned long long time_us;
  unsigned sm, memory, encoder, decoder;
};

constexpr Return kTimeout = 10;
constexpr unsigned long long kEventXid = 8;  // nvmlEventTypeXidCriticalError
struct EventData {                           // of nvmlEventSetWait_v2; the older one fills the first three
  NvmlDevice device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
struct PciInfo {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
};

constexpr size_t kProcessesMax = 1024;

}  // namespace

struct NvmlMigApi {
  Return (*mode)(NvmlDevice, unsigned*, unsigned*);
  Return (*count_max)(NvmlDevice, unsigned*);
  Return (*device)(NvmlDevice, unsigned, NvmlDevice*);
  Return (*gpu_of)(NvmlDevice, NvmlDevice*);
};

struct NvmlEventApi {
  Return (*create_set)(void**);
  Return (*free_set)(void*);
  Return (*wait)(void*, EventData*, unsigned);
  Return (*watch)(NvmlDevice, unsigned long long, void*);
};

// Each is null where the library has no such function.
struct NvmlApi {
  Return (*init)();
  Return (*shutdown)();
  const char* (*error_string)(Return);
  Return (*device_count)(unsigned*);
  Return (*device_by_index)(unsigned, NvmlDevice*);
  Return (*device_by_uuid)(const char*, NvmlDevice*);
  Return (*uuid)(NvmlDevice, char*, unsigned);
  Return (*name)(NvmlDevice, char*, unsigned);
  Return (*architecture)(NvmlDevice, unsigned*);
  Return (*driver_version)(char*, unsigned);
  Return (*cuda_version)(int*);
  Return (*memory_v1)(NvmlDevice, MemoryV1*);
  Return (*memory_v2)(NvmlDevice, MemoryV2*);
  Return (*compute_processes)(NvmlDevice, unsigned*, ProcessInfo*);
  Return (*graphics_processes)(NvmlDevice, unsigned*, ProcessInfo*);
  Return (*process_use)(NvmlDevice, ProcessSample*, unsigned*, unsigned long long);
  Return (*pci_info)(NvmlDevice, PciInfo*);
  Return (*peer_status)(NvmlDevice, NvmlDevice, unsigned, unsigned*);
  NvmlMigApi mig;
  NvmlEventApi events;
};

namespace {

Error failure(const NvmlApi& api, const char* what, Return code) {
  const char* text = api.error_string != nullptr ? api.error_string(code) : nullptr;
  return error_format("NVML cannot tell %s: %s (%d)", what, text != nullptr ? text : "no description", code);
}

Error lacking(const char* what) { return error_format("NVML of this driver cannot tell %s", what); }

// The first of `names` that the library has.
template <typename Function>
void find(void* library, Function** function, std::initializer_list<const char*> names) {
  *function = nullptr;
  for (const char* name : names) {
    if (*function == nullptr) *function = reinterpret_cast<Function*>(dlsym(library, name));
  }
}

void find_all(void* library, NvmlApi* api) {
  find(library, &api->init, {"nvmlInit_v2", "nvmlInit"});
  find(library, &api->shutdown, {"nvmlShutdown"});
  find(library, &api->error_string, {"nvmlErrorString"});
  find(library, &api->device_count, {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"});
  find(library, &api->device_by_index, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"});
  find(library, &api->device_by_uuid, {"nvmlDeviceGetHandleByUUID"});
  find(library, &api->uuid, {"nvmlDeviceGetUUID"});
  find(library, &api->name, {"nvmlDeviceGetName"});
  find(library, &api->architecture, {"nvmlDeviceGetArchitecture"});
  find(library, &api->driver_version, {"nvmlSystemGetDriverVersion"});
  find(library, &api->cuda_version, {"nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"});
  find(library, &api->memory_v1, {"nvmlDeviceGetMemoryInfo"});
  find(library, &api->memory_v2, {"nvmlDeviceGetMemoryInfo_v2"});
  find(library, &api->compute_processes, {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"});
  find(library, &api->process_use, {"nvmlDeviceGetProcessUtilization"});
  find(library, &api->pci_info, {"nvmlDeviceGetPciInfo_v3"});
  find(library, &api->peer_status, {"nvmlDeviceGetP2PStatus"});
  find(library, &api->mig.mode, {"nvmlDeviceGetMigMode"});
  find(library, &api->mig.count_max, {"nvmlDeviceGetMaxMigDeviceCount"});
  find(library, &api->mig.device, {"nvmlDeviceGetMigDeviceHandleByIndex"});
  find(library, &api->mig.gpu_of, {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle"});
  find(library, &api->events.create_set, {"nvmlEventSetCreate"});
  find(library, &api->events.free_set, {"nvmlEventSetFree"});
  find(library, &api->events.wait, {"nvmlEventSetWait_v2", "nvmlEventSetWait"});
  find(library, &api->events.watch, {"nvmlDeviceRegisterEvents"});
  find(library, &api->graphics_processes, {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"});
}

// A process that both computes and draws is listed twice with the same figure.
Result<size_t> append(std::span<NvmlProcess> processes, size_t count, std::span<const ProcessInfo> found) {
  for (const ProcessInfo& info : found) {
    if (info.used == kValueNotAvailable) continue;
    size_t at = 0;
    while (at < count && processes[at].pid != info.pid) ++at;
    if (at == processes.size()) return error_format("NVML lists more than %zu processes on one GPU", processes.size());
    if (at == count) processes[count++] = {info.pid, 0};
    if (info.used > processes[at].used) processes[at].used = info.used;
  }
  return count;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Result<Nvml> Nvml::load(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return error_format("no NVML: %.200s", reason != nullptr ? reason : library);
  }
  auto* api = new NvmlApi;
  find_all(handle, api);
  if (api->init == nullptr || api->shutdown == nullptr) {
    delete api;
    return error_format("no NVML: %.180s has no nvmlInit", library);
  }
  if (Return code = api->init(); code != kSuccess) {
    Error error = failure(*api, "anything", code);
    delete api;
    return error;
  }
  return Nvml(api);
}

Nvml::Nvml(Nvml&& other) noexcept : api_(other.api_) { other.api_ = nullptr; }

Nvml::~Nvml() {
  if (api_ == nullptr) return;
  api_->shutdown();
  delete api_;
}

Result<uint32_t> Nvml::device_count() const {
  if (api_->device_count == nullptr) return lacking("how many GPUs there are");
  unsigned count = 0;
  if (Return code = api_->device_count(&count); code != kSuccess) return failure(*api_, "how many GPUs there are", code);
  return count;
}

Result<NvmlDevice> Nvml::device_by_index(uint32_t index) const {
  if (api_->device_by_index == nullptr) return lacking("a GPU by its number");
  NvmlDevice device = nullptr;
  if (Return code = api_->device_by_index(index, &device); code != kSuccess) return failure(*api_, "a GPU by its number", code);
  return device;
}

Result<NvmlDevice> Nvml::device_by_uuid(std::span<const uint8_t, 16> uuid) const {
  char text[kUuidTextBytes];
  format_uuid(uuid, text);
  return device_by_uuid(text);
}

Result<NvmlDevice> Nvml::device_by_uuid(const char* text) const {
  if (api_->device_by_uuid == nullptr) return lacking("a GPU by its UUID");
  NvmlDevice device = nullptr;
  if (Return code = api_->device_by_uuid(text, &device); code != kSuccess) return failure(*api_, "a GPU by its UUID", code);
  return device;
}

Result<void> Nvml::uuid_of(NvmlDevice device, std::span<uint8_t, 16> uuid) const {
  char text[96];
  if (auto ok = uuid_text_of(device, text); !ok) return ok;
  return parse_uuid(text, uuid);
}

Result<void> Nvml::uuid_text_of(NvmlDevice device, std::span<char> text) const {
  if (api_->uuid == nullptr) return lacking("a GPU's UUID");
  Return code = api_->uuid(device, text.data(), static_cast<unsigned>(text.size()));
  if (code != kSuccess) return failure(*api_, "a GPU's UUID", code);
  text.back() = 0;
  return {};
}

bool Nvml::is_divided(NvmlDevice gpu) const {
  unsigned now = 0;
  unsigned after_reset = 0;
  return api_->mig.mode != nullptr && api_->mig.mode(gpu, &now, &after_reset) == kSuccess && now == 1;
}

size_t Nvml::mig_devices_of(NvmlDevice gpu, std::span<NvmlDevice> devices) const {
  unsigned most = 0;
  if (api_->mig.count_max == nullptr || api_->mig.device == nullptr || api_->mig.count_max(gpu, &most) != kSuccess) return 0;
  size_t count = 0;
  for (unsigned i = 0; i < most && count < devices.size(); ++i) {  // indices need not follow each other
    NvmlDevice device = nullptr;
    if (api_->mig.device(gpu, i, &device) == kSuccess) devices[count++] = device;
  }
  return count;
}

NvmlDevice Nvml::gpu_of(NvmlDevice device) const {
  NvmlDevice gpu = nullptr;
  return api_->mig.gpu_of != nullptr && api_->mig.gpu_of(device, &gpu) == kSuccess ? gpu : device;
}

Result<void> Nvml::name_of(NvmlDevice device, std::span<char> name) const {
  if (api_->name == nullptr) return lacking("a GPU's name");
  char text[128] = {};
  if (Return code = api_->name(device, text, sizeof text - 1); code != kSuccess) return failure(*api_, "a GPU's name", code);
  size_t length = strnlen(text, name.size() - 1);
  std::memcpy(name.data(), text, length);
  name[length] = 0;
  return {};
}

Result<NvmlMemory> Nvml::memory_of(NvmlDevice device) const {
  if (api_->memory_v2 != nullptr) {
    MemoryV2 memory{kMemoryV2Version, 0, 0, 0, 0};
    if (api_->memory_v2(device, &memory) == kSuccess) return NvmlMemory{memory.total, memory.used, memory.reserved};
  }
  if (api_->memory_v1 == nullptr) return lacking("a GPU's memory");
  MemoryV1 memory{};
  if (Return code = api_->memory_v1(device, &memory); code != kSuccess) return failure(*api_, "a GPU's memory", code);
  return NvmlMemory{memory.total, memory.used, 0};
}

Result<size_t> Nvml::processes_of(NvmlDevice device, std::span<NvmlProcess> processes) const {
  if (api_->compute_processes == nullptr) return lacking("the processes on a GPU");
  ProcessInfo found[kProcessesMax];
  size_t count = 0;
  for (auto* list : {api_->compute_processes, api_->graphics_processes}) {
    if (list == nullptr) continue;
    unsigned length = kProcessesMax;
    Return code = list(device, &length, found);
    if (code == kInsufficientSize) return error_format("NVML lists %u processes on one GPU; accepted: %zu", length, kProcessesMax);
    if (code != kSuccess && list == api_->compute_processes) return failure(*api_, "the processes on a GPU", code);
    if (code != kSuccess) continue;  // cards without graphics
    Result<size_t> appended = append(processes, count, {found, length});
    if (!appended) return appended.error();
    count = *appended;
  }
  return count;
}

Result<size_t> Nvml::process_use_of(NvmlDevice device, uint64_t since_us, std::span<NvmlProcessUse> processes) const {
  constexpr const char* kWhat = "how much of a GPU's time processes use";
  if (api_->process_use == nullptr) return lacking(kWhat);
  ProcessSample found[kProcessesMax];
  unsigned length = kProcessesMax;
  const Return code = api_->process_use(device, found, &length, since_us);
  if (code == kNotFound) return size_t{0};
  if (code != kSuccess) return failure(*api_, kWhat, code);
  size_t count = 0;
  for (const ProcessSample& sample : std::span(found).first(std::min<size_t>(length, kProcessesMax))) {
    if (sample.pid == 0 || sample.sm > 100 || sample.time_us <= since_us) continue;
    if (count == processes.size()) return error_format("NVML lists more than %zu processes that use one GPU", processes.size());
    processes[count++] = {sample.pid, sample.time_us, sample.sm};
  }
  return count;
}

Result<const char*> Nvml::architecture_of(NvmlDevice device) const {
  // NVML_DEVICE_ARCH_...
  static constexpr const char* kNames[] = {nullptr,  nullptr,  "Kepler", "Maxwell", "Pascal",   "Volta",
                                           "Turing", "Ampere", "Ada",    "Hopper",  "Blackwell"};
  if (api_->architecture == nullptr) return lacking("a GPU's architecture");
  unsigned number = 0;
  if (Return code = api_->architecture(device, &number); code != kSuccess) return failure(*api_, "a GPU's architecture", code);
  if (number >= std::size(kNames) || kNames[number] == nullptr) return error_format("NVML's architecture %u is not known here", number);
  return kNames[number];
}

Result<void> Nvml::driver_version(std::span<char> version) const {
  if (api_->driver_version == nullptr) return lacking("its version");
  char text[96] = {};
  if (Return code = api_->driver_version(text, sizeof text); code != kSuccess) return failure(*api_, "its version", code);
  const size_t length = std::min(strnlen(text, sizeof text), version.size() - 1);
  std::memcpy(version.data(), text, length);
  version[length] = 0;
  return {};
}

Result<int> Nvml::cuda_version() const {
  if (api_->cuda_version == nullptr) return lacking("its CUDA version");
  int version = 0;
  if (Return code = api_->cuda_version(&version); code != kSuccess) return failure(*api_, "its CUDA version", code);
  return version;
}

Result<void> Nvml::pci_address_of(NvmlDevice device, std::span<char> address) const {
  if (api_->pci_info == nullptr) return lacking("a GPU's PCI address");
  PciInfo info{};
  if (Return code = api_->pci_info(device, &info); code != kSuccess) return failure(*api_, "a GPU's PCI address", code);
  const size_t length = strnlen(info.id, sizeof info.id);
  if (length >= address.size()) return lacking("a GPU's PCI address");
  std::memcpy(address.data(), info.id, length);
  address[length] = 0;
  return {};
}

Result<bool> Nvml::nvlink_joins(NvmlDevice one, NvmlDevice other) const {
  constexpr unsigned kByNvlink = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
  constexpr unsigned kIsSo = 0;      // NVML_P2P_STATUS_OK
  if (api_->peer_status == nullptr) return lacking("which GPUs NVLink joins");
  unsigned status = 0;
  if (Return code = api_->peer_status(one, other, kByNvlink, &status); code != kSuccess) {
    return failure(*api_, "which GPUs NVLink joins", code);
  }
  return status == kIsSo;
}

Result<NvmlFaults> NvmlFaults::watch(const Nvml& nvml, std::span<const NvmlDevice> gpus) {
  constexpr const char* kWhat = "what goes wrong with a GPU";
  const NvmlApi& api = *nvml.api_;
  if (api.events.create_set == nullptr || api.events.wait == nullptr || api.events.watch == nullptr) return lacking(kWhat);
  void* events = nullptr;
  if (Return code = api.events.create_set(&events); code != kSuccess) return failure(api, kWhat, code);
  NvmlFaults faults(&api, events);
  Return last = kSuccess;
  size_t watched = 0;
  for (NvmlDevice gpu : gpus) {
    const Return code = api.events.watch(gpu, kEventXid, events);
    if (code == kSuccess) ++watched;
    if (code != kSuccess) last = code;
  }
  if (watched == 0) return failure(api, kWhat, last);
  return faults;
}

NvmlFaults::NvmlFaults(NvmlFaults&& other) noexcept : api_(other.api_), events_(other.events_) { other.events_ = nullptr; }

NvmlFaults::~NvmlFaults() {
  if (events_ != nullptr && api_->events.free_set != nullptr) api_->events.free_set(events_);
}

Result<std::optional<NvmlFault>> NvmlFaults::wait(uint32_t timeout_ms) const {
  EventData event{};
  const Return code = api_->events.wait(events_, &event, timeout_ms);
  if (code == kTimeout || (code == kSuccess && event.type != kEventXid)) return std::optional<NvmlFault>();
  if (code != kSuccess) return failure(*api_, "what goes wrong with a GPU", code);
  return std::optional(NvmlFault{event.device, event.data});
}

void format_uuid(std::span<const uint8_t, 16> uuid, std::span<char, kUuidTextBytes> text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::memcpy(text.data(), "GPU-", 4);
  char* out = text.data() + 4;
  for (size_t i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *out++ = '-';
    *out++ = kDigits[uuid[i] >> 4];
    *out++ = kDigits[uuid[i] & 15];
  }
  *out = 0;
}

Result<void> parse_uuid(const char* text, std::span<uint8_t, 16> uuid) {
  const char* in = text;
  for (const char* prefix : {"GPU-", "MIG-"}) {
    if (std::strncmp(in, prefix, 4) == 0) in += 4;
  }
  for (size_t i = 0; i < 16; ++i) {
    if (*in == '-') ++in;
    int high = hex_digit(in[0]);
    int low = high < 0 ? -1 : hex_digit(in[1]);
    if (low < 0) return error_format("'%.60s' is no GPU UUID; accepted: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", text);
    uuid[i] = static_cast<uint8_t>(high << 4 | low);
    in += 2;
  }
  if (*in != 0) return error_format("'%.60s' is no GPU UUID; accepted: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", text);
  return {};
}

}  // namespace nvshare::cuda
